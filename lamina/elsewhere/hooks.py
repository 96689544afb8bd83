"""Hooks of callbacks as other frameworks name them, and in other tenses."""

from __future__ import annotations

import re

# A hook of an event: `on_train_epoch_end`, `after_batch`, `batch_ends`, `validation_begins`.
_EVENT = re.compile(
    r"(?P<prefix>before_|after_|on_)?"
    r"(?P<phase>train(ing)?_|val(idat(e|ion))?_|test_|predict(ion)?_)?"
    r"(?P<event>fit|train(ing)?|epoch|batch|iteration|steps?|val(idat(e|ion))?|test|predict(ion)?)"
    r"(_(?P<moment>begin|began|start|end|finish|complete|done)(s|d|ed|es)?)?"
)

_NO_BEGINNING = (
    "Training steps run without Python in between; steps_done is called about every 50 ms."
)
_NO_VALIDATION = "No hook is called during the validation; epoch_ends is called after it."
_NO_PREDICTION = "model.predict calls no hooks."

_OTHERS = {
    "on_exception": "fit_fails",
    "on_save_checkpoint": "state",
    "state_dict": "state",
    "get_state": "state",
    "on_load_checkpoint": "restore",
    "load_state_dict": "restore",
    "set_state": "restore",
}


def hook_here(name: str) -> str:
    """Lamina's hook, or a sentence; "" for a name that is no hook.

    >>> hook_here("on_train_batch_end")
    'steps_done'
    """
    match = _EVENT.fullmatch(name)
    if match is None:
        return _OTHERS.get(name, "")
    prefix, phase, event, moment = match.group("prefix", "phase", "event", "moment")
    if moment is None and prefix in (None, "on_"):
        return ""
    begins = prefix == "before_" or moment in ("begin", "began", "start")
    kind = (phase or "").rstrip("_") or event
    if kind.startswith("predict"):
        return _NO_PREDICTION
    if kind.startswith(("val", "test")):
        is_last = not begins and not event.startswith(("batch", "iteration", "step"))
        return "epoch_ends" if is_last else _NO_VALIDATION
    if event.startswith(("batch", "iteration", "step")):
        return _NO_BEGINNING if begins else "steps_done"
    about = "epoch" if event == "epoch" else "fit"
    return f"{about}_begins" if begins else f"{about}_ends"
