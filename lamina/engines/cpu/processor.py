"""The processor of this machine, and the number of threads to use."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from functools import cache
from pathlib import Path

from lamina.base.cores import usable_cores
from lamina.base.records import frozen_dataclass
from lamina.engines.cpu import llvm
from lamina.engines.simd.processor import Processor
from lamina.errors import EngineError

_AVX512 = ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx2", "fma")
_AMX = (*_AVX512, "avx512bf16", "amx-tile", "amx-bf16")
# The kinds of vectors, the default first: the features that they need, by LLVM's names; bytes, the
# number of registers, and whether there is a fused multiply-add.
_VECTORS = {
    "amx": (_AMX, 64, 32, True),
    "avx512": (_AVX512, 64, 32, True),
    "avx2": (("avx2", "fma"), 32, 16, True),
    "sse2": (("sse2",), 16, 16, False),
    "neon": (("neon",), 16, 32, True),
}
# Whether threads can wait for each other in native code; see `waiting`.
_CAN_WAIT = os.name == "posix"
# Defaults if the system does not report sizes: today's processors have at least these.
_LEVEL1_BYTES, _LEVEL2_BYTES = 32 << 10, 256 << 10


@frozen_dataclass
class HostProcessor(llvm.Target, Processor):
    """A processor for which LLVM compiles programs.

    Attributes:
        description: the name that users see.
        vectors: the kind: `"amx"` (AVX-512 and tiles), `"avx512"`, `"avx2"`, `"sse2"` or `"neon"`.
        halves: whether there are instructions that convert float16.
        refusal: the reason why the system refuses the processor's tile registers; empty if none.
    """

    description: str
    vectors: str
    halves: bool
    refusal: str


def host() -> HostProcessor:
    """The processor of this machine.

    The environment variable LAMINA_THREADS limits the number of threads, or else OMP_NUM_THREADS,
    LAMINA_VECTORS the kind of vectors.

    Raises:
        EngineError: if LAMINA_THREADS or LAMINA_VECTORS has a value that this machine does not
            support.
    """
    name, features, triple = llvm.host_target()
    flags = dict(features)
    description = _description() or name
    present = {flag for flag, there in flags.items() if there}
    refused = ""
    if present.issuperset(_AMX) and os.environ.get("LAMINA_VECTORS", "") in ("", "amx"):
        refused = tile_refusal()
    vectors = _chosen_vectors(present - ({"amx-tile"} if refused else set()), refused)
    if vectors not in ("amx", "avx512"):
        flags |= {flag: False for flag in flags if flag.startswith(("avx512", "avx10", "evex"))}
    if vectors == "sse2":
        name = "x86-64"
        flags = {"sse2": True}
    if vectors in ("amx", "avx512"):
        # Use whole registers also on processors for which LLVM prefers half of a register.
        flags["prefer-256-bit"] = False
    text = ",".join(f"{'+' if there else '-'}{flag}" for flag, there in sorted(flags.items()))
    _, vector_bytes, registers, fused = _VECTORS[vectors]
    first, second, third = _caches()
    return HostProcessor(
        name=name,
        triple=triple,
        features=text,
        description=description,
        vectors=vectors,
        halves=vectors == "neon" or bool(flags.get("f16c")),
        refusal=refused,
        vector_bytes=vector_bytes,
        registers=registers,
        fused=fused,
        bfloat16_pairs=bool(flags.get("avx512bf16")),
        bfloat16_tiles=vectors == "amx",
        level1_bytes=first,
        level2_bytes=second,
        level3_bytes=third,
        threads=_threads(),
        registers_at_once=4,
        winograd_saving=0.0,
    )


def _chosen_vectors(present: set[str], refused: str) -> str:
    possible = [name for name, (needed, *_) in _VECTORS.items() if present.issuperset(needed)]
    if not possible:
        # Every 64-bit x86 processor has SSE2, and every 64-bit ARM processor NEON, listed or not.
        possible = ["neon" if platform.machine().lower() in ("arm64", "aarch64") else "sse2"]
    vectors = os.environ.get("LAMINA_VECTORS", "")
    if not vectors:
        return possible[0]
    if vectors not in possible:
        facts = [("expected", " or ".join(possible)), ("found", repr(vectors))]
        if refused:
            facts.append(("system", f"refuses tile registers: {refused}"))
        raise EngineError(
            "LAMINA_VECTORS names vectors that this processor does not have",
            facts=tuple(facts),
            advice="Unset LAMINA_VECTORS to use the widest ones.",
        )
    return vectors


def _threads() -> int:
    threads = os.environ.get("LAMINA_THREADS", "")
    if threads:
        if not threads.isascii() or not threads.isdigit() or not 1 <= int(threads) <= 1024:
            raise EngineError(
                "LAMINA_THREADS is not a number of threads",
                facts=(("expected", "a whole number from 1 to 1024"), ("found", repr(threads))),
                advice="Unset LAMINA_THREADS to use every core this process may use.",
            )
        if int(threads) > 1 and not _CAN_WAIT:
            raise EngineError(
                "several threads are not supported on this system",
                facts=(("expected", "LAMINA_THREADS=1"), ("found", repr(threads))),
                advice="Threads wait for each other on futexes or POSIX condition variables.",
            )
        return int(threads)
    if not _CAN_WAIT:
        return 1
    # Programs that run several processes at once, such as joblib, divide the cores by this.
    limit = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    return min(usable_cores(), max(int(limit), 1)) if limit.isdecimal() else usable_cores()


@cache
def _caches() -> tuple[int, int, int]:
    """The sizes of the data caches, in bytes."""
    sizes: dict[int, int] = {}
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            kind = (index / "type").read_text().strip()
            level = int((index / "level").read_text())
            size = (index / "size").read_text().strip()
        except (OSError, ValueError):
            continue
        if kind != "Instruction" and size.endswith("K") and size[:-1].isdigit():
            sizes[level] = int(size[:-1]) << 10
    return sizes.get(1, _LEVEL1_BYTES), sizes.get(2, _LEVEL2_BYTES), sizes.get(3, 0)


@cache
def _description() -> str:
    """The vendor's name of the processor; empty if the system does not report it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "")


# Of Linux on x86-64: the number of the call, and its arguments for XFEATURE_XTILEDATA.
_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XTILEDATA = 158, 0x1023, 18


@cache
def tile_refusal() -> str:
    """Why this process may not use the tile registers of AMX; empty if it may.

    Linux saves the 8 KiB of these registers only for processes that ask for it. A permission is for
    all threads of the process, and for its forked children. The system is asked once.
    """
    if not sys.platform.startswith("linux"):
        return "only Linux is asked for them"
    library = ctypes.CDLL(None, use_errno=True)
    library.syscall.restype = ctypes.c_long
    arguments = (_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XTILEDATA)
    if library.syscall(*map(ctypes.c_long, arguments)) == 0:
        return ""
    return os.strerror(ctypes.get_errno())
