"""From a program to machine code and its layout, through the cache on disk.

The key of an entry is made from the program itself, so no text is written for a program that was
compiled before.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

from lamina.base.cache import Sources, cached, find, folder, keep, key_of
from lamina.base.garbage import without_collections
from lamina.base.records import decoded
from lamina.base.shielded import loaded
from lamina.engines.cpu import llvm
from lamina.engines.cpu.native.jobs import Layout
from lamina.engines.cpu.processor import HostProcessor
from lamina.program.encoding import checksum
from lamina.program.program import Program

if TYPE_CHECKING:
    from lamina.engines.cpu.native_program import NativeProgram
    from lamina.engines.simd.decide.schedule import ProgramSchedule

_LENGTH_BYTES = 8


def writer() -> Callable[..., NativeProgram]:
    """`write_program`, imported when it is used: cached code does not need half of this folder."""

    def load() -> Callable[..., NativeProgram]:
        from lamina.engines.cpu.native_program import write_program

        return write_program

    return loaded(load)


@without_collections
def compile_program(
    program: Program,
    processor: HostProcessor,
    schedule: ProgramSchedule | None = None,
    *,
    timed: bool = False,
) -> tuple[Layout, bytes]:
    """The layout of a program, and its object code; `decide` makes its schedule by default."""

    def make() -> bytes:
        native = writer()(program, processor, schedule, timed=timed)
        layout = json.dumps(native.layout, default=vars).encode()
        length = len(layout).to_bytes(_LENGTH_BYTES, "little")
        return length + layout + llvm.assemble(native.text, processor)

    if SOURCES.checksum and folder() is not None:
        # Decisions follow from the program, the processor and these sources, so the key does not
        # contain them.
        how = repr(schedule) if schedule is not None else "chosen"
        inputs = (checksum(program), repr(processor), how, str(timed))
        key = key_of((*inputs, SOURCES.checksum, *llvm.VERSIONS))
        entry = find(key)
        if entry is None:
            entry = make()
            if SOURCES.are_unchanged:
                keep(key, entry)
    else:
        entry = make()
    length = int.from_bytes(entry[:_LENGTH_BYTES], "little")
    end = _LENGTH_BYTES + length
    return decoded(Layout, json.loads(entry[_LENGTH_BYTES:end])), entry[end:]


def compiled(text: str, processor: HostProcessor) -> bytes:
    """The object code of a module, from the cache on disk if it was assembled before.

    The text holds all decisions of Lamina, so LLVM's version is the only one in the key.
    """
    target = (processor.triple, processor.name, processor.features)
    return cached(key_of((*llvm.VERSIONS, *target, text)), lambda: llvm.assemble(text, processor))


SOURCES = Sources(
    *("lamina.base", "lamina.program", "lamina.codegen", "lamina.engines.cpu"),
    *("lamina.engines.cpu.native", "lamina.engines.cpu.run", "lamina.engines.simd"),
    *("lamina.engines.simd.decide", "lamina.engines.simd.emit"),
)
