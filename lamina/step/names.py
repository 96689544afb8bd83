"""Names of the inputs and outputs of a network, and the order of arrays given by them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Protocol, cast

from lamina.base.records import frozen_dataclass
from lamina.base.shapes import DType
from lamina.checks.kinds import is_data
from lamina.errors import DataError
from lamina.foreign import nearest
from lamina.graph import Tensor
from lamina.layers.tracing import Trace
from lamina.learning.by_output import LossTerm, terms_of
from lamina.learning.protocols import Loss


class NetworkDefinition(Protocol):
    """A network, as training steps need it: this folder may not import `lamina.network`."""

    @property
    def inputs(self) -> Sequence[Tensor]: ...

    @property
    def input_names(self) -> tuple[str | None, ...]: ...

    @property
    def output_names(self) -> tuple[str, ...]: ...

    @property
    def has_output_names(self) -> bool: ...

    @property
    def definition(self) -> Hashable: ...

    def trace(
        self, *, dtype: DType, training: bool, input_dtypes: Sequence[DType] | None = None
    ) -> Trace: ...


@frozen_dataclass
class Names:
    """The names of the inputs of a network, or of the targets or weights of its losses.

    Attributes:
        role: `"input"`, `"target"`, `"weight"` or `"output"`; of outputs all have names.
        each: the names in order; None where there is none.
        ignored: further names that may be given, and whose arrays are not used.
        shown: whether the user gave the names; otherwise errors show numbers.
    """

    role: str
    each: tuple[str | None, ...]
    ignored: tuple[str, ...] = ()
    shown: bool = True

    @property
    def labels(self) -> list[str]:
        """`"input 'image'"`, or `"input 0"` for one without a name; weights are of outputs."""
        if self.role == "weight":
            which = ["" if name is None else f" of {name!r}" for name in self.each]
            return [f"the array of weights{output}" for output in which]
        return [
            f"{self.role} {n}" if name is None or not self.shown else f"{self.role} {name!r}"
            for n, name in enumerate(self.each)
        ]

    def in_order(self, arrays: Mapping[Any, Any]) -> tuple[Any, ...]:
        """The arrays that are given by name."""
        if None in self.each:
            raise _without_names(self, arrays)
        names = cast(tuple[str, ...], self.each)
        unknown = [name for name in arrays if name not in (*names, *self.ignored)]
        missing = [name for name in names if name not in arrays]
        if (unknown or missing) and not self.shown:
            raise _without_names(self, arrays)
        if unknown:
            raise _unknown(self, arrays, unknown[0])
        if missing:
            several = self.role == "weight"
            what = "weights of output" if several else self.role
            raise DataError(
                f"the {what} {missing[0]!r} {'are' if several else 'is'} missing",
                facts=(("expected", _listed(names)), ("found", _listed(arrays))),
                where=f"{self.role}s",
                advice=_MISSING[self.role],
            )
        return tuple([arrays[name] for name in names])


def unnamed(role: str, count: int) -> Names:
    """For arrays that are given in their order only."""
    return Names(role, (None,) * count)


def names_of_targets(network: NetworkDefinition, counts: Sequence[tuple[LossTerm, int]]) -> Names:
    """The names of the targets: the outputs with which they are compared."""
    outputs, shown = network.output_names, network.has_output_names
    term, count = counts[0]
    if term.output is None:
        each = outputs if count == len(outputs) else (None,) * count
        return Names("target", each, shown=shown)
    each = tuple(term.name if count == 1 else None for term, count in counts for _ in range(count))
    return Names("target", each, outputs, shown)


def names_of_weights(network: NetworkDefinition, loss: Loss) -> Names:
    """The names of the weights of examples: the outputs that have a loss."""
    terms = terms_of(loss, network.output_names)
    each = tuple(None if term.output is None else term.name for term in terms)
    return Names("weight", each, network.output_names, network.has_output_names)


def as_arrays(value: Any, names: Names) -> tuple[Any, ...]:
    """The arrays of the inputs or targets, in order, from one, several, or a dict by name."""
    if isinstance(value, Mapping):
        return names.in_order(cast(Mapping[Any, Any], value))
    count, role = len(names.each), names.role
    arrays: tuple[Any, ...] = () if value is None else (value,)
    if isinstance(value, tuple) or (isinstance(value, list) and count > 1):
        arrays = tuple(cast(Sequence[Any], value))
    if len(arrays) != count:
        advice = f"Give a tuple with one array for each {role}."
        if role == "input" and all(map(is_data, arrays)) and len(arrays) == 2 * count:
            advice += " Targets are an argument of their own: Dataset(x, y), step(x, y)."
        elif role == "input" and 0 < len(arrays) < count:
            advice += " With targets: ((a, b), y)."
        raise DataError(
            f"the network has another number of {role}s",
            facts=(("expected", str(count)), ("found", str(len(arrays)))),
            advice=advice,
        )
    return arrays


_NAME_INPUTS = (
    "name the inputs: lm.Input(..., name={example!r}). A table by columns is for a model that was "
    "trained on lm.data.from_frame(...). A predictor takes model.coding.inputs(table)."
)
_NAME_OUTPUTS = "name the outputs: lm.Network(inputs, outputs={{{example!r}: ..., ...}})."
_GIVE_LOSSES = "give a loss for each output: loss={{{example!r}: lm.MSE(), ...}}."
_MISSING = {
    "input": "Give an array for each input.",
    "output": "Give an array for each output.",
    "target": "Give the target of each output that has a loss.",
    "weight": "Give weights for each output that has a loss: numpy.ones(n) if all examples count "
    "equally.",
}


def _without_names(names: Names, arrays: Mapping[Any, Any]) -> DataError:
    count, named = len(names.each), None not in names.each
    number = 0 if named else names.each.index(None)
    which = f"the {names.role}" if count == 1 else f"{names.role} {number}"
    advice = "Give the array itself" if count == 1 else "Give a tuple in their order"
    example = next((name for name in arrays if name not in names.each), "name")
    remedy = _NAME_OUTPUTS if named else _GIVE_LOSSES
    remedy = _NAME_INPUTS if names.role == "input" else remedy
    return DataError(
        f"the {names.role}s are given by name, and {which} has no name",
        facts=(
            ("expected", "an array" if count == 1 else f"a tuple of {count} arrays"),
            ("found", f"a dict of {_listed(arrays)}" if arrays else "an empty dict"),
        ),
        where=f"{names.role}s",
        advice=f"{advice}, or {remedy.format(example=example)}",
    )


def _unknown(names: Names, arrays: Mapping[Any, Any], name: object) -> DataError:
    names_here = [*dict.fromkeys([*cast(tuple[str, ...], names.each), *names.ignored])]
    close = nearest(str(name), [candidate for candidate in names_here if candidate not in arrays])
    advice = f"Is it {close!r}?" if close else "Leave it out."
    if names.role == "input" and not close:
        advice = "Leave it out. Targets are given separately: (inputs, targets)."
    kind = "input" if names.role == "input" else "output"
    return DataError(
        f"the network has no {kind} named {name!r}",
        facts=(("expected", _listed(names_here)), ("found", _listed(arrays))),
        where=f"{names.role}s",
        advice=advice,
    )


def _listed(names: Any) -> str:
    return ", ".join(map(str, names)) or "no names"
