"""Random graphs from a seed: any ops, odd shapes, gradients, updates that depend on each other.

Every tensor is computed while the graph grows, so that numbers stay finite and of moderate size
and errors are not enlarged beyond what the comparison allows for.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from harness import Drawn

from lamina import ops
from lamina.base.shapes import Array, DType, bool_, float32, float64, static
from lamina.graph import LEAF, Graph, Tensor
from lamina.ops.differentiate import gradients
from lamina.ops.windows import Slope, Window, fold, shear, windows

LARGEST_SIZE = 400
LARGEST_VALUE = 100.0
EXTENTS = (1, 2, 3, 4, 5, 7)


@dataclass(frozen=True)
class RandomGraph:
    """A graph and the values that its leaves are fed."""

    graph: Graph
    feeds: dict[str, Array]


def random_graph(seed: int) -> RandomGraph:
    """The graph of a seed.

    Every fourth is float32, every twentieth has empty tensors, every third may have recurrences.
    """
    return _Builder(seed).build()


class _Builder(Drawn):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.seed = seed
        self.dtype = float32 if seed % 4 == 3 else float64
        # Rounding may change a comparison of computed float32 numbers.
        self.smooth = self.dtype == float32
        self.extents = (*EXTENTS, 0) if seed % 20 == 10 else EXTENTS
        self.values: dict[Tensor, Array] = {}
        self.pool: list[Tensor] = []

    # Chances --------------------------------------------------------------------------------------

    def shape(self) -> tuple[int, ...]:
        while True:
            shape = tuple(self.choose(self.extents) for _ in range(self.number(0, 4)))
            if math.prod(shape) <= 120:
                return shape

    def axes(self, x: Tensor) -> tuple[int, ...]:
        """Some axes of a tensor with axes, at least one."""
        chosen = tuple(axis for axis in range(x.rank) if self.chance(0.5))
        return chosen or (self.number(0, x.rank - 1),)

    # Tensors --------------------------------------------------------------------------------------

    def leaf(self, shape: Sequence[int], role: str = "input", dtype: DType | None = None) -> Tensor:
        dtype = dtype or self.dtype
        if dtype.is_float:
            array = self.generator.uniform(-2, 2, shape)
        elif dtype == bool_:
            array = self.generator.random(shape) < 0.5
        else:
            array = self.generator.integers(0, 4, shape)
        return self.leaf_of(np.asarray(array, dtype.numpy), role)

    def leaf_of(self, array: Array, role: str = "input") -> Tensor:
        return self.leaves.add(array, role, f"{role[0]}{len(self.leaves.tensors)}")

    def value(self, tensor: Tensor) -> Array:
        if tensor not in self.values:
            if tensor.op is LEAF:
                value = self.leaves.feeds[tensor.attributes["name"]]
            else:
                operands = [self.value(operand) for operand in tensor.operands]
                value = tensor.op.reference(*operands, **tensor.attributes)
            self.values[tensor] = np.asarray(value, tensor.dtype.numpy)
        return self.values[tensor]

    def is_moderate(self, *tensors: Tensor) -> bool:
        """Whether values are finite, and neither they nor the tensors large."""
        for tensor in tensors:
            if math.prod(static(tensor.shape)) > LARGEST_SIZE or tensor.rank > 5:
                return False
            with np.errstate(all="ignore"):
                value = self.value(tensor)
            if value.size and not np.max(np.abs(value.astype("float64"))) <= LARGEST_VALUE:
                return False
        return True

    def some(self) -> Tensor:
        """A float tensor from the pool, the newest most often."""
        if self.chance(0.4):
            return self.pool[-1]
        return self.choose(self.pool)

    def partner(self, x: Tensor) -> Tensor:
        """A tensor that broadcasts with another."""
        fitting = [
            y for y in self.pool if _broadcasts(static(x.shape), static(y.shape)) and y is not x
        ]
        if fitting and self.chance(0.6):
            return self.choose(fitting)
        shape = [1 if self.chance(0.3) else extent for extent in static(x.shape)]
        if self.chance(0.3):
            shape = shape[self.number(0, len(shape)) :]
        return self.leaf(shape)

    def positive(self, x: Tensor) -> Tensor:
        return ops.abs(x) + 0.5

    # The kinds of tensors -------------------------------------------------------------------------

    def unary(self) -> Tensor:
        x, number = self.some(), float(self.number(-2, 2))
        kinds: list[Callable[[Tensor], Tensor]] = [
            *(ops.tanh, ops.sigmoid, ops.softplus, ops.sin, ops.cos, ops.erf, ops.neg, ops.exp),
            *(ops.abs, ops.relu, ops.stop_gradient, lambda x: ops.expm1(ops.sin(x))),
            *(lambda x: x * x, lambda x: x * number, lambda x: x + number, lambda x: 1.5 - x),
        ]
        for function in (ops.log, ops.log1p, ops.sqrt, ops.reciprocal, lambda x: ops.pow(x, 1.5)):
            kinds.append(lambda x, function=function: function(self.positive(x)))
        if not self.smooth:
            kinds += [ops.floor, ops.sign, lambda x: ops.clip(x, -0.7, 0.9)]
            for chosen in (
                lambda x: ops.cast(x, "int32"),
                lambda x: x > 0.25,
                lambda x: ops.logical_not(ops.logical_or(x < -1, x > 1)),
            ):
                kinds.append(lambda x, chosen=chosen: ops.cast(chosen(x), self.dtype))
        return self.choose(kinds)(x)

    def binary(self) -> Tensor:
        x = self.some()
        y = self.partner(x)
        if self.chance(0.5):
            x, y = y, x
        kinds: list[Callable[[], Tensor]] = [
            *(lambda: x + y, lambda: x - y, lambda: x * y, lambda: x / self.positive(y)),
            lambda: ops.pow(self.positive(x), ops.tanh(y)),
            lambda: ops.where(self.leaf(static(y.shape), dtype=bool_), x, y),
        ]
        if not self.smooth:
            kinds += [
                *(lambda: ops.maximum(x, y), lambda: ops.minimum(x, y)),
                lambda: ops.where(x < y, x * 2, y),
                lambda: ops.where(ops.logical_and(x < y, y > 0), y, 0.25),
            ]
        return self.choose(kinds)()

    def reduction(self) -> Tensor:
        x = self.some()
        if not x.rank:
            return ops.tanh(x)
        axes, keep = self.axes(x), self.chance(0.4)
        kinds: list[Callable[[], Tensor]] = [
            lambda: ops.cumsum(x, axes[0], self.chance(0.5)),
            lambda: x - ops.mean(x, axes, keepdims=True),
            lambda: ops.sum(x * self.partner(x), 0) if x.rank else x,
        ]
        of_axes: list[Any] = [ops.sum, ops.mean]
        if 0 not in x.shape:
            of_axes += [ops.variance, ops.logsumexp]
            kinds += [
                *(lambda: ops.softmax(x, axes[0]), lambda: ops.log_softmax(x, axes[0])),
                lambda: ops.prod(ops.tanh(x), axes[0], keep),
                lambda: x / ops.sqrt(ops.sum(x * x, axes, keepdims=True) + 0.1),
            ]
        if 0 not in x.shape and not self.smooth:
            of_axes += [ops.max, ops.min]
            kinds += [
                lambda: ops.cast(ops.argmax(x, axes[0], keep), self.dtype),
                lambda: ops.cast(ops.argmin(x, axes[0], keep), self.dtype),
                lambda: ops.cast(ops.any(x > 0, axes, keep), self.dtype),
                lambda: ops.cast(ops.all(x > -1, axes, keep), self.dtype),
            ]
        kinds += [partial(op, x, axes, keepdims=keep) for op in of_axes]
        return self.choose(kinds)()

    def movement(self) -> Tensor:
        x = self.some()
        order = [int(axis) for axis in self.generator.permutation(x.rank)]
        kinds: list[Callable[[], Tensor]] = [
            lambda: ops.reshape(x, self.refactored(x)),
            lambda: ops.transpose(x, order),
            lambda: x[self.key(x)],
            lambda: ops.pad(
                x,
                [(self.number(0, 2), self.number(0, 2)) for _ in range(x.rank)],
                self.choose([0.0, 0.0, -0.5]),
            ),
            lambda: ops.broadcast_to(x, (*(self.number(1, 3),), *static(x.shape))),
            lambda: ops.expand_dims(x, self.number(0, x.rank)),
            lambda: ops.squeeze(x),
        ]
        if x.rank:
            kinds += [
                lambda: ops.flip(x, self.axes(x)),
                lambda: ops.concat([x, self.like(x), x][: self.number(2, 3)], self.axes(x)[0]),
                lambda: ops.stack([x, self.like(x)], self.number(0, x.rank)),
            ]
        if x.rank and x.shape[0]:  # An empty axis has no equal parts.
            kinds.append(lambda: ops.concat(ops.split(x, 1, 0)[::-1], 0))
        return self.choose(kinds)()

    def like(self, x: Tensor) -> Tensor:
        """Another tensor of the same shape."""
        alike = [y for y in self.pool if y.shape == x.shape and y is not x]
        return self.choose(alike) if alike and self.chance(0.7) else self.leaf(static(x.shape))

    def refactored(self, x: Tensor) -> list[int]:
        """Another shape with the same number of elements."""
        size = math.prod(static(x.shape))
        if size == 0:
            return [*static(x.shape)[::-1], self.number(1, 3)]
        shape: list[int] = []
        for _ in range(self.number(0, 3)):
            shape.append(self.choose([n for n in range(1, size + 1) if size % n == 0]))
            size //= shape[-1]
        return [*shape, size] if size > 1 else shape

    def key(self, x: Tensor) -> tuple[slice | int | None, ...]:
        key: list[slice | int | None] = []
        for extent in static(x.shape):
            if self.chance(0.1):
                key.append(None)
            start, stop = sorted(self.number(0, extent) for _ in range(2))
            kinds: list[slice | int] = [slice(None), slice(None), slice(start, stop)]
            kinds.append(slice(start if start < extent else 0, None, self.number(1, 3)))
            kinds.append(slice(None, None, -self.number(1, 3)))
            kinds += [self.number(-extent, extent - 1)] if extent else []
            key.append(self.choose(kinds))
        return tuple(key)

    def contraction(self) -> Tensor:
        x = self.some()
        if not x.rank:
            return ops.sin(x)
        columns = static(x.shape)[-1]
        kinds: list[Callable[[], Tensor]] = [
            lambda: x @ self.leaf((columns, self.choose(self.extents))),
            lambda: ops.einsum("i,j->ij", ops.reshape(x, (-1,))[:5], self.leaf((3,))),
            lambda: ops.reshape(x, (-1,)) @ ops.reshape(self.like(x), (-1,)),
            lambda: self.leaf((4, columns)) @ ops.expand_dims(ops.tanh(x), -1),
        ]
        if x.rank >= 2:
            transposed = ops.transpose(x, (*range(x.rank - 2), x.rank - 1, x.rank - 2))
            rows = static(x.shape)[-2]
            kinds += [
                lambda: x @ transposed,
                lambda: transposed @ ops.relu(x),
                lambda: self.leaf((self.choose(self.extents), rows)) @ x,
                lambda: (
                    ops.einsum("...ab,cb->...ac".replace("...", "xyz"[: x.rank - 2]), x, x)
                    if x.rank == 2
                    else x @ self.leaf((columns,))
                ),
                lambda: ops.flip(x, -1) @ ops.pad(self.leaf((columns,)), [(0, 0)]),
                lambda: (
                    x[..., ::-1, :] @ ops.pad(self.leaf((columns + 1, 3)), [(0, 0), (1, 0)])[:-1]
                ),
            ]
        return self.choose(kinds)()

    def windowed(self) -> Tensor:
        """Windows of a tensor, or an op that reads windows."""
        x = self.some()
        if not x.rank or 0 in x.shape:
            return ops.tanh(x)
        axes = sorted(self.axes(x)[:2])
        along = [self.window(static(x.shape)[axis]) for axis in axes]
        last = [self.window(extent) for extent in static(x.shape)[-2:]]
        extents = [static(x.shape)[axis] for axis in axes]
        kinds: list[Callable[[], Tensor]] = [
            lambda: windows(x, axes, along),
            lambda: fold(windows(x, axes, along) * 0.5, axes, along, extents),
            lambda: ops.window_sum(x, last),
            lambda: ops.window_sum(x, last) * (1.0 / math.prod(window.size for window in last)),
            lambda: self.convolution(x),
            lambda: self.convolution(x),
            lambda: self.transposed_convolution(x),
            lambda: self.mirrored(x),
        ]
        if x.rank > 1:
            kinds.append(lambda: shear(x, [self.slope(x)], self.choose([0.0, 0.0, 1.5])))
        if not self.smooth:
            kinds += [lambda: ops.window_max(x, last), lambda: ops.window_max(ops.relu(x), last)]
        return self.choose(kinds)()

    def window(self, extent: int) -> Window:
        """A window that fits, and always has an element of the tensor."""
        size, dilation = self.number(1, min(extent, 3)), self.number(1, 2)
        dilation = dilation if (size - 1) * dilation < extent else 1
        most = ((size - 1) * dilation + 1) // 2
        before, after = self.number(0, most), self.number(0, most)
        return Window(size, self.number(1, 3), dilation, before, after, self.chance(0.2))

    def slope(self, x: Tensor) -> Slope:
        position, window = (int(axis) for axis in self.generator.permutation(x.rank)[:2])
        slope = self.choose([-2, -1, 1, 2])
        numbers = (self.number(1, 2), slope, self.number(-3, 3), self.number(1, 2))
        return Slope(position, window, self.number(1, 5), *numbers)

    def image(self, x: Tensor) -> Tensor:
        """[batch, channels, ...] made of any tensor."""
        return ops.reshape(x, ((1,) * (3 - x.rank) + static(x.shape))[:5])

    def convolved(self, x: Tensor) -> dict[str, Any]:
        along = [self.window(extent)._replace(ceil=False) for extent in static(x.shape)[2:]]
        return {
            "strides": [window.stride for window in along],
            "padding": [(window.before, window.after) for window in along],
            "dilations": [window.dilation for window in along],
            "sizes": [window.size for window in along],
        }

    def convolution(self, x: Tensor) -> Tensor:
        x = self.image(x)
        numbers, inputs = self.convolved(x), static(x.shape)[1]
        groups = self.choose([count for count in (1, 1, 2, inputs) if inputs % count == 0])
        shape = (groups * self.number(1, 3), inputs // groups, *numbers.pop("sizes"))
        weight = self.leaf(shape, self.choose(["input", "parameter"]))
        return ops.conv(x, weight, groups=groups, **numbers)

    def transposed_convolution(self, x: Tensor) -> Tensor:
        """A transposed convolution; its result has the smallest possible extents or more."""
        y = self.image(x)
        numbers, outputs = self.convolved(y), static(y.shape)[1]
        groups = self.choose([count for count in (1, 1, 2, outputs) if outputs % count == 0])
        sizes = numbers.pop("sizes")
        rows = zip(static(y.shape)[2:], sizes, *numbers.values(), strict=True)
        extents = [
            (n - 1) * stride - low - high + (size - 1) * dilation + self.number(1, stride)
            for n, size, stride, (low, high), dilation in rows
        ]
        if min(extents) < 1:
            return y
        weight = self.leaf((outputs, self.number(1, 3), *sizes))
        return ops.conv_transpose(y, weight, extents, groups=groups, **numbers)

    def mirrored(self, x: Tensor) -> Tensor:
        """Padded with its own elements."""
        mode = self.choose(["reflect", "replicate", "circular"])
        most = [extent - (mode == "reflect") for extent in static(x.shape)]
        widths = [(self.number(0, min(n, 2)), self.number(0, min(n, 2))) for n in most]
        return ops.pad_with(x, widths, mode)

    def indexing(self) -> Tensor:
        x = self.some()
        if not x.rank or 0 in x.shape:
            return ops.tanh(x)
        axis = self.number(0, x.rank - 1)
        shape = static(x.shape)
        extent = shape[axis]
        size = self.number(1, 4)
        long = (*shape[:axis], size, *shape[axis + 1 :])
        kinds: list[Callable[[], Tensor]] = [
            lambda: ops.take(x, self.indices(self.shape()[:2], extent), axis),
            lambda: ops.take_along_axis(x, self.indices(long, extent), axis),
            lambda: ops.scatter_add(x, self.indices((extent,), size), size, axis),
            lambda: ops.scatter_along_axis(x, self.indices(shape, size), size, axis),
            lambda: x * ops.one_hot(self.indices(shape[:-1], shape[-1]), shape[-1], self.dtype),
        ]
        if not self.smooth:
            best = ops.argmax(x, axis, keepdims=True)
            kinds += [
                lambda: ops.take_along_axis(x, best, axis),
                lambda: ops.scatter_along_axis(ops.sum(x, axis, True), best, extent, axis),
            ]
        return self.choose(kinds)()

    def indices(self, shape: tuple[int, ...], extent: int) -> Tensor:
        dtype = self.choose(["int64", "int32", "uint8"])
        return self.leaf_of(np.asarray(self.generator.integers(0, extent, shape), dtype))

    def random(self) -> Tensor:
        x = self.some()
        seed, step = (self.leaf_of(np.asarray(self.number(0, 99), "int64")) for _ in range(2))
        if self.chance(0.5):
            return x + ops.uniform(x.shape, seed, step, self.number(0, 3), self.dtype)
        kept = ops.uniform(x.shape, seed, step, self.number(0, 3), self.dtype) < 0.7
        return ops.where(kept, x / 0.7, 0)

    def recurrence(self) -> Tensor:
        """A loop along the first axis of a tensor, with one or two states."""
        x = self.some()
        if not x.rank:
            return ops.tanh(x)
        shape = static(x.shape)[1:]
        first = [self.of_shape(shape) for _ in range(self.number(1, 2))]
        sequences = [x]
        if self.chance(0.3):
            sequences.append(self.leaf((static(x.shape)[0], *shape[self.number(0, len(shape)) :])))
        constants = [self.partner(first[0])] if self.chance(0.6) else []
        constants = [y for y in constants if _joint(y, first[0]) == first[0].shape]
        if shape and self.chance(0.6):
            constants.append(self.leaf((shape[-1], shape[-1])))
        choices = [self.number(0, 99) for _ in range(8)]

        def step(
            states: Sequence[Tensor], elements: Sequence[Tensor], constants: Sequence[Tensor]
        ) -> tuple[list[Tensor], list[Tensor]]:
            pool = [*states, *elements, *constants]
            total = states[choices[0] % len(states)] * 0.5
            for choice in choices[1:4]:
                other = pool[choice % len(pool)]
                if other.shape == shape[-1:] * 2 and shape and choice % 2:
                    total = total @ other
                elif _joint(total, other) == total.shape:
                    total = total + other if choice % 3 else total * ops.sin(other)
            kinds = (ops.tanh, ops.sigmoid, ops.sin, lambda y: y * 0.5, ops.stop_gradient)
            new = [kinds[choices[4] % len(kinds)](total)]
            if len(states) == 2:
                new.append((states[0], states[1], total * 0.5, new[0])[choices[5] % 4])
            reduced = ops.sum(total, 0) if shape else total
            further = (total, ops.cos(total), states[0], elements[0], reduced)[choices[6] % 5]
            return new, [further]

        truncate = self.choose([None, None, None, 2])
        states, further = ops.recurrence(
            step, first, sequences, constants, reverse=self.chance(0.3), truncate=truncate
        )
        moderate = [y for y in (*states, *further) if self.is_moderate(y)]
        self.pool += moderate[1:]
        return moderate[0] if moderate else x

    def of_shape(self, shape: tuple[int, ...]) -> Tensor:
        fitting = [y for y in self.pool if y.shape == shape]
        return self.choose(fitting) if fitting and self.chance(0.5) else self.leaf(shape)

    # The graph ------------------------------------------------------------------------------------

    def build(self) -> RandomGraph:
        for _ in range(self.number(1, 2)):
            self.pool.append(self.leaf(self.shape()))
        shape = self.shape()
        for role in ("parameter", "parameter", "state")[: self.number(0, 3)]:
            self.pool.append(self.leaf(shape, role))
            if self.chance(0.6):
                shape = self.shape()
        kinds = (self.unary, self.binary, self.reduction, self.movement, self.contraction)
        kinds += (self.unary, self.binary, self.movement, self.indexing, self.random, self.windowed)
        kinds += (self.windowed,)
        if self.seed % 3 == 1:
            kinds += (self.recurrence, self.recurrence)
        for _ in range(self.number(20, 40) if self.chance(0.1) else self.number(2, 14)):
            tensor = self.choose(kinds)()
            if tensor.dtype == self.dtype and self.is_moderate(tensor):
                self.pool.append(tensor)
        outputs = [self.some() for _ in range(self.number(1, 3))]
        derivatives: list[Tensor] = []
        if self.chance(0.4):
            derivatives = self.gradients()
        updates = self.updates(derivatives)
        if self.chance(0.3):
            outputs += derivatives
        outputs += [new for _, new in updates if self.chance(0.2)]
        outputs += [ops.tanh(new) + old for old, new in updates if self.chance(0.15)]
        named = tuple((f"y{number}", tensor) for number, tensor in enumerate(outputs))
        inputs = tuple(x for x in self.leaves.tensors if x.attributes["role"] == "input")
        # Parameters that nothing depends on are not in the graph.
        graph = Graph(inputs, named, updates)
        reached = {node.attributes["name"] for node in graph.nodes() if node.op is LEAF}
        return RandomGraph(graph, {n: a for n, a in self.leaves.feeds.items() if n in reached})

    def trained(self) -> list[Tensor]:
        return [x for x in self.leaves.tensors if x.attributes["role"] != "input"]

    def gradients(self) -> list[Tensor]:
        """Gradients of a weighted sum, if they are moderate."""
        y = self.some()
        total = ops.sum(y * self.leaf(static(y.shape)))
        sources = [x for x in self.leaves.tensors if x.dtype == self.dtype][:4]
        derivatives = list(gradients(total, sources))
        return derivatives if self.is_moderate(*derivatives) else []

    def updates(self, derivatives: list[Tensor]) -> tuple[tuple[Tensor, Tensor], ...]:
        """New values for some parameters and states, which may depend on all old and new ones."""
        trained = self.trained()
        if len(trained) > 1 and trained[0].shape == trained[1].shape and self.chance(0.3):
            return self.exchange(trained)
        new: list[tuple[Tensor, Tensor]] = []
        for target in trained:
            if self.chance(0.2):
                continue
            value = self.new_value(target, [v for _, v in new], derivatives)
            if self.is_moderate(value):
                new.append((target, value))
        return tuple(new)

    def exchange(self, trained: list[Tensor]) -> tuple[tuple[Tensor, Tensor], ...]:
        """Updates that exchange the values of leaves, unchanged or changed."""
        ring = [x for x in trained if x.shape == trained[0].shape]
        changes: list[Callable[[Tensor, Tensor], Tensor]] = [
            lambda old, other: other,
            lambda old, other: other * 0.5,
            lambda old, other: old + other,
            lambda old, other: ops.flip(other) if other.rank else other,
            lambda old, other: other - ops.mean(old),
            lambda old, other: other + ops.sum(other),
        ]
        return tuple(
            (target, self.choose(changes)(target, ring[(number + 1) % len(ring)]))
            for number, target in enumerate(ring)
        )

    def new_value(self, target: Tensor, earlier: list[Tensor], derivatives: list[Tensor]) -> Tensor:
        fitting = [g for g in derivatives if g.shape == target.shape]
        same = [y for y in (*self.pool, *earlier, target * 0.5) if y.shape == target.shape]
        kinds: list[Callable[[], Tensor]] = [
            lambda: target * 0.9 + self.fitted(self.some(), target),
            lambda: self.fitted(self.some(), target),
            lambda: ops.flip(target) if target.rank else -target,
            lambda: target - ops.sum(target) * 0.125,
            lambda: target + self.fitted(self.choose([*earlier, self.some()]), target),
            lambda: self.choose(same),
        ]
        if target.rank and 0 not in target.shape:
            kinds += [
                lambda: ops.softmax(target, -1),
                lambda: ops.cumsum(target, 0, self.chance(0.5)),
                lambda: ops.concat([target, target], 0)[1 : 1 + static(target.shape)[0]],
                lambda: ops.scatter_along_axis(
                    target,
                    self.indices(static(target.shape), static(target.shape)[0]),
                    static(target.shape)[0],
                    0,
                ),
            ]
        if target.rank == 2 and target.shape[0] == target.shape[1]:
            kinds += [lambda: ops.transpose(target), lambda: target @ target * 0.25]
        if fitting and self.chance(0.7):
            gradient = self.choose(fitting)
            kinds = [
                lambda: target - gradient * 0.1,
                lambda: target * 0.9 + gradient,
                lambda: target - 0.1 * gradient / (ops.abs(gradient) + 0.5),
                lambda: target - gradient / (ops.sqrt(ops.sum(gradient * gradient)) + 1),
            ]
        return self.choose(kinds)()

    def fitted(self, x: Tensor, target: Tensor) -> Tensor:
        """A tensor in the shape of another: reshaped, or summed and repeated."""
        if math.prod(static(x.shape)) == math.prod(static(target.shape)):
            return ops.reshape(x, target.shape)
        return ops.broadcast_to(ops.mean(x) if 0 not in x.shape else ops.sum(x), target.shape)


def _joint(left: Tensor, right: Tensor) -> tuple[int, ...]:
    """The shape in which two tensors broadcast; () where they do not."""
    shapes = static(left.shape), static(right.shape)
    return np.broadcast_shapes(*shapes) if _broadcasts(*shapes) else ()


def _broadcasts(left: tuple[int, ...], right: tuple[int, ...]) -> bool:
    try:
        np.broadcast_shapes(left, right)
    except ValueError:
        return False
    return True
