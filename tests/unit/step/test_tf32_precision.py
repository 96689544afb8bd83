"""Products in TF32: the rounding itself, where it is in programs, and how users ask for it."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from error_texts import error_text, refused
from random_arrays import every_exponent
from training_cases import classifier, examples, same

import lamina as lm
from lamina import ops
from lamina.base.shapes import Array, bfloat16, float32, float64
from lamina.compiler.pipeline import compile_graph
from lamina.engines import DEFAULT_TARGET
from lamina.engines.cpu.engine import CpuEngine
from lamina.engines.cuda.devices import _device
from lamina.engines.engine import Device
from lamina.errors import DefinitionError, DTypeError, FileFormatError
from lamina.files.model_file import ModelFile, read_model, write_model
from lamina.graph import Graph, leaf
from lamina.ops.differentiate import gradients
from lamina.program.program import Program
from lamina.program.scalar import Apply, postorder
from lamina.program.steps import Contraction, Step, scalars_of
from lamina.program.tf32 import rounded_to_tf32, unrounded
from lamina.runtime import Function
from lamina.step.precision import TF32_PRODUCTS, Precision, precision_of, rounding_of
from lamina.step.rounding import with_tf32_products

LOSS, OPTIMIZER = lm.CrossEntropy(), lm.SGD(0.1)


def device(*, has_tf32: bool | None) -> Device:
    return Device("cpu", "a device with tensor cores", None, has_tf32=has_tf32)


# The rounding -------------------------------------------------------------------------------------


def nearest_with_ten_bits(x: Array) -> Array:
    """By arithmetic: a multiple of the last digit that is kept, which is exact in float64."""
    wide = x.astype("float64")
    _, exponent = np.frexp(wide)
    # Subnormal numbers all have the last digit of the smallest normal ones.
    digit = np.ldexp(1.0, np.maximum(exponent, -125) - 11)
    nearest = np.copysign(np.floor(np.abs(wide) / digit + 0.5) * digit, wide)
    return np.where(np.abs(nearest) < 2.0**128, nearest, np.copysign(np.inf, wide))


def test_the_nearest_number_is_taken_and_of_two_the_one_away_from_zero():
    x = every_exponent()
    x = x[~np.isnan(x)]
    rounded = rounded_to_tf32(x)
    assert np.array_equal(rounded.astype("float64"), nearest_with_ten_bits(x))
    assert np.array_equal(np.signbit(rounded), np.signbit(x))
    assert np.isinf(rounded[np.isfinite(x)]).any()


NANS = np.array([0x7F800001, 0x7FC00000, 0x7FFFFFFF, 0xFF801FFF, 0xFFFFFFFF], np.uint32)


def test_a_nan_stays_one_in_the_bits_that_tensor_cores_read():
    found = rounded_to_tf32(NANS.view(np.float32))
    assert np.isnan(found).all()
    assert not (found.view(np.uint32) & 0x1FFF).any()
    assert np.array_equal(np.signbit(found), np.signbit(NANS.view(np.float32)))


def test_the_cpu_engine_rounds_to_the_same_bits():
    x = np.concatenate([every_exponent(), NANS.view(np.float32)])
    given = lm.Input()
    (found,) = Function(given, ops.round_to_tf32(given), CpuEngine())(x)
    assert np.array_equal(found.view(np.uint32), rounded_to_tf32(x).view(np.uint32))


def test_the_gradient_is_not_rounded():
    x, weight = lm.Input(3), lm.Input(3)
    (gradient,) = gradients(ops.sum(ops.round_to_tf32(x) * weight), [x])
    given = np.array([[1 + 2**-20, 2**-30, 7.123456]], "float32")
    assert np.array_equal(lm.compile([x, weight], gradient)(given, given)[0], given)


# Where it is in programs --------------------------------------------------------------------------


def program_of(graph: Graph) -> Program:
    return compile_graph(graph, batch=8, name="test", target=DEFAULT_TARGET)


def roundings_in(step: Step) -> int:
    found = postorder(*scalars_of(step))
    return sum(isinstance(one, Apply) and one.primitive == "round_to_tf32" for one in found)


def contractions_of(program: Program) -> Iterator[Contraction]:
    return (step for step in program.steps if isinstance(step, Contraction))


def images() -> lm.Network:
    return lm.Sequential(
        lm.Input(4, 12, 12),
        *(lm.Conv2d(8, 3, padding="same", bias=False), lm.BatchNorm(), lm.ReLU()),
        *(lm.Conv2d(8, 3, stride=2), lm.GELU(), lm.ConvTranspose2d(4, 2), lm.MaxPool2d(2)),
        *(lm.Flatten(), lm.Linear(5)),
    )


def sequences() -> lm.Network:
    heads = lm.MultiHeadAttention(2, causal=True)
    return lm.Sequential(lm.Input(6, 8), lm.LSTM(8), heads, lm.Flatten(), lm.Linear(5))


@pytest.mark.parametrize("network", [images, sequences])
@pytest.mark.usefixtures("tensor_cores")
def test_all_operands_are_rounded_in_their_views_and_nothing_else_changes(network):
    before, after = (
        network().plan(8, LOSS, OPTIMIZER, precision=precision).program
        for precision in ("float32", "tf32")
    )
    assert [step.name for step in after.steps] == [step.name for step in before.steps]
    assert after.plan == before.plan
    assert list(contractions_of(after))
    for old, new in zip(before.steps, after.steps, strict=True):
        assert roundings_in(old) == 0
        if isinstance(new, Contraction):
            # Without the roundings, the step is as in float32.
            assert unrounded(new) == old
            assert all(roundings_in(step) == 2 for step in [new])
        else:
            assert new == old


def test_a_rounded_tensor_is_stored_once_for_all_products():
    """In float32, also where views move it before or after it is rounded."""
    x, weight = lm.Input(6), leaf("weight", "parameter", (6, 6), float32)
    hidden = ops.tanh(x)
    outputs = [
        ops.matmul(hidden, weight),
        ops.matmul(weight, ops.transpose(hidden, (1, 0))),
        ops.matmul(ops.reshape(hidden, (-1, 2, 3)), ops.reshape(weight, (3, 12))),
    ]
    graph = Graph((x,), tuple((f"y{n}", y) for n, y in enumerate(outputs)))
    program = program_of(with_tf32_products(graph))
    results = {buffer for _, buffer in program.outputs}
    (only,) = [buffer for buffer in program.of_kind("temporary") if buffer.name not in results]
    assert only.size == 48
    assert [unrounded(step) is not None for step in contractions_of(program)] == [True] * 3
    assert [roundings_in(step) for step in program.steps] == [0, 2, 2, 2]


def test_roundings_move_out_of_windows():
    x, weight = leaf("x", "input", (8, 3, 9, 9), float32), leaf("w", "input", (4, 3, 3, 3), float32)
    graph = Graph((x, weight), (("y", ops.conv(ops.relu(x), weight, 1, 1, 1)),))
    (*_, step) = program_of(with_tf32_products(graph)).steps
    assert isinstance(step, Contraction)
    assert len(step.left_windows) == 2
    assert unrounded(step) is not None


def test_what_is_rounded_depthwise_or_of_another_dtype_is_not_rounded():
    def roundings(leaves, *outputs):
        graph = Graph((*leaves,), tuple((f"y{n}", one) for n, one in enumerate(outputs)))
        return sum(map(roundings_in, program_of(with_tf32_products(graph)).steps))

    x, y = (leaf(name, "input", (8, 8), float32) for name in "xy")
    rounded = ops.round_to_tf32(ops.round_to_tf32(x))
    assert roundings([x, y], ops.matmul(rounded, y)) == 2
    wide = [leaf(name, "input", (8, 8), float64) for name in "xy"]
    assert roundings(wide, ops.matmul(*wide)) == 0
    images, weight = (
        leaf(n, "input", s, float32) for n, s in (("x", (2, 6, 9, 9)), ("w", (6, 1, 3, 3)))
    )
    result = ops.conv(images, weight, 1, 1, 1, 6)
    slopes = gradients(ops.sum(result * result), [images, weight])
    assert roundings([images, weight], result, *slopes) == 0


@pytest.mark.parametrize("rounded", [(), ("left",), ("right",), ("left", "right")], ids="".join)
def test_a_contraction_is_in_tf32_if_both_operands_are_rounded(rounded):
    operands = {name: leaf(name, "input", (8, 8), float32) for name in ("left", "right")}

    def step_of(rounded):
        given = [ops.round_to_tf32(x) if n in rounded else x for n, x in operands.items()]
        return program_of(Graph((*operands.values(),), (("y", ops.matmul(*given)),))).steps[0]

    step = step_of(rounded)
    assert isinstance(step, Contraction)
    assert unrounded(step) == (step_of(()) if len(rounded) == 2 else None)


# How users ask for it -----------------------------------------------------------------------------


def test_only_devices_that_multiply_tf32_round_if_they_are_asked_to():
    def fails():
        raise AssertionError

    precision = precision_of("float32", fails, "tf32")
    assert precision == Precision(float32, tf32=True)
    for has in (True, False, None):
        rounding = rounding_of(precision, lambda has=has: device(has_tf32=has))
        assert rounding == (TF32_PRODUCTS if has else None)
    assert rounding_of(precision_of("float32", fails), fails) is None
    assert precision_of("bfloat16", fails, "float32") == Precision(bfloat16)


@pytest.mark.parametrize(
    ("capability", "has"), [((7, 5), False), ((8, 0), True), ((8, 9), True), ((12, 1), True)]
)
def test_nvidia_gpus_multiply_tf32_since_compute_capability_8(capability, has):
    attributes = dict(zip(("MAJOR", "MINOR"), capability, strict=True))

    class Attributes:
        def __getattr__(self, name):
            return attributes.get(name.rpartition("_")[2], 0)

    driver = SimpleNamespace(
        module=SimpleNamespace(CUdevice_attribute=Attributes()),
        cuDeviceGet=lambda number: number,
        cuDeviceGetName=lambda *_: b"a GPU\0",
        cuDeviceTotalMem=lambda _: 1 << 30,
        cuDeviceGetAttribute=lambda value, _: value,
    )
    gpu = _device(cast(Any, SimpleNamespace(driver=driver)), 0, 13000, [])
    assert gpu.record.has_tf32 is has


@pytest.mark.parametrize("dtype", ["mixed", "mixed-bfloat16", "bfloat16", "float16", "float64"])
def test_tf32_of_another_dtype_is_refused(dtype):
    assert error_text(DTypeError, lm.Model, classifier(), dtype=dtype, precision="tf32") == (
        "only products of float32 are rounded to TF32\n"
        "  expected  dtype='float32'\n"
        f"  found     dtype='{dtype}'\n"
        "  Leave precision='tf32' out: other dtypes have products of their own."
    )


@pytest.mark.cases(
    ("given", "advice"),
    (True, "To allow TF32, write precision='tf32'."),
    (False, "For products in true float32 write precision='float32'."),
    ("TF32", "Write precision='tf32'."),
    ("high", "Write precision='tf32'."),
    ("highest", "Write precision='float32'."),
    ("medium", "That is a dtype: write dtype='mixed-bfloat16'."),
    ("bfloat16", "That is a dtype: write dtype='bfloat16'."),
    (np.float32, "Write precision='float32'."),
    (32, ""),
    ids=str,
)
def test_other_spellings_are_refused_with_the_right_one(given, advice):
    text = error_text(DefinitionError, lm.Model, classifier(), precision=given)
    assert "precision must be 'float32' or 'tf32'\n" in text
    assert text.splitlines()[3:] == ([f"  {advice}"] if advice else [])


@pytest.mark.usefixtures("tensor_cores")
def test_a_model_in_tf32_rounds_and_one_in_float32_does_not():
    x, _ = examples(64)
    models = [
        lm.Model(classifier(), precision=precision, seed=1) for precision in ("float32", "tf32")
    ]
    exact, rounded = (model.predict(x) for model in models)
    assert 0 < np.abs(rounded - exact).max() < 2**-9 * np.abs(exact).max()
    assert "float32 (TF32 products)" in repr(models[1])
    assert "TF32" not in repr(models[0])


def test_on_other_devices_a_model_in_tf32_has_the_bits_of_float32():
    models = [lm.Model(classifier(), precision=precision) for precision in ("float32", "tf32")]
    for model in models:
        model.fit(examples(64), loss=LOSS, optimizer=OPTIMIZER, batch_size=16)
    assert same(models[0].parameters(), models[1].parameters())


@pytest.mark.usefixtures("tensor_cores")
def test_bill_and_explanation_show_it():
    net, how = classifier(), (LOSS, OPTIMIZER)
    plain, rounded = (str(net.plan(32, *how, precision=name)) for name in ("float32", "tf32"))
    assert "TF32" not in plain
    assert rounded == f"{plain}; 5 of 5 contractions in TF32"
    table = str(lm.Model(net, precision="tf32").explain(32, *how))
    assert table.count("contraction in TF32") == 5
    sizes = {net.max_batch_size("1 MiB", *how, precision=name) for name in ("float32", "tf32")}
    assert len(sizes) == 1


# Files --------------------------------------------------------------------------------------------


def precision_after(path: Path, **how: Any) -> Precision:
    return lm.load(path, **how)._parameters.precision


def test_a_model_is_saved_with_it_and_loaded_with_it_or_another(tmp_path):
    path = tmp_path / "model.safetensors"
    lm.Model(classifier(), precision="tf32").save(path)
    tf32, wide = Precision(float32, tf32=True), Precision(float32)
    assert precision_after(path) == tf32
    assert precision_after(path, precision="float32") == wide
    assert precision_after(path, dtype="float32") == tf32
    # Models of other dtypes have no products of float32.
    assert precision_after(path, dtype="bfloat16") == Precision(bfloat16)
    with pytest.raises(DTypeError, match="only products of float32 are rounded to TF32"):
        lm.load(path, dtype="bfloat16", precision="tf32")
    lm.load(path, precision="float32").save(path)
    assert precision_after(path) == wide
    assert precision_after(path, precision="tf32") == tf32


def test_a_file_with_products_that_do_not_fit_its_dtype_is_refused(tmp_path):
    path = tmp_path / "model.safetensors"
    lm.Model(classifier(), dtype="float64").save(path)
    saved = read_model(path)
    precision = Precision(float64, tf32=True)
    write_model(path, ModelFile(saved.network, precision, saved.seed, saved.values))
    with pytest.raises(FileFormatError):
        lm.load(path)


def test_a_checkpoint_of_an_earlier_version_is_of_float32(tmp_path):
    path = tmp_path / "checkpoint.safetensors"
    how: dict[str, Any] = {"loss": LOSS, "optimizer": OPTIMIZER, "checkpoint": path}
    lm.Model(classifier()).fit(examples(64), **how)
    saved = read_model(path)
    del saved.notes["terms"]["precision"]
    write_model(path, saved)
    lm.Model(classifier()).fit(examples(64), epochs=2, resume=True, **how)
    tf32 = lm.Model(classifier(), precision="tf32")
    refused(DefinitionError, tf32.fit, examples(64), epochs=3, resume=True, **how)
