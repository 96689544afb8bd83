"""Examples of a data set that does not fit: they are copied to the device while it works."""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

import numpy as np

from lamina.base.shapes import Array
from lamina.engines.gpu.driver import Driver
from lamina.engines.gpu.memory import DeviceMemory, HostBlock


@final
class DeviceStaging:
    """Host arrays, and memories of a device to which they are copied by a second queue.

    Args:
        driver: of the device.
        sizes: in bytes, of each array.

    Raises:
        EngineError: if there is not enough memory.
    """

    def __init__(self, driver: Driver, sizes: Mapping[str, int]) -> None:
        self._driver = driver
        self._blocks: dict[str, HostBlock] = {}
        self.memories: dict[str, DeviceMemory] = {}
        try:
            for name, size in sizes.items():
                self.memories[name] = DeviceMemory(driver, (size,), np.dtype(np.uint8))
                if size:
                    self._blocks[name] = HostBlock(driver, size)
        except BaseException:
            self.release()
            raise

    @property
    def arrays(self) -> Mapping[str, Array]:
        """The bytes of the host arrays; without those of size 0."""
        return {name: block.array for name, block in self._blocks.items()}

    def send(self, sizes: Mapping[str, int]) -> None:
        """Begins to copy the first bytes of the arrays; later runs wait for that on the device.

        Runs that use the memories are done.
        """
        with self._driver.errors("copying examples"):
            queue = self._driver.upload_queue
            self._transfers = [
                queue.send(self.memories[name].buffer, block.array[: sizes[name]])
                for name, block in self._blocks.items()
                if sizes[name]
            ]
            queue.flush()
            self._driver.queue.wait_for(self._transfers)

    def release(self) -> None:
        """Waits for the copies, and releases the memory."""
        blocks, self._blocks, memories, self.memories = self._blocks, {}, self.memories, {}
        try:
            if blocks:
                with self._driver.errors("copying examples"):
                    self._driver.upload_queue.finish()
        finally:
            for one in (*blocks.values(), *memories.values()):
                one.release()
