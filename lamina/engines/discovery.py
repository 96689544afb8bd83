"""Which engines there are, and opening one by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lamina.engines import DEFAULT_ENGINE as DEFAULT_ENGINE
from lamina.engines import DEFAULT_TARGET
from lamina.engines.engine import Device, Engine, unknown_engine
from lamina.engines.interpreter.engine import InterpreterEngine
from lamina.errors import EngineError
from lamina.program.target import Target


def _cpu() -> Engine:
    # Only now: llvmlite takes longer to import than all of Lamina.
    from lamina.engines.cpu.engine import CpuEngine

    return CpuEngine()


_ENGINES: dict[str, Callable[[], Engine]] = {"cpu": _cpu, "interpreter": InterpreterEngine}


def open_engine(name: str) -> Engine:
    """The engine of that name.

    Raises:
        EngineError: if there is none, or its device is missing.
    """
    kind, _, number = name.partition(":")
    if kind not in _ENGINES or number not in ("", "0"):
        raise unknown_engine(name, list(_ENGINES))
    return _ENGINES[kind]()


def target_of(name: str) -> Target:
    """What the compiler needs to know of the engine of that name; opened if it is not the default.

    Raises:
        EngineError: if there is none, or its device is missing.
    """
    return DEFAULT_TARGET if name == DEFAULT_ENGINE else open_engine(name).target


def devices() -> tuple[Device, ...]:
    """Every device that an engine knows of, those that cannot be used included.

    Example:
        >>> import lamina as lm
        >>> lm.devices()[0].engine
        'cpu'
    """
    return tuple(device for name in _ENGINES for device in _devices_of(name))


def _devices_of(name: str) -> Sequence[Device]:
    try:
        return [_ENGINES[name]().device]
    except EngineError as error:
        # In one line, as it stands in a table.
        facts = ", ".join(f"{fact} {value}" for fact, value in error.facts)
        return [Device(name, "", None, f"{error.problem} ({facts})")]
