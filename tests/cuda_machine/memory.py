"""The global memory of the machine: one flat address space, and its allocations."""

from bisect import bisect_right

import numpy as np

from cuda_machine.faults import OutOfMemory

# Addresses of global memory begin above 4 GiB, so that an address that was truncated to 32 bits is
# an illegal one.
BASE = 7 << 32
ALIGNMENT = 256
# At least so many bytes between allocations belong to none, so that running over an end is found.
GAP = 256
# Generic addresses of shared memory; global memory lies below. PTX ISA, Generic
# Addressing: a window within the generic address space, whose addresses nobody may count on.
SHARED_WINDOW = 1 << 44


class Memory:
    """Global memory of a device.

    Args:
        size: bytes in total.
        base: the lowest address. Addresses of several devices differ (unified addressing).

    Attributes:
        used: bytes of all allocations together.
        data: all bytes; the byte at an address is `data[address - base]`.
        written: whether a byte was written since its allocation.
    """

    def __init__(self, size, base=BASE):
        # Whole 16-byte vectors, also for the last allocation.
        room = -(-size // ALIGNMENT) * ALIGNMENT + GAP
        self.size, self.base = size, base
        self.used = 0
        self.data = np.zeros(room, np.uint8)
        self.written = np.zeros(room, np.bool_)
        self._begins = []
        self._ends = []

    def allocate(self, size):
        """The address of new memory, aligned to 256 bytes."""
        if size < 0:
            raise ValueError(f"an allocation of {size} bytes")
        if self.used + size > self.size:
            raise OutOfMemory(
                f"{size} bytes asked for, {self.size - self.used} of {self.size} left"
            )
        begin, position = 0, 0
        for position, end in enumerate([*self._begins, len(self.data)]):
            if begin + size + (GAP if position < len(self._begins) else 0) <= end:
                break
            if position < len(self._ends):
                begin = -(-(self._ends[position] + GAP) // ALIGNMENT) * ALIGNMENT
        else:
            # More address space: gaps between allocations are no part of the device's size.
            position, more = len(self._begins), begin + size + GAP - len(self.data)
            more = -(-more // ALIGNMENT) * ALIGNMENT
            self.data = np.concatenate([self.data, np.zeros(more, np.uint8)])
            self.written = np.concatenate([self.written, np.zeros(more, np.bool_)])
        self._begins.insert(position, begin)
        self._ends.insert(position, begin + size)
        self.used += size
        # Memory of a GPU is not cleared: nobody may count on zeros.
        self.data[begin : begin + size] = 0xA5
        self.written[begin : begin + size] = False
        return self.base + begin

    def free(self, address):
        """Gives an allocation back."""
        offset = address - self.base
        if offset not in self._begins:
            raise ValueError(f"no allocation begins at {address:#x}")
        position = self._begins.index(offset)
        self.used -= self._ends[position] - offset
        del self._begins[position], self._ends[position]

    def read(self, address, size):
        """Bytes of one allocation."""
        offset = self._checked(address, size)
        return self.data[offset : offset + size].tobytes()

    def write(self, address, data):
        """Writes to one allocation."""
        values = np.frombuffer(data, np.uint8)
        offset = self._checked(address, len(values))
        self.data[offset : offset + len(values)] = values
        self.written[offset : offset + len(values)] = True

    def copy(self, target, source, size, memory):
        """Copies bytes from a memory, which may be this one; whether they are written, too."""
        to, of = self._checked(target, size), memory._checked(source, size)
        self.data[to : to + size] = memory.data[of : of + size].copy()
        self.written[to : to + size] = memory.written[of : of + size].copy()

    def _checked(self, address, size):
        offset = address - self.base
        begin, end = self.around(offset)
        if size < 0 or offset < begin or offset + size > end:
            raise ValueError(f"{size} bytes at {address:#x} are not within one allocation")
        return offset

    def around(self, offset):
        """The first byte and the end of the allocation that an offset is in; (0, -1) if none."""
        position = bisect_right(self._begins, offset) - 1
        if position < 0 or offset > self._ends[position]:
            return 0, -1
        return self._begins[position], self._ends[position]

    def ends(self, offsets):
        """For each offset the end of the allocation that it is in; -1 if it is in none."""
        if not self._begins:
            return np.full(offsets.shape, -1, np.int64)
        begins, ends = np.array(self._begins, np.int64), np.array(self._ends, np.int64)
        position = np.searchsorted(begins, offsets, "right") - 1
        end = ends[position]
        return np.where((position < 0) | (offsets >= end), -1, end)
