"""Callbacks that `fit` would not call are refused, with Lamina's name of the hook."""

from __future__ import annotations

from typing import Any

import pytest
from callback_cases import fit
from error_texts import error_text, refused

import lamina as lm
from lamina.errors import DefinitionError


def two(self: Any, fit: Any) -> None:
    """A hook of most names."""


def three(self: Any, fit: Any, steps: Any) -> None:
    """A hook of training steps."""


# By the hook of Lamina.
NAMES = {
    "fit_begins(self, fit)": "on_train_begin fit_begin",
    "fit_ends(self, fit)": "on_fit_end training_finished",
    "epoch_begins(self, fit)": "on_epoch_begin epoch_begin epoch_starts",
    "epoch_ends(self, fit)": (
        "on_epoch_end on_train_epoch_end epoch_end after_train_epoch validation_ends on_test_end "
        "epoch_completed after_validate"
    ),
    "steps_done(self, fit, steps)": "on_batch_end step_done batch_end",
    "fit_fails(self, fit, error)": "on_exception fit_fail",
    "state(self)": "state_dict get_state",
    "restore(self, state)": "load_state_dict set_state",
}


@pytest.mark.parametrize(
    ("name", "ours"), [(name, ours) for ours, names in NAMES.items() for name in names.split()]
)
def test_a_hook_of_another_name_is_refused_with_its_name_here(name: str, ours: str) -> None:
    message = error_text(DefinitionError, lambda: type("Mine", (lm.Callback,), {name: two}))
    where, _, text = message.partition(": ")
    assert where.startswith("in Mine (test_callback_mistakes.py:")
    assert text == (
        f"fit calls no hook {name!r}\n"
        f"  expected  def {ours}\n"
        f"  Here it is called {ours.split('(')[0]}."
    )


STEPS = "Training steps run without Python in between; steps_done is "
VALIDATION = "No hook is called during the validation; epoch_ends is called after"


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        *((name, STEPS) for name in ("on_train_batch_begin", "before_iteration", "before_batch")),
        *(
            (name, VALIDATION)
            for name in ("on_test_begin", "validation_begins", "on_test_batch_end")
        ),
        ("on_predict_end", "model.predict calls no hooks."),
    ],
)
def test_a_hook_that_lamina_has_not_is_refused(name: str, advice: str) -> None:
    text = error_text(DefinitionError, lambda: type("Mine", (lm.Callback,), {name: two}))
    _, expected, last = text.splitlines()
    assert expected == (
        "  expected  fit_begins, epoch_begins, steps_done, epoch_ends, fit_ends, fit_fails"
    )
    assert last.startswith(f"  {advice}")


def test_other_methods_of_a_callback_are_the_users_own() -> None:
    names = "__len__ on_plateau reset states epoch_time epoch test on_train save_state"
    type("Mine", (lm.Callback,), dict.fromkeys(names.split(), two))
    # An adapter passes Lamina's hook on to one of another name.
    base = type("Adapter", (lm.Callback,), {"epoch_ends": two, "on_epoch_end": three})
    type("Mine", (base,), {"epoch_done": two})


def test_a_hook_of_other_arguments_is_refused() -> None:
    error = refused(DefinitionError, lambda: type("Mine", (lm.Callback,), {"epoch_ends": three}))
    assert str(error).splitlines()[0].endswith(": the hook epoch_ends takes other arguments")
    assert error.facts == (
        ("expected", "def epoch_ends(self, fit)"),
        ("found", "def epoch_ends(self, fit, steps)"),
    )


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        (lm.callbacks.EarlyStopping, "Make one of the class: EarlyStopping(...)."),
        (lm.schedules.Cosine(0.1, 9), "A schedule is the rate of an optimizer: lm.SGD(schedule)."),
        (lm.SGD(0.1), ""),
        (
            type("Keras", (), {"on_epoch_end": two})(),
            "Make it a subclass of lm.Callback; its hook is epoch_ends(self, fit).",
        ),
    ],
)
def test_what_is_no_callback_is_refused(given: Any, advice: str) -> None:
    error = refused(DefinitionError, lambda: fit([lm.callbacks.PrintEpochs(), given]))
    assert str(error).splitlines()[0] == "in callbacks: this is not a callback"
    assert error.facts == (
        ("expected", "[a function of the history, lm.callbacks.EarlyStopping()]"),
        ("found", repr(given)),
    )
    assert error.advice == advice
