"""The scope of a layer: creates its parameters, states and random numbers."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import wraps
from types import BuiltinFunctionType
from typing import Annotated, Any, Protocol, TypeVar, cast, final

from lamina import ops
from lamina.base import shapes
from lamina.base.records import frozen_dataclass
from lamina.base.shapes import Array, DType, DTypeLike, Shape, shape_text, static
from lamina.checks import checked
from lamina.checks.kinds import (
    Count,
    ElementType,
    Extent,
    Function,
    Kind,
    Misfit,
    ModelType,
    NotNegative,
    Operands,
    OrNone,
    Probability,
    Row,
)
from lamina.checks.origin import Origin, current_origin, labelled, located
from lamina.errors import DefinitionError, LaminaError, ShapeError
from lamina.graph import Hyperparameters, Tensor, described, leaf, topological
from lamina.ops.conversion import widened
from lamina.program.philox import INITIAL_VALUE_STREAMS

__all__ = ["Scope"]


class Initializer(Protocol):
    """Makes the first value of a parameter: see `lamina.init`."""

    def __call__(self, shape: tuple[int, ...], seed: int, stream: int) -> Array:
        """A float64 array of the shape; the same for the same seed and stream."""
        ...


Regularizer = Callable[[Tensor], Tensor]

Dimensions = Annotated[Shape, Row(Extent(), example="x.shape")]
# Dimensions of a parameter or a state. `_variable` refuses one that depends on the batch.
Extents = Annotated[tuple[int, ...], Row(Extent(), example="(10, 3)")]
_AnyType = Annotated[DTypeLike | None, OrNone(ElementType())]
_FloatType = Annotated[DTypeLike | None, OrNone(ModelType())]

_REGULARIZER = Function("lm.L2(1e-4)", "a regularizer, a function")
# Initializers by their names in other frameworks.
_NAMED = {
    "he": "KaimingNormal()",
    "kaiming": "KaimingUniform()",
    "glorot": "XavierUniform()",
    "xavier": "XavierUniform()",
    "normal": "Normal(deviation=0.01)",
    "uniform": "Uniform(-0.1, 0.1)",
    "orthogonal": "Orthogonal()",
    "zero": "Zeros()",
    "one": "Constant(1.0)",
}


@final
@frozen_dataclass
class _InitializerKind(Kind):
    """An initializer; what other frameworks take is refused with the right call."""

    example: str = "lm.init.XavierUniform()"

    def read(self, value: Any, operands: Operands = ()) -> Any:
        advice = ""
        module = getattr(value, "__module__", None) or ""
        # The second argument of a function such as `numpy.zeros` is no seed.
        of_numpy = isinstance(value, BuiltinFunctionType) or module.partition(".")[0] == "numpy"
        if isinstance(value, str) or of_numpy:
            name = str(getattr(value, "__name__", value)).lower()
            ours = next((call for key, call in _NAMED.items() if key in name), "")
            advice = f"Write lm.init.{ours}." if ours else "lm.init has the initializers."
        elif isinstance(value, int | float):
            advice = f"Write lm.init.Constant({value!r})."
        elif hasattr(value, "__array__"):
            advice = "Write a function of shape, seed and stream that returns the array."
        if advice:
            raise Misfit("an initializer, a function", self.example, advice=advice)
        return Function(self.example, "an initializer, a function").read(value)


@final
class _RegularizerKind(Kind):
    """A regularizer; what other frameworks take is refused with the right call."""

    def read(self, value: Any, operands: Operands = ()) -> Any:
        advice = ""
        if isinstance(value, int | float):
            advice = f"Write lm.L2({value!r})."
        elif isinstance(value, str):
            # The strengths that these words mean in Keras, whose L2 has no factor of one half.
            advice = f"Write lm.{'L1(0.01)' if value.lower() == 'l1' else 'L2(0.02)'}."
        if advice:
            raise Misfit(_REGULARIZER.what, _REGULARIZER.example, advice=advice)
        return _REGULARIZER.read(value)


AnyInitializer = Annotated[Initializer, _InitializerKind()]
# Xavier's initializers refuse the shape of a counter.
_StateInitializer = Annotated[Initializer, _InitializerKind("lm.init.Zeros()")]
# The options of layers: None for the layer's default.
InitializerOption = Annotated[Initializer | None, OrNone(_InitializerKind())]
RegularizerOption = Annotated[Regularizer | None, OrNone(_RegularizerKind())]


def arrays_while_drawn(init: Initializer) -> int:
    """The number of arrays of its result's size that an initializer holds at once, by default 1."""
    return getattr(init, "arrays_while_drawn", 1)


class _PartKind(Kind):
    def read(self, value: Any, operands: Operands = ()) -> Any:
        if isinstance(value, type) or not callable(getattr(value, "forward", None)):
            raise Misfit("a layer", "lm.Linear(10)")
        return value


class Part(Protocol):
    """A layer inside another layer."""

    def forward(self, scope: Scope, /, *args: Any, **kwargs: Any) -> Any: ...


AnyPart = Annotated[Part, _PartKind()]


@frozen_dataclass
class Variable:
    """A parameter or a state of a network.

    Attributes:
        name: a name such as `"1.weight"`: the number of the layer and the layer's own name for it.
        stream: the number of the random stream of its first value; no other variable has it.
    """

    name: str
    tensor: Tensor
    init: Initializer
    stream: int


@frozen_dataclass
class IndexLimit:
    """The range of indices that a layer or an op expects.

    Attributes:
        indices: integers that should lie in 0..count - 1.
        what: the indices, in the error's words: `"indices"`, `"lengths"`.
        advice: the fix for indices out of range; empty for a text on numbering from 0.
    """

    indices: Tensor
    count: int
    origin: Origin
    what: str
    advice: str


@frozen_dataclass
class Mixture:
    """Each example is `share` of itself, in [0, 1] for the batch, and for the rest its partner."""

    share: Tensor
    origin: str


def partners(x: Tensor) -> Tensor:
    """The example before each example along the batch; before the first one, the last."""
    return ops.roll(x, 1, 0)


@dataclass(eq=False, repr=False)
class Record:
    """The results of tracing a network, except its outputs; scopes fill it.

    Attributes:
        dtype: the float type of the model.
        parameters, states: variables by name, in the order of the layers.
        updated: the names of updated states, once for each `scope.update`.
        layers: the layers by the prefix of their parameters' names, `"1"`, or `"1.0"` within
            another layer.
        prefixes: the prefixes of all applied layers, by the layer's id; the layer is kept, so that
            no other one gets its id.
        penalties: regularisation terms, 0-d, to be added to the loss.
        hyperparameters: the hyper-parameters of the penalties.
        seed, step: int64 leaves, the keys of random numbers; used if `random_streams` is above 0.
        random_streams: the number of random tensors; each has its own stream.
        activations: the results of layers, and of ops between layers.
        operands: the operands of the layer, while the shape of its result is inferred; empty while
            tracing.
    """

    dtype: DType
    training: bool
    parameters: dict[str, Variable] = field(default_factory=dict[str, Variable])
    states: dict[str, Variable] = field(default_factory=dict[str, Variable])
    updates: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    updated: list[str] = field(default_factory=list[str])
    layers: dict[str, object] = field(default_factory=dict[str, object])
    prefixes: dict[int, tuple[object, str]] = field(default_factory=dict[int, tuple[object, str]])
    penalties: list[Tensor] = field(default_factory=list[Tensor])
    hyperparameters: Hyperparameters = field(default_factory=Hyperparameters)
    index_limits: list[IndexLimit] = field(default_factory=list[IndexLimit])
    seed: Tensor = field(default_factory=lambda: leaf("seed", "state", (), shapes.int64))
    step: Tensor = field(default_factory=lambda: leaf("step", "state", (), shapes.int64))
    random_streams: int = 0
    activations: list[Tensor] = field(default_factory=list[Tensor])
    mixture: Mixture | None = None
    operands: tuple[Tensor, ...] = ()

    def prefix_of(self, layer: object, prefix: str) -> str:
        """The prefix of the names in a layer, from its first application in the network."""
        _, first = self.prefixes.setdefault(id(layer), (layer, prefix))
        self.layers.setdefault(first, layer)
        return first


# The record of layers that are built when they are applied; None where that defines a network.
BUILDING: ContextVar[Record | None] = ContextVar("building", default=None)


@contextmanager
def layers_built(network: Record, dtype: DType) -> Generator[None]:
    """Within the block, layers are built when they are applied: in losses and regularizers.

    They have the mode of the network, and random numbers after its own.
    """
    record = Record(dtype, network.training, seed=network.seed, step=network.step)
    record.random_streams = network.random_streams
    token = BUILDING.set(record)
    try:
        yield
    finally:
        BUILDING.reset(token)


@final
class Scope:
    """Passed to `Layer.forward`; creates and names the layer's parameters and states.

    Attributes:
        training: whether the mode is training (dropout on) or inference.
        dtype: the float type of the model.
    """

    def __init__(self, record: Record, name: str, *, wide: bool = False) -> None:
        self._record = record
        self._name = name
        # Whether floats of 16 bits are given as float32, and rounded when they are stored.
        self._wide = wide

    @property
    def training(self) -> bool:
        return self._record.training

    @property
    def dtype(self) -> DType:
        return self._record.dtype

    @checked
    def parameter(
        self, name: str, shape: Extents, init: AnyInitializer, regularizer: RegularizerOption = None
    ) -> Tensor:
        """A tensor that training changes.

        Args:
            name: a name unique in the layer; with the layer's number it makes `"1.weight"`.
            shape: the fixed shape, which must not depend on the batch.
            init: the initializer of its first value, see `lamina.init`.
            regularizer: a function of the parameter that is added to the loss, such as `lm.L2`.

        Returns:
            The same tensor each time the layer is applied, so that a layer used twice shares it.

        Raises:
            DefinitionError: if the name is taken with another shape.
            ShapeError: if the shape depends on the batch.
        """
        first_use = f"{self._name}.{name}" not in self._record.parameters
        tensor = self._variable("parameter", name, shape, init, self.dtype)
        if regularizer is not None and first_use:
            named = self._record.hyperparameters.of(regularizer, f"penalty/{self._name}.{name}")
            wide = widened(tensor)
            with layers_built(self._record, wide.dtype):
                penalty = named(wide)
            result = cast(object, penalty)
            if not isinstance(result, Tensor) or result.shape or not result.dtype.is_float:
                text = described(result) if isinstance(result, Tensor) else repr(result)
                raise DefinitionError(
                    f"the regularizer of {name!r} does not return a number",
                    facts=(("expected", f"{self.dtype}[]"), ("found", text)),
                    advice="Sum over all axes: lambda w: 1e-4 * lm.ops.sum(w * w).",
                )
            self._record.penalties.append(penalty)
        return widened(tensor) if self._wide else tensor

    @checked
    def shared(self, layer: AnyPart, name: str) -> Tensor:
        """A parameter of another layer: both train the same numbers.

        Args:
            layer: the other layer, the same object; the operands of this layer must depend on it.
            name: the name of the parameter in the other layer.

        Raises:
            DefinitionError: if there is no such layer or no such parameter.

        Example:
            >>> from dataclasses import dataclass
            >>> @dataclass(frozen=True)
            ... class Decoder(lm.Layer):
            ...     encoder: lm.Linear
            ...     def forward(self, scope, x):
            ...         return lm.ops.matmul(x, scope.shared(self.encoder, "weight"))
            >>> encoder = lm.Linear(2)
            >>> net = lm.Sequential(lm.Input(8), encoder, Decoder(encoder))
            >>> list(lm.Model(net).parameters())
            ['1.weight', '1.bias']
        """
        record = self._record
        applied = record.prefixes.get(id(layer))
        prefix = self._infer_earlier(layer) if applied is None else applied[1]
        variable = record.parameters.get(f"{prefix}.{name}")
        if variable is None:
            keys = [key for key in record.parameters if key.startswith(f"{prefix}.")]
            names = ", ".join(key.removeprefix(f"{prefix}.") for key in keys)
            raise DefinitionError(
                f"{type(layer).__name__} has no parameter {name!r} to share",
                facts=(("expected", names or "a layer with parameters"), ("found", repr(name))),
            )
        return variable.tensor

    def _infer_earlier(self, layer: Part) -> str:
        """The prefix of an earlier layer, while the shape of this layer's result is inferred."""
        record = self._record
        for tensor in topological(record.operands):
            if tensor.attributes.get("layer") is layer:
                prefix = record.prefix_of(layer, f"shared{len(record.layers)}")
                layer.forward(Scope(record, prefix), *tensor.operands)
                return prefix
        name = type(layer).__name__
        raise DefinitionError(
            f"it shares parameters with {name}, but its operands do not depend on that layer",
            facts=(("found", repr(layer)),),
            advice=f"Apply {name}, the same object, before this layer. Inside a layer of your own, "
            "apply it by scope.layer(name, layer, x).",
        )

    @checked
    def state(
        self, name: str, shape: Extents, init: _StateInitializer, *, dtype: _AnyType = None
    ) -> Tensor:
        """A tensor that is kept and saved with the model but not trained.

        Running statistics are states, for example. `update` sets the new value. If a layer is
        applied twice, the second application continues from the value that the first one set.
        Its dtype is the model's, unless another is given: counters are `"int64"`, as bfloat16
        counts to 256 only. The other arguments are as for `parameter`.
        """
        element_type = self.dtype if dtype is None else shapes.as_dtype(dtype)
        tensor = self._variable("state", name, shape, init, element_type)
        tensor = self._record.updates.get(f"{self._name}.{name}", tensor)
        return widened(tensor) if self._wide else tensor

    @checked
    def update(self, name: str, value: Tensor) -> None:
        """Sets the value of a state after the training step; only in training mode.

        Raises:
            DefinitionError: in inference mode, or for a name that is not a state of this layer.
        """
        full = f"{self._name}.{name}"
        if not self.training:
            raise DefinitionError(
                f"the state {name!r} is updated in inference mode",
                advice="Call scope.update only where scope.training is true.",
            )
        if full not in self._record.states:
            raise DefinitionError(
                f"there is no state {name!r} to update",
                advice=f"Make it first: scope.state({name!r}, shape, init).",
            )
        if self._wide:
            value = ops.cast(value, self._record.states[full].tensor.dtype)
        self._record.updates[full] = value
        self._record.updated.append(full)

    @checked
    def layer(self, name: str, layer: AnyPart, *operands: Tensor) -> Any:
        """Applies another layer, with a name, inside this one.

        The names of its parameters contain that name: `"1.attention.weight"`. A layer that is
        called in `forward` as in a network gets a number instead: `"1.0.weight"`.

        Args:
            name: the inner layer's name. Layers of the same name share parameters. So do
                applications of the same object, here or elsewhere in the network, under the first
                name.
            layer: the inner layer, or a network.
            operands: the tensors to which it is applied.

        Returns:
            A tensor, or a tuple of tensors where the inner layer has several results.

        Example:
            >>> from dataclasses import dataclass
            >>> @dataclass(frozen=True)
            ... class Residual(lm.Layer):
            ...     def forward(self, scope, x):
            ...         return x + scope.layer("inner", lm.Linear(4), x)
            >>> list(lm.Model(lm.Sequential(lm.Input(4), Residual())).parameters())
            ['1.inner.weight', '1.inner.bias']
        """
        prefix = self._record.prefix_of(layer, f"{self._name}.{name}")
        outer = current_origin()
        path = f"{outer.path}/{name}:{type(layer).__name__}"
        with labelled(Origin(path, outer.source)):
            try:
                result = layer.forward(Scope(self._record, prefix), *operands)
            except LaminaError as error:
                raise located(error) from None
        several = cast(tuple[Tensor, ...], result if isinstance(result, tuple) else (result,))
        self._record.activations.extend(several)
        return several if isinstance(result, tuple) else result

    @checked
    def limit_indices(
        self, indices: Tensor, count: Count, *, what: str = "indices", advice: str = ""
    ) -> None:
        """Declares the range of indices, 0..count - 1; data is then checked when it arrives.

        Computed indices are not checked: the nearest index in range replaces one out of range.

        Args:
            indices: integers.
            count: the number of different indices.
            what: the name of the indices in the error.
            advice: the fix for indices out of range; by default a text on numbering from 0.
        """
        limit = IndexLimit(indices, count, current_origin(), what, advice)
        self._record.index_limits.append(limit)

    @checked
    def uniform(
        self, shape: Dimensions, low: float = 0.0, high: float = 1.0, *, dtype: _FloatType = None
    ) -> Tensor:
        """Random numbers from low (included) to high, new in every training step.

        Args:
            shape: the shape of the result.
            low, high: the interval.
            dtype: the dtype of the numbers; by default the model's.
        """
        numbers = ops.uniform(shape, *self._key(), dtype=dtype or self._computing)
        return numbers if (low, high) == (0.0, 1.0) else numbers * (high - low) + low

    @checked
    def normal(self, shape: Dimensions, mean: float = 0.0, deviation: NotNegative = 1.0) -> Tensor:
        """Normally distributed random numbers, new in every training step."""
        return ops.normal(shape, *self._key(), dtype=self._computing) * deviation + mean

    @checked
    def bernoulli(self, shape: Dimensions, probability: Probability) -> Tensor:
        """1 with the given probability, else 0; new in every training step."""
        return ops.bernoulli(shape, probability, *self._key(), dtype=self._computing)

    @checked
    def mix(self, share: Tensor) -> None:
        """Declares that each example now contains its partner, the example before it in the batch.

        The loss of a training step is then share * loss(prediction, target) + (1 - share) *
        loss(prediction, target of the partner). `lm.ops.roll(x, 1, 0)` has the partners.

        Args:
            share: the share of an example's own target, a number for the whole batch.

        Raises:
            DefinitionError: if the batch is mixed already.
            ShapeError: if the share is not one number.
        """
        if not share.dtype.is_float or share.shape:
            raise ShapeError(
                "the share of an example in a mixture is one number for the batch",
                facts=(("expected", "f32[]"), ("found", described(share))),
                advice="Draw it without axes: scope.uniform(()).",
            )
        if self._record.mixture is not None:
            raise DefinitionError(
                "the examples of the batch are mixed already",
                facts=(("first", self._record.mixture.origin), ("now", str(current_origin()))),
                advice="Let one layer of the network mix them: lm.Mixup() or lm.CutMix().",
            )
        self._record.mixture = Mixture(share, str(current_origin()))

    @property
    def _computing(self) -> DType:
        """The float type in which the layer computes."""
        return shapes.float32 if self._wide else self.dtype

    def _key(self) -> tuple[Tensor, Tensor, int]:
        self._record.random_streams += 1
        return self._record.seed, self._record.step, self._record.random_streams - 1

    def _variable(
        self, role: str, name: str, shape: tuple[int, ...], init: Initializer, dtype: DType
    ) -> Tensor:
        record, full = self._record, f"{self._name}.{name}"
        variables = record.parameters if role == "parameter" else record.states
        fixed = static(shape)
        if full in variables:
            tensor = variables[full].tensor
            if tensor.shape != fixed:
                raise DefinitionError(
                    f"the {role} {name!r} is used in two shapes",
                    facts=(("first", shape_text(tensor.shape)), ("now", shape_text(fixed))),
                    advice="A layer that is used twice has one set of parameters: make two layers.",
                )
            return tensor
        tensor = leaf(full, role, fixed, dtype)
        stream = INITIAL_VALUE_STREAMS + len(record.parameters) + len(record.states)
        variables[full] = Variable(full, tensor, init, stream)
        return tensor


def parameter_of(
    layer: object, scope: Scope, name: str, shape: tuple[int, ...], usual: Initializer
) -> Tensor:
    """A parameter whose first values and penalty are options of its layer, such as `weight_init`.

    `usual` makes the first values by default.
    """
    kind = name.partition("_")[0]
    init = getattr(layer, f"{kind}_init")
    regularizer = getattr(layer, f"{kind}_regularizer", None)
    return scope.parameter(name, shape, usual if init is None else init, regularizer)


_Forward = TypeVar("_Forward", bound=Callable[..., Tensor])


def in_float32(forward: _Forward) -> _Forward:
    """A layer's `forward` that computes in float32 where the model's floats have 16 bits.

    Tensors, parameters and states are cast; the result and new states are rounded once. So sums of
    squares do not overflow, and means lose no digits.
    """

    @wraps(forward)
    def wide(layer: object, scope: Scope, *operands: Tensor) -> Tensor:
        half = next((x.dtype for x in operands if x.dtype.is_half), None)
        if half is None:
            return forward(layer, scope, *operands)
        record, name = scope._record, scope._name  # pyright: ignore[reportPrivateUsage]
        result = forward(layer, Scope(record, name, wide=True), *map(widened, operands))
        return ops.cast(result, half)

    return cast(_Forward, wide)
