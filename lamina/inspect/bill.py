"""The memory bill: the bytes that a program needs, before anything is allocated."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from functools import cache
from itertools import accumulate
from typing import Annotated, Any

from lamina import reports
from lamina.base.records import frozen_dataclass
from lamina.base.shapes import shape_text
from lamina.checks import checked
from lamina.checks.kinds import Kind, Misfit, Number, Operands
from lamina.engines.engine import Grouping, padded
from lamina.engines.room import Need, bytes_of, need_of, needs_of_program
from lamina.errors import LargestBlockError
from lamina.program.program import Buffer, Program
from lamina.program.steps import Contraction
from lamina.program.tf32 import unrounded
from lamina.reports import bytes_text, table_text

# The last word of the name of a sum of gradients; the first words are the parameter's name.
GRADIENT_SUM = "gradient_sum"

_UNITS = {"b": 1} | {
    f"{prefix}{infix}b": base**power
    for power, prefix in enumerate("kmgt", start=1)
    for infix, base in (("", 1000), ("i", 1024))
}


@frozen_dataclass
class MemoryBill:
    """The memory of a compiled program, in bytes. `print` shows it as a table.

    Attributes:
        program: the planned program; nothing is allocated for it.
        further: other programs that run after it, on the same parameters, state and arena: the
            update after several micro-batches.
        data_bytes: the bytes of the data set, or of the buffers of a stream; 0 if they are not
            known.
        members: the number of members of a population; None for a model.
        grouping: how the engine runs the members: `program` is that of a group of them.
    """

    batch_size: int
    program: Program
    further: tuple[Program, ...] = ()
    data_bytes: int = 0
    members: int | None = None
    grouping: Grouping | None = None

    @property
    def _programs(self) -> tuple[Program, ...]:
        return (self.program, *self.further)

    def _buffers(self, kind: str) -> list[Buffer]:
        """The buffers of a kind in all programs, which share buffers of one name."""
        buffers = (buffer for program in self._programs for buffer in program.of_kind(kind))
        return list({buffer.name: buffer for buffer in buffers}.values())

    def _kind(self, kind: str) -> int:
        return sum(self._bytes(buffer) for buffer in self._buffers(kind))

    def _bytes(self, buffer: Buffer) -> int:
        """The bytes of a buffer outside of the arena: of all members of a population."""
        if self.members is None or self.grouping is None:
            return buffer.bytes
        if buffer.kind == "input":
            return self.grouping.at_once * buffer.bytes
        return self.members * padded(buffer.bytes // self.grouping.size)

    def _at_once(self, of_arena: int) -> int:
        """The bytes of the arenas, from those of one."""
        grouping = self.grouping
        return (
            of_arena if grouping is None else grouping.at_once * (of_arena + grouping.copied_bytes)
        )

    def outside(self) -> list[Need]:
        """The needs of parameters and state, each with its largest tensor."""
        names = {"parameter": "parameters", "state": "state"}
        return [
            need_of(name, self._buffers(kind), self._kind(kind)) for kind, name in names.items()
        ]

    @property
    def parameter_bytes(self) -> int:
        """The network's parameters."""
        return self._kind("parameter")

    @property
    def state_bytes(self) -> int:
        """Optimizer state, its numbers, running statistics, and the counter of training steps."""
        return self._kind("state")

    @property
    def gradient_bytes(self) -> int:
        """The sums of gradients over micro-batches; they are a part of the state."""
        states = self._buffers("state")
        return sum(self._bytes(one) for one in states if one.name.endswith(f"/{GRADIENT_SUM}"))

    @property
    def input_bytes(self) -> int:
        """One batch of inputs and targets, in their own dtypes."""
        return self._kind("input")

    @property
    def constant_bytes(self) -> int:
        """The network's constant arrays."""
        # Each program has its own.
        constants = (buffer for program in self._programs for buffer in program.of_kind("constant"))
        return sum(buffer.bytes for buffer in constants)

    @property
    def arena_bytes(self) -> int:
        """Activations, gradients and all other temporaries."""
        return self._at_once(max(program.plan.arena_bytes for program in self._programs))

    @property
    def persistent_bytes(self) -> int:
        """All but the arena."""
        of_program = self.parameter_bytes + self.state_bytes + self.input_bytes
        return of_program + self.constant_bytes + self.data_bytes

    @property
    def peak_bytes(self) -> int:
        """The memory of the program in all: persistent memory and the arena."""
        return self.persistent_bytes + self.arena_bytes

    @property
    def lower_bound_bytes(self) -> int:
        """The least of any plan: persistent memory, and the most bytes alive in one step."""
        live = max(program.plan.largest_live_bytes for program in self._programs)
        return self.persistent_bytes + self._at_once(live)

    def __str__(self) -> str:
        rows = [
            ("parameters", bytes_text(self.parameter_bytes)),
            ("optimizer and other state", bytes_text(self.state_bytes - self.gradient_bytes)),
            *([("sums of gradients", bytes_text(self.gradient_bytes))] if self.further else []),
            (f"inputs and targets, {self.batch_size} examples", bytes_text(self.input_bytes)),
            ("constants", bytes_text(self.constant_bytes)),
            *([("data", bytes_text(self.data_bytes))] if self.data_bytes else []),
            ("arena", bytes_text(self.arena_bytes)),
        ]
        total = ("peak", bytes_text(self.peak_bytes))
        overview = table_text(("memory", "bytes"), rows, align="lr", footer=total)
        bound = f"lower bound {bytes_text(self.lower_bound_bytes)}"
        counts = (str(len(program.steps)) for program in self._programs)
        steps = f"{' + '.join(counts)} steps"
        products = [step for step in self.program.steps if isinstance(step, Contraction)]
        tf32_count = sum(unrounded(step) is not None for step in products)
        if tf32_count:
            steps += f"; {tf32_count} of {len(products)} contractions in TF32"
        return f"{overview}\n{bound}; {steps}"

    def buffers(self) -> str:
        """Every buffer of the arena as a table: size, offset, and the steps that need it.

        In an arena of several blocks, an offset follows the number of its block.
        """
        several = len(self.program.plan.blocks) > 1
        rows = [
            (
                allocation.buffer,
                shape_text(buffer.shape, buffer.dtype),
                bytes_text(allocation.bytes),
                f"{allocation.block}:{allocation.offset}" if several else str(allocation.offset),
                f"{allocation.first}-{min(allocation.last, len(self.program.steps) - 1)}",
            )
            for allocation in self.program.plan.allocations
            for buffer in [self.program.buffers[allocation.buffer]]
        ]
        return table_text(("buffer", "shape", "bytes", "offset", "steps"), rows, align="llrrr")

    @checked
    def plot(self, path: str | os.PathLike[str]) -> None:
        """Writes a picture: bytes over the program's steps, a rectangle for each buffer.

        Raises:
            MissingExtraError: without matplotlib.
        """
        positions = self.program.plan.positions()
        rectangles = [
            reports.Rectangle(
                allocation.buffer,
                positions[allocation.buffer],
                allocation.bytes,
                allocation.first,
                allocation.last,
                group=allocation.buffer.rsplit(".", 1)[0].split("/update")[0],  # its layer
                in_place=bool(allocation.in_place_of),
            )
            for allocation in self.program.plan.allocations
        ]
        reports.plot_plan(
            rectangles,
            path,
            steps=[step.name.split(".", 1)[1] for step in self.program.steps],
            peak_bytes=self.arena_bytes,
            lower_bound_bytes=self.program.plan.largest_live_bytes,
            persistent={
                "parameters": self.parameter_bytes,
                "state": self.state_bytes,
                "inputs": self.input_bytes,
                "constants": self.constant_bytes,
            },
            edges=list(accumulate(self.program.plan.blocks))[:-1],
            title=f"{self.program.name}, {self.batch_size} examples: "
            f"{bytes_text(self.peak_bytes)} in all",
        )


# The needs of a program in addition to the memories to which it is bound, as an engine counts them.
Count = Callable[[Program], Sequence[Need]]


def largest_batch_of(
    needs: Callable[[int, Count], Sequence[Need]],
    count: Count,
    limit: float,
    most: int | None,
    too_large: int | None = None,
) -> int:
    """The largest batch whose `needs(batch, count)` fit; 0 if not even one example does.

    The needs of the plan are a part of these, and counted in less time: they limit the batches for
    which `count` is called.

    Args:
        most: the limit of one allocation in bytes, as in `require_room`.
        too_large: a batch that does not fit, if one is known.
    """

    def bytes_with(count: Count) -> Callable[[int], float]:
        def needed(batch: int) -> float:
            try:
                return bytes_of(needs(batch, count), most)
            except LargestBlockError:
                return math.inf

        return cache(needed)

    planned, needed = bytes_with(needs_of_program), bytes_with(count)
    largest = largest_batch(planned, limit, too_large)
    if largest and needed(largest) > limit:
        largest = largest_batch(needed, limit, largest)
    return largest


def largest_batch(
    needed: Callable[[int], float], limit: float, too_large: int | None = None
) -> int:
    """The largest batch that fits; 0 if not even one example does.

    Bytes grow almost linearly with the batch, so most batch sizes are found by interpolation.

    Args:
        needed: a function that returns the bytes for a batch size; infinite if it is not possible
            at all.
        too_large: a batch size that does not fit; it is searched if it is not known.
    """
    low, low_bytes = 1, needed(1)
    if low_bytes > limit:
        return 0
    high = too_large or 2
    while (high_bytes := needed(high)) <= limit:
        slope = max((high_bytes - low_bytes) / (high - low), 1e-9)
        low, low_bytes = high, high_bytes
        high = low + max(int((limit - low_bytes) / slope) + 1, 1)
    tries = 0
    while high - low > 1:
        tries += 1
        middle = (low + high) // 2
        # Every third size halves the interval, in case that the bytes do not grow linearly.
        if math.isfinite(high_bytes) and tries % 3:
            slope = (high_bytes - low_bytes) / (high - low)
            middle = min(max(low + int((limit - low_bytes) / slope), low + 1), high - 1)
        middle_bytes = needed(middle)
        if middle_bytes <= limit:
            low, low_bytes = middle, middle_bytes
        else:
            high, high_bytes = middle, middle_bytes
    return low


class MemorySize(Kind):
    """A number of bytes, or text such as "2 GiB"."""

    def read(self, value: Any, operands: Operands = ()) -> int:
        try:
            if not isinstance(value, str):
                return int(_BYTES.read(value))
            number = value.strip().rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ ")
            unit = value.strip()[len(number) :].strip().lower() or "b"
            return int(_BYTES.read(float(number) * _UNITS[unit]))
        except (ValueError, KeyError, Misfit):
            right = '"2 GiB", "500 MB" or a number of bytes'
            raise Misfit(right, problem="this is not an amount of memory") from None


_BYTES = Number(f"[0, {2**63}]")
Memory = Annotated[float | str, MemorySize()]
