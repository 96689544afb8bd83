"""From a program to its kernels, through the cache on disk.

The key of an entry is made from the program itself, so no text is written for a program that was
compiled before. The driver compiles the text, or has a cache of its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from lamina.base.cache import find, folder, keep, key_of
from lamina.base.garbage import without_collections
from lamina.engines.gpu.family import Family
from lamina.engines.gpu.launches import (
    Gather,
    Launch,
    LaunchedCall,
    Launches,
    Recorder,
    RepeatedLaunches,
    Workspace,
)
from lamina.engines.gpu.matrix_products import Matrix, MatrixProduct
from lamina.engines.gpu.single_steps import Choices, forced_by
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

    Args:
        program: the program to compile.
        family: writes the kernels.
        schedule: how its steps are run; decided by default.
        choices: the candidates for the schedules of some steps, if it is decided.
        separate: whether no launch runs kernels of several steps.
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
        return _decoded(json.loads(entry))
    launches = make()
    if sources.are_unchanged:
        keep(key, json.dumps(asdict(launches)).encode())
    return launches


def _decoded(fields: Mapping[str, Any]) -> Launches:
    """The launches whose fields were kept."""
    return Launches(
        text=fields["text"],
        launches=tuple(map(_launch, fields["launches"])),
        repeats=tuple(RepeatedLaunches(**one) for one in fields["repeats"]),
        gathers=tuple(Gather(**one) for one in fields["gathers"]),
        workspaces={name: Workspace(**one) for name, one in fields["workspaces"].items()},
        kept=fields["kept"],
        load=tuple(map(_launch, fields["load"])),
        recorders={name: Recorder(**one) for name, one in fields["recorders"].items()},
        count=fields["count"],
    )


def _launch(fields: dict[str, Any]) -> Launch:
    buffers: list[str] = fields.pop("buffers")
    numbers: list[int] = fields.pop("numbers")
    calls = tuple(map(_call, fields.pop("calls")))
    product = _product(fields.pop("product"))
    return Launch(
        buffers=tuple(buffers), numbers=tuple(numbers), calls=calls, product=product, **fields
    )


def _call(fields: dict[str, Any]) -> LaunchedCall:
    buffers: list[str] = fields.pop("buffers")
    return LaunchedCall(buffers=tuple(buffers), **fields)


def _product(fields: dict[str, Any] | None) -> MatrixProduct | None:
    if fields is None:
        return None
    matrices: dict[str, Any] = {
        name: None if fields[name] is None else Matrix(**fields[name])
        for name in ("left", "right", "result", "added")
    }
    return MatrixProduct(**{**fields, **matrices})
