"""A model's values, in the memory of an engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy, deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast, final

import numpy as np

from lamina.base.shapes import Array, converted, shape_text, size_of, static
from lamina.data.conversion import convert
from lamina.engines.engine import Engine, Memory
from lamina.engines.room import Need, require_room
from lamina.errors import DefinitionError, ShapeError
from lamina.graph import Tensor
from lamina.layers.definition_names import shared_names
from lamina.layers.layer import LAYER
from lamina.layers.scope import Variable, arrays_while_drawn
from lamina.network import Network
from lamina.runtime.compiled import Placement
from lamina.runtime.index_checks import index_checks
from lamina.runtime.memories import allocate_states, need_of_tensors, read_all, write_all
from lamina.runtime.model_lock import ModelLock
from lamina.step.names import Names
from lamina.step.precision import Precision, Rounding, rounding_of

if TYPE_CHECKING:
    from lamina.data.coding import Coding


@final
class _Values:
    """The memories of all values of a model, by name; models made by `part` share them.

    They are copied and pickled together under the lock, so a copy has the values between two
    training steps. If objects that share them are copied together, their copies share one copy.
    """

    def __init__(
        self, engine: Engine, values: Iterable[tuple[str, Array]], members: int | None = None
    ) -> None:
        self.engine, self.members = engine, members
        self.lock = ModelLock()
        self.memories: dict[str, Memory] = {}
        for name, value in values:
            shape = value.shape if members is None else value.shape[1:]
            self.memories[name] = engine.allocate(shape, value.dtype, members)
            self.memories[name].write(value)

    def of_member(self, number: int) -> _Values:
        """The values of one member of a population, in the same memory and under the same lock."""
        values = _Values(self.engine, ())
        values.lock = self.lock
        values.memories = {name: memory.member(number) for name, memory in self.memories.items()}
        return values

    def _copies(self) -> list[tuple[str, Array]]:
        taken = sum(size_of(m.shape) * m.dtype.itemsize for m in self.memories.values())
        require_room(
            "a copy of this model needs",
            # They are read into arrays, then written to the new memories or pickled.
            [Need("values, and a temporary copy of them", 2 * taken)],
            self.engine.available_bytes,
            where=self.engine.device.engine,
            advice="Free memory, or save the model and load it elsewhere.",
        )
        with self.lock.mutex:
            return list(read_all(self.memories).items())

    def __reduce__(self) -> tuple[Any, ...]:
        return _Values, (self.engine, self._copies(), self.members)

    def __deepcopy__(self, memo: dict[int, Any]) -> _Values:
        return _Values(deepcopy(self.engine, memo), self._copies(), self.members)


@final
class _Coded:
    """The coding of tables, which models with the same inputs share."""

    def __init__(self, inputs: int) -> None:
        self.inputs = inputs
        self.coding: Coding | None = None


def _inputs_in(parent: Network, part: Network) -> list[int | None]:
    """For each input of a part, its number in the parent: of the same tensor or layer, or None."""
    # A parent lacks the codes of a decoder, for example.

    def uses(network: Network, tensor: Tensor) -> set[object]:
        places: set[object] = {tensor}
        for node in network.nodes:
            layer = id(node.attributes["layer"]) if node.op is LAYER else None
            operands = enumerate(node.operands) if layer else ()
            places |= {(layer, number) for number, operand in operands if operand is tensor}
        return places

    parent_uses = [(n, uses(parent, tensor)) for n, tensor in enumerate(parent.inputs)]
    part_uses = [uses(part, tensor) for tensor in part.inputs]
    return [next((n for n, sites in parent_uses if sites & used), None) for used in part_uses]


@final
class Parameters:
    """The values of a network's parameters and states, in an engine's memory, and an arena.

    Hold the lock while using the memories or running a program that is bound to them:
    `with parameters.lock.mutex`.

    Args:
        seed: the seed of the initial values.
        values: initial values, from a file; initializers make the others.
        parent: parameters of a network that contains the same layers; they are shared, and none are
            allocated.
        seeds: of a population those of its members, int64 (members,), in place of `seed`.
        networks: of a population the networks of its members, if they differ in the numbers of
            penalties or in initializers.
        may_use_lanes: whether an engine may compute several members in the lanes of a vector.

    Attributes:
        members: the number of members of a population, which is the first axis of all memories;
            None for a model.
    """

    def __init__(
        self,
        network: Network,
        engine: Engine,
        precision: Precision,
        seed: int,
        values: Mapping[str, Array] | None = None,
        *,
        parent: Parameters | None = None,
        seeds: Array | None = None,
        networks: Sequence[Network] | None = None,
        may_use_lanes: bool = True,
    ) -> None:
        self.may_use_lanes = may_use_lanes
        self.network = network
        self.engine = engine
        self.precision = precision
        self.dtype = dtype = precision.dtype
        self.seed = seed
        self.seeds = seeds
        self.members = None if seeds is None else len(seeds)
        self.networks = networks or [network] * (self.members or 1)
        self._coded = _Coded(len(network.inputs)) if parent is None else parent._coded
        # The numbers of the inputs in the network whose inputs are coded.
        self._coded_inputs: list[int | None] = list(range(len(network.inputs)))
        if parent is not None:
            numbers = _inputs_in(parent.network, network)
            self._coded_inputs = [None if n is None else parent._coded_inputs[n] for n in numbers]
        # Models that share memories share the lock. So they never run at the same time, and can
        # share an arena too.
        self.arena = engine.arena() if parent is None else parent.arena
        record = network.variables(dtype)
        labels = Names("input", network.input_names).labels
        self.index_checks = index_checks(record.index_limits, labels)
        # The remaining limits refer to tensors of the graph, which copies do not need.
        self._record = replace(record, index_limits=[])
        self.variables: dict[str, Variable] = self._record.parameters
        self.states: dict[str, Variable] = self._record.states
        # The key of each variable in `_values.memories`: its name in `parent`.
        self._names: dict[str, str] = {}
        if parent is not None:
            self._values = parent._values
            for name, shared in shared_names(parent._record, self._record).items():
                self._names[name] = parent._names[shared]
        else:
            self._require_room(drawn=values is None)
            variables = self.variables | self.states
            self._names = {name: name for name in variables}
            preset = values or {}
            made = self._first_values()
            first = ((n, preset[n] if n in preset else made(n)) for n in variables)
            self._values = _Values(engine, first, self.members)
        self._bind()

    @property
    def coding(self) -> Coding | None:
        """Of the tables on which the model was trained, if any: as far as it codes its inputs."""
        coding, numbers = self._coded.coding, self._coded_inputs
        if coding is None or numbers == list(range(self._coded.inputs)):
            return coding
        from lamina.data.coding import coding_of_inputs  # only parts of coded models need it

        return coding_of_inputs(coding, numbers)

    @coding.setter
    def coding(self, coding: Coding | None) -> None:
        if self._coded_inputs != list(range(self._coded.inputs)):
            # A part with other inputs is coded by itself.
            self._coded = _Coded(len(self.network.inputs))
            self._coded_inputs = list(range(self._coded.inputs))
        self._coded.coding = coding

    @property
    def rounding(self) -> Rounding | None:
        """In mixed precision, what the engine's device rounds; None otherwise."""
        return rounding_of(self.precision, lambda: self.engine.device)

    @property
    def placement(self) -> Placement:
        """The engine, the lock and the arena of its programs."""
        lanes = self.may_use_lanes
        return Placement(self.engine, self.lock, self.arena, self.members, lanes)

    def _bind(self) -> None:
        """Sets `lock` and `memories`, which are derived from `_values` and `_names`."""
        self.lock = self._values.lock
        shared = self._values.memories
        self.memories = {name: shared[key] for name, key in self._names.items()}

    def __getstate__(self) -> dict[str, Any]:
        derived = ("memories", "lock")
        return {name: value for name, value in self.__dict__.items() if name not in derived}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)
        self._bind()

    def _require_room(self, *, drawn: bool) -> None:
        """Checks that there is memory for all values, before any is allocated."""
        groups = (
            ("parameters", "parameter", self.variables),
            ("states of layers", "state", self.states),
        )
        needs = [
            need_of_tensors(what, kind, ((n, v.tensor) for n, v in group.items()), self.members)
            for what, kind, group in groups
        ]
        if drawn:
            # An initializer draws numbers of 64 bits.
            drawing = (
                8 * size_of(static(variable.tensor.shape)) * arrays_while_drawn(variable.init)
                for variable in (self.variables | self.states).values()
            )
            needs.append(Need("drawing initial values", max(drawing, default=0)))
        several = self.members is not None
        require_room(
            "this population needs" if several else "this model needs",
            needs,
            self.engine.available_bytes,
            most=self.engine.target.largest_block_bytes,
            where=self.engine.device.engine,
            advice="Take fewer members: net.max_members(...) finds how many fit."
            if several
            else "Make the layer of the largest tensor smaller.",
        )

    def _first_values(self) -> Callable[[str], Array]:
        """A function from the name of a variable to its initial value; of a population to all."""
        records = {n.definition: n.variables(self.dtype) for n in self._distinct()}
        variables = {key: each.parameters | each.states for key, each in records.items()}
        seeds = [self.seed] if self.seeds is None else self.seeds.tolist()
        members = [
            (network.definition, seed) for network, seed in zip(self.networks, seeds, strict=True)
        ]

        def made(name: str) -> Array:
            # Members may have one network and one seed, and differ in their training.
            values = {of: _first_value(variables[of[0]][name], of[1]) for of in set(members)}
            if self.seeds is None:
                return values[members[0]]
            return np.stack([values[member] for member in members])

        return made

    def _distinct(self) -> list[Network]:
        """One of the members' networks for each definition."""
        return [*{network.definition: network for network in self.networks}.values()]

    @property
    def penalties(self) -> list[Mapping[str, Any]]:
        """The penalties in the network of each member, by name."""
        traces = {n.definition: n.trace(dtype=self.dtype, training=True) for n in self._distinct()}
        return [traces[n.definition].record.hyperparameters.records for n in self.networks]

    def with_random_state(self) -> dict[str, Memory]:
        """These memories, and new ones for the seed and the counter of random numbers."""
        seed = self.seed if self.seeds is None else self.seeds
        return self.memories | allocate_states(self.engine, seed, members=self.members)

    def part(self, network: Network) -> Parameters:
        """Parameters of a network made of the same layers, in the same memory."""
        return Parameters(network, self.engine, self.precision, self.seed, parent=self)

    def member(self, number: int) -> Parameters:
        """The parameters of one member of a population, in the same memory."""
        assert self.seeds is not None
        member = copy(self)
        member.seed, member.seeds, member.members = int(self.seeds[number]), None, None
        member.network = self.networks[number]
        member.networks = [member.network]
        member._values = self._values.of_member(number)
        member._bind()
        return member

    def copy(self) -> Parameters:
        """The same values in memory of their own."""
        values = self.read(list(self.memories))
        given = self.network, self.engine, self.precision, self.seed, values
        copied = Parameters(
            *given, seeds=self.seeds, networks=self.networks, may_use_lanes=self.may_use_lanes
        )
        copied.coding = self.coding
        return copied

    def read(self, names: Sequence[str]) -> dict[str, Array]:
        """Copies of values by name."""
        with self.lock.mutex:
            return read_all({name: self.memories[name] for name in names})

    def write(self, values: Mapping[str, Any]) -> None:
        """Replaces values; all are checked before the first is written."""
        ready = self.checked(values)
        with self.lock.mutex:
            write_all((self.memories[name], array) for name, array in ready.items())

    def checked(self, values: Mapping[str, Any]) -> dict[str, Array]:
        """New values by name, checked and converted to be written; raises as `write` does."""
        variables = {**self.variables, **self.states}
        if not isinstance(cast(object, values), Mapping):
            raise DefinitionError(
                "parameters are given by their names",
                facts=(("expected", "{'1.weight': array, ...}"), ("found", type(values).__name__)),
                where="set_parameters",
                advice="model.parameters() has them all.",
            )
        ready: dict[str, Array] = {}
        for name, value in values.items():
            if name not in variables:
                raise DefinitionError(
                    f"the network has no parameter {name!r}",
                    facts=(("expected", ", ".join(variables) or "none"), ("found", repr(name))),
                    advice="print(network) numbers the layers.",
                )
            shape, dtype = static(variables[name].tensor.shape), variables[name].tensor.dtype
            if self.members is not None:
                shape = (self.members, *shape)
            array = convert(value, dtype, f"parameter {name!r}", narrow=False)
            if array.shape != shape:
                raise ShapeError(
                    f"the parameter {name!r} has another shape",
                    facts=(("expected", shape_text(shape)), ("found", shape_text(array.shape))),
                    advice="Linear weights are (outputs, inputs).",
                )
            ready[name] = converted(array, dtype.numpy)
        return ready


def _first_value(variable: Variable, seed: int) -> Array:
    shape, dtype = static(variable.tensor.shape), variable.tensor.dtype
    first = np.asarray(variable.init(shape, seed, variable.stream))
    if first.shape != shape:
        raise ShapeError(
            f"the initial value of {variable.name!r} has another shape",
            facts=(("expected", shape_text(shape)), ("found", shape_text(first.shape))),
            where=str(variable.tensor.origin),
            advice="An initializer returns an array of the shape that it is called with.",
        )
    return np.ascontiguousarray(converted(first, dtype.numpy)).reshape(shape)
