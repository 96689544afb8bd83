"""Memory of one training step: PyTorch eager, Lamina, and a textbook's scheme.

    python benchmarks/memory.py [--workload mlp]... [--batch 128] [--engines cpu interpreter]
    python benchmarks/memory.py --dtype mixed-bfloat16

In mixed precision the tables have Lamina and PyTorch in float32 too, and PyTorch under autocast to
bfloat16.

PyTorch is measured if it is installed: every tensor that it makes on the CPU is followed from
creation to release, and the peak of living bytes is taken over the third training step. Lamina's
plan is its bill. The lines after it are measured: NumPy's memory, followed with tracemalloc over
the third training step, with the model and the engine's batch. The cpu engine has workspaces for
packed operands in addition to the plan. The interpreter computes every step of the program with
NumPy temporaries; that takes long for large networks.

The textbook's scheme is computed, for stacks of linear layers: every layer keeps z and a, two
gradients as wide as the widest layer are alive at once, and every parameter has a gradient.

The second table shows the system's view: the largest resident size of a fresh process that runs
three training steps, and its resident size after its imports. Lamina finds its machine code in its
cache.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import sys
import tempfile
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
from harness import DTYPE, FOLDER, Unavailable, environment, reason, write_data

import lamina as lm
from lamina.base.records import frozen_dataclass
from lamina.layers import Linear
from lamina.reports import bytes_text, table_text
from lamina.step.precision import MIXED
from lamina.workloads import WORKLOADS, Stack, Workload, chosen

# The last training step is measured. The first one makes the optimizer's state.
STEPS = 3
# Functions of peers/pytorch.py that make a training step, and their names in the tables.
PYTORCH = {"make": "eager", "make_autocast": "autocast"}


@frozen_dataclass
class Process:
    """A process that runs training steps.

    Attributes:
        name: in the table.
        module, function: in peers/: the function makes the training step.
        dtype: the precision of Lamina's model.
    """

    name: str
    module: str
    function: str
    dtype: str = "float32"


def processes(dtypes: list[str]) -> list[Process]:
    """PyTorch and Lamina; in mixed precision each in float32 too.

    Args:
        dtypes: the precisions of Lamina's models, float32 first.
    """
    mixed = len(dtypes) > 1
    compared = [Process("PyTorch", "pytorch", "make")]
    if mixed:
        compared.append(Process("PyTorch, autocast", "pytorch", "make_autocast"))
    for dtype in dtypes:
        compared.append(Process(named("Lamina", dtype, mixed), "lamina_peer", "make", dtype))
    return compared


def named(name: str, dtype: str, several: bool) -> str:
    """The name with the dtype, if there are several."""
    return f"{name}, {dtype}" if several else name


def textbook_bytes(workload: Workload) -> int | None:
    """Bytes of the textbook's scheme; None for networks that it does not describe."""
    architecture = workload.architecture
    if not isinstance(architecture, Stack):
        return None
    layers = [layer for layer in architecture.layers if isinstance(layer, Linear)]
    if 2 * len(layers) < len(architecture.layers):
        return None
    widths = [layer.features for layer in layers]
    parameters = 4 * workload.network().parameter_count()
    activations = 2 * sum(widths) * workload.batch * 4
    activation_gradients = 2 * max(widths) * workload.batch * 4
    x, y = workload.data()
    return (
        4 * parameters
        + activations
        + activation_gradients
        + x.nbytes
        + (0 if y is None else y.nbytes)
    )


def asked(script: str, *arguments: str | Path, dtype: str = "float32") -> dict[str, Any]:
    """The output of a script in peers/, run in a fresh process.

    Args:
        script: in peers/.
        arguments: of the script.
        dtype: the precision of Lamina's models.

    Raises:
        Unavailable: if it fails.
    """
    done = subprocess.run(
        [sys.executable, str(FOLDER / script), *map(str, arguments)],
        capture_output=True,
        text=True,
        env=environment(2) | {DTYPE: dtype},
    )
    if done.returncode:
        raise Unavailable(reason(done.stderr))
    return json.loads(done.stdout.splitlines()[-1])


def engine_bytes(workload: Workload, engine: str, dtype: str) -> int:
    """The peak of NumPy's memory over a training step on an engine, with the model."""
    assert workload.loss is not None
    assert workload.optimizer is not None
    # Made before the tracing starts: the engine has its own memory for a batch.
    x, y = workload.data()
    tracemalloc.start()
    model = lm.Model(workload.network(), engine=engine, dtype=dtype)
    training = model.training(
        loss=workload.loss, optimizer=workload.optimizer, batch_size=workload.batch
    )
    for _ in range(STEPS):
        tracemalloc.reset_peak()
        float(training.step(x, y))
    now, peak = tracemalloc.get_traced_memory()
    arrays = tracemalloc.DomainFilter(True, np.lib.tracemalloc_domain)
    living = tracemalloc.take_snapshot().filter_traces([arrays])
    tracemalloc.stop()
    training.release()
    return sum(trace.size for trace in living.traces) + peak - now


def report(workload: Workload, engines: list[str], dtype: str, folder: Path) -> None:
    """Prints both tables, and the bill.

    Args:
        workload: to measure.
        engines: of Lamina's models.
        dtype: of Lamina's models.
        folder: for files of the processes.
    """
    files = folder / "workload.json", folder / "data.npz"
    files[0].write_text(json.dumps(workload.record()))
    write_data(workload, files[1])
    dtypes = list(dict.fromkeys(("float32", dtype)))
    mixed = len(dtypes) > 1
    bills = {
        model_dtype: workload.network().plan(
            workload.batch, workload.loss, workload.optimizer, dtype=model_dtype
        )
        for model_dtype in dtypes
    }
    peaks: list[tuple[str, int]] = []
    problems: list[str] = []
    textbook = textbook_bytes(workload)
    if textbook is not None and not mixed:
        peaks.append(("z and a of every layer, all gradients (counted)", textbook))
    for function, how in list(PYTORCH.items())[: 2 if mixed else 1]:
        try:
            measured = asked("living.py", function, *files)
            peaks.append((f"PyTorch {measured['version']} {how} (measured)", measured["peak"]))
        except Unavailable as problem:
            problems.append(f"PyTorch is unavailable: {problem}")
    for model_dtype, bill in bills.items():
        peaks.append((f"{named('Lamina', model_dtype, mixed)} (planned)", bill.peak_bytes))
        for engine in engines:
            name = f"{named('Lamina', model_dtype, mixed)}, {engine} engine (measured)"
            peaks.append((name, engine_bytes(workload, engine, model_dtype)))
    ours = bills[dtype].peak_bytes
    rows = [(name, bytes_text(size), f"{size / ours:.2f}") for name, size in peaks]
    print(f"\n{workload.name}, {workload.batch} examples\n")
    print(table_text(("scheme", "bytes", "ratio"), rows, align="lrr"))
    sizes: list[tuple[str, ...]] = []
    for process in processes(dtypes):
        script = ("cold.py", process.module, process.function, *files, str(STEPS))
        try:
            # The first one fills the cache of compiled code.
            *_, answer = [asked(*script, dtype=process.dtype) for _ in range(2)]
        except Unavailable as problem:
            problems.append(f"{process.name} has no process: {problem}")
            continue
        imported, peak = answer["imported_bytes"], answer["peak_bytes"]
        sizes.append((process.name, *map(bytes_text, (imported, peak, peak - imported))))
    print()
    print(table_text(("process", "after imports", "largest", "between"), sizes, align="lrrr"))
    for problem in dict.fromkeys(problems):
        print(problem)
    for precision, bill in bills.items():
        print(
            f"\n{named('Lamina', precision, mixed)}: the bill for {workload.batch} examples\n{bill}"
        )


def main() -> None:
    trained = [name for name, workload in WORKLOADS.items() if workload.loss is not None]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--workload", action="append", choices=trained, default=[])
    parser.add_argument("--batch", type=int, help="instead of the workload's")
    parser.add_argument("--engines", nargs="*", default=["cpu"])
    parser.add_argument(
        "--dtype",
        default="float32",
        choices=["float32", *MIXED],
        help="the precision of Lamina's models (default: float32)",
    )
    arguments = parser.parse_args()
    for workload in chosen(arguments.workload or ["mlp", "resnet-18"]):
        sized = dataclasses.replace(workload, batch=arguments.batch or workload.batch)
        with tempfile.TemporaryDirectory() as folder:
            report(sized, arguments.engines, arguments.dtype, Path(folder))


if __name__ == "__main__":
    main()
