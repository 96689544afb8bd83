"""Records the results that golden tests compare with. Run from the root of the checkout:

    python tests/golden/record.py trajectories    # needs PyTorch; after a change of `cases.py`
    python tests/golden/record.py mixed           # needs PyTorch; after a change of `mixed.py`
    python tests/golden/record.py losses          # needs PyTorch; after a change of their table
    python tests/golden/record.py texts           # after an intended change of the compiler
    python tests/golden/record.py workloads       # the same, or of the machine code

Read the difference (`git diff tests/golden`) before it is committed: it is the proof that a
refactoring changed nothing, or shows the effect of an improvement.
"""

import json
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit/learning"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "conformance"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from cases import CASES, RECORDED, torch_trajectory
from mixed import RECIPES, SEEDS, torch_deviation
from mixed import RECORDED as DEVIATIONS
from test_losses_torch import RECORDED as LOSSES
from test_losses_torch import recorded
from texts import FOLDER, TEXTS
from workloads import BITS, FIGURES, SCHEDULES, VECTORS, WORKLOADS, bits, figures, schedules


def record_trajectories() -> None:
    """Writes the losses and final parameters of all cases, computed by PyTorch."""
    arrays: dict[str, np.ndarray] = {}
    for case in CASES:
        trajectory = torch_trajectory(case)
        arrays[f"{case}/losses"] = trajectory.losses
        arrays[f"{case}/parameters"] = trajectory.parameters
    np.savez_compressed(RECORDED, **arrays)
    print(f"{RECORDED}: {len(CASES)} cases, {RECORDED.stat().st_size} bytes")


def record_mixed() -> None:
    """Writes the deviations of PyTorch's trainings in mixed precision."""
    rows: list[str] = []
    for name in RECIPES:
        deviations = [torch_deviation(name, seed) for seed in range(SEEDS)]
        columns = {
            kind: [float(f"{getattr(deviation, kind):.3g}") for deviation in deviations]
            for kind in ("losses", "parameters")
        }
        rows.append(f"  {json.dumps(name)}: {json.dumps(columns)}")
    DEVIATIONS.write_text("{\n" + ",\n".join(rows) + "\n}\n")
    print(DEVIATIONS)


def record_losses() -> None:
    """Writes values and lengths of gradients of PyTorch's losses."""
    rows = [f"  {json.dumps(name)}: {json.dumps(one)}" for name, one in recorded().items()]
    LOSSES.write_text("{\n" + ",\n".join(rows) + "\n}\n")
    print(LOSSES)


def record_texts() -> None:
    """Writes the printed graphs and programs."""
    for name, text in TEXTS.items():
        (FOLDER / name).write_text(text() + "\n")
        print(FOLDER / name)


def record_workloads() -> None:
    """Writes costs and schedules of the workloads' programs, and the bits of their results.

    The processor needs all the vectors of `VECTORS`.
    """
    FIGURES.write_text("".join(f"{figures(w)}\n" for w in WORKLOADS))
    SCHEDULES.write_text("\n\n".join(schedules(w) for w in WORKLOADS) + "\n")
    BITS.write_text("".join(f"{bits(w, v)}\n" for w in WORKLOADS for v in VECTORS))
    print(FIGURES, SCHEDULES, BITS, sep="\n")


if __name__ == "__main__":
    kinds = {
        name.removeprefix("record_"): record
        for name, record in [*globals().items()]
        if name.startswith("record_")
    }
    if sys.argv[1:] and set(sys.argv[1:]) <= kinds.keys():
        for kind in sys.argv[1:]:
            kinds[kind]()
    else:
        print(__doc__)
