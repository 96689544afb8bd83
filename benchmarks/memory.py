"""What one training step needs in memory: textbook, PyTorch eager, Lamina.

The network is 784-256-128-10 with ReLU, cross-entropy and Adam, in float32. Run it with

    python benchmarks/memory.py [--batch 128]

The textbook scheme is counted: every layer keeps z and a, two gradients as wide as the widest
layer are alive at once, and every parameter has a gradient. PyTorch is measured, where it is
installed: every tensor it makes on the CPU is followed from creation to release, and the peak of
living bytes is taken over the third step. Lamina's plan is its bill; the last two lines are what
its engines really take: NumPy's memory, followed with tracemalloc over the third step of a
training, model and data included. The cpu engine has workspaces for packed operands beside the
plan, and the interpreter computes every step of the program through NumPy temporaries.
"""

from __future__ import annotations

import argparse
import itertools
import tracemalloc
import weakref
from typing import Any

import numpy as np

import lamina as lm
from lamina.reports import bytes_text, table_text

SIZES = (784, 256, 128, 10)
FLOAT = 4


def parameter_count() -> int:
    return sum((below + 1) * above for below, above in itertools.pairwise(SIZES))


def batch_bytes(batch: int) -> int:
    """Inputs as float32 and labels as int64."""
    return batch * (SIZES[0] * FLOAT + 8)


def textbook_bytes(batch: int) -> int:
    parameters = parameter_count() * FLOAT
    activations = 2 * sum(SIZES[1:]) * batch * FLOAT
    flowing = 2 * max(SIZES[1:]) * batch * FLOAT
    return 4 * parameters + activations + flowing + batch_bytes(batch)


def network() -> lm.Network:
    return lm.Sequential(
        lm.Input(784),
        *(lm.Linear(256), lm.ReLU()),
        *(lm.Linear(128), lm.ReLU()),
        lm.Linear(10),
    )


def lamina_bill(batch: int) -> lm.bill.MemoryBill:
    return network().plan(batch, loss=lm.CrossEntropy(), optimizer=lm.Adam(1e-3))


def torch_bytes(batch: int) -> tuple[str, int] | None:
    """PyTorch's version and its peak, or None where it is not installed."""
    try:
        import torch
        from torch.utils._python_dispatch import TorchDispatchMode
        from torch.utils._pytree import tree_leaves
    except ImportError:
        return None

    class Living(TorchDispatchMode):
        """Adds up the storages that are alive, each once."""

        def __init__(self) -> None:
            super().__init__()
            self.living: dict[int, int] = {}
            self.peak = 0

        def follow(self, tensor: Any) -> None:
            storage = tensor.untyped_storage()
            key = storage._cdata
            if key not in self.living:
                self.living[key] = storage.nbytes()
                weakref.finalize(storage, self.living.pop, key, None)
                self.peak = max(self.peak, sum(self.living.values()))

        def __torch_dispatch__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            result = function(*args, **(kwargs or {}))
            for leaf in tree_leaves(result):
                if isinstance(leaf, torch.Tensor):
                    self.follow(leaf)
            return result

    torch.manual_seed(0)
    below = [
        *(torch.nn.Linear(784, 256), torch.nn.ReLU()),
        *(torch.nn.Linear(256, 128), torch.nn.ReLU()),
        torch.nn.Linear(128, 10),
    ]
    model = torch.nn.Sequential(*below)
    x, y = torch.randn(batch, 784), torch.randint(0, 10, (batch,))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with Living() as counter:
        for tensor in (x, y, *model.parameters()):
            counter.follow(tensor)
        for step in range(3):
            if step == 2:
                counter.peak = sum(counter.living.values())
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    return torch.__version__, counter.peak


def engine_bytes(batch: int, engine: str) -> int:
    """The peak of NumPy's memory over a step on an engine, with all that lives beside it."""
    x = np.zeros((batch, SIZES[0]), "float32")
    y = np.zeros(batch, "int64")
    tracemalloc.start()
    model = lm.Model(network(), engine=engine)
    training = model.training(loss=lm.CrossEntropy(), optimizer=lm.Adam(1e-3), batch_size=batch)
    for _ in range(3):
        tracemalloc.reset_peak()
        float(training.step(x, y))
    now, peak = tracemalloc.get_traced_memory()
    arrays = tracemalloc.DomainFilter(True, np.lib.tracemalloc_domain)
    living = tracemalloc.take_snapshot().filter_traces([arrays])
    tracemalloc.stop()
    return sum(trace.size for trace in living.traces) + peak - now


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=128)
    batch: int = parser.parse_args().batch
    bill = lamina_bill(batch)
    textbook = textbook_bytes(batch)
    found = [("z and a of every layer, all gradients (counted)", textbook)]
    measured = torch_bytes(batch)
    if measured is not None:
        found.append((f"PyTorch {measured[0]} eager (measured)", measured[1]))
    found.append(("Lamina (planned)", bill.peak_bytes))
    for engine in ("cpu", "interpreter"):
        found.append((f"Lamina, {engine} engine (measured)", engine_bytes(batch, engine)))
    rows = [(name, bytes_text(size), f"{size / bill.peak_bytes:.2f}") for name, size in found]
    print(table_text(("scheme", "bytes", "ratio"), rows, align="lrr"))
    print(f"\nLamina's bill for {batch} examples\n{bill}")


if __name__ == "__main__":
    main()
