"""`lamina devices`: the devices as a table, and all properties of each."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from lamina.engines import DEFAULT_ENGINE
from lamina.engines.engine import Device
from lamina.reports import bytes_text, table_text

_WIDTH = 100
_HEADER = ("engine", "device", "memory", "state")


def devices_text(devices: Sequence[Device]) -> str:
    """A table with a row for each device; below it why some cannot be used, and the remedies."""
    rows = [
        (_engine_of(d), d.description, _bytes_of(d.memory_bytes, "unknown"), _state_of(d))
        for d in devices
    ]
    others = [max(len(row[column]) for row in [_HEADER, *rows]) for column in (0, 2, 3)]
    # Two blanks between columns. Longer descriptions continue in the next line.
    room = _WIDTH - sum(others) - 2 * len(others)
    lines: list[tuple[str, ...]] = []
    for engine, description, memory, state in rows:
        first, *rest = textwrap.wrap(description, room, break_on_hyphens=False) or [""]
        lines.append((engine, first, memory, state))
        lines += (("", line, "", "") for line in rest)
    table = table_text(_HEADER, lines, align="llrl")
    problems = [
        _block(f"{device.engine} cannot be used", [fact for fact in facts if fact[1]])
        for device in devices
        for facts in [(("problem", device.problem), ("remedy", device.remedy))]
        if device.problem
    ]
    return "\n\n".join([table, *problems])


def details_text(devices: Sequence[Device]) -> str:
    """All properties of each device that are known."""
    return "\n\n".join(_block(_engine_of(device), list(_facts_of(device))) for device in devices)


def _engine_of(device: Device) -> str:
    return device.engine + (" (default)" if device.engine == DEFAULT_ENGINE else "")


def _bytes_of(count: int | None, unknown: str = "") -> str:
    return unknown if count is None else bytes_text(count)


def _state_of(device: Device) -> str:
    return "unusable" if device.problem else "ready"


def _block(head: str, facts: Sequence[tuple[str, str]]) -> str:
    """A line, and below it names with their values in columns."""
    width = max(len(name) for name, _ in facts)
    lines = [head]
    for name, value in facts:
        lines += textwrap.wrap(
            value,
            _WIDTH,
            initial_indent=f"  {name:<{width}}  ",
            subsequent_indent=" " * (width + 4),
            # Names of packages and drivers stay whole.
            break_on_hyphens=False,
        )
    return "\n".join(lines)


def _facts_of(device: Device) -> Iterator[tuple[str, str]]:
    texts = (
        ("platform", device.platform),
        ("device", device.name or device.description),
        ("driver", device.driver),
        ("version", device.version),
        ("memory", _bytes_of(device.memory_bytes, "unknown") + _SHARED[device.shares_memory]),
        ("largest allocation", _bytes_of(device.largest_allocation_bytes)),
        ("local memory", _bytes_of(device.local_memory_bytes)),
        ("compute units", "" if device.compute_units is None else str(device.compute_units)),
        ("bfloat16", _YES_OR_NO[device.has_bfloat16]),
        ("float16", _YES_OR_NO[device.has_float16]),
        ("float64", _YES_OR_NO[device.has_float64]),
        ("TF32", _YES_OR_NO[device.has_tf32]),
        ("self-test", device.self_test),
        *(("avoided fault", note) for note in device.notes),
        ("state", _state_of(device)),
        ("problem", device.problem),
        ("remedy", device.remedy),
    )
    return ((name, value) for name, value in texts if value)


_SHARED = {None: "", True: ", shared with the host", False: ", its own"}

_YES_OR_NO = {None: "", True: "yes", False: "no"}
