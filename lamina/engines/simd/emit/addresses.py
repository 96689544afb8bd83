"""How kernels find their buffers and workspaces: through a table that is their first parameter."""

from __future__ import annotations

from typing import Protocol, final

from lamina.codegen.builder import Builder
from lamina.codegen.values import I64, POINTER, Value

# Every section of a table in memory begins with these entries; buffers follow.
HEADER = ("own", "own bytes", "iteration")
_OWN, _OWN_BYTES, _ITERATION = range(len(HEADER))


class Addresses(Protocol):
    """Generates code that reads a table of addresses."""

    def buffer(self, code: Builder, table: Value, number: int) -> Value:
        """The address of a buffer, by its number in the order of the kernel's buffers."""
        ...

    def own(self, code: Builder, table: Value, thread: Value) -> Value:
        """The address of a thread's memory."""
        ...

    def iteration(self, code: Builder, table: Value) -> Value:
        """The number of the current iteration of a repeat."""
        ...


@final
class AddressesInMemory:
    """Tables in memory, with a section for each step.

    A section begins with the address of the threads' memory, the bytes that each thread has, and
    the address of the number of the current iteration.
    """

    def buffer(self, code: Builder, table: Value, number: int) -> Value:
        return _entry(code, table, len(HEADER) + number)

    def own(self, code: Builder, table: Value, thread: Value) -> Value:
        base = _entry(code, table, _OWN)
        # The size is in the table, because it is known only after all steps are written.
        size = code.load(code.offset(table, _OWN_BYTES, "ptr"), I64)
        return code.offset(base, size * thread, "i8")

    def iteration(self, code: Builder, table: Value) -> Value:
        return code.load(self.iteration_address(code, table), I64)

    def iteration_address(self, code: Builder, table: Value) -> Value:
        """The address of the number of the current iteration."""
        return _entry(code, table, _ITERATION)


def _entry(code: Builder, table: Value, number: int) -> Value:
    return code.load(code.offset(table, number, "ptr"), POINTER)
