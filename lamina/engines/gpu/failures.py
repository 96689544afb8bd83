"""Errors of a device's driver, as users get them."""

from __future__ import annotations

from lamina.engines.engine import Device
from lamina.errors import EngineError

_ADVICE = "If the device has too little memory, take a smaller batch. Otherwise update the driver."


def driver_failure(
    api: str,
    doing: str,
    reported: str,
    facts: tuple[tuple[str, str], ...],
    record: Device,
    advice: str = _ADVICE,
) -> EngineError:
    """The error for a call of a driver that failed.

    Args:
        api: of the driver, `"OpenCL"`.
        doing: what Lamina was doing.
        reported: by the driver.
        facts: further names and values for the user.
        record: of the device.
        advice: what to do.
    """
    return EngineError(
        f"the {api} driver failed at {doing}",
        facts=(("driver reported", reported), *facts, ("device", record.description)),
        where=record.engine,
        advice=advice,
    )
