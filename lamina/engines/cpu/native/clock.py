"""The processor's time counter, which native code reads to measure durations."""

from __future__ import annotations

from lamina.codegen.llvm import Function
from lamina.codegen.values import I64, Value


def emit_ticks(code: Function, machine: str) -> Value:
    """Reads the counter; its rate does not depend on the processor's clock frequency."""
    # On ARM only the system may read the cycle counter; on x86 its rate is constant.
    steady = machine in ("aarch64", "arm64")
    name = "llvm.readsteadycounter" if steady else "llvm.readcyclecounter"
    code.module.declare(name, "i64", [])
    return code.call(name, I64)
