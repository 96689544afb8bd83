"""The processor's own counter, which native code reads to see how long a step took."""

from __future__ import annotations

import time
from functools import cache

import numpy as np

from lamina.engines.cpu.ir import I64, POINTER, Function, Module, Value
from lamina.engines.cpu.machine_code import Library, compiled
from lamina.engines.cpu.native_loop import PROGRAM_PARAMETERS
from lamina.engines.cpu.processor import host
from lamina.engines.cpu.team import Job, run

# Long enough that the moments of reading both clocks do not matter.
_CALIBRATION_SECONDS = 0.02


def emit_ticks(code: Function) -> Value:
    """Reads the counter; it runs evenly, whatever the processor's clock does."""
    # The cycle counter of ARM processors is for the system alone, that of x86 ones runs evenly.
    steady = host().triple.startswith(("aarch64", "arm64"))
    name = "llvm.readsteadycounter" if steady else "llvm.readcyclecounter"
    code.module.declare(name, "i64", [])
    return code.call(name, I64)


@cache
def ticks_per_second() -> float:
    """How fast the counter runs, measured once."""
    module = Module(fused=False)
    code = module.function("program", PROGRAM_PARAMETERS, internal=False)
    place = code.load(code.parameters[0], POINTER)
    code.store(emit_ticks(code), place)
    code.finish()
    library = Library(compiled(module.text(), host()))
    ticks = np.zeros(1, np.int64)
    table = np.array([ticks.ctypes.data], np.uint64)
    job = Job(library.address("program"), table, 1)
    readings: list[tuple[float, int]] = []
    for pause in (0.0, _CALIBRATION_SECONDS):
        time.sleep(pause)
        run(job)
        readings.append((time.perf_counter(), int(ticks[0])))
    library.release()
    (start, first), (end, last) = readings
    return (last - first) / (end - start)
