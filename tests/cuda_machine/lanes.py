"""The lanes of some blocks that run together: their registers and their memories.

Generated code calls the methods of `Lanes` for everything that is not arithmetic. A method takes
values of the lanes `idx` (None for all lanes), in ascending order. Addresses are int64, within
their space; global addresses are addresses of `Memory`.
"""

from dataclasses import dataclass

import numpy as np

from cuda_machine.faults import Fault, Index
from cuda_machine.groups import Copies, Products
from cuda_machine.memory import Memory
from cuda_machine.program import Program
from cuda_machine.shadow import Shadow, tags_of


@dataclass(frozen=True)
class Launch:
    """What all blocks of a launch have in common.

    Attributes:
        shared_bytes: of a block.
        global_shadow: the accesses of global memory in this launch.
        is_early: whether earlier kernels end only when a thread waits for them.
    """

    program: Program
    grid: Index
    block: Index
    memory: Memory
    parameters: bytes
    shared_bytes: int
    global_shadow: Shadow
    is_early: bool

    @property
    def threads(self):
        return self.block[0] * self.block[1] * self.block[2]


def index_of(number, extents):
    x, y, _ = extents
    return number % x, number // x % y, number // (x * y)


def _parts(offsets, size, shift=0):
    """The positions of accesses, part after part; a part has a power of two of bytes."""
    positions = offsets >> shift if shift else offsets
    for number in range(max(1, size >> shift)):
        yield positions + number if number else positions


class Lanes:
    """The lanes of blocks that run together; generated code calls these methods.

    Args:
        launch: what all blocks have in common.
        blocks: their linear numbers.

    Attributes:
        count: of lanes. Lane `i` is thread `i % threads` of block `i // threads`.
        live: the threads of each block that have not exited.
        exited: whether a lane has exited.
        exits: how often some lanes have exited.
        copies: asynchronous copies that have not arrived.
        products: of warpgroups that have not ended.
        waited: whether a lane has waited for earlier kernels.
        line: of the present instruction, for faults.
    """

    line = 0

    def __init__(self, launch, blocks):
        self.launch, self.blocks = launch, blocks
        self.threads = launch.threads
        self.count = len(blocks) * self.threads
        self.live = np.full(len(blocks), self.threads, np.int64)
        self.exited = np.zeros(self.count, np.bool_)
        self.exits = 0
        self.waited = np.full(self.count, not launch.is_early, np.bool_)
        self._set_specials()
        self.copies = Copies(self)
        self.products = Products(self)
        self._set_memories()

    def _set_specials(self):
        launch, blocks = self.launch, self.blocks
        thread = np.tile(np.arange(self.threads, dtype=np.int64), len(blocks))
        self.thread_of_lane = thread
        self.block_of_lane = np.repeat(np.arange(len(blocks), dtype=np.int64), self.threads)
        self.laneid = (thread & 31).astype(np.uint32)
        self.warps = -(-self.threads // 32)
        self.warp_of_lane = self.block_of_lane * self.warps + (thread >> 5)
        block = np.repeat(blocks, self.threads)
        for name, numbers, extents in (
            ("tid", thread, launch.block),
            ("ctaid", block, launch.grid),
        ):
            for axis, value, extent in zip("xyz", index_of(numbers, extents), extents, strict=True):
                setattr(self, f"{name}_{axis}", np.asarray(value).astype(np.uint32))
                setattr(self, f"n{name}_{axis}", np.uint32(extent))

    def fault(self, what, lane=None):
        """Raises a fault of a lane."""
        launch = self.launch
        block = thread = None
        if lane is not None:
            block = index_of(int(self.blocks[lane // self.threads]), launch.grid)
            thread = index_of(lane % self.threads, launch.block)
        name, text = launch.program.kernel.name, launch.program.lines.get(self.line, "")
        raise Fault(what, kernel=name, line=self.line, text=text, block=block, thread=thread)

    def fault_where(self, what, bad, idx):
        """Raises a fault of the first lane where `bad` is true."""
        number = int(np.argmax(bad))
        self.fault(what, number if idx is None else int(idx[number]))

    def in_warps(self, lanes):
        """For each warp, how many of these lanes are in it."""
        count = self.warps * len(self.blocks)
        return np.bincount(self.warp_of_lane[lanes], minlength=count)

    def _set_memories(self):
        launch = self.launch
        data = launch.memory.data
        self._global = {
            size: data[: len(data) // size * size].view(f"u{size}") for size in (1, 2, 4, 8)
        }
        self._ranges = {}
        # Rows of a multiple of 16 bytes, so that aligned vectors are aligned in the whole array.
        self._stride = -(-launch.shared_bytes // 16) * 16
        shared = np.zeros(self._stride * len(self.blocks), np.uint8)
        self._shared = {size: shared.view(f"u{size}") for size in (1, 2, 4, 8)}
        self._shared_base = self.block_of_lane * self._stride
        granule = launch.program.granules["shared"]
        self._shift = granule.bit_length() - 1
        self._shared_written = np.zeros(len(shared) >> self._shift, np.bool_)
        self._shared_full = False
        # Who wrote what products of warpgroups do not see, a lane counted from 1; 0 if they do, -1
        # if they do so after the next barrier.
        is_hidden = launch.program.by_warpgroups
        self._hidden = np.zeros(len(self._shared_written) * is_hidden, np.int32)
        # False where asynchronous copies have not arrived.
        self._arrived = None
        self.epochs = np.zeros(len(self.blocks), np.int64)
        self._shared_shadow = Shadow(len(shared), granule, across=False)
        self.retag()

    def retag(self):
        """Tags the lanes with the present epochs."""
        blocks = self.block_of_lane
        self._tags = tags_of(self.blocks[blocks], self.epochs[blocks], self.thread_of_lane)

    def _race(self, race, space):
        if race is None:
            return
        launch = self.launch

        def told(access):
            who = "several threads"
            if access.thread is not None:
                who = f"thread {index_of(access.thread, launch.block)}"
            where = f"block {index_of(access.block, launch.grid)}, line {access.line}"
            return f"{who} of {where}: {launch.program.lines.get(access.line)}"

        first, second, at = race
        base = launch.memory.base
        where = f"{base + at:#x}" if space == "global" else f"{at % max(self._stride, 1):#x}"
        raise Fault(
            f"a race in {space} memory at {where}: {told(first)}; and {told(second)}; no barrier "
            "is between them",
            kernel=launch.program.kernel.name,
        )

    # Earlier kernels

    def wait_for_earlier_kernels(self, idx):
        """These lanes wait until all kernels before this one have ended."""
        self.waited[slice(None) if idx is None else idx] = True

    def require_wait(self, what, idx):
        """Refuses something that lanes do before they have waited."""
        waited = self.waited if idx is None else self.waited[idx]
        if not waited.all():
            self.fault_where(f"{what} before griddepcontrol.wait", ~waited, idx)

    # Addresses

    def check_alignment(self, addresses, size, idx, space):
        """Addresses of accesses are multiples of their size."""
        # Asynchronous copies check the alignment of their whole size.
        if size & (size - 1):
            return
        if size > 1 and int(np.bitwise_or.reduce(addresses)) & (size - 1):
            what = f"a misaligned address: {size} bytes of {space} memory at {{:#x}}"
            self._refuse(what, addresses, (addresses & (size - 1)) != 0, idx)

    def _global_offsets(self, addresses, size, idx):
        """The offsets in the memory's bytes of legal addresses."""
        offsets = addresses - self.launch.memory.base
        self.check_alignment(offsets, size, idx, "global")
        low, high = int(offsets.min()), int(offsets.max()) + size
        begin, end = self._ranges.get(self.line, (0, -1))
        if low < begin or high > end:
            begin, end = self._ranges[self.line] = self.launch.memory.around(low)
            if low < begin or high > end:
                self._allocations(offsets, size, idx)
        return offsets

    def _allocations(self, offsets, size, idx):
        memory = self.launch.memory
        ends = memory.ends(offsets)
        # Null pointers, and addresses of other devices, may be below the first address.
        bad = (offsets < 0) | (ends < 0) | (offsets + size > ends)
        what = f"an illegal address: {size} bytes of global memory at {{:#x}} are not within one "
        self._refuse(f"{what}allocation", offsets + memory.base, bad, idx)

    def _refuse(self, what, addresses, bad, idx):
        """Raises a fault of the first bad address, if there is one."""
        if bad.any():
            self.fault_where(what.format(int(addresses[np.argmax(bad)])), bad, idx)

    def shared_offsets(self, addresses, size, idx):
        """The offsets in the shared memory of all blocks of legal addresses."""
        end = self.launch.shared_bytes
        self.check_alignment(addresses, size, idx, "shared")
        bad = (addresses < 0) | (addresses + size > end)
        what = f"an illegal address: {size} bytes of shared memory at {{:#x}}, of {end}"
        self._refuse(what, addresses, bad, idx)
        return addresses + (self._shared_base if idx is None else self._shared_base[idx])

    # Accesses

    def load(self, space, addresses, bits, count, idx):
        """`count` neighbouring elements of each lane, as unsigned bits."""
        size = bits // 8
        offsets, data = self.readable(space, addresses, size * count, idx)
        positions = offsets // size if size > 1 else offsets
        elements = data[size]
        return [elements[positions + number if number else positions] for number in range(count)]

    def parameter(self, offset, dtype):
        """A value among the parameters."""
        return np.frombuffer(self.launch.parameters, dtype, 1, offset)[0]

    def readable(self, space, addresses, size, idx):
        """Checks a read."""
        if space == "shared":
            offsets = self.shared_offsets(addresses, size, idx)
            if not self._shared_full:
                parts, what = _parts(offsets, size, self._shift), "a read of shared memory"
                self._need(self._shared_written, f"{what} that is not written", parts, idx)
            self._note("shared", offsets, size, idx, writes=False)
            return offsets, self._shared
        offsets = self._global_offsets(addresses, size, idx)
        if space == "global":
            self.require_wait("a read of global memory", idx)
            self._note("global", offsets, size, idx, writes=False)
        what, written = "a read of global memory that is not written", self.launch.memory.written
        self._need(written, what, _parts(offsets, size), idx)
        return offsets, self._global

    def store(self, space, addresses, values, idx):
        size = values[0].itemsize
        offsets, data = self.writable(space, addresses, size * len(values), idx)
        positions = offsets // size if size > 1 else offsets
        elements = data[size]
        for number, value in enumerate(values):
            elements[positions + number if number else positions] = value

    def writable(self, space, addresses, size, idx):
        """Checks a write, and notes that it is written."""
        if space == "shared":
            offsets = self.shared_offsets(addresses, size, idx)
            self._note("shared", offsets, size, idx, writes=True)
            if self._arrived is not None:
                what = "a write to shared memory where an asynchronous copy has not arrived"
                self._need(self._arrived, what, _parts(offsets, size, self._shift), idx)
            if not self._shared_full:
                self.mark_shared(offsets, size)
            if self.launch.program.by_warpgroups:
                for at in _parts(offsets, size, self._shift):
                    self._hidden[at] = 1 + (np.arange(self.count) if idx is None else idx)
            return offsets, self._shared
        offsets = self._global_offsets(addresses, size, idx)
        self.require_wait("a write to global memory", idx)
        self._note("global", offsets, size, idx, writes=True)
        for at in _parts(offsets, size):
            self.launch.memory.written[at] = True
        return offsets, self._global

    def _need(self, flags, what, parts, idx):
        """Raises a fault where something is not so for all parts of an access."""
        for at in parts:
            if not flags[at].all():
                self.fault_where(what, ~flags[at], idx)

    def mark_shared(self, offsets, size, written=True):
        """Notes that bytes of shared memory are written, or that they are not."""
        for at in _parts(offsets, size, self._shift):
            self._shared_written[at] = written
        if not written:
            self._shared_full = False

    def mark_pending(self, offsets, size, *, pending):
        """Notes that an asynchronous copy to shared memory is under way, or has arrived."""
        if self._arrived is None:
            self._arrived = np.ones(len(self._shared_written), np.bool_)
        for at in _parts(offsets, size, self._shift):
            self._arrived[at] = not pending

    def make_visible(self, idx):
        """Products of warpgroups see what these lanes have written, after a barrier."""
        seen = np.zeros(self.count + 1, np.bool_)
        seen[1:] = idx is None
        if idx is not None:
            seen[idx + 1] = True
        self._hidden[seen[self._hidden]] = -1

    def require_visible(self, offsets, size, idx):
        """Refuses to multiply what was written without a fence after it."""
        for at in _parts(offsets, size, self._shift):
            if (hidden := self._hidden[at] != 0).any():
                what = "a product of what was written without fence.proxy.async and a barrier after"
                self.fault_where(what, hidden, idx)

    def _note(self, space, offsets, size, idx, *, writes):
        shadow = self._shared_shadow if space == "shared" else self.launch.global_shadow
        tags = self._tags if idx is None else self._tags[idx]
        self._race(shadow.access(offsets, size, tags, self.line, writes=writes), space)

    def pass_barrier(self, blocks):
        """All threads of these blocks (None for all blocks) have passed a barrier."""
        everyone = blocks is None
        self._race(self._shared_shadow.check(keep=not everyone), "shared")
        hidden = self._hidden.reshape(len(self.blocks), -1)
        rows = slice(None) if blocks is None else blocks
        hidden[rows] = np.maximum(hidden[rows], 0)
        if blocks is None:
            self.epochs += 1
            self._shared_full = self._shared_full or bool(self._shared_written.all())
        else:
            self.epochs[blocks] += 1
        self.retag()

    def finish(self, *, last):
        """All lanes have exited; `last` if no other blocks of the launch follow."""
        self.copies.end()
        self.products.end()
        self._race(self._shared_shadow.check(keep=False), "shared")
        self._race(self.launch.global_shadow.check(keep=not last), "global")
