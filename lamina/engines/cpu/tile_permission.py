"""The system's permission to use the tile registers of AMX.

Linux saves the 8 KiB of these registers only for processes that ask for it. A permission is for all
threads of the process, and for its forked children.
"""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache

# Of Linux on x86-64: the number of the call, and its arguments for XFEATURE_XTILEDATA.
_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XTILEDATA = 158, 0x1023, 18


@cache
def refusal() -> str:
    """Why this process may not use tile registers; empty if it may. It asks the system once."""
    if not sys.platform.startswith("linux"):
        return "only Linux is asked for them"
    library = ctypes.CDLL(None, use_errno=True)
    library.syscall.restype = ctypes.c_long
    arguments = (_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XTILEDATA)
    if library.syscall(*map(ctypes.c_long, arguments)) == 0:
        return ""
    return os.strerror(ctypes.get_errno())
