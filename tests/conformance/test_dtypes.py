"""Every op with every type of integers and with bool, up to their largest and smallest values.

Generated: an op that takes a dtype is run with it. The other tests draw floats.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from harness import check, values_of

from lamina import ops
from lamina.base.shapes import PUBLIC_DTYPES, Array, DType, as_dtype, float32
from lamina.errors import LaminaError
from lamina.graph import Op, Sample, Tensor, apply, leaf

WHOLE = [dtype for dtype in PUBLIC_DTYPES.values() if not dtype.is_float]


def typed(op: Op) -> Iterator[tuple[Sample, list[DType]]]:
    """The op's samples, and operand types that it takes; one of them is in `WHOLE`."""
    for sample in op.samples:
        names = sample.dtypes or ("float",) * len(sample.shapes)
        for group in dict.fromkeys(names):
            for dtype in WHOLE:
                types = {"float": float32, group: dtype}
                dtypes = [types[name] if name in types else as_dtype(name) for name in names]
                if accepts(op, sample, dtypes):
                    yield sample, dtypes


def accepts(op: Op, sample: Sample, dtypes: Sequence[DType]) -> bool:
    """Whether the op takes operands of these types."""
    operands = [
        leaf(f"x{number}", "input", shape, dtype)
        for number, (shape, dtype) in enumerate(zip(sample.shapes, dtypes, strict=True))
    ]
    try:
        apply(op, *operands, **sample.attributes)
    except LaminaError:
        return False
    return True


def extreme(array: Array, number: int) -> Array:
    """Small and large integers of the array's type: by number all negative, all positive, or any.

    Unsigned ones are never negative.
    """
    limits = np.iinfo(array.dtype)
    every = np.array([limits.max, limits.max - 1, limits.max // 3, 1, 2, 3], array.dtype)
    if limits.min and number % 3 == 0:
        every = ~every
    elif number % 3 == 2:
        every = np.concatenate([every, ~every, array.reshape(-1)])
    return np.random.default_rng(number).choice(every, array.shape)


OPS = [op for op in ops.ALL if next(typed(op), None)]


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_op_with_every_type_of_integers(op, engine, leaves):
    results: list[Tensor] = []
    made_of: Counter[tuple[DType, ...]] = Counter()
    for sample, dtypes in typed(op):
        arrays = values_of(sample, float32)
        operands = [x.astype(dtype.numpy) for x, dtype in zip(arrays, dtypes, strict=True)]
        stubs = [leaf(f"x{i}", "input", x.shape, as_dtype(x.dtype)) for i, x in enumerate(operands)]
        count = made_of[tuple(dtypes)]
        made_of[tuple(dtypes)] += 1
        made = apply(op, *stubs, **sample.attributes)
        index = op.indices(made)[0] if op.indices else None
        operands = [
            x if tensor is index or x.dtype.kind not in "iu" else extreme(x, count + number)
            for number, (x, tensor) in enumerate(zip(operands, stubs, strict=True))
        ]
        results.append(apply(op, *map(leaves.add, operands), **sample.attributes))
    check(leaves.graph(results), engine, leaves.feeds)
