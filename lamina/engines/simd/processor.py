"""The properties of a processor for which kernels are written: vectors, registers, caches."""

from __future__ import annotations

from lamina.base.records import frozen_dataclass

# The size of a cache line.
LINE_BYTES = 64


def whole_lines(size: int) -> int:
    """At least `size` bytes, in whole cache lines."""
    return -(-size // LINE_BYTES) * LINE_BYTES


def odd_lines(size: int, itemsize: int) -> int:
    """At least `size` elements, an odd number of cache lines: a stride that uses all cache sets."""
    line = LINE_BYTES // itemsize
    return (-(-size // line) | 1) * line


@frozen_dataclass
class Processor:
    """A processor, as far as kernels depend on it.

    Attributes:
        vector_bytes: the size of a vector register.
        registers: the number of vector registers.
        fused: whether there is a fused multiply-add, with one rounding.
        bfloat16_pairs: whether there is an instruction that multiplies pairs of bfloat16, and adds
            both products to a float.
        bfloat16_tiles: whether there are tile registers that multiply pairs of bfloat16 (AMX).
        level1_bytes, level2_bytes, level3_bytes: the sizes of the data caches of a core, and of the
            shared one (0 if there is none).
        threads: the most threads that may run.
        registers_at_once: the registers of a vector in short expressions. Several hide latencies,
            and make more code.
        winograd_saving: the cycles that Winograd's algorithms must save in a step, for each element
            of a transformed tile: their kernels are long, and some compilers slow.
    """

    vector_bytes: int
    registers: int
    fused: bool
    bfloat16_pairs: bool
    bfloat16_tiles: bool
    level1_bytes: int
    level2_bytes: int
    level3_bytes: int
    threads: int
    registers_at_once: int
    winograd_saving: float
