"""A small fit, and callbacks that tests share."""

from collections.abc import Sequence
from typing import Any

from random_arrays import normal
from training_cases import labels, network

import lamina as lm
from lamina.training.callbacks.callback import RunningFit

X, Y = normal(40, 4), labels(40)
FAR = {"loss": lm.CrossEntropy(), "optimizer": lm.SGD(0.1)}


def fit(callbacks: Sequence[Any], model: lm.Model | None = None, **how: Any) -> Any:
    model = lm.Model(network(), seed=1) if model is None else model
    how = {**FAR, "epochs": 3, "batch_size": 16, **how}
    return model.fit((X, Y), validation=(X[:10], Y[:10]), callbacks=callbacks, **how)


def bits(model: lm.Model) -> bytes:
    return b"".join(value.tobytes() for value in model.parameters().values())


def hooked(**hooks: Any) -> lm.Callback:
    """A callback with these hooks, which take it as their first argument."""
    return type("Hooked", (lm.Callback,), hooks)()


def keeping(kept: list[bytes]) -> lm.Callback:
    """A callback that adds the model's bits to a list."""
    return hooked(epoch_ends=lambda _, fit: kept.append(bits(fit.model)))


class Scripted(lm.Callback):
    """Replaces the validation loss by given values."""

    def __init__(self, values: Sequence[float], name: str = "validation_loss") -> None:
        self.values, self.name = values, name

    def epoch_ends(self, fit: RunningFit) -> None:
        fit.history.values[self.name][-1] = self.values[fit.epoch - 1]


class Seen(lm.Callback):
    def __init__(self) -> None:
        self.calls: list[str] = []

    def fit_begins(self, fit: RunningFit) -> None:
        self.calls.append(f"fit begins {fit.epoch}/{fit.epochs}")

    def epoch_begins(self, fit: RunningFit) -> None:
        self.calls.append(f"epoch {fit.epoch} begins after {len(fit.history)}")

    def steps_done(self, fit: RunningFit, steps: int) -> None:
        if self.calls[-1].startswith("steps"):
            steps += int(self.calls.pop().split()[1])
        self.calls.append(f"steps {steps}")

    def epoch_ends(self, fit: RunningFit) -> None:
        self.calls.append(f"epoch {fit.epoch} ends after {len(fit.history)}")

    def fit_ends(self, fit: RunningFit) -> None:
        self.calls.append(f"fit ends, interrupted {fit.history.interrupted}")

    def fit_fails(self, fit: RunningFit, error: BaseException) -> None:
        self.calls.append(f"fit fails: {type(error).__name__}")
