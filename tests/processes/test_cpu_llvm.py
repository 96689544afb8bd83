"""Machine code from LLVM, in memory."""

from __future__ import annotations

import sys

import pytest
from fresh_python import printed

# Code, constants and a table have sections of their own. All of the address space is reserved but
# for a hole of a few pages, and a large free range more than 4 GiB below it.
_LITTLE_ROOM = """
import ctypes
import mmap

from lamina.engines.cpu.processor import host
from lamina.engines.cpu.llvm import assemble, load

PAGE, FAR = mmap.PAGESIZE, 4 << 30
NO_RESERVE = 0x4000
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]

def reserve(size):
    found = libc.mmap(None, size, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE, -1, 0)
    assert found != ctypes.c_void_p(-1).value
    return found

code = assemble('''
    @table = internal constant [4 x double] [double 1.5, double 2.5, double 3.5, double 4.5]
    define double @sum(double %x) {
      %first = fadd double %x, 1.25
      %second_address = getelementptr [4 x double], ptr @table, i64 0, i64 2
      %second = load volatile double, ptr %second_address
      %sum = fadd double %first, %second
      ret double %sum
    }''', host())
load(code, ("sum",)).release()  # LLVM has loaded what it needs itself.
start = reserve(FAR)
for pages in range(1, 17):
    while reserve(PAGE) > start:
        pass  # Fills what is free above.
    libc.munmap(start + FAR - pages * PAGE, pages * PAGE)
    loaded = load(code, ("sum",))
    sum_of = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(loaded.addresses["sum"])
    print(sum_of(1.0))
    loaded.release()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Linux gives the highest addresses first")
def test_code_and_constants_reach_each_other_in_a_fragmented_address_space() -> None:
    assert printed(_LITTLE_ROOM).split() == ["5.75"] * 16
