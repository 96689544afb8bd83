"""Bytes of PyTorch's living tensors: `python living.py FUNCTION WORKLOAD.json DATA.npz`.

FUNCTION is the function of pytorch.py that makes the training step: make or make_autocast.

Every tensor that PyTorch makes on the CPU is followed from its creation to its release. Prints, as
JSON, PyTorch's version and the peak of living bytes over the third training step, including
parameters, optimizer state, inputs and targets.
"""

from __future__ import annotations

import json
import sys
import weakref
from pathlib import Path
from typing import Any

import pytorch
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from worker import read_data, read_workload


class Living(TorchDispatchMode):
    """Adds up the bytes of the storages that are alive, each once."""

    def __init__(self) -> None:
        super().__init__()
        self.living: dict[int, int] = {}
        self.total = self.peak = 0

    def follow(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self.living:
            self.living[key] = storage.nbytes()
            self.total += storage.nbytes()
            self.peak = max(self.peak, self.total)
            weakref.finalize(storage, self.forget, key)

    def forget(self, key: int) -> None:
        self.total -= self.living.pop(key)

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        # Operands include tensors made before the mode: parameters, buffers, inputs, targets.
        for leaf in tree_leaves((args, kwargs)):
            if isinstance(leaf, torch.Tensor):
                self.follow(leaf)
        result = function(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self.follow(leaf)
        return result


def main() -> None:
    function, workload_file, data_file = sys.argv[1:]
    workload = read_workload(Path(workload_file).read_text())
    peer = getattr(pytorch, function)(workload, read_data(data_file))
    with Living() as counter:
        for _ in range(3):
            counter.peak = counter.total
            peer.run(1)
    print(json.dumps({"version": torch.__version__, "peak": counter.peak}))


if __name__ == "__main__":
    main()
