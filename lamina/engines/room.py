"""Checks that there is enough memory, before anything is allocated."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from lamina.base.records import frozen_dataclass
from lamina.errors import EngineError
from lamina.program.program import Buffer, Program
from lamina.reports import bytes_text

# For less memory the system is not queried: a query takes a fifth of a millisecond.
NOT_ASKED_BYTES = 2**20


@frozen_dataclass
class Need:
    """A row of a bill, to be compared with the available memory.

    Attributes:
        what: the use of the memory, `"parameters"` or `"arena"`.
        bytes: the size of all of it.
        largest: the largest of its tensors, as text; "" if it has none.
        largest_bytes: the size of that tensor.
    """

    what: str
    bytes: int
    largest: str = ""
    largest_bytes: int = 0


def need_of(what: str, buffers: Iterable[Buffer], total: int | None = None) -> Need:
    """The need of some buffers: the sum of their sizes, or the total of a plan."""
    ordered = sorted(buffers, key=lambda buffer: buffer.bytes)
    if not ordered:
        return Need(what, total or 0)
    largest = ordered[-1]
    taken = sum(buffer.bytes for buffer in ordered) if total is None else total
    return Need(what, taken, str(largest), largest.bytes)


def needs_of_program(program: Program) -> tuple[Need, ...]:
    """The memory for running a program, in addition to the memories to which it is bound."""
    return (
        need_of("arena", program.of_kind("temporary"), program.plan.arena_bytes),
        need_of("inputs and targets", program.of_kind("input")),
    )


def bytes_of(needs: Sequence[Need], most: int | None) -> float:
    """The bytes of a bill; infinite if a tensor exceeds the limit of one allocation."""
    if most is not None and any(need.largest_bytes > most for need in needs):
        return math.inf
    return sum(need.bytes for need in needs)


def require_room(
    subject: str,
    needs: Sequence[Need],
    ask: Callable[[], int | None],
    *,
    where: str,
    advice: str,
    reused: int = 0,
    most: int | None = None,
) -> None:
    """Checks that there is enough memory, and that each tensor fits into one allocation.

    Args:
        subject: the subject of the error's sentence, with its verb: `"this model needs"`.
        needs: the bill.
        ask: a function that gives the available bytes; None if they are not known.
        where: the engine.
        advice: a sentence that says what to do if there is not enough.
        reused: the allocated bytes that are reused.
        most: the limit of one allocation (`Target.largest_block_bytes`), in bytes; None for none.

    Raises:
        EngineError: if there is not enough.
    """
    largest = max(needs, key=lambda need: need.largest_bytes)
    if most is not None and largest.largest_bytes > most:
        needed = f"{bytes_text(largest.largest_bytes)} for {largest.largest}"
        raise EngineError(
            f"{subject} more memory in one allocation than the device allows",
            facts=(("at most", bytes_text(most)), ("needed", needed)),
            where=where,
            advice=advice,
        )
    total = sum(need.bytes for need in needs)
    if total <= NOT_ASKED_BYTES:
        return
    available = ask()
    if available is None or total <= available + reused:
        return
    rows = sorted((need for need in needs if need.bytes), key=lambda need: -need.bytes)
    facts = [
        ("available", bytes_text(available + reused)),
        ("needed", bytes_text(total)),
        ("needed for", ", ".join(f"{need.what}: {bytes_text(need.bytes)}" for need in rows)),
    ]
    if largest.largest:
        facts.append(("largest", f"{largest.largest}, {bytes_text(largest.largest_bytes)}"))
    raise EngineError(
        f"{subject} more memory than there is", facts=tuple(facts), where=where, advice=advice
    )
