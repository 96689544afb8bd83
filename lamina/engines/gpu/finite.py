"""Whether all elements of arrays are finite: one number is read from the device for all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from lamina.base.shapes import DType, as_dtype, bfloat16, float16, float32, float64
from lamina.codegen.c import Module
from lamina.codegen.values import I32, I64, Type, constant
from lamina.engines.gpu.driver import Driver, Kernel
from lamina.engines.gpu.kernels import module_for
from lamina.engines.gpu.memory import DeviceMemory

# The exponent of each float type, which has all bits set in NaN and infinities.
_EXPONENTS = {bfloat16: 0x7F80, float16: 0x7C00, float32: 0x7F800000, float64: 0x7FF0000000000000}
# The most elements of a launch: their number is an int.
_MOST = 1 << 30


def finite_check(driver: Driver, memories: Sequence[DeviceMemory]) -> Callable[[], bool]:
    """A function that waits for the device, and returns whether all floats are finite."""
    checked = [memory for memory in memories if memory.bytes]
    flag = DeviceMemory(driver, (), np.dtype(np.int32))
    module = module_for(driver.traits, driver.words)
    for dtype in dict.fromkeys(as_dtype(memory.dtype) for memory in checked):
        _write(module, dtype)
    launches: list[tuple[Kernel, int]] = []
    with driver.errors("preparing a check of parameters"):
        built = driver.build(module.text())
        for memory in checked:
            dtype = as_dtype(memory.dtype)
            size = dtype.itemsize
            for start in range(0, memory.bytes, _MOST * size):
                length = min(_MOST * size, memory.bytes - start)
                values = driver.part(memory.buffer, start)
                count, name = length // size, f"finite_{dtype.name}"
                buffers = (values, flag.buffer)
                kernel = driver.kernel(built, name, buffers, count, numbered=True)
                launches.append((kernel, count))
        sequence = driver.sequence(launches)

    def are_finite() -> bool:
        flag.write(np.zeros((), np.int32))
        with driver.errors("checking parameters"):
            driver.queue.run(sequence)
        return not flag.read()

    return are_finite


def _write(module: Module, dtype: DType) -> None:
    """A kernel that stores 1 if one of the first elements of an array is not finite."""
    type = Type(f"i{8 * dtype.itemsize}")
    buffers = [("values", type.element), ("found", "i32")]
    code = module.kernel(f"finite_{dtype.name}", buffers, [("count", I32)])
    values, flag, count = code.parameters
    item, exponent = code.item(), constant(_EXPONENTS[dtype], type)
    with code.when(code.compare("ult", item, code.convert("zext", count, "i64"))):
        value = code.load(code.offset(values, item, type.element), type)
        with code.when(code.compare("eq", code.binary("and", value, exponent), exponent)):
            code.store(constant(1, I32), code.offset(flag, constant(0, I64), "i32"))
