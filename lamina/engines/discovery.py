"""The list of engines, and opening one by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lamina.base.records import frozen_dataclass
from lamina.engines import DEFAULT_ENGINE as DEFAULT_ENGINE
from lamina.engines import DEFAULT_TARGET
from lamina.engines.engine import LISTING, Device, Engine
from lamina.engines.interpreter.engine import InterpreterEngine
from lamina.errors import EngineError
from lamina.foreign import did_you_mean, foreign_or_nearest
from lamina.program.target import Target


@frozen_dataclass
class _Kind:
    """Engines of one kind.

    Attributes:
        open: a function that opens the engine of a name. The name begins with the kind: `opencl:1`.
        devices: a function that lists its devices; raises EngineError if there is none.
        has_devices: whether a name may select one of several devices.
    """

    open: Callable[[str], Engine]
    devices: Callable[[], Sequence[Device]]
    has_devices: bool = False

    def may_have(self, device: str) -> bool:
        """Whether the text after the colon may name a device."""
        return bool(device) if self.has_devices else device == "0"


# Each engine is imported when it is opened, because their packages take longer to import than all
# of Lamina.
def _cpu(name: str = "cpu") -> Engine:
    from lamina.engines.cpu.engine import CpuEngine

    return CpuEngine()


def _interpreter(name: str = "interpreter") -> Engine:
    return InterpreterEngine()


def _opencl(name: str) -> Engine:
    from lamina.engines.opencl.requirements import require_package

    require_package()
    from lamina.engines.opencl.engine import opencl_engine

    return opencl_engine(name)


def _opencl_devices() -> Sequence[Device]:
    from lamina.engines.opencl.requirements import require_package

    require_package()
    from lamina.engines.opencl.devices import found_devices

    return [device.record for device in found_devices()]


def _cuda(name: str) -> Engine:
    from lamina.engines.cuda.engine import cuda_engine

    return cuda_engine(name)


def _cuda_devices() -> Sequence[Device]:
    from lamina.engines.cuda.devices import found_devices

    return [device.record for device in found_devices()]


_KINDS = {
    "cpu": _Kind(_cpu, lambda: [_cpu().device]),
    "interpreter": _Kind(_interpreter, lambda: [_interpreter().device]),
    "opencl": _Kind(_opencl, _opencl_devices, has_devices=True),
    "cuda": _Kind(_cuda, _cuda_devices, has_devices=True),
}


def open_engine(name: str) -> Engine:
    """The engine of that name.

    Raises:
        EngineError: if there is none, or its device is missing.
    """
    kind, colon, device = name.partition(":")
    if kind not in _KINDS or (colon and not _KINDS[kind].may_have(device)):
        several = [engine for engine in _KINDS if _KINDS[engine].has_devices]
        named = [f"{engine}:{what}" for engine in several for what in ("NUMBER", "NAME")]
        raise EngineError(
            f"there is no engine {name!r}",
            facts=(("expected", " or ".join([*_KINDS, *named])), ("found", repr(name))),
            advice=f"{_meant(name)} {LISTING} the engines and devices of this machine.".lstrip(),
        )
    return _KINDS[kind].open(name)


def _meant(name: str) -> str:
    """The advice for a name that no engine has; "" if none is similar."""
    kind, _, device = name.lower().partition(":")
    near = foreign_or_nearest("engine=", kind, _KINDS)
    if near not in _KINDS:
        return near
    return did_you_mean(f"{near}:{device}" if _KINDS[near].may_have(device) else near)


def target_of(name: str) -> Target:
    """The target of the engine of that name, which is opened if it is not the default.

    Raises:
        EngineError: if there is none, or its device is missing.
    """
    return DEFAULT_TARGET if name == DEFAULT_ENGINE else open_engine(name).target


def device_of(name: str) -> Device:
    """The device of the engine of that name; EngineError if there is none, or it is missing."""
    return open_engine(name).device


def devices() -> tuple[Device, ...]:
    """Every device that an engine finds, including those that cannot be used.

    Example:
        >>> lm.devices()[0].engine
        'cpu'
    """
    return tuple(device for name in _KINDS for device in _devices_of(name))


def _devices_of(name: str) -> Sequence[Device]:
    try:
        return _KINDS[name].devices()
    except EngineError as error:
        # In one line, for a table.
        facts = ", ".join(f"{fact} {value}" for fact, value in error.facts)
        problem = f"{error.problem} ({facts})" if facts else error.problem
        return [Device(name, "", None, problem, error.advice)]
