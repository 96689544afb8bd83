"""Loss scaling in mixed precision with float16: overflow, skipped training steps, the scale."""

import math
from typing import Any

import numpy as np
import pytest
from error_texts import error_text
from test_precision import LOSS, OPTIMIZER, classifier
from training_cases import examples, same

import lamina as lm
from lamina.base.shapes import Array, bool_, float32
from lamina.errors import NonFiniteError
from lamina.graph import Graph, evaluate, leaf
from lamina.step import loss_scaling
from lamina.training.history import History


def overflowing() -> lm.Network:
    """Gradients of its first layers are large: scaled, they overflow in float16."""
    return lm.Sequential(
        *(lm.Input(20), lm.Linear(64), lm.ReLU(), lm.Linear(64), lm.ReLU(), lm.Linear(5)),
        lambda scores: scores * 300.0,
    )


def trained(dtype: str, engine: str) -> History:
    model = lm.Model(overflowing(), engine=engine, dtype=dtype)
    return model.fit(examples(256), epochs=4, batch_size=16, loss=LOSS, optimizer=lm.Adam(1e-3))


def test_loss_scaling_survives_overflow(engine_name):
    history = trained("mixed-float16", engine_name)
    assert history["skipped_steps"][0] > 0
    assert history["skipped_steps"][-1] == 0
    assert str(history).splitlines()[2].endswith(f"  {history['skipped_steps'][0]}")
    assert history["loss"][-1] < history["loss"][0] / 4
    # Skipped training steps delay it.
    assert history["loss"][-1] < 2 * trained("float32", "cpu")["loss"][-1]


def test_an_epoch_of_skipped_steps_at_the_least_scale_is_an_error():
    def huge(scores, target):
        return LOSS(scores, target) * 1e9

    model = lm.Model(classifier(), dtype="mixed-float16")
    before = model.parameters()
    x, y = np.random.default_rng(0).standard_normal((64, 20), "float32"), np.zeros(64, "int64")
    how: Any = {"epochs": 9, "batch_size": 8, "loss": huge, "optimizer": OPTIMIZER}
    assert error_text(NonFiniteError, model.fit, (x, y), **how).startswith(
        "in fit: all training steps of an epoch were skipped: gradients overflow in float16\n"
        "  epoch       3\n"
        "  loss scale  1, the least\n"
        "  model       restored to its state before this epoch\n"
        "  float16 holds numbers up to 65,504, and bfloat16 all of float32's range: take "
        "dtype='mixed-bfloat16', or lower the learning rate"
    )
    assert same(model.parameters(), before)


@pytest.mark.sampled
def test_bfloat16_needs_no_loss_scaling(engine_name):
    model = lm.Model(overflowing(), engine=engine_name, dtype="mixed-bfloat16")
    with model.training(LOSS, OPTIMIZER, 16) as training:
        assert not training.scales_loss
        assert training.skipped_steps == 0
        assert not any("loss_scale" in name for name in training.state())
    history = trained("mixed-bfloat16", engine_name)
    assert "skipped_steps" not in history
    assert history["loss"][-1] < 1.5 * trained("float32", "cpu")["loss"][-1]


@pytest.mark.parametrize("engine", ["interpreter", "cpu"])
def test_a_skipped_step_changes_nothing_but_the_scale(engine):
    net = lm.Sequential(
        *(lm.Input(20), lm.Linear(8), lm.BatchNorm(), lm.Linear(5)), lambda scores: scores * 3000.0
    )
    model = lm.Model(net, engine=engine, dtype="mixed-float16")
    x, y = examples(256)
    with model.training(LOSS, lm.Adam(1e-3), 16) as training:
        before, first, states = training.state(), model.parameters(), model.states()
        assert float(before["loss_scale"]) == loss_scaling.FIRST_SCALE
        assert math.isfinite(float(training.step(x[:16], y[:16])))
        after = training.state()
        assert training.skipped_steps == 1
        assert training.steps_done == 1
        assert float(after["loss_scale"]) == loss_scaling.FIRST_SCALE / 2
        assert same(model.parameters() | model.states(), first | states)
        kept = [name for name in before if not name.startswith("loss_scale") and name != "step"]
        assert same({n: before[n] for n in kept}, {n: after[n] for n in kept})


@pytest.mark.cases(
    ("scale", "steps", "is_finite", "expected"),
    (1024.0, 7, True, (1024.0, 8, 3)),
    (1024.0, 7, False, (512.0, 0, 4)),
    (1024.0, loss_scaling.GROWTH_STEPS - 1, True, (2048.0, 0, 3)),
    (loss_scaling.LARGEST_SCALE, loss_scaling.GROWTH_STEPS - 1, True, (2.0**24, 0, 3)),
    (loss_scaling.LEAST_SCALE, 7, False, (1.0, 0, 4)),
)
def test_the_scale_stays_in_its_limits(scale, steps, is_finite, expected):
    made = loss_scaling.loss_scale()
    finite = leaf("finite", "input", (), bool_)
    updates = tuple((f"y{n}", new) for n, (_, new) in enumerate(made.updates(finite)))
    feeds = {
        "loss_scale": np.asarray(scale, "float32"),
        "loss_scale/steps": np.asarray(steps),
        loss_scaling.SKIPPED: np.asarray(3),
        "finite": np.asarray(is_finite),
    }
    updated, _ = evaluate(Graph((finite,), updates), feeds)
    assert tuple(updated[f"y{n}"].item() for n in range(3)) == expected


@pytest.mark.parametrize("position", [0, 1])
@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_one_value_that_is_not_finite_skips_the_training_step(position, value):
    leaves = [leaf(f"g{n}", "input", (3,), float32) for n in range(2)]
    graph = Graph(tuple(leaves), (("finite", loss_scaling.all_finite(leaves)),))
    feeds = {f"g{n}": np.array([1.0, 3e38, -3e38], "float32") for n in range(2)}
    assert evaluate(graph, feeds)[0]["finite"]
    feeds[f"g{position}"][1] = value
    assert not evaluate(graph, feeds)[0]["finite"]


def test_skipped_training_steps_do_not_count_for_the_optimizer():
    """Adam corrects its means by the number of updates."""
    x, y = examples(256)
    model, other = (lm.Model(overflowing(), dtype="mixed-float16") for _ in range(2))
    with (
        model.training(LOSS, lm.Adam(1e-3), 16) as training,
        other.training(LOSS, lm.Adam(1e-3), 16) as begun,
    ):
        skipped = -1
        while training.skipped_steps > skipped:
            skipped, scale = training.skipped_steps, training.state()["loss_scale"]
            training.step(x[:16], y[:16])
        assert skipped > 0
        begun.restore({**begun.state(), "loss_scale": scale})
        begun.step(x[:16], y[:16])
        assert begun.skipped_steps == 0
    assert same(model.parameters(), other.parameters())


def test_scaling_rounds_no_gradient():
    """Powers of two: where nothing is rounded to zero, float16 gives the same bits at any scale."""
    changes: list[Array] = []
    for scale in (1.0, 256.0):
        model = lm.Model(classifier(), engine="interpreter", dtype="mixed-float16")
        x, y = examples(256)
        with model.training(LOSS, OPTIMIZER, 256) as training:
            training.restore({**training.state(), "loss_scale": np.asarray(scale, "float32")})
            training.step(x * 30, y)
        changes.append(model.parameters()["5.bias"])
    assert np.allclose(*changes, rtol=1e-5)
