"""Doubles of cuda.bindings.driver and cuda.bindings.nvrtc, in front of a machine that runs PTX.

    cuda = CudaDouble([DeviceDescription(), DeviceDescription(capability=(9, 0))])
    cuda.driver.cuInit(0)

`cuda.driver` and `cuda.nvrtc` are called as the modules are: each function takes the same arguments
and returns a tuple of the result and the outputs. Enumerations and handles are those of the real
modules. A function that the double does not have is missing, and a call that CUDA's documentation
leaves open raises `OutsideTheDouble`.

Operations of streams run in one of the orders that CUDA allows; `operations.py` says which there
are. A program is right only if it has the same results in all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from cuda.bindings import driver

from cuda_machine.driver_devices import DeviceCalls
from cuda_machine.driver_kernels import KernelCalls
from cuda_machine.driver_state import Context, Device, DeviceDescription
from cuda_machine.driver_streams import StreamCalls
from cuda_machine.machine import Machine
from cuda_machine.memory import BASE, Memory
from cuda_machine.nvrtc_double import NvrtcDouble
from cuda_machine.operations import Order

if TYPE_CHECKING:
    from cuda_machine.cublaslt_double import CublasLtDouble

LATE = Order("late")
# Between the lowest addresses of two devices.
ADDRESSES = 1 << 40
# The order of a grid's blocks; in the random order of operations it is random too.
BLOCKS = {"early": "ascending", "late": "descending"}


class DriverDouble(DeviceCalls, KernelCalls, StreamCalls):
    """Has the functions of its base classes, and all classes and numbers of the real module."""

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("CU"):
            raise AttributeError(f"the double of cuda.bindings.driver has no {name}")
        return getattr(driver, name)


class CudaDouble:
    """A process with CUDA devices; `driver` and `nvrtc` stand for the modules.

    Args:
        devices: of the process.
        order: in which their operations are done.
        assembles: whether kernels are also compiled to real binaries, which are not run.
        counts: counts calls of the driver, by name, and compilations.
    """

    def __init__(
        self,
        devices: Sequence[DeviceDescription] = (DeviceDescription(),),
        order: Order = LATE,
        *,
        assembles: bool = True,
        counts: Counter[str] | None = None,
    ) -> None:
        made: list[Device] = []
        for ordinal, description in enumerate(devices):
            memory = Memory(description.memory, BASE + ordinal * ADDRESSES)
            machine = Machine(memory, BLOCKS.get(order.kind, order.seed))
            made.append(Device(ordinal, description, memory, machine))
        counts = Counter() if counts is None else counts
        self.driver = DriverDouble(made, order, counts)
        self.nvrtc = NvrtcDouble(counts, assembles=assembles)

    @cached_property
    def cublaslt(self) -> CublasLtDouble:
        """Stands for the library cuBLASLt."""
        from cuda_machine.cublaslt_double import CublasLtDouble

        return CublasLtDouble(self.driver)

    @property
    def faults(self) -> list[Exception]:
        return self.driver.faults

    def recover(self) -> list[Exception]:
        """Make failed devices usable again, as a new process would; return what went wrong."""
        faults, self.driver.faults = self.driver.faults, []
        for device in self.driver.devices:
            if device.error and device.primary is not None:
                # What the device had still to do is lost.
                self.driver.scheduler.drop(device.primary)
            device.error = ""
        return faults

    def leaks(self) -> list[str]:
        """What is still alive, one line each: allocations, and handles of every kind."""
        state = self.driver
        found = [
            f"{one.size} bytes on device {one.context.device.ordinal}"
            for one in state.allocations.values()
        ]
        found += [f"{one.size} bytes of page-locked memory" for one in state.pinned.values()]
        for thing in state.handles.values():
            if isinstance(thing, Context):
                device = thing.device
                found.append(f"context of device {device.ordinal}")
            else:
                found.append(f"{type(thing).__name__} {thing.handle:#x}")
        return found
