"""`verify`: sound networks pass, a wrong gradient is named."""

import re
from dataclasses import dataclass

import numpy as np
import pytest
from error_texts import error_text

import lamina as lm
from lamina import ops
from lamina.engines.engine import Device
from lamina.errors import DataError, DefinitionError, ShapeError
from lamina.graph import OPS, Op, apply
from lamina.training import verification


@pytest.fixture(autouse=True)
def quick_engines(request):
    """Only engines that compile quickly, except in tests named `every_engine`."""
    if "every_engine" not in request.node.name:
        request.getfixturevalue("quick_verification")


def branches():
    a, b = lm.Input(4), lm.Input(3)
    h = lm.Add()(lm.Tanh()(lm.Linear(5)(a)), lm.Linear(5)(b))
    return lm.Network([a, b], lm.Linear(2)(lm.concat([h, lm.Sigmoid()(h)])))


def chain(*layers):
    return lm.Sequential(lm.Input(4), *layers, lm.Linear(2))


SOUND = {
    "a classifier": (chain(lm.Linear(5), lm.GELU()), lm.CrossEntropy()),
    "a regression": (chain(lm.Linear(5), lm.SiLU()), lm.MSE()),
    "dropout": (chain(lm.Linear(5), lm.Dropout(0.5)), lm.MSE()),
    "branches": (branches(), lm.Huber()),
    "a shared layer": (chain(shared := lm.Linear(4), lm.Tanh(), shared), lm.MSE()),
    "a plain function": (chain(), lambda p, t: ops.mean(ops.exp(p) * t)),
    # Targets that the losses accept.
    "probabilities": (lm.Sequential(lm.Input(4), lm.Linear(2), lm.Sigmoid()), lm.BCE()),
    **{str(loss): (chain(lm.Tanh()), loss) for loss in (lm.Hinge(), lm.MAE(), lm.CrossEntropy())},
}


@pytest.mark.cases("network, loss", SOUND)
def test_a_sound_network_passes(network, loss):
    report = lm.verify(network, loss)
    assert report.passed, str(report)


def test_every_parameter_and_every_engine_is_checked_and_shown_as_a_table():
    report = lm.verify(*SOUND["a classifier"])
    checks = [finding.what for finding in report.findings]
    assert checks[:4] == [f"gradient of {n}.{name}" for n in (1, 3) for name in ("weight", "bias")]
    assert "training step on interpreter" in checks[4:]
    lines = str(report).splitlines()
    assert lines[0].split() == ["check", "deviation", "tolerance"]
    assert lines[-1] == "all checks passed"


@pytest.mark.sampled
def test_an_engine_that_does_not_update_a_parameter_is_found(monkeypatch):
    layers = [layer for _ in range(8) for layer in (lm.Linear(16), lm.Tanh())]
    network = lm.Sequential(lm.Input(8), *layers, lm.Linear(4))
    steps = verification._changes

    def spoilt(*arguments):
        changes = steps(*arguments)
        if arguments[4] == "cpu":
            start, change = changes["1.weight"]
            changes["1.weight"] = start, 0 * change
        return changes

    assert lm.verify(network, lm.MSE()).passed
    monkeypatch.setattr(verification, "_changes", spoilt)
    report = lm.verify(network, lm.MSE())
    failed = [finding.what for finding in report.findings if not finding.passed]
    assert failed == ["training step on cpu"]


def test_an_engine_that_cannot_run_is_reported_as_skipped(monkeypatch):
    usable = [device for device in lm.devices() if device.engine == "cpu"]
    broken = Device("opencl:0", "Radeon RX", None, "the driver has no compiler")
    monkeypatch.setattr(verification, "devices", lambda: (*usable, broken))
    report = lm.verify(*SOUND["a regression"])
    assert report.skipped == (broken,)
    lines = str(report).splitlines()
    assert lines[-2:] == [
        "not checked on opencl:0: the driver has no compiler",
        "all checks passed",
    ]


WRONG = Op(
    "wrong_exp",
    OPS["exp"].infer,
    lambda result, upstream: (upstream * result * 1.01,),
    OPS["exp"].reference,
    OPS["exp"].lowering,
)


@dataclass(frozen=True)
class Wrong(lm.Layer):
    """exp(scale x) with a derivative that is 1% too large."""

    def forward(self, scope, x):
        scale = scope.parameter("scale", (), lm.init.Constant(0.5))
        return apply(WRONG, x * scale)


def test_a_wrong_gradient_is_found_only_in_parameters_before_it():
    net = lm.Sequential(lm.Input(4), lm.Linear(3), Wrong(), lm.Linear(2))
    report = lm.verify(net, lm.MSE())
    failed = [finding.what for finding in report.findings if not finding.passed]
    assert failed == [f"gradient of {name}" for name in ("1.weight", "1.bias", "2.scale")]
    assert not report.passed
    lines = str(report).splitlines()
    (line,) = [line for line in lines if "2.scale" in line]
    assert line.endswith("FAILED")
    assert lines[-1] == "SOME CHECKS FAILED"


def embedding():
    return lm.Sequential(
        lm.Input(dtype="int64", name="codes"), lambda k: ops.one_hot(k, 5), lm.Linear(2)
    )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_integer_inputs_may_be_given_as_data(dtype):
    y = np.random.default_rng(0).normal(size=(6, 2)).astype(dtype)
    report = lm.verify(embedding(), lm.MSE(), data=(np.array([0, 1, 2, 3, 4, 0]), y))
    assert report.passed, str(report)


def test_networks_and_data_that_do_not_fit_are_refused():
    assert error_text(DataError, lm.verify, embedding(), lm.MSE()) == (
        "in verify: random examples cannot be made for an input of integers\n"
        "  input  'codes', i64[batch]\n"
        "  Give some: verify(..., data=(x, y)), or lamina verify FILE.py --data DATA."
    )
    network, loss = SOUND["a regression"]
    data = np.zeros((4, 5)), np.zeros((4, 2))
    text = error_text(ShapeError, lm.verify, network, loss, data=data)
    assert "input 0 has another shape" in text
    lines = error_text(DefinitionError, lm.verify, lm.Model(network), loss).splitlines()
    assert lines[1:] == [
        "  expected  Network",
        "  found     Model",
        "  A model has one: lm.verify(model.network, loss).",
    ]
    x, y = np.full((4, 4), np.nan, "float32"), np.zeros((4, 2), "float32")
    assert not lm.verify(network, loss, data=(x, y)).passed


def test_the_same_seed_gives_the_same_report():
    assert lm.verify(*SOUND["branches"], seed=3) == lm.verify(*SOUND["branches"], seed=3)


@pytest.mark.parametrize("seed", range(6))
def test_a_kink_within_a_finite_difference_is_no_wrong_gradient(seed):
    net = lm.Sequential(
        lm.Input(64), lm.Linear(128), lm.ReLU(), lm.Linear(64), lm.ReLU(), lm.Linear(10)
    )
    assert lm.verify(net, loss=lm.CrossEntropy(), batch_size=32, seed=seed).passed


@pytest.mark.parametrize("divisor", [16, 255])
def test_gradients_that_are_zero_but_for_rounding_are_right(divisor):
    net = lm.Sequential(
        lm.Input(1, 8, 8),
        *(lm.Rescale(1 / divisor), lm.Conv2d(8, 3, padding=1), lm.BatchNorm(), lm.ReLU()),
        *(lm.Flatten(), lm.Linear(10)),
    )
    report = lm.verify(net, lm.CrossEntropy(), seed=1)
    assert report.passed, str(report)


def test_a_progress_bar_is_shown_on_a_terminal_only(capfd, monkeypatch):
    net = lm.Sequential(lm.Input(3), lm.Linear(2), lm.Linear(2))
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):  # read by rich
        monkeypatch.delenv(name, raising=False)
    lm.verify(net, lm.MSE())
    assert capfd.readouterr() == ("", "")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    lm.verify(net, lm.MSE())
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capfd.readouterr().err)
    assert re.search(r"gradients ━+ +\d+%", shown)
