"""Names of PyTorch, Keras and scikit-learn, for the errors about names that Lamina does not have.

An entry is Lamina's spelling, `"lm.Linear(features)"`, or sentences that end with a full stop. The
tables are loaded when the text of an error is read.
"""

from __future__ import annotations

import inspect
import sys
from importlib import import_module
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, NoReturn


def advice_for(owners: tuple[str, ...], name: str) -> str:
    """What a name is called in Lamina, as a sentence that follows others; "" if nobody knows.

    Args:
        owners: the module, or the names of a class and its bases: the first with an entry counts.
        name: of the attribute.
    """
    from lamina.elsewhere.tables import TABLES  # only errors need them

    found = next((TABLES[o][name] for o in owners if name in TABLES.get(o, ())), "")
    if not found and "Tensor" in owners:
        found = _function(name)
    if not found:
        return ""
    return f". {found}" if found.endswith(".") else f". Here it is {found}."


def _function(name: str) -> str:
    """The function of tensors of a name, or what PyTorch's and NumPy's is called; "" for none."""
    from lamina.elsewhere.tables import TABLES  # only errors need them

    function = None if name.startswith("_") else getattr(import_module("lamina.ops"), name, None)
    if not callable(function):
        return TABLES["lamina.ops"].get(name, "")
    parameters = [*inspect.signature(function).parameters.values()]
    names = [p.name for n, p in enumerate(parameters) if n == 0 or p.default is p.empty]
    called = {"left": "x", "right": "y"}
    return f"lm.ops.{name}({', '.join(called.get(one, one) for one in names)})"


# The packages whose layers, losses and optimizers are recognised.
_FRAMEWORKS = frozenset(
    [
        "torch",
        "torchvision",
        "torchmetrics",
        "keras",
        "tf_keras",
        "tensorflow",
        "sklearn",
        "jax",
        "flax",
        "optax",
    ]
)


def advice_on_object(value: object) -> str:
    """What an object of another framework, or its class, is called here; "" for all others."""
    cls = value if isinstance(value, type) else type(value)
    for base in cls.__mro__:
        if base.__module__.split(".")[0] not in _FRAMEWORKS:
            continue
        found = advice_for(("lamina",), base.__name__).removeprefix(". ")
        if found:
            return found
        if hasattr(sys.modules["lamina"], base.__name__):
            return f"Here it is lm.{base.__name__}."
    return ""


def is_function_elsewhere(value: object) -> bool:
    """Whether it is a function of another framework, such as accuracy_score of scikit-learn."""
    module = getattr(value, "__module__", None)
    is_function = isinstance(value, FunctionType) and isinstance(module, str)
    return is_function and str(module).split(".")[0] in _FRAMEWORKS


class UnknownAttribute(AttributeError):
    """An attribute that an object does not have.

    Its text is made when it is read, because `hasattr` reads none.
    """

    def __init__(self, owner: object, name: str) -> None:
        # Without `obj`, as Python would then add a proposal of its own.
        super().__init__(name=name)
        self._cls = type(owner)

    def __reduce__(self) -> tuple[type[AttributeError], tuple[str]]:
        return AttributeError, (str(self),)

    def __str__(self) -> str:
        owners = tuple(base.__name__ for base in self._cls.__mro__)
        problem = f"{self._cls.__name__!r} object has no attribute {self.name!r}"
        return problem + advice_for(owners, str(self.name))


# Tracebacks show the name that everybody knows.
UnknownAttribute.__name__ = UnknownAttribute.__qualname__ = "AttributeError"
UnknownAttribute.__module__ = "builtins"


class Named:
    """The base of classes whose unknown attributes get advice: `model.summary`.

    Attributes that exist are found before this method is called.
    """

    __slots__ = ()

    if not TYPE_CHECKING:  # otherwise type checkers would accept every name

        def __getattr__(self, name: str) -> Any:
            if not name.startswith("__") and any(name in vars(c) for c in type(self).__mro__):
                # A property that exists raised an AttributeError: the same one again.
                return object.__getattribute__(self, name)
            raise UnknownAttribute(self, name)


class _Module(ModuleType):
    def __getattr__(self, name: str) -> NoReturn:
        advice = "" if name.startswith("_") else advice_for((self.__name__,), name)
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}{advice}")


def names_known(module: str) -> None:
    """Gives advice for unknown names of a module.

    Args:
        module: its `__name__`.
    """
    sys.modules[module].__class__ = _Module
