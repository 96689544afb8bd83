"""Calls as PyTorch and Keras write them, in Lamina's spelling, for the advice of errors.

`Conv2d(3, 6, 5)` has PyTorch's order: inputs, outputs, window. Its translation is `Conv2d(6, 5)`,
with the reason: the input's channels are inferred.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from lamina.foreign import nearest, spelling, spellings, spellings_by_owner

if TYPE_CHECKING:
    from lamina.checks.calls import Interface

# The keys of parameters that Lamina does not need: of all calls, and of single signatures.
_EVERYWHERE, _HERE = "left-out-everywhere", "left-out"


def advice_on_option(
    callee: Interface, unknown: str, values: Sequence[Any], options: Mapping[str, Any]
) -> str:
    """The advice for an unknown option.

    The first that there is: its name in Lamina and the whole call, a replacement, an option with a
    similar name.
    """
    ours = _options_here(callee, unknown)
    names = f"Here it is called {' and '.join(ours)}." if ours else ""
    advice = advice_on_call(callee, values, options)
    if names or advice:
        return f"{names} {advice}".strip()
    bases = [base.__name__ for base in callee.owner.__mro__] if callee.owner else [callee.name]
    owners = [*(f"{name}()" for name in bases), *(f"({option})" for option in callee.accepted)]
    near = nearest(unknown, callee.accepted)
    return spelling(owners, unknown) or (f"Did you mean {near}?" if near else "")


def advice_on_call(callee: Interface, values: Sequence[Any], options: Mapping[str, Any]) -> str:
    """The advice for arguments that a class does not take; "" if they are in no known spelling."""
    if callee.owner is None:
        return ""
    here = f"{callee.name}()"
    listed = spellings_by_owner().get(here, {})
    meanings = {name: words[0] for name, words in listed.items() if name[0] == "("}
    # PyTorch's optimizers, written without the parameters, come last.
    without = [name.replace("(params ", "(") for name in meanings if "(params " in name]
    signatures = [*meanings, f"([{' '.join(callee.accepted)}])", *without]
    calls: dict[str, str] = {}
    for signature in signatures:
        try:
            call, reasons = _Translation(callee, signature).of(values, options)
        except _Unfit:
            continue
        calls.setdefault(call, f"{call}: {'; '.join(reasons)}" if reasons else call)
    written = spelling([here], "...")
    if written and (values or not calls):
        return written
    if not calls:
        arguments = dict(zip(_names(signatures[len(meanings) - 1])[0], values, strict=False))
        arguments |= {**dict(zip(callee.positional, values, strict=False)), **options}
        texts = [_on_value(callee, name, value) for name, value in arguments.items()]
        return next((text for text in texts if text.endswith(".")), "")
    ambiguous = len(calls) > 1 and any(" " in meaning for meaning in meanings.values())
    if ambiguous and values and not _is_unlikely(callee.name, values):
        first, second = map(" ".join, zip(calls, meanings.values(), strict=False))
        return f"Write {first}, or {second}."
    return f"Write {next(iter(calls.values()))}."


# Windows of usual convolutions are smaller.
_USUAL_WINDOWS = 8


def _is_unlikely(name: str, values: Sequence[Any]) -> bool:
    """Whether the second meaning is an unusual convolution."""
    # In a convolution the numbers are channels, window and stride. `(3, 6, 5)` would be a window of
    # 6 for 3 channels, and `(64, 32, 3)` a window of 32.
    if not name.startswith("Conv") or not all(isinstance(number, int) for number in values[:3]):
        return False
    channels, window, stride = values[:3]
    return not stride <= window < min(channels, _USUAL_WINDOWS)


class _Unfit(Exception):
    """The value has no equal in Lamina."""


def _require(fits: bool) -> None:
    if not fits:
        raise _Unfit


def _listed(value: Any) -> list[Any]:
    """The entries of a list or tuple; another value alone."""
    return list(cast(Sequence[Any], value)) if isinstance(value, list | tuple) else [value]


def _names(signature: str) -> tuple[list[str], int]:
    """The parameters of a signature in `names.txt`, and how many of them are required."""
    required, _, others = signature.strip("()").partition("[")
    return [*required.split(), *others.rstrip("]").split()], len(required.split())


def _options_here(callee: Interface, name: str) -> list[str]:
    """The options of a callable that have another name in other frameworks."""
    if (callee.name, name) in _CONVERTED:  # it has another value too
        return []
    spelled = spelling([f"{callee.name}()"], name)
    every = spellings("()", name) if not spelled or spelled.endswith(".") else [spelled]
    return [option for option in callee.accepted if option in " ".join(every).split()]


def _on_value(callee: Interface, name: str, value: Any) -> str:
    """What an argument with this value is here: an option with its value, or a sentence."""
    keys = (f"{name}={text}" for text in (repr(value), type(value).__name__, "*"))
    return next(filter(None, (spelling([f"{callee.name}()", "()"], key) for key in keys)), "")


class _Translation:
    """The translation of a call by one signature of another framework."""

    def __init__(self, callee: Interface, signature: str) -> None:
        self._callee = callee
        self._names, self._required = _names(signature)

    def of(self, values: Sequence[Any], options: Mapping[str, Any]) -> tuple[str, Collection[str]]:
        """A call in Lamina's spelling, and why arguments were left out or changed."""
        _require(len(values) <= len(self._names))
        arguments = dict(zip(self._names, values, strict=False))
        _require(not arguments.keys() & options.keys())
        arguments |= options
        required = self._names[: self._required]
        _require(not values or arguments.keys() >= set(required))
        if "height" in arguments and "width" in arguments:
            arguments = {"size": (arguments.pop("height"), arguments.pop("width")), **arguments}
        if "d_model" in self._names:
            features, heads = arguments.get("d_model"), arguments.get("nhead")
            if isinstance(features, int) and isinstance(heads, int):
                _require(heads > 0 and features % heads == 0)
            else:
                _require(features is None or heads is None)
        ours: dict[str, Any] = {}
        reasons: dict[str, None] = {}
        after = ""
        for name, value in arguments.items():
            if name == "activation" and name not in self._callee.accepted:
                after = self._layer_after(value)
                reason = "an activation is a layer of its own" if after else ""
            else:
                read, reason = self._read(name, value)
                _require(not ours.keys() & read.keys())
                ours |= read
            reasons |= {reason: None} if reason else {}
        if "nhead" in arguments and "hidden" not in ours:
            ours["hidden"] = 2048
            reasons["hidden is 2048 by default in PyTorch"] = None
        return self._text(ours) + after, reasons

    def _layer_after(self, activation: Any) -> str:
        """The layer of an activation, as text after this one."""
        name = self._callee.name
        usual = "tanh" if name.startswith(("LSTM", "GRU")) else "linear"
        if activation is None or (isinstance(activation, str) and activation == usual):
            return ""
        _require(name.startswith(("Linear", "Conv")) and isinstance(activation, str))
        layer = spelling(["activation="], activation)
        _require(layer != "")
        return f", {layer}()"

    def _read(self, name: str, value: Any) -> tuple[dict[str, Any], str]:
        """The options that an argument becomes, and the reason if they differ from it."""
        callee = self._callee
        converted = _CONVERTED.get((callee.name, name)) or _CONVERTED.get(("", name))
        if converted:
            return converted[0](value), converted[1]
        assigned = _on_value(callee, name, value)
        if assigned:
            _require(not assigned.endswith("."))
            option, _, literal = assigned.partition("=")
            return {option: ast.literal_eval(literal)} if literal else {}, ""
        if name in callee.accepted:
            return {name: value}, ""
        ours = _options_here(callee, name)
        if len(ours) == 1:
            return {ours[0]: value}, ""
        if len(ours) == len(_listed(value)) == 2:
            return dict(zip(ours, _listed(value), strict=True)), ""
        everywhere, here = spelling([_EVERYWHERE], name), spellings_by_owner()[_HERE]
        _require(name in self._names or everywhere != "")
        if any(key.startswith(f"{name}=") for key in here):
            _require(f"{name}={value!r}" in here)
        else:
            _require(everywhere != "" or name in here)
        return {}, everywhere or spelling([_HERE], name)

    def _text(self, ours: dict[str, Any]) -> str:
        """The call with these options, if Lamina's class takes them."""
        callee = self._callee
        _require(all(callee.accepts(name, value) for name, value in ours.items()))
        _require(ours.keys() >= set(callee.required))
        first = [name for name in callee.positional if name in ours]
        _require(first == [*callee.positional[: len(first)]])
        by_name = {name: value for name, value in ours.items() if name not in first}
        return callee.text([ours[name] for name in first], by_name)


def _normalized(value: Any) -> dict[str, Any]:
    """The last k axes, for a shape of k dimensions."""
    _require(isinstance(value, int | list | tuple))
    count = len(_listed(value))
    return {} if count == 1 else {"axes": tuple(range(-count, 0))}


def _params(value: Any) -> dict[str, Any]:
    """The parameters of an optimizer, which are no rate."""
    _require(not isinstance(value, int | float | str))
    return {}


def _shift(value: Any) -> dict[str, Any]:
    """One share for both axes."""
    _require(isinstance(value, list | tuple) and len(set(_listed(value))) == 1)
    return {"shift": value[0]}


def _degrees(value: Any) -> dict[str, Any]:
    """Degrees in both directions, of a number or a pair; numbers below 1 are shares of a circle."""
    pair = _listed(value)
    _require(all(isinstance(number, int | float) for number in pair) and 0 < len(pair) < 3)
    _require(pair[0] == -pair[-1] or len(pair) == 1)
    return {"degrees": round(360.0 * pair[-1], 6) if 0 < pair[-1] < 1 else pair[-1]}


def _doubled(value: Any) -> dict[str, Any]:
    """The strength of Keras' L2, whose penalty has no factor of one half."""
    _require(isinstance(value, int | float))
    return {"strength": 2 * value}


# Arguments whose values become others, of a class or of all: the options, and why they differ.
_CONVERTED: dict[tuple[str, str], tuple[Callable[[Any], dict[str, Any]], str]] = {
    ("", "normalized_shape"): (
        _normalized,
        "axes are given instead of a shape, the last one by default",
    ),
    ("", "params"): (_params, "fit and training know the parameters, leave them out"),
    ("", "translate"): (_shift, ""),
    ("L2", "l2"): (_doubled, "the penalty is strength / 2 times the sum of squares"),
    ("RandomRotation", "degrees"): (_degrees, ""),
    ("RandomRotation", "factor"): (_degrees, "degrees are 360 * factor"),
}
