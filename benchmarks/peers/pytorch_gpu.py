"""PyTorch's worker on a GPU: `python pytorch_gpu.py eager`, or words with points between them.

`compile` compiles the network and the loss by torch.compile, in the mode that a further word names,
`autocast` is mixed precision, as in pytorch.py, and `graph` makes each call one CUDA graph:
`autocast.compile.graph` is all of them.

pytorch.py has the networks, losses and optimizers. A training step copies its batch from pinned
memory of the computer, as a DataLoader with `pin_memory` does; a forward pass copies its outputs
back too. cuDNN measures its algorithms (`torch.backends.cudnn.benchmark`). TF32 is off unless the
harness allows it.

With the device `cpu` the same code runs on the processor. That measures nothing.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from gpu_device import CPU, device_number, takes_tf32, wanted_device
from pytorch import PyTorch
from worker import Data, Make, Workload, serve

# The largest of three products of square matrices of this width gives the rate of products.
PRODUCT_WIDTH, PRODUCT_RUNS = 8192, 10
# Calls before a capture, as in PyTorch's documentation.
WARM_UPS = 3
# The modes of torch.compile that words name.
MODES = ("reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


class PyTorchOnDevice(PyTorch):
    """A workload on a GPU, with its data in the computer's memory and on the device.

    Args:
        workload, data, compiled, mode, mixed: as in pytorch.py.
        device: `cuda:0`, or `cpu`.
    """

    def __init__(self, workload: Workload, data: Data, *, device: str, **options: Any) -> None:
        self._device = torch.device(device)
        self._before = 0
        if self._device.type == "cuda":
            self._before = torch.cuda.memory_allocated(self._device)
            torch.cuda.reset_peak_memory_stats(self._device)
        # Tensor cores multiply operands with channels last.
        on_tensor_cores = takes_tf32() or options.get("mixed", False)
        super().__init__(workload, data, device=device, channels_last=on_tensor_cores, **options)
        # x has its layout on the device.
        self._host_x = self._pinned(self._x)
        self._host_y = None if workload.loss is None else self._pinned(self._y)
        self._resident = (self._x, None if workload.loss is None else self._y)
        if workload.timed == "run":
            rows = self._rows[0]
            self._resident = (self._x[rows], self._y[rows])

    def _pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        host = tensor.cpu()
        return host.pin_memory() if self._device.type == "cuda" else host

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def run(self, steps: int) -> None:
        """Whole calls: each copies its batch, but a run has its data on the device."""
        if self._workload.timed == "run":
            super().run(steps)
        else:
            for _ in range(steps):
                loss = self._call()
            if loss is not None:
                loss.item()
        self._wait()

    def _call(self) -> torch.Tensor | None:
        x = self._host_x.to(self._device, non_blocking=True)
        if self._host_y is not None:
            return self._step(x, self._host_y.to(self._device, non_blocking=True))
        with torch.inference_mode(), self._autocast:
            self._outputs = self._forward(x)
        self._outputs.cpu()
        return None

    def resident_seconds(self, steps: int) -> float:
        """Seconds of repeated calls on one batch that stays on the device."""
        x, y = self._resident
        self._wait()
        started = time.perf_counter()
        if y is not None:
            for _ in range(steps):
                self._step(x, y)
        else:
            with torch.inference_mode(), self._autocast:
                for _ in range(steps):
                    self._outputs = self._forward(x)
        self._wait()
        return time.perf_counter() - started

    def notes(self) -> dict[str, Any]:
        """The most bytes that the workload's tensors took at one time on the GPU."""
        if self._device.type != "cuda":
            return {}
        return {"bytes": torch.cuda.max_memory_allocated(self._device) - self._before}

    def release(self) -> None:
        """Gives the memory that PyTorch keeps back to the device, for the other peers."""
        self.__dict__.clear()
        # Tensors in cycles would count as memory of the next workload.
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


class GraphedOnDevice(PyTorchOnDevice):
    """The same workload, with each call as one CUDA graph: the strongest PyTorch on a GPU.

    Inputs are copied to tensors that the graph reads. Optimizers are fused: one kernel updates all
    parameters of a group. `reset` keeps the state of the optimizer, because the graph has its
    addresses, and fills it with zeros: that is what it begins with.
    """

    def __init__(self, workload: Workload, data: Data, *, mixed: bool, **options: Any) -> None:
        super().__init__(workload, data, mixed=mixed, **options)
        # A cache would keep the 16-bit weights as they were at the capture.
        self._autocast = torch.autocast(
            self._device.type, torch.bfloat16, enabled=mixed, cache_enabled=False
        )
        self._static = tuple(tensor.clone() for tensor in self._resident if tensor is not None)
        if workload.optimizer is not None:
            for group in self._optimizer.param_groups:
                group |= {name: True for name in ("fused", "capturable") if name in group}
        self._replay = captured(self._captured_call, self._without_gradients, self._device)
        self.reset()

    def _captured_call(self) -> None:
        if self._workload.loss is not None:
            self._last = self._step(*self._static)
            return
        with torch.inference_mode(), self._autocast:
            self._outputs = self._forward(*self._static)

    def _without_gradients(self) -> None:
        """The capture then allocates the gradients in the memory of the graph."""
        if self._workload.optimizer is not None:
            self._optimizer.zero_grad(set_to_none=True)

    def run(self, steps: int) -> None:
        if self._workload.timed != "run":
            super().run(steps)
            return
        for rows in self._rows[:steps]:
            for source, static in zip((self._x, self._y), self._static, strict=True):
                torch.index_select(source, 0, rows, out=static)
            self._replay()
        self._last.item()
        self._wait()

    def _call(self) -> torch.Tensor | None:
        self._take(self._host_x, self._host_y)
        self._replay()
        if self._workload.loss is not None:
            return self._last
        self._outputs.cpu()
        return None

    def _take(self, *inputs: torch.Tensor | None) -> None:
        tensors = [tensor for tensor in inputs if tensor is not None]
        for static, tensor in zip(self._static, tensors, strict=True):
            static.copy_(tensor, non_blocking=True)

    def resident_seconds(self, steps: int) -> float:
        self._take(*self._resident)
        self._wait()
        started = time.perf_counter()
        for _ in range(steps):
            self._replay()
        self._wait()
        return time.perf_counter() - started

    def reset(self) -> None:
        self._model.load_state_dict(self._first)
        if self._workload.optimizer is not None:
            for state in self._optimizer.state.values():
                for value in state.values():
                    if isinstance(value, torch.Tensor):
                        value.zero_()


def captured(
    call: Callable[[], None], begin: Callable[[], None], device: torch.device
) -> Callable[[], None]:
    """A function that repeats what the call did on the device: the replay of a CUDA graph.

    The call runs some times before, so that cuDNN has measured its algorithms, kernels are compiled
    and loaded, and the optimizer has allocated its state. A processor has no CUDA graphs: there the
    function is the call.

    Args:
        call: without synchronization; all its tensors keep their addresses.
        begin: run right before the capture.
    """
    if device.type == CPU:
        for _ in range(WARM_UPS):
            call()
        begin()
        return call
    stream, graph = torch.cuda.Stream(device), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for _ in range(WARM_UPS):
            call()
    torch.cuda.current_stream(device).wait_stream(stream)
    begin()
    try:
        with torch.cuda.graph(graph, stream=stream):
            call()
    except RuntimeError as error:
        # The end of a capture that failed raises an error of its own. The first one has the reason.
        raise error.__context__ or error from None
    return graph.replay


def product_rate(device: str, mixed: bool) -> dict[str, Any]:
    """The rate of a large product of matrices, the work that GPUs do best."""
    dtype = torch.bfloat16 if mixed else torch.float32
    width = PRODUCT_WIDTH if device != CPU else 64
    # GPUs are slower on random numbers than on equal ones, which take less power.
    matrix = torch.randn((width, width), dtype=dtype, device=device)

    def seconds() -> float:
        started = time.perf_counter()
        for _ in range(PRODUCT_RUNS):
            result = matrix @ matrix
        # Reading an element waits for the products.
        result[0, 0].item()
        return time.perf_counter() - started

    seconds()
    best = min(seconds() for _ in range(3))
    return {"gflops": 2 * width**3 * PRODUCT_RUNS / best / 1e9, "width": width}


def chosen_device(device: str) -> str:
    """PyTorch's name of the device.

    Raises:
        SystemExit: with the reason, if PyTorch cannot use it.
    """
    if device == CPU:
        return CPU
    if not torch.cuda.is_available():
        raise SystemExit(f"absent: PyTorch {torch.__version__} finds no GPU that it can use")
    count = torch.cuda.device_count()
    names = [torch.cuda.get_device_name(number) for number in range(count)]
    return f"cuda:{device_number(device, names)}"


def versions(device: str, graphed: bool = False) -> dict[str, Any]:
    record: dict[str, Any] = {"torch": torch.__version__, "python": sys.version.split()[0]}
    if graphed:
        none = "none: a processor has no CUDA graphs, each replay is a call"
        record["graphs"] = none if device == CPU else "one for each call, fused optimizers"
    if device == CPU:
        return record | {"device": "the processor, as a stand-in"}
    properties = torch.cuda.get_device_properties(device)
    return record | {
        "device": properties.name,
        "compute capability": f"{properties.major}.{properties.minor}",
        "CUDA": torch.version.cuda or f"HIP {torch.version.hip}",
        "cuDNN": torch.backends.cudnn.version(),
        "cuDNN benchmark": torch.backends.cudnn.benchmark,
        "TF32": takes_tf32(),
    }


def main() -> None:
    words = sys.argv[1].split(".")
    compiled, mixed, graphed = (word in words for word in ("compile", "autocast", "graph"))
    mode = next((word for word in words if word in MODES), None)
    device = chosen_device(wanted_device())
    if device != CPU:
        torch.cuda.set_device(device)
    torch.backends.cudnn.benchmark = True
    # By default PyTorch rounds convolutions to TF32, but not other products.
    torch.backends.cudnn.allow_tf32 = takes_tf32()
    torch.set_float32_matmul_precision("high" if takes_tf32() else "highest")

    peer = GraphedOnDevice if graphed else PyTorchOnDevice

    def make(workload: Workload, data: Data) -> PyTorchOnDevice:
        how = {"compiled": compiled, "mode": mode, "mixed": mixed, "device": device}
        return peer(workload, data, **how)

    makes: Make = make
    serve(makes, versions(device, graphed), lambda: product_rate(device, mixed))


if __name__ == "__main__":
    main()
