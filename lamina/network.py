"""Networks: definitions without data, checked when they are made."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import cache, partial
from typing import Annotated, Any, cast, final

from lamina.base.records import cached_property
from lamina.base.remembered import OwnCodeError, plain_key
from lamina.base.shapes import DType, float32, shape_text, size_of, static
from lamina.checks import checked
from lamina.checks.kinds import FloatType, Instance, OrNone, Whole
from lamina.checks.origin import Origin, source_line
from lamina.data.stream import AnyData
from lamina.engines import DEFAULT_ENGINE
from lamina.engines.discovery import device_of, open_engine, target_of
from lamina.engines.room import Need, bytes_of, need_of, needs_of_program
from lamina.errors import DefinitionError, EngineError, Named, ShapeError, UnknownNameError
from lamina.foreign import advice_on_object
from lamina.graph import LEAF, Graph, Tensor, described, topological
from lamina.inspect.bill import Count, Memory, MemoryBill, largest_batch, largest_batch_of
from lamina.inspect.flops import flops_of
from lamina.layers.definition_names import name_of, names_of, shared_names
from lamina.layers.gradients import sources_of
from lamina.layers.layer import LAYER, RESULT, Layer, OwnName
from lamina.layers.recompute import Recompute
from lamina.layers.scope import Record, Scope
from lamina.layers.tracing import Trace, applied, dtype_in_model, trace, traced_within
from lamina.learning.by_output import Losses, options_of
from lamina.learning.protocols import BatchSize, Clip, MicroBatch, Optimizer
from lamina.ops.differentiate import COMPUTED_AGAIN
from lamina.reports import bytes_text, table_text
from lamina.step.planning import bill_of, members_of
from lamina.step.precision import Products, precision_of

# Float type of the model, whether it is training mode, dtypes of the inputs.
_TraceKey = tuple[DType, bool, tuple[DType, ...]]
_APPLIED = "Start from lm.Input(...); for arrays there is lm.Model(net).predict(x)."
_Operand = Annotated[Tensor, Instance(Tensor, "a network is applied to tensors", _APPLIED)]
_MOST_TRACES = 8  # that a network keeps: both modes, for a few dtypes of inputs


@final
class Network(Named):
    """Inputs, outputs, and the layers and ops between them.

    Args:
        inputs: tensors from `lamina.Input`, in the order of the data.
        outputs: tensors computed from them; one or several, or a dict of several by name, in this
            order. Losses and metrics of single outputs are given by these names.
        name: the prefix of the names of its layers in a network that applies it, as in
            `"encoder.1.weight"`.

    Raises:
        DefinitionError: if an output depends on an input that is not listed, or on no input; if
            two layers or two inputs have the same name.

    Example:
        >>> a, b = lm.Input(4), lm.Input(2)
        >>> net = lm.Network(inputs=[a, b], outputs=lm.Linear(3)(lm.concat([a, b])))
        >>> net.outputs[0]
        Tensor(f32[batch, 3], layer)
    """

    @checked
    def __init__(
        self,
        inputs: Tensor | Sequence[Tensor],
        outputs: Tensor | Sequence[Tensor] | Mapping[str, Tensor],
        *,
        name: OwnName = None,
    ) -> None:
        self.name = name
        self.inputs: tuple[Tensor, ...] = _as_tuple(inputs)
        self._output_names: tuple[str, ...] | None = None
        if isinstance(outputs, Mapping):
            for key in cast(Mapping[Any, Any], outputs):
                if not isinstance(key, str) or not key.isidentifier():
                    raise DefinitionError(
                        "the name of an output is a word of letters, digits and underscores",
                        facts=(("expected", "outputs={'boxes': boxes}"), ("found", repr(key))),
                        where=str(Origin("Network", source_line())),
                    )
            self._output_names = tuple(outputs)
            outputs = tuple(outputs.values())
        self.outputs: tuple[Tensor, ...] = _as_tuple(outputs)
        self.nodes: tuple[Tensor, ...] = tuple(
            sorted(topological((*self.inputs, *self.outputs)), key=lambda node: node.number)
        )
        self._check()
        self._names = names_of(self.nodes)
        self._traces: dict[_TraceKey, Trace] = {}
        applied = [id(node.attributes["layer"]) for node in self.nodes if node.op is LAYER]
        if len(set(applied)) < len(applied) or sources_of(self.nodes):
            # Only tracing shows whether a layer fits both operands, and whether gradients exist.
            self.trace(dtype=float32, training=True)

    def __getstate__(self) -> tuple[Graph, str | None]:
        # A graph is pickled as flat rows, without recursion. Numbers are no names of outputs.
        names = self._output_names or map(str, range(len(self.outputs)))
        return Graph(self.inputs, tuple(zip(names, self.outputs, strict=True))), self.name

    def __setstate__(self, state: tuple[Graph, str | None]) -> None:
        graph, self.name = state
        self.inputs = graph.inputs
        self.outputs = tuple(tensor for _, tensor in graph.outputs)
        names = tuple(name for name, _ in graph.outputs)
        self._output_names = None if names[0].isdecimal() else names
        self.nodes = tuple(sorted(graph.nodes(), key=lambda node: node.number))
        self._names = names_of(self.nodes)
        self._traces = {}

    @property
    def input_names(self) -> tuple[str | None, ...]:
        """The names of the inputs, `lm.Input(4, name="age")`; None for an input without one."""
        return tuple(map(name_of, self.inputs))

    @property
    def output_names(self) -> tuple[str, ...]:
        """The names of the outputs; `"output0"`, `"output1"`, ... if they were given none."""
        return self._output_names or tuple(f"output{n}" for n in range(len(self.outputs)))

    @property
    def has_output_names(self) -> bool:
        """Whether the outputs were given names."""
        return self._output_names is not None

    def _check(self) -> None:
        where = str(Origin("Network", source_line()))
        for tensor in self.inputs:
            if tensor.op is not LEAF or tensor.attributes["role"] != "input":
                raise DefinitionError(
                    "an input of a network is made by lm.Input",
                    facts=(("found", repr(tensor)),),
                    where=where,
                )
        if len(set(self.inputs)) != len(self.inputs):
            raise DefinitionError("an input is listed twice", where=where)
        if not self.outputs:
            raise DefinitionError("a network needs at least one output", where=where)
        for node in self.nodes:
            if node.op is LEAF and node not in self.inputs:
                raise DefinitionError(
                    "an output depends on an input that is not listed",
                    facts=(("missing", f"{node!r} made at {node.origin.source}"),),
                    where=where,
                    advice="Add it: Network(inputs=[...], outputs=...).",
                )

    @cached_property
    def definition(self) -> Hashable:
        """A checksum, equal for networks of equal layers, which have equal graphs.

        A network with layers that are not Lamina's has a number of its own.
        """
        places, seen, rows = dict[Tensor, int](), dict[int, int](), list[object]()
        try:
            for node in self.nodes:
                spec = plain_key((dict(node.attributes), node.shape, node.dtype), seen=seen)
                rows.append((node.op.name, [places[operand] for operand in node.operands], spec))
                places[node] = len(places)
        except OwnCodeError:
            return id(self)
        ends = ([places[tensor] for tensor in each] for each in (self.inputs, self.outputs))
        rows += [*ends, self.output_names, self.name]
        return hashlib.sha256(repr(rows).encode()).digest()

    @checked
    def __call__(self, *operands: _Operand) -> Any:
        """Applies the network as a part of another one; all uses share its parameters.

        Returns:
            A tensor, or a tuple where the network has several outputs.
        """
        operand_of = self._operand_of(operands)

        def name_within(node: Tensor) -> str | None:
            if self.name is None:
                return node.attributes["name"]
            return f"{self.name}.{self._names[node][0]}"

        new = applied(self.nodes, operand_of, name_within)
        outputs = tuple(new[tensor] for tensor in self.outputs)
        return outputs[0] if len(outputs) == 1 else outputs

    def forward(self, scope: Scope, /, *operands: Tensor) -> Any:
        """Builds the network within the `forward` of a layer, for `scope.layer`."""
        if not isinstance(cast(object, scope), Scope):
            raise DefinitionError(
                "the first argument of forward is the scope of a layer",
                facts=(("found", type(scope).__name__),),
                where=str(Origin("Network.forward", source_line())),
                advice="A network is applied like a layer, net(x); lm.Model(net) computes numbers.",
            )
        outputs = traced_within(scope, self._operand_of(operands), self.outputs, self._names)
        return outputs[0] if len(outputs) == 1 else outputs

    def _operand_of(self, operands: Sequence[Tensor]) -> dict[Tensor, Tensor]:
        """The operand of each input; raises DefinitionError or ShapeError if they do not fit."""
        if len(operands) != len(self.inputs):
            raise DefinitionError(
                "the network is applied to a wrong number of tensors",
                facts=(("expected", str(len(self.inputs))), ("found", str(len(operands)))),
                where=source_line(),
            )
        for number, (declared, operand) in enumerate(zip(self.inputs, operands, strict=True)):
            if isinstance(cast(object, operand), Tensor) and operand.shape != declared.shape:
                raise ShapeError(
                    f"input {number} of the applied network has another shape",
                    facts=(("expected", shape_text(declared.shape)), ("found", described(operand))),
                    where=source_line(),
                    advice=f"The network was defined for that shape, at {declared.origin.source}.",
                )
        return dict(zip(self.inputs, operands, strict=True))

    @checked
    def path(self, node: Tensor) -> str:
        """`"net/1:Linear"`, for a tensor of the definition.

        Raises:
            UnknownNameError: if it is not a tensor of this network, or is a constant.
        """
        if node not in self._names:
            raise UnknownNameError(
                "the tensor has no path in this network",
                facts=(("found", described(node)),),
                where="Network.path",
                advice="network.nodes has the tensors of the definition.",
            )
        return self._names[node][1]

    def trace(
        self, *, dtype: DType, training: bool, input_dtypes: Sequence[DType] | None = None
    ) -> Trace:
        """The graph of ops of the network, in training mode or in inference mode.

        It is built once for each mode and choice of dtypes, and kept.
        """
        arriving = tuple(input_dtypes or (dtype_in_model(tensor, dtype) for tensor in self.inputs))
        key = dtype, training, arriving
        traced = self._traces.get(key)
        if traced is None:
            traced = trace(
                self.inputs,
                self.outputs,
                self._names,
                dtype=dtype,
                training=training,
                input_dtypes=arriving,
            )
        # A new table each time: other threads may read the old one. The latest is the last.
        kept = [pair for pair in self._traces.items() if pair[0] != key]
        self._traces = dict([*kept[-_MOST_TRACES + 1 :], (key, traced)])
        return traced

    def variables(self, dtype: DType) -> Record:
        """The parameters and states of both modes of the network, and the layers they belong to."""
        training = self.trace(dtype=dtype, training=True).record
        inference = self.trace(dtype=dtype, training=False).record
        return Record(
            dtype,
            training=True,
            parameters={**inference.parameters, **training.parameters},
            states={**inference.states, **training.states},
            layers={**inference.layers, **training.layers},
            prefixes={**inference.prefixes, **training.prefixes},
            index_limits=inference.index_limits,
        )

    @checked
    def names_of(self, part: PartOfNetwork) -> list[str]:
        """The names, in this network, of the parameters of another network made of its layers.

        They serve as patterns of frozen parameters: `frozen=both.names_of(discriminator)` trains a
        generator through a discriminator that stays unchanged.

        Args:
            part: a network whose layers with parameters are layers of this one, the same objects.

        Raises:
            DefinitionError: if it is not a network, or has a layer that this network does not have.
            ShapeError: if a parameter has another shape there.

        Example:
            >>> head = lm.Sequential(lm.Input(4), lm.Linear(2))
            >>> net = lm.Sequential(lm.Input(8), lm.Linear(4), lm.Tanh(), head)
            >>> net.names_of(head)
            ['3.weight', '3.bias']
        """
        part_record = part.variables(float32)
        names = shared_names(self.variables(float32), part_record)
        return [names[name] for name in part_record.parameters]

    def parameter_count(self) -> int:
        """The number of trained values."""
        variables = self.trace(dtype=float32, training=False).record.parameters.values()
        return sum(size_of(static(variable.tensor.shape)) for variable in variables)

    def __repr__(self) -> str:
        inputs, outputs = (
            ", ".join(shape_text(tensor.shape, tensor.dtype) for tensor in tensors)
            for tensors in (self.inputs, self.outputs)
        )
        name = "" if self.name is None else f"{self.name!r}, "
        return f"Network({name}{inputs} -> {outputs}, {self.parameter_count():,} parameters)"

    def __str__(self) -> str:
        traced = self.trace(dtype=float32, training=False)
        parameters: dict[str, int] = {}
        for variable in traced.record.parameters.values():
            layer = variable.tensor.origin.path.split("/")[1]
            size = size_of(static(variable.tensor.shape))
            parameters[layer] = parameters.get(layer, 0) + size
        flops = flops_of(
            Graph(traced.inputs, tuple((str(n), t) for n, t in enumerate(traced.outputs)))
        )
        rows = [
            (
                path.removeprefix("net/"),
                shape_text(node.shape, node.dtype),
                "0" if node.op is RESULT else f"{parameters.get(path.removeprefix('net/'), 0):,}",
                f"{flops.get(path, 0):,}",
            )
            for node, (_, path) in self._names.items()
            if node.op is not COMPUTED_AGAIN
        ]
        total = ("total", "", f"{sum(parameters.values()):,}", f"{sum(flops.values()):,}")
        header = ("layer", "output", "parameters", "FLOPs per example")
        return table_text(header, rows, align="llrr", footer=total)

    @checked
    def plan(
        self,
        batch_size: BatchSize,
        loss: Losses | None = None,
        optimizer: Optimizer | None = None,
        *,
        dtype: FloatType = "float32",
        precision: Products = "float32",
        clip: Clip | None = None,
        frozen: Sequence[str] = (),
        micro_batch: MicroBatch = None,
        data: AnyData | None = None,
        engine: str = DEFAULT_ENGINE,
        members: Annotated[int | None, OrNone(Whole(1))] = None,
    ) -> MemoryBill:
        """The memory bill of a training step or a forward pass, before anything is allocated.

        Args:
            batch_size: the number of examples.
            loss, optimizer: parts of the training step; without them the bill is for a forward
                pass.
            dtype, precision: arguments of `Model`; the rounded numbers may depend on the device.
            clip, frozen, micro_batch: gradient clipping, patterns of parameters that are not
                trained, and the size of micro-batches, as in `Model.training`.
            data: a data set, a stream, or a pair of arrays, whose bytes stand in the bill. The cpu
                engine reads the caller's arrays where they are; a device has a copy, or buffers if
                the data does not fit. The program is planned for the dtypes and weights of a data
                set. A stream is not read: its program is planned for the dtypes that network and
                loss expect, and without weights.
            engine: the engine for which the program is compiled.
            members: the number of members of a `Population`, for the bill of all; None for a model.

        Raises:
            EngineError: for an unknown engine.
            DefinitionError: for a population with micro-batches.

        Example:
            >>> net = lm.Sequential(lm.Input(4), lm.Linear(2))
            >>> net.plan(8).parameter_bytes
            40
        """
        options = options_of(loss, optimizer, clip, frozen, "plan")
        device = partial(device_of, engine)
        model_precision, target = precision_of(dtype, device, precision), target_of(engine)
        micro = None if micro_batch is None or micro_batch >= batch_size else micro_batch
        given = self, batch_size, options, model_precision, device, target, micro, data
        if members is None:
            return bill_of(*given)
        if micro is not None:
            raise DefinitionError(
                "a population has no micro-batches",
                facts=(("members", str(members)), ("micro_batch", str(micro))),
                where="plan",
                advice="Leave one of them out.",
            )
        return bill_of(*given, members, open_engine(engine))

    @checked
    def max_batch_size(
        self,
        memory: Memory | None = None,
        loss: Losses | None = None,
        optimizer: Optimizer | None = None,
        *,
        dtype: FloatType = "float32",
        precision: Products = "float32",
        clip: Clip | None = None,
        frozen: Sequence[str] = (),
        data: AnyData | None = None,
        engine: str = DEFAULT_ENGINE,
    ) -> int:
        """The largest batch whose bill fits, with tensors no larger than the device allows.

        On an OpenCL device the workspaces of the kernels count too.

        Args:
            memory: bytes, or text such as `"2 GiB"`; by default what the engine's device has left.
            loss, optimizer, dtype, precision, clip, frozen, engine: the arguments of `plan`.
            data: a data set or a pair of arrays, for whose dtypes and weights the programs are
                planned. Its own bytes do not count.

        Raises:
            EngineError: if not even one example fits, or there is no such engine.
        """
        options = options_of(loss, optimizer, clip, frozen, "max_batch_size")
        device = partial(device_of, engine)
        model_precision, target = precision_of(dtype, device, precision), target_of(engine)
        limit = _limit(memory, engine, "max_batch_size", "")
        # All needs of the default engine are in the bill.
        count = needs_of_program if engine == DEFAULT_ENGINE else open_engine(engine).needs

        @cache
        def bills(batch_size: int) -> MemoryBill:
            return bill_of(self, batch_size, options, model_precision, device, target, data=data)

        def needs(batch_size: int, count: Count) -> list[Need]:
            program = bills(batch_size).program
            outside = ("parameter", "state", "constant")
            return [*(need_of(kind, program.of_kind(kind)) for kind in outside), *count(program)]

        most = target.largest_block_bytes
        largest = largest_batch_of(needs, count, limit, most)
        if not largest:
            raise _not_one_fits(
                "not even a batch of one example fits",
                *(needs(1, count), limit, most, "max_batch_size"),
            )
        return largest

    @checked
    def max_members(
        self,
        batch_size: BatchSize,
        memory: Memory | None = None,
        loss: Losses | None = None,
        optimizer: Optimizer | None = None,
        *,
        dtype: FloatType = "float32",
        precision: Products = "float32",
        clip: Clip | None = None,
        frozen: Sequence[str] = (),
        data: AnyData | None = None,
        engine: str = DEFAULT_ENGINE,
    ) -> int:
        """The largest number of members of a `Population` whose bill fits.

        Args:
            batch_size: the number of examples in a batch of each member.
            memory, loss, optimizer, dtype, precision, clip, frozen, data, engine: the arguments of
                `max_batch_size`.

        Raises:
            EngineError: if not even one member fits, or there is no such engine.

        Example:
            >>> net = lm.Sequential(lm.Input(4), lm.Linear(2))
            >>> net.max_members(8, "1 MiB") < net.max_members(8, "2 MiB")
            True
        """
        options = options_of(loss, optimizer, clip, frozen, "max_members")
        device, opened = partial(device_of, engine), open_engine(engine)
        model_precision, target = precision_of(dtype, device, precision), opened.target
        limit = _limit(memory, engine, "max_members", f"{batch_size}, ")
        given = self, batch_size, options, model_precision, device, target, None, data
        program = bill_of(*given).program

        def needs(members: int) -> list[Need]:
            of_all = members_of(members, own_inputs=options is not None)
            grouping = opened.grouping(program, of_all)
            bill = MemoryBill(batch_size, grouping.program, members=members, grouping=grouping)
            constants = Need("constants", bill.constant_bytes)
            return [*bill.outside(), constants, *opened.needs(program, of_all)]

        most = target.largest_block_bytes
        largest = largest_batch(lambda members: bytes_of(needs(members), most), limit)
        if not largest:
            raise _not_one_fits(*("not even one member fits", needs(1), limit, most, "max_members"))
        return largest


def _limit(memory: Memory | None, engine: str, where: str, before: str) -> int:
    """The memory that was given; by default what the engine's device has left.

    Args:
        where, before: the method, and its arguments before the memory.
    """
    limit = open_engine(engine).available_bytes() if memory is None else int(memory)
    if limit is None:
        raise EngineError(
            "the available memory is not known",
            facts=(("engine", engine),),
            where=where,
            advice=f'Give the memory: net.{where}({before}"2 GiB").',
        )
    return limit


def _not_one_fits(
    problem: str, needs: Sequence[Need], limit: int, most: int | None, where: str
) -> EngineError:
    """The error for too little memory, or for a tensor larger than the device allows."""
    largest = max(needs, key=lambda need: need.largest_bytes)
    facts = [
        ("available", bytes_text(limit)),
        ("needed", bytes_text(sum(need.bytes for need in needs))),
    ]
    if most is not None and largest.largest_bytes > most:
        facts = [
            ("at most", f"{bytes_text(most)} in one allocation"),
            ("needed", f"{bytes_text(largest.largest_bytes)} for {largest.largest}"),
        ]
    return EngineError(
        problem,
        facts=tuple(facts),
        where=where,
        advice="Take a smaller network, or an optimizer with less state.",
    )


PartOfNetwork = Annotated[
    Network,
    Instance(
        Network,
        "a part of a network is a network",
        "Make one of the layers, and use it in the other: lm.Sequential(...).",
    ),
]


@checked
def Sequential(*layers: Tensor | Layer | Network | Recompute, name: OwnName = None) -> Network:
    """A network whose layers follow one another.

    Args:
        layers: a `lamina.Input`, then layers, or networks with one input and one output.
        name: the name, as in `Network`.

    Raises:
        ShapeError: at the first layer that does not fit, naming it and the line that made it.

    Example:
        >>> lm.Sequential(lm.Input(784), lm.Linear(10)).parameter_count()
        7850
    """
    where = str(Origin("Sequential", source_line()))
    if not layers or not isinstance(layers[0], Tensor):
        type_name = type(layers[0]).__name__ if layers else "nothing"
        raise DefinitionError(
            "a Sequential begins with an Input",
            facts=(("expected", "Sequential(Input(784), Linear(10))"), ("found", type_name)),
            where=where,
            advice="Unpack the list: Sequential(*layers)." if type_name == "list" else "",
        )
    tensor = layers[0]
    for number, layer in enumerate(layers[1:], start=1):
        tensor = _applicable(layer, number, where)(tensor)
    return Network(layers[0], tensor, name=name)


def _applicable(layer: object, number: int, where: str) -> Layer | Network | Recompute:
    """An element after the Input of a Sequential; DefinitionError if it is not a layer."""
    if isinstance(layer, type):
        problem = "the elements after the Input of a Sequential are layers, and this is a class"
        text, advice = f"the class {layer.__name__}", f"Make a layer of it: {layer.__name__}(...)."
    elif isinstance(layer, Tensor) or not callable(layer):
        problem = "the elements after the Input of a Sequential are layers"
        text = repr(layer)
        advice = "Several inputs or branches need lm.Network(inputs=[...], outputs=...)."
    elif not isinstance(layer, Layer | Network) and (advice := advice_on_object(layer)):
        problem = "the elements after the Input of a Sequential are layers of Lamina"
        text = f"{type(layer).__module__}.{type(layer).__qualname__}"
    else:
        return cast(Any, layer)
    facts = (("position", str(number)), ("found", text))
    raise DefinitionError(problem, facts=facts, where=where, advice=advice)


def _as_tuple(tensors: Tensor | Sequence[Tensor]) -> tuple[Tensor, ...]:
    # Callers without a type checker may pass anything, for example a layer.
    alone = isinstance(tensors, Tensor) or not isinstance(cast(object, tensors), Iterable)
    listed = cast(tuple[Tensor, ...], (tensors,) if alone else tuple(tensors))
    for tensor in listed:
        if not isinstance(cast(object, tensor), Tensor):
            raise DefinitionError(
                "inputs and outputs of a network are tensors",
                facts=(("expected", "Tensor"), ("found", type(tensor).__name__)),
                where=str(Origin("Network", source_line())),
                advice="Layers are applied first: lm.Linear(10)(x) is a tensor.",
            )
    return listed
