"""From a program to machine code and what it needs to run, by way of the cache on disk.

An entry is found by the program itself, so that nothing is written that was compiled before.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from lamina.cache import Sources, find, folder, keep, key_of
from lamina.engines.cpu.processor import Processor
from lamina.engines.cpu.run.machine_code import VERSIONS, assemble
from lamina.engines.cpu.run.native_layout import Layout
from lamina.garbage import without_collections
from lamina.lazy import loading
from lamina.program.encoding import checksum
from lamina.program.program import Program

if TYPE_CHECKING:
    from lamina.engines.cpu.decide.schedule import Schedule

_LENGTH_BYTES = 8


@without_collections
def compile_program(
    program: Program,
    processor: Processor,
    schedule: Schedule | None = None,
    *,
    timed: bool = False,
) -> tuple[Layout, bytes]:
    """How the program is to be run, and its object code.

    Args:
        program: what to compile.
        processor: for which processor.
        schedule: how its steps are run; by default that is decided.
        timed: whether the time of its steps is taken.
    """

    def make() -> bytes:
        # Only now: where the machine code is known already, half of this folder is not needed.
        with loading:
            from lamina.engines.cpu.emit.native_program import write_program

        native = write_program(program, processor, schedule, timed=timed)
        layout = json.dumps(native.layout, default=vars).encode()
        length = len(layout).to_bytes(_LENGTH_BYTES, "little")
        return length + layout + assemble(native.text, processor)

    if _SOURCES.checksum and folder() is not None:
        # What is decided follows from the program, the processor and our sources: to find a program
        # costs no deciding.
        how = repr(schedule) if schedule is not None else "chosen"
        said = (checksum(program), repr(processor), how, str(timed))
        key = key_of((*said, _SOURCES.checksum, *VERSIONS))
        entry = find(key)
        if entry is None:
            entry = make()
            if _SOURCES.are_unchanged:
                keep(key, entry)
    else:
        entry = make()
    length = int.from_bytes(entry[:_LENGTH_BYTES], "little")
    end = _LENGTH_BYTES + length
    fields: dict[str, Any] = json.loads(entry[_LENGTH_BYTES:end])
    return Layout.of(fields), entry[end:]


_SOURCES = Sources(
    *("lamina", "lamina.program", "lamina.codegen", "lamina.engines.cpu"),
    *("lamina.engines.cpu.decide", "lamina.engines.cpu.emit", "lamina.engines.cpu.run"),
)
