"""Objects of other frameworks that are given in place of Lamina's."""

from __future__ import annotations

from types import FunctionType

from lamina.foreign import class_here

_FRAMEWORKS = {
    *("torch", "torchvision", "torchmetrics", "keras", "tf_keras", "tensorflow", "sklearn"),
    *("jax", "flax", "optax"),
}


def _is_foreign(value: object) -> bool:
    return str(getattr(value, "__module__", "")).partition(".")[0] in _FRAMEWORKS


def advice_on_object(value: object) -> str:
    """What an object of another framework, or its class, is called here; "" for all others."""
    cls = value if isinstance(value, type) else type(value)
    names = [base.__name__ for base in cls.__mro__ if _is_foreign(base)]
    if not names:
        return ""
    return class_here(names)


def is_foreign_function(value: object) -> bool:
    """Whether it is a function of another framework, such as accuracy_score of scikit-learn."""
    return isinstance(value, FunctionType) and _is_foreign(value)
