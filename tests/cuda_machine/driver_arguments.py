"""How cuda.bindings reads arguments: addresses of host memory, and parameters of kernels."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from cuda_machine.driver_state import OutsideTheDouble

# The types that `kernelParams` may name, besides None and c_void_p.
SCALARS = (
    ctypes.c_bool,
    ctypes.c_char,
    ctypes.c_wchar,
    ctypes.c_byte,
    ctypes.c_ubyte,
    ctypes.c_short,
    ctypes.c_ushort,
    ctypes.c_int,
    ctypes.c_uint,
    ctypes.c_long,
    ctypes.c_ulong,
    ctypes.c_longlong,
    ctypes.c_ulonglong,
    ctypes.c_float,
    ctypes.c_double,
)


def host_address(pointer: Any, size: int) -> int:
    """The address that a pointer argument means: an address, None, or an object with a buffer."""
    if pointer is None:
        return 0
    if hasattr(pointer, "__int__") and not isinstance(pointer, np.ndarray):
        return int(pointer)
    view = memoryview(pointer)
    if not view.contiguous:
        raise BufferError("the bindings take contiguous buffers only")
    if view.nbytes < size:
        raise OutsideTheDouble(f"a copy of {size} bytes in a host buffer of {view.nbytes} bytes")
    return np.frombuffer(view.cast("B"), np.uint8).ctypes.data if view.nbytes else 0


def image_text(image: Any) -> bytes:
    """The bytes of a module's image, up to the first NUL."""
    if isinstance(image, int):
        return ctypes.string_at(image)
    return bytes(memoryview(image).cast("B")).split(b"\0", 1)[0]


def parameter_bytes(parameters: Any, sizes: Sequence[int]) -> list[bytes]:
    """The bytes of a kernel's parameters, read when the kernel is launched, as the driver does."""
    if isinstance(parameters, tuple):
        return _from_values(parameters, sizes)
    if parameters is None:
        if sizes:
            raise OutsideTheDouble(f"no parameters for a kernel of {len(sizes)}")
        return []
    table = host_address(parameters, ctypes.sizeof(ctypes.c_void_p) * len(sizes))
    addresses = (ctypes.c_void_p * len(sizes)).from_address(table)
    return [_read(address, size) for address, size in zip(addresses, sizes, strict=True)]


def _read(address: int | None, size: int) -> bytes:
    if not address:
        raise OutsideTheDouble("a null pointer among the pointers to a kernel's parameters")
    return ctypes.string_at(address, size)


def _from_values(parameters: tuple[Any, ...], sizes: Sequence[int]) -> list[bytes]:
    if len(parameters) != 2 or not all(isinstance(part, tuple) for part in parameters):
        raise TypeError("kernelParams is a tuple of two tuples, of values and of types")
    values, types = parameters
    if len(values) != len(types):
        raise TypeError("kernelParams has tuples of different lengths")
    if len(values) != len(sizes):
        raise OutsideTheDouble(f"{len(values)} parameters for a kernel of {len(sizes)}")
    return [
        _pack(value, kind, size) for value, kind, size in zip(values, types, sizes, strict=True)
    ]


def _pack(value: Any, kind: Any, size: int) -> bytes:
    """The bytes of one parameter. The kernel reads `size` bytes, whatever the type is."""
    if kind is None:
        if callable(getattr(value, "getPtr", None)):
            # The handles and pointers of the bindings are objects of 8 bytes.
            _require_size(value, 8, size)
            return ctypes.string_at(value.getPtr(), size)
        if isinstance(value, ctypes.Structure):
            packed = bytes(value)
        else:
            raise TypeError(f"{type(value).__name__} has no getPtr() and is no ctypes structure")
    elif kind is ctypes.c_void_p:
        address = value.value if isinstance(value, ctypes.c_void_p) else value
        if not isinstance(address, int):
            raise TypeError(f"{type(value).__name__} as c_void_p: the double takes addresses")
        packed = bytes(ctypes.c_void_p(address))
    elif kind in SCALARS:
        packed = bytes(value if isinstance(value, kind) else kind(value))
    else:
        raise TypeError(f"kernelParams has the type {kind!r}")
    _require_size(value, len(packed), size)
    return packed


def _require_size(value: Any, found: int, expected: int) -> None:
    if found != expected:
        raise OutsideTheDouble(f"{value!r} has {found} bytes, the parameter has {expected}")
