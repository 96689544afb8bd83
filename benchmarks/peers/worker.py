"""What all workers have in common: they sleep until the harness asks, and answer in JSON lines.

Each framework runs in a process of its own, so that their threads and libraries do not meet. A
worker gets workloads as plain data and the same arrays as all others; only Lamina's own worker
imports Lamina. It answers four commands:

    {"prepare": WORKLOAD, "data": PATH}   builds, compiles, warms up -> {"fingerprint": NUMBER}
    {"reset": NAME}                       back to the initial parameters -> {}
    {"run": NAME, "steps": COUNT}         -> {"seconds": until the last one's end, "cpu_seconds": of
                                              all threads}
    {"mixed": NAME, "steps": COUNT}       the same with a product of PyTorch's in front of each
                                          step -> {"seconds": of the steps alone}

What goes wrong is answered as {"problem": TEXT}.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np

# A workload as the harness writes it: lamina.workloads.Workload, with `kind` for each part's class.
Workload = SimpleNamespace


@dataclass(frozen=True)
class Data:
    """What every peer is given.

    Attributes:
        x, y: inputs and targets; y is None for a forward pass.
        rows: int64 (steps, batch): the examples of each step, where runs are timed.
        parameters: initial values as PyTorch and Lamina have them, weights (out, in).
    """

    x: np.ndarray
    y: np.ndarray | None
    rows: np.ndarray | None
    parameters: list[np.ndarray]


class Peer(Protocol):
    """A framework's side of a workload."""

    def run(self, steps: int) -> None:
        """So many steps; returns when the last one is finished."""
        ...

    def reset(self) -> None:
        """Back to the initial parameters, with a fresh optimizer."""
        ...

    def result(self) -> list[np.ndarray]:
        """The outputs of a forward pass; the parameters of a training."""
        ...


Make = Callable[[Workload, Data], Peer]


def read_workload(text: str) -> Workload:
    return json.loads(text, object_hook=lambda table: SimpleNamespace(**table))


def read_data(path: str) -> Data:
    with np.load(path) as file:
        arrays = dict(file)
    parameters = [array for name, array in arrays.items() if name.startswith("parameter ")]
    return Data(arrays["x"], arrays.get("y"), arrays.get("rows"), parameters)


def threads() -> int:
    """How many the harness allows."""
    return int(os.environ["OMP_NUM_THREADS"])


def fingerprint(workload: Workload, peer: Peer) -> float:
    """A number that peers share if they compute the same: of the outputs, or of what steps change.

    It depends on every gradient and on the optimizer, and not on how a framework lays out its
    parameters or whether its loss includes the penalties.
    """
    if workload.timed == "forward":
        peer.run(1)
        return _norm(peer.result())
    before = peer.result()
    peer.run(workload.compared_steps)
    return _norm([new - old for new, old in zip(peer.result(), before, strict=True)])


def mixed_seconds(peer: Peer, steps: int) -> float:
    """The time of some steps, each of which follows a product that PyTorch's threads share."""
    import torch  # most peers have no need of it

    torch.set_num_threads(os.cpu_count() or 1)
    matrix = torch.full((300, 300), 1e-3)
    seconds = 0.0
    for _ in range(steps):
        torch.mm(matrix, matrix)
        started = time.perf_counter()
        peer.run(1)
        seconds += time.perf_counter() - started
    torch.set_num_threads(threads())
    return seconds


def serve(
    make: Make, versions: dict[str, Any], measured_peak: Callable[[], Any] | None = None
) -> None:
    """Answers commands until standard input ends."""
    # Whatever libraries print must not get between the answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    peers: dict[str, Peer] = {}

    def answer(command: Workload) -> dict[str, Any]:
        if hasattr(command, "prepare"):
            workload = command.prepare
            peer = peers[workload.name] = make(workload, read_data(command.data))
            return {"fingerprint": fingerprint(workload, peer)}
        if hasattr(command, "reset"):
            peers[command.reset].reset()
            return {}
        if hasattr(command, "peak") and measured_peak is not None:
            return measured_peak()
        if hasattr(command, "mixed"):
            return {"seconds": mixed_seconds(peers[command.mixed], command.steps)}
        started, cpu = time.perf_counter(), time.process_time()
        peers[command.run].run(command.steps)
        seconds = time.perf_counter() - started
        return {"seconds": seconds, "cpu_seconds": time.process_time() - cpu}

    answers.write(json.dumps({"versions": versions}) + "\n")
    for line in sys.stdin:
        try:
            found = answer(read_workload(line))
        except Exception as error:
            found = {"problem": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(found) + "\n")


def _norm(arrays: list[np.ndarray]) -> float:
    return float(np.sqrt(sum(np.square(array, dtype="float64").sum() for array in arrays)))
