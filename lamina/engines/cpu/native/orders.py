"""The kernel whose work items are permutations: positions in the order of 64 random bits each.

The keys are nearly even, so positions are first distributed to buckets by the highest bits, and
then moved to their place among the few neighbours.
"""

from __future__ import annotations

from lamina.codegen.llvm import Function, Module
from lamina.codegen.primitives import random_words
from lamina.codegen.values import I64, POINTER, Value
from lamina.engines.cpu.native.jobs import KERNEL_PARAMETERS, word_of

# The words of the kernel's section: for each item a seed and the number of a permutation, the
# stream, the length of a permutation, where all are written, the scratch memory of the first
# thread and the bytes of each, and how many of the highest bits choose a bucket.
SEEDS, NUMBERS, STREAM, COUNT, TARGET, SCRATCH, SCRATCH_BYTES, BITS = range(8)
# The keys that are made at once.
KEYS_AT_ONCE = 16


def scratch_bytes(count: int, bits: int) -> int:
    """The scratch memory of a thread: keys, keys in order, and the buckets."""
    return 8 * (2 * _padded(count) + (1 << bits))


def _padded(count: int) -> int:
    return -(-count // KEYS_AT_ONCE) * KEYS_AT_ONCE


def emit_orders() -> Module:
    """The module that exports the kernel `orders(section, thread, first, last)`."""
    module = Module(fused=False)
    code = module.function("orders", KERNEL_PARAMETERS, internal=False)
    section, thread, first, last = code.parameters
    count = word_of(code, section, COUNT)
    padded = (count + (KEYS_AT_ONCE - 1)) & -KEYS_AT_ONCE
    bits = word_of(code, section, BITS)
    buckets, shift = code.constant(1) << bits, 64 - bits
    scratch = word_of(code, section, SCRATCH, POINTER)
    keys = code.offset(scratch, thread * word_of(code, section, SCRATCH_BYTES), "i8")
    ordered = code.offset(keys, padded, "i64")
    ends = code.offset(ordered, padded, "i64")
    with code.loop(first, last) as items:
        seed, number = (
            code.load(code.offset(word_of(code, section, n, POINTER), items.index, "i64"), I64)
            for n in (SEEDS, NUMBERS)
        )
        target = code.offset(word_of(code, section, TARGET, POINTER), items.index * count, "i64")
        _emit_keys(code, keys, padded, seed, number, word_of(code, section, STREAM))
        with code.loop(0, buckets) as bucket:
            code.store(0, code.offset(ends, bucket.index, "i64"))
        with code.loop(0, count) as position:
            end = code.offset(ends, _at(code, keys, position.index) >> shift, "i64")
            code.store(code.load(end, I64) + 1, end)
        before = code.allocate(1, "i64")
        code.store(0, before)
        with code.loop(0, buckets) as bucket:
            end, start = code.offset(ends, bucket.index, "i64"), code.load(before, I64)
            code.store(start + code.load(end, I64), before)
            code.store(start, end)
        with code.loop(0, count) as position:
            key = _at(code, keys, position.index)
            end = code.offset(ends, key >> shift, "i64")
            place = code.load(end, I64)
            code.store(place + 1, end)
            code.store(key, code.offset(ordered, place, "i64"))
            code.store(position.index, code.offset(target, place, "i64"))
        _emit_insertions(code, ordered, target, count)
    return module


def _at(code: Function, base: Value, position: Value) -> Value:
    return code.load(code.offset(base, position, "i64"), I64)


def _emit_keys(
    code: Function, keys: Value, padded: Value, seed: Value, number: Value, stream: Value
) -> None:
    """Writes the random bits; the first of two words is the higher half of a key."""
    lanes = 2 * KEYS_AT_ONCE
    with code.loop(0, padded, KEYS_AT_ONCE) as loop:
        words = random_words(code, loop.index * 2, lanes, seed, number, stream)
        swapped = code.shuffle(words, words, [lane ^ 1 for lane in range(lanes)])
        code.store(swapped, code.offset(keys, loop.index, "i64"))


def _emit_insertions(code: Function, keys: Value, target: Value, count: Value) -> None:
    """Moves keys, with their positions, before all greater ones."""
    place = code.allocate(1, "i64")
    with code.loop(1, count) as loop:
        key, position = (_at(code, base, loop.index) for base in (keys, target))
        code.store(loop.index, place)
        with code.forever() as after:
            at = code.load(place, I64)
            code.leave_when(at.equals(0), after)
            before = _at(code, keys, at - 1)
            code.leave_when(code.compare("ule", before, key), after)
            code.store(before, code.offset(keys, at, "i64"))
            code.store(_at(code, target, at - 1), code.offset(target, at, "i64"))
            code.store(at - 1, place)
        at = code.load(place, I64)
        code.store(key, code.offset(keys, at, "i64"))
        code.store(position, code.offset(target, at, "i64"))
