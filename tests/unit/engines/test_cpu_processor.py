"""The CPU engine's description of the processor, and its code for each kind of vectors."""

import os
import re
from dataclasses import replace

import pytest
from cpu_cases import ZEN_4
from emulated import emulate
from error_texts import error_text
from llvmlite import binding

import lamina as lm
from lamina.engines.cpu import llvm
from lamina.engines.cpu.native.scheduler import emit_scheduler
from lamina.engines.cpu.native.waiting import Waiting
from lamina.engines.cpu.native_program import write_program
from lamina.engines.cpu.processor import host
from lamina.errors import EngineError

HOST = host()
X86 = HOST.triple.startswith("x86_64")


def step_program():
    net = lm.Sequential(lm.Input(40), lm.Linear(50), lm.Tanh(), lm.Dropout(0.5), lm.Linear(7))
    return net.plan(30, lm.CrossEntropy(), lm.Adam(1e-3)).program


def widest_registers(assembly):
    operations = [
        line for line in assembly.splitlines() if re.search(r"\b\w*(add|mul|fma)\w*p[sd]\b", line)
    ]
    return next(name for name in ("zmm", "ymm", "xmm") if any(name in line for line in operations))


@pytest.mark.skipif(not X86, reason="the processor is no x86 one")
@pytest.mark.parametrize(
    ("vectors", "registers"), [("avx512", "zmm"), ("avx2", "ymm"), ("sse2", "xmm")]
)
def test_code_uses_the_requested_vectors(vectors, registers, monkeypatch):
    monkeypatch.setenv("LAMINA_VECTORS", vectors)
    try:
        processor = host()
    except EngineError:
        pytest.skip(f"this processor has no {vectors}")
    assembly = llvm.listing(write_program(step_program(), processor).text, processor)
    assert widest_registers(assembly) == registers
    assert ("vfmadd" in assembly) == (vectors != "sse2")


def test_code_can_be_generated_for_neon():
    processor = replace(
        ZEN_4,
        name="neoverse-n1",
        triple="aarch64-unknown-linux-gnu",
        features="+neon",
        vectors="neon",
        vector_bytes=16,
        bfloat16_pairs=False,
    )
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    assembly = llvm.listing(write_program(step_program(), processor).text, processor)
    assert re.search(r"fmla\s+v\d+\.4s", assembly)
    waiting = emit_scheduler(Waiting("aarch64", futex=True)).text()
    assert "yield" in llvm.listing(waiting, processor)


def test_no_function_of_a_library_is_called():
    """All machine code is generated: it has no undefined symbols."""
    text = write_program(step_program(), HOST).text
    declared = set(re.findall(r"^declare .*@([\w.]+)\(", text, re.MULTILINE))
    assert all(name.startswith("llvm.") for name in declared)
    called = set(re.findall(r"\bcall\s+\w+\s+([a-z]\w+)(?:@PLT)?", llvm.listing(text, HOST)))
    assert not called & {"memset", "memcpy", "expf", "logf", "tanhf", "powf", "fmaf", "floorf"}


@pytest.mark.parametrize("value", ["0", "two", "-1", "1025", "2.0"])
def test_a_wrong_number_of_threads_is_refused(value, monkeypatch):
    monkeypatch.setenv("LAMINA_THREADS", value)
    assert error_text(EngineError, lambda: lm.Model(lm.Sequential(lm.Input(2), lm.Linear(1)))) == (
        "LAMINA_THREADS is not a number of threads\n"
        "  expected  a whole number from 1 to 1024\n"
        f"  found     {value!r}\n"
        "  Unset LAMINA_THREADS to use every core this process may use."
    )


def test_an_engine_that_cannot_be_used_is_listed_with_the_reason(monkeypatch):
    monkeypatch.setenv("LAMINA_THREADS", "0")
    problems = {device.engine: device.problem for device in lm.devices()}
    assert problems["interpreter"] == ""
    assert problems["cpu"] == (
        "LAMINA_THREADS is not a number of threads "
        "(expected a whole number from 1 to 1024, found '0')"
    )


def test_systems_without_futexes_or_condition_variables_have_one_thread(monkeypatch):
    monkeypatch.setattr("lamina.engines.cpu.processor._CAN_WAIT", False)
    monkeypatch.delenv("LAMINA_THREADS", raising=False)
    assert host().threads == 1
    monkeypatch.setenv("LAMINA_THREADS", "2")
    assert error_text(EngineError, host) == (
        "several threads are not supported on this system\n"
        "  expected  LAMINA_THREADS=1\n"
        "  found     '2'\n"
        "  Threads wait for each other on futexes or POSIX condition variables."
    )


def test_unsupported_vectors_are_refused(monkeypatch):
    monkeypatch.setenv("LAMINA_VECTORS", "altivec")
    text = error_text(EngineError, host)
    lines = text.splitlines()
    assert lines[0] == "LAMINA_VECTORS names vectors that this processor does not have"
    assert lines[2:] == ["  found     'altivec'", "  Unset LAMINA_VECTORS to use the widest ones."]


@pytest.mark.skipif(not X86, reason="the processor is no x86 one")
def test_emulated_code_uses_no_instructions_of_other_processors(monkeypatch):
    emulate(monkeypatch, "avx512")
    assert host().bfloat16_pairs
    net = lm.Sequential(lm.Input(40), lm.Linear(64))
    program = net.plan(30, lm.MSE(), lm.SGD(0.1), dtype="mixed-bfloat16").program
    assembly = llvm.listing(write_program(program, host()).text, host())
    assert "emulated_dpbf16ps_16" in assembly
    assert widest_registers(assembly) == "ymm"
    assert "vdpbf16ps" not in assembly


def test_threads_follow_the_variable_and_the_affinity_mask(monkeypatch):
    monkeypatch.setenv("LAMINA_THREADS", "5")
    assert host().threads == 5
    monkeypatch.delenv("LAMINA_THREADS")
    if not hasattr(os, "sched_setaffinity"):
        pytest.skip("the system has no affinity masks")
    allowed = os.sched_getaffinity(0)
    assert host().threads == len(allowed)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert host().threads == 1
    finally:
        os.sched_setaffinity(0, allowed)
