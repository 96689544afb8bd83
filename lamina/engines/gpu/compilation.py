"""From a program to its kernels, through the cache on disk.

The key of an entry is made from the program itself, so no text is written for a program that was
compiled before. The driver compiles the text, or has a cache of its own.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from lamina.base.cache import find, folder, keep, key_of
from lamina.base.garbage import without_collections
from lamina.base.records import decoded
from lamina.engines.gpu.family import Choices, Family, forced_by
from lamina.engines.gpu.launches import Launches
from lamina.program.encoding import checksum
from lamina.program.program import Program


@without_collections
def compile_program(
    program: Program,
    family: Family,
    schedule: Any = None,
    choices: Choices = (),
    *,
    separate: bool = False,
) -> Launches:
    """The kernels of a program.

    The schedule is decided by default; then `choices` are the candidates for some steps. If
    `separate`, no launch runs kernels of several steps.
    """

    def make() -> Launches:
        decided = schedule
        if decided is None:
            decided = family.decide(program, forced_by(program, family, choices))
        return family.write(program, decided, separate=separate)

    sources = family.sources
    if not sources.checksum or folder() is None:
        return make()
    # Decisions follow from the program, the choices, the family and these sources, so the key does
    # not contain them.
    how = repr(schedule) if schedule is not None else f"chosen {choices}"
    key = key_of((checksum(program), family.key, how, str(separate), sources.checksum))
    entry = find(key)
    if entry is not None:
        return decoded(Launches, json.loads(entry))
    launches = make()
    if sources.are_unchanged:
        keep(key, json.dumps(asdict(launches)).encode())
    return launches
