"""Each form of each instruction of the PTX machine, against NumPy or exact arithmetic."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import cuda_conversion_cases as cuda_conversion_cases
import cuda_float_cases as cuda_float_cases
import cuda_integer_cases as cuda_integer_cases
import cuda_memory_cases as cuda_memory_cases
import cuda_move_cases as cuda_move_cases
import cuda_warp_cases as cuda_warp_cases
import numpy as np
import pytest
from cuda_forms import Case, cases_by_target, failures, groups, kernel_of, module_of
from cuda_machine_cases import Bench, calculate, kernel

from cuda_machine.faults import Fault
from cuda_machine.syntax import CONTROL
from cuda_machine.writer import FORMS, IGNORED, Known

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "tools"))

from cuda_compiler import ptxas

Cases = dict[int, list[Case]]


# The tests of an instruction run after each other: they have the same cases.
@pytest.fixture(scope="module", params=sorted(FORMS))
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def cases(name: str) -> Cases:
    return cases_by_target(name)


def test_each_form_of_an_instruction(cases: Cases) -> None:
    wrong = [
        text
        for since, some in cases.items()
        for group in groups(some)
        for text in failures(group, f"sm_{since}")
    ]
    assert not wrong, "\n".join(wrong[:20])


@pytest.mark.skipif(ptxas() is None, reason="needs ptxas: pip install nvidia-cuda-nvcc")
def test_each_form_is_legal(cases: Cases, tmp_path: Path) -> None:
    for since, some in cases.items():
        kernels = [kernel_of(group, f"k{n}") for n, group in enumerate(groups(some))]
        source = tmp_path / "cases.ptx"
        source.write_text(module_of(kernels, f"sm_{since}"))
        command = [str(ptxas()), "-O0", f"-arch=sm_{since}", "-o", f"{source}.cubin", str(source)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert not done.returncode, done.stderr[:2000] + done.stdout[:2000]


def test_ignored_modifiers_are_in_the_code_of_cases(name: str, cases: Cases) -> None:
    code = " ".join(one.code for some in cases.values() for one in some)
    found = {*code.replace(";", ".").replace(" ", ".").split(".")}
    assert found >= {*IGNORED[name]}, f"no case of {sorted({*IGNORED[name]} - found)}"


def test_an_instruction_without_a_case_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    known = Known(lambda writer, one: None, 75)
    monkeypatch.setitem(FORMS, "szext", {("clamp", "u32"): known})
    with pytest.raises(AssertionError) as caught:
        cases_by_target("szext")
    assert str(caught.value).startswith("no case of szext.clamp.u32")


def test_a_wrong_result_is_found() -> None:
    a = np.array([1, 2, 3], "u4")
    (text,) = failures([Case("add.u32 d, a, 1;", (a,), np.array([2, 3, 5], "u4"))], "sm_75")
    assert text.startswith("add.u32 d, a, 1; of 3: ")
    assert text.endswith("is expected (1 of 3 differ)")


_FOUR = np.arange(4, dtype="u4")


@pytest.mark.parametrize(
    ("code", "want"),
    [
        ("add.u32 d, 5, 7;", 12),
        ("add.u32 d, 5, -7;", 2**32 - 2),
        ("and.b32 d, 0xff, 0b1010;", 10),
        ("mul.lo.u32 d, 010, 3U;", 24),
        ("sub.u32 x, %ntid.x, %tid.x; add.u32 d, x, %tid.x;", 128),
        ("setp.lt.u32 p, a, 9; and.pred q, p, !p; selp.u32 d, 3, 4, q;", 4),
        ("setp.lt.u32 p, a, 9; and.pred q, p, 1; selp.u32 d, 3, 4, q;", 3),
        ("mov.b32 {h, _}, 0x12345678; cvt.u32.u16 d, h;", 0x5678),
        ("fma.rn.f32 d, 0f40000000, 0f40400000, 0f3F800000;", 0x40E00000),
        (".reg .f64 w; mov.f64 w, 0d4008000000000000; cvt.rn.f32.f64 d, w;", 0x40400000),
        ("mov.u32 x, 9; { .reg .b32 x; mov.u32 x, 1; } mov.u32 d, x;", 9),
    ],
)
def test_operands(code: str, want: int) -> None:
    found = calculate(code, _FOUR, result="u4")
    np.testing.assert_array_equal(found, np.full(4, want, "u4"))


# A thread with a above 1 skips the second store, by each form of each instruction of control.
_CONTROL = {
    "bra": "setp.gt.u32 p, a, 1; @p bra over; st.global.u32 [at], 7; over: ret;",
    "bra.uni": "bra.uni over; st.global.u32 [at], 9; over: setp.le.u32 p, a, 1; "
    "@p st.global.u32 [at], 7; ret;",
    "brx.idx": "min.u32 a, a, 2; list: .branchtargets first, first, over; brx.idx a, list; "
    "first: st.global.u32 [at], 7; over: ret;",
    "brx.idx.uni": "list: .branchtargets over, next; brx.idx.uni 1, list; over: "
    "st.global.u32 [at], 9; next: setp.le.u32 p, a, 1; @p st.global.u32 [at], 7; ret;",
    "ret": "setp.gt.u32 p, a, 1; @p ret; st.global.u32 [at], 7;",
    "ret.uni": "setp.le.u32 p, a, 1; @p st.global.u32 [at], 7; ret.uni;",
    "exit": "setp.gt.u32 p, a, 1; @p exit; st.global.u32 [at], 7;",
    "trap": "setp.le.u32 p, a, 1; @p st.global.u32 [at], 7; setp.gt.u32 p, a, 99; @p trap;",
}


@pytest.mark.parametrize(
    "form", [".".join((name, one)).rstrip(".") for name, forms in CONTROL.items() for one in forms]
)
def test_each_form_of_control(form: str) -> None:
    start = """.reg .pred p; .reg .b32 a; .reg .b64 at; mov.u32 a, %tid.x; ld.param.u64 at, [p0];
        mad.wide.u32 at, a, 4, at; st.global.u32 [at], a; """
    bench = Bench(kernel(start + _CONTROL[form], ["u64"]))
    address = bench.array(_FOUR)
    bench.launch("k", 1, 4, address)
    np.testing.assert_array_equal(bench.read(address, _FOUR), [7, 7, 2, 3])


@pytest.mark.parametrize(
    ("code", "what"),
    [
        ("vadd.s32.s32.s32 d, a, a, a;", ""),
        ("add.s32.wide d, a, a;", ""),
        ("add.f32x2 d, a, a;", ""),
        ("mul.s32 d, a, a;", ""),
        ("cvt.f16.f32 d, a;", ""),
        ("cvt.rn.satfinite.e4m3x2.f32 d, a;", ""),
        ("bra.frobnicate over; over: mov.u32 d, 0;", ""),
        ("ex2.approx.f32 d, a;", ": an approximation, of which PTX does not say the result"),
        ("div.full.f32 d, a, a;", ": an approximation, of which PTX does not say the result"),
        ("ld.global.v8.b32 d, [a];", ": only sm_100 and later have it"),
    ],
)
def test_unknown_instructions_name_their_line(code: str, what: str) -> None:
    with pytest.raises(Fault) as caught:
        calculate(code, _FOUR, result="u4")
    assert str(caught.value).startswith(f"unknown instruction{what} (kernel k, line ")
    assert code.partition(";")[0] in str(caught.value)
    assert caught.value.line > 10


@pytest.mark.parametrize(
    ("shape", "type"), [("m16n8k16", "f16"), ("m16n8k16", "bf16"), ("m16n8k8", "tf32")]
)
def test_turing_has_only_the_small_product_of_float16(shape: str, type: str) -> None:
    """PTX ISA, mma, Target ISA Notes."""
    code = f"mma.sync.aligned.{shape}.row.col.f32.{type}.{type}.f32 {{a}}, {{a}}, {{a}}, {{a}};"
    with pytest.raises(Fault) as caught:
        calculate(code, _FOUR, result="u4", target="sm_75")
    assert "only sm_80 and later have it" in str(caught.value)


def test_tf32_operands_are_rounded_before() -> None:
    registers = ", ".join(f"r{n}" for n in range(4))
    code = f""".reg .b32 {registers}; {" ".join(f"mov.b32 r{n}, a;" for n in range(4))}
        mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {{{registers}}}, {{a, a, a, a}},
        {{a, a}}, {{{registers}}}; mov.b32 d, r0;"""
    ones = np.full(32, 0x3F800000, "u4")
    calculate(code, ones, result="u4", threads=32)
    ones[5] = 0x3F800001
    with pytest.raises(Fault) as caught:
        calculate(code, ones, result="u4", threads=32)
    assert "an operand of .tf32 that is not rounded to its bits" in str(caught.value)
    assert "thread (5, 0, 0)" in str(caught.value)


def test_division_by_zero_is_a_fault() -> None:
    for name in ("div", "rem"):
        with pytest.raises(Fault) as caught:
            calculate(f"{name}.u32 d, 7, a;", _FOUR, result="u4")
        assert "a division by zero (kernel k, line" in str(caught.value)
        assert "thread (0, 0, 0)" in str(caught.value)
