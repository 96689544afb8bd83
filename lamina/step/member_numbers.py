"""The hyper-parameters of the members of a population: one program, and numbers for each member."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from lamina.base.shapes import DType
from lamina.compiler.program_cache import graph_checksum
from lamina.errors import DefinitionError
from lamina.graph import Fields, Graph, Hyperparameter
from lamina.learning.protocols import TrainingOptions
from lamina.step.derive import TrainingNumbers
from lamina.step.names import NetworkDefinition


def fields_of_members(
    numbers: TrainingNumbers,
    options: Sequence[TrainingOptions],
    penalties: Sequence[Mapping[str, Any]],
) -> list[dict[str, float]]:
    """The numbers in the optimizer, the clipping and the penalties of each member, by name.

    Args:
        numbers: those of the graph that was derived from the first member's options.
        options: the options of each member.
        penalties: the penalties in the network of each member, by name. They make equal graphs.

    Raises:
        DefinitionError: if the graph of a member is another one.
    """
    first, leaves = _fields(options[0]), leaves_of(numbers)
    used = frozenset[str]().union(*(number.sources for number in leaves.values()))
    # Most members share their options and penalties.
    known: dict[int, dict[str, float]] = {}
    fields_of_all: list[dict[str, float]] = []
    for member, (each, own) in enumerate(zip(options, penalties, strict=True)):
        if id(each) not in known:
            fields = _fields(each)
            for what, record in first.items():
                both = getattr(options[0], what), getattr(each, what)
                _require_equal(member, what, both, (record, fields[what]), numbers, used)
            known[id(each)] = {k: v for _, found in fields.values() for k, v in found.items()}
        if id(own) not in known:
            strengths = Fields()
            for name, penalty in own.items():
                strengths.of(penalty, name)
            known[id(own)] = strengths.values
        fields_of_all.append(known[id(each)] | known[id(own)])
    return fields_of_all


class OtherProgramError(DefinitionError):
    """Two members cannot be trained by one program."""


def kind_of(optimizer: Any, *, by_value: bool) -> Hashable:
    """What optimizers have in common that are trained by one program.

    Args:
        by_value: whether all of their numbers are equal. Otherwise they differ in numbers only, of
            which none or all are 0; some other numbers may still decide the program.
    """
    fields = Fields()
    record = repr(fields.of(optimizer, "optimizer"))
    zeros = tuple(name for name, value in fields.values.items() if not value)
    return record, tuple(fields.values.items()) if by_value else zeros


def groups_of(networks: Sequence[NetworkDefinition], dtype: DType) -> list[list[int]]:
    """The numbers of networks that have the same graphs up to the numbers in their penalties."""
    by_definition: dict[Hashable, list[int]] = {}
    for number, network in enumerate(networks):
        by_definition.setdefault(network.definition, []).append(number)
    if len(by_definition) == 1:
        return [*by_definition.values()]
    groups: dict[Hashable, list[int]] = {}
    for definition, numbers in by_definition.items():
        network = networks[numbers[0]]
        graphs: list[Graph] = []
        for training in (True, False):
            trace = network.trace(dtype=dtype, training=training)
            record, named = trace.record, enumerate((*trace.outputs, *trace.record.penalties))
            updates = [(record.states[name].tensor, new) for name, new in record.updates.items()]
            outputs = tuple((str(n), tensor) for n, tensor in named)
            graphs.append(Graph(trace.inputs, outputs, tuple(updates)))
        checksums = [graph_checksum(graph) for graph in graphs]
        # A graph of somebody's own op is known as itself only.
        key = definition if None in checksums else (*checksums, tuple(network.output_names))
        groups.setdefault(key, []).extend(numbers)
    return [sorted(numbers) for numbers in groups.values()]


def leaves_of(numbers: TrainingNumbers) -> dict[str, Hyperparameter]:
    """The leaves that depend on numbers in records, by name."""
    named = {name: number for name, (_, number) in numbers.leaves.items()}
    return {name: n for name, n in named.items() if isinstance(n, Hyperparameter)}


def _fields(options: TrainingOptions) -> dict[str, tuple[Any, dict[str, float]]]:
    """Optimizer and clipping with names in place of numbers, and these numbers by name."""
    found: dict[str, tuple[Any, dict[str, float]]] = {}
    for what in ("optimizer", "clip"):
        fields = Fields()
        found[what] = fields.of(getattr(options, what), what), fields.values
    return found


def _require_equal(
    member: int,
    what: str,
    records: tuple[object, object],
    fields: tuple[tuple[Any, dict[str, float]], tuple[Any, dict[str, float]]],
    numbers: TrainingNumbers,
    used: frozenset[str],
) -> None:
    """Raises DefinitionError if a record of a member leads to another graph than the first's."""
    (record, before), (changed, after) = fields
    different = [name for name, value in after.items() if before.get(name, value) != value]
    fixed = [name for name in different if name not in used]
    decided = [decision for decision in numbers.decisions.values() if not decision.holds(after)]
    if record == changed and not fixed and not decided:
        return
    problem = f"its {what} is of another kind"
    if fixed or decided:
        name = fixed[0] if fixed else next(name for name in different if _names(decided[0], name))
        problem = f"its {name} = {after[name]:g} makes another program than {before[name]:g}"
    raise OtherProgramError(
        f"member {member} cannot be trained in the same program as member 0: {problem}",
        facts=(("member 0", repr(records[0])), (f"member {member}", repr(records[1]))),
        where=what,
        advice="They may differ in numbers only: make a population for each kind.",
    )


def _names(decision: Any, name: str) -> bool:
    """Whether a decision depends on a field."""
    operands = (x for x in decision.operands if isinstance(x, Hyperparameter))
    return any(name in operand.sources for operand in operands)
