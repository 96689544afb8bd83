"""Code that all workers share: they sleep until the harness sends a command in a JSON line.

Each framework runs in its own process, so that threads and libraries are not shared. A worker
gets workloads as plain data and the same arrays as all others. Only Lamina's worker imports Lamina.
It answers seven commands in JSON lines:

    {"prepare": WORKLOAD, "data": PATH}   builds, compiles, warms up -> {"fingerprint": NUMBER,
                                              "ready_seconds": NUMBER, and what the peer notes}
    {"reset": NAME}                       back to the initial parameters -> {}
    {"run": NAME, "steps": COUNT}         -> {"seconds": until the last one is finished,
                                              "cpu_seconds": of all threads}
    {"mixed": NAME, "steps": COUNT}       the same; PyTorch computes a product before each one
                                          -> {"seconds": without the products}
    {"resident": NAME, "steps": COUNT}    the peers of gpu.py: on inputs that stay on the device
                                          -> {"seconds": until the last one is finished}
    {"release": NAME}                     -> {}
    {"peak": true}                        Lamina's worker: the processor's measured peaks
                                          -> {"gflops": NUMBER, ...}

"steps" are training steps, or forward passes if the workload times them. The answer to a command
that fails is {"problem": TEXT}.
"""

from __future__ import annotations

import json
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np

# A workload as the harness writes it: lamina.workloads.Workload, with the class of each record as
# `kind`.
Workload = SimpleNamespace


@dataclass(frozen=True)
class Data:
    """The arrays that every peer gets.

    Attributes:
        x, y: inputs and targets; y is None for a forward pass.
        rows: int64 (training steps, batch): the examples of each batch, if runs are timed.
        parameters: initial values, laid out as in PyTorch and Lamina: weights are (out, in).
            Those of a population, and rows, have a first axis of members.
    """

    x: np.ndarray
    y: np.ndarray | None
    rows: np.ndarray | None
    parameters: list[np.ndarray]


class Peer(Protocol):
    """A framework's side of a workload."""

    def run(self, steps: int) -> None:
        """Runs so many training steps or forward passes; returns when the last is finished."""
        ...

    def reset(self) -> None:
        """Restores the initial parameters, with a fresh optimizer."""
        ...

    def result(self) -> list[np.ndarray]:
        """The outputs of a forward pass; the parameters of a training."""
        ...


class ResidentPeer(ABC):
    """The base of peers that are called on one batch, `_resident`, that stays on the device."""

    _resident: tuple[Any, Any]

    @abstractmethod
    def _call(self, x: Any, y: Any) -> None: ...

    @abstractmethod
    def _wait(self) -> None: ...

    def resident_seconds(self, steps: int) -> float:
        """Seconds of repeated calls."""
        self._wait()
        started = time.perf_counter()
        for _ in range(steps):
            self._call(*self._resident)
        self._wait()
        return time.perf_counter() - started


Make = Callable[[Workload, Data], Peer]


def read_workload(text: str) -> Workload:
    return json.loads(text, object_hook=lambda table: SimpleNamespace(**table))


def read_data(path: str) -> Data:
    with np.load(path) as file:
        arrays = dict(file)
    parameters = [array for name, array in arrays.items() if name.startswith("parameter ")]
    return Data(arrays["x"], arrays.get("y"), arrays.get("rows"), parameters)


def threads() -> int:
    """The number of threads that the harness allows."""
    return int(os.environ["OMP_NUM_THREADS"])


def fingerprint(workload: Workload, peer: Peer) -> float:
    """A number that is equal for peers that compute the same.

    It is the norm of the outputs of a forward pass, or of the change of the parameters in some
    training steps. It depends on every gradient and on the optimizer. It does not depend on the
    layout of the parameters, or on whether the loss includes the penalties.
    """
    if workload.loss is None:
        peer.run(1)
        return _norm(peer.result())
    before = peer.result()
    peer.run(workload.compared_steps)
    return _norm([new - old for new, old in zip(peer.result(), before, strict=True)])


def mixed_seconds(peer: Peer, steps: int) -> float:
    """The time of so many training steps; before each, PyTorch's threads compute a product."""
    import torch  # most peers do not need it

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
    # Output that libraries print goes to standard error, so that it does not mix with answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    peers: dict[str, Peer] = {}

    def answer(command: Workload) -> dict[str, Any]:
        if hasattr(command, "prepare"):
            workload = command.prepare
            data, started = read_data(command.data), time.perf_counter()
            peer = peers[workload.name] = make(workload, data)
            reply = {"fingerprint": fingerprint(workload, peer)}
            reply["ready_seconds"] = time.perf_counter() - started
            return reply | getattr(peer, "notes", dict)()
        if hasattr(command, "release"):
            getattr(peers.pop(command.release), "release", lambda: None)()
            return {}
        if hasattr(command, "resident"):
            return {"seconds": peers[command.resident].resident_seconds(command.steps)}
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
            reply = answer(read_workload(line))
        except Exception as error:
            reply = {"problem": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(reply) + "\n")


def _norm(arrays: list[np.ndarray]) -> float:
    return float(np.sqrt(sum(np.square(array, dtype="float64").sum() for array in arrays)))
