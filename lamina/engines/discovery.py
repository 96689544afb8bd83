"""Which engines there are, and opening one by name."""

from __future__ import annotations

from lamina.engines.engine import Device, Engine, unknown_engine
from lamina.engines.interpreter.engine import InterpreterEngine

DEFAULT_ENGINE = "interpreter"


def open_engine(name: str) -> Engine:
    """The engine of that name.

    Raises:
        EngineError: if there is none, or its device is missing.
    """
    kind, _, number = name.partition(":")
    if kind != "interpreter" or number not in ("", "0"):
        raise unknown_engine(name, ["interpreter"])
    return InterpreterEngine()


def devices() -> tuple[Device, ...]:
    """Every device that an engine knows of, those that cannot be used included.

    Example:
        >>> import lamina as lm
        >>> lm.devices()[0].engine
        'interpreter'
    """
    return (InterpreterEngine().device,)
