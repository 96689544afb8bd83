"""What stands beside a program's machine code, and is kept with it: how it is to be run."""

from __future__ import annotations

from typing import Any

from lamina.engines.cpu.run.jobs import Kernel, Phase
from lamina.records import frozen_dataclass


@frozen_dataclass
class Entry:
    """What is run at once: kernels in phases.

    Attributes:
        threads: how many threads it is worth; 0 if there is nothing to run.
        functions: how many functions its kernels call. Where the module exports their addresses
            is `exported_name`.
        kernels, phases: what is run; see `jobs`.
    """

    threads: int
    functions: int
    kernels: tuple[Kernel, ...]
    phases: tuple[Phase, ...]

    @classmethod
    def of(cls, fields: dict[str, Any]) -> Entry:
        """The entry from plain data, as JSON holds it."""
        return cls(
            fields["threads"],
            fields["functions"],
            tuple(Kernel(**one) for one in fields["kernels"]),
            tuple(Phase(**one) for one in fields["phases"]),
        )


@frozen_dataclass
class Layout:
    """How a native program is to be run: kernels, and memory beside the program's buffers.

    Attributes:
        program: what is run each time.
        load: what is run once after the parameters were changed.
        thread_bytes: a workspace of every thread.
        placed_bytes: operands that are packed ahead, and what steps asked for. Packed parameters
            stay from run to run; all else takes the place of what was used before.
        placed_offsets: where each of them begins.
        places: what stands at each place of the table of addresses: a number among the program's
            buffers, in its order, then what was placed; or below zero, counted from the end, one
            of the places of the workspaces.
        steps: for each part of the program the number of its step.
    """

    program: Entry
    load: Entry
    thread_bytes: int
    placed_bytes: int
    placed_offsets: tuple[int, ...]
    places: tuple[int, ...]
    steps: tuple[int, ...]

    @property
    def threads(self) -> int:
        """How many threads need a workspace."""
        return max(self.program.threads, self.load.threads, 1)

    @property
    def total_bytes(self) -> int:
        """What all of the memory takes."""
        return self.thread_bytes * self.threads + self.placed_bytes

    @classmethod
    def of(cls, fields: dict[str, Any]) -> Layout:
        """The layout from plain data, as JSON holds it."""
        entries = {name: Entry.of(fields.pop(name)) for name in ("program", "load")}
        for name in ("placed_offsets", "places", "steps"):
            fields[name] = tuple(fields[name])
        return cls(**entries, **fields)


def exported_name(entry: str) -> str:
    """The name of the table of functions of an entry, `"program"` or `"load"`."""
    return f"kernels_of_{entry}"
