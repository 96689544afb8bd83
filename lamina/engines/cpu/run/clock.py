"""The processor's own counter, which native code reads to see how long something took."""

from __future__ import annotations

from lamina.codegen.llvm import Function
from lamina.codegen.values import I64, Value


def emit_ticks(code: Function, machine: str) -> Value:
    """Reads the counter; it runs evenly, whatever the processor's clock does."""
    # The cycle counter of ARM processors is for the system alone, that of x86 ones runs evenly.
    steady = machine in ("aarch64", "arm64")
    name = "llvm.readsteadycounter" if steady else "llvm.readcyclecounter"
    code.module.declare(name, "i64", [])
    return code.call(name, I64)
