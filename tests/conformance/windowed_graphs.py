"""Random contractions over windows, of the sizes at which the cpu engine has algorithms for them.

A graph is a convolution, a transposed convolution, or an einsum over windows. Its operands are read
through every kind of view, its result has an epilogue, and its gradients are outputs as well.
"""

import math
from collections.abc import Callable, Sequence

from harness import Drawn, Leaves

from lamina import ops
from lamina.base.shapes import DType, float32, float64, static
from lamina.graph import Graph, Tensor
from lamina.ops.differentiate import gradients
from lamina.ops.windows import Window, windows

SEEDS, FILTERED_SEEDS = range(100), range(40)
SMALLEST_WORK, LARGEST_WORK = 10_000, 1_500_000
CHANNELS = (1, 2, 3, 5, 8, 16, 17, 33)
USUAL = (
    *(Window(3, 1, 1, 1, 1), Window(3, 2, 1, 1, 1), Window(2, 2), Window(4, 2, 1, 1, 1)),
    *(Window(3), Window(5, 1, 1, 2, 2), Window(3, 3), Window(3, 1, 2, 2, 2), Window(5, 2)),
)
OUTPUTS = (1, 4, 5, 8, 16, 20, 33, 50)


class WindowedGraph(Drawn):
    """The graph of a seed, and the values that its leaves are fed.

    Attributes:
        results: results, and gradients of some of its leaves.
        graph: the graph of these.
        feeds: values by the leaves' names.
    """

    def __init__(self, seed: int, leaves: Leaves | None = None) -> None:
        super().__init__(seed, leaves)
        self._dtype: DType = float64 if seed % 5 == 4 else float32
        first = len(self.leaves.tensors)
        self._sources: list[Tensor] = []
        while True:
            self._draw()
            positions = self._batch * math.prod(n for n in self._counts)
            elements = self._inputs * math.prod(window.size for window in self._along)
            work = positions * elements * self._outputs * self._groups
            if SMALLEST_WORK <= work <= LARGEST_WORK and min(self._counts) >= 1:
                break
        self.results = self._build()
        named = tuple((f"y{number}", tensor) for number, tensor in enumerate(self.results))
        self.graph = Graph(tuple(self.leaves.tensors[first:]), named)
        self.feeds = self.leaves.feeds

    def _draw(self) -> None:
        """The numbers of a convolution."""
        rank = self.choose((1, 2, 2, 2, 3))
        self._along = [self._window() for _ in range(rank)]
        if self.chance(0.5):
            # As networks have them: the same along all axes.
            self._along = [self.choose(USUAL)] * rank
        self._groups = self.choose((1, 1, 1, 1, 2, 3))
        self._batch = self.choose((1, 2, 3, 5, 9))
        self._inputs, self._outputs = self.choose(CHANNELS), self.choose(OUTPUTS)
        more = ((0, 3, 30, 90, 301), (0, 1, 3, 7, 12, 20, 31, 45), (0, 1, 2, 3, 5))[rank - 1]
        self._extents = tuple(
            max(window.reach - window.before - window.after, 1) + self.choose(more)
            for window in self._along
        )
        pairs = zip(self._along, self._extents, strict=True)
        self._counts = tuple(window.count(extent) for window, extent in pairs)

    def _window(self) -> Window:
        padding = self.choose(((0, 0), (0, 0), (1, 1), (2, 1), (0, 2)))
        return Window(
            self.choose((1, 2, 3, 3, 5)),
            self.choose((1, 1, 2, 3)),
            self.choose((1, 1, 2)),
            *padding,
        )

    # Operands -------------------------------------------------------------------------------------

    def _leaf(self, *shape: int, role: str = "input") -> Tensor:
        array = self.generator.uniform(-1, 1, shape).astype(self._dtype.numpy)
        tensor = self.leaves.add(array, role, f"{role[0]}{len(self.leaves.tensors)}")
        self._sources.append(tensor)
        return tensor

    def _integers(self, high: int, shape: Sequence[int], dtype: str) -> Tensor:
        return self.leaves.add(self.generator.integers(0, high, shape).astype(dtype))

    def _image(self, shape: tuple[int, ...]) -> Tensor:
        """[batch, channels, ...] as a result of one of the ops before it in a network."""
        batch, channels, *extents = shape
        rank = len(shape)

        def dropped() -> Tensor:
            seed, step = (self._integers(9, (), "int64") for _ in range(2))
            kept = ops.uniform(shape, seed, step, 1, self._dtype) < 0.7
            return ops.where(kept, self._leaf(*shape) / 0.7, 0)

        def channels_last() -> Tensor:
            x = self._leaf(batch, *extents, channels)
            return ops.transpose(x, (0, rank - 1, *range(1, rank - 1)))

        def joined() -> Tensor:
            first = self._leaf(batch, max(channels // 2, 1), *extents)
            rest = channels - max(channels // 2, 1)
            return ops.concat([first, self._leaf(batch, rest, *extents)], 1) if rest else first

        def repeated() -> Tensor:
            halves = tuple(-(-extent // 2) for extent in extents)
            x = ops.reshape(
                self._leaf(batch, channels, *halves),
                (batch, channels, *(n for half in halves for n in (half, 1))),
            )
            twice = (batch, channels, *(n for half in halves for n in (half, 2)))
            doubled = ops.reshape(
                ops.broadcast_to(x, twice), (batch, channels, *(2 * half for half in halves))
            )
            return doubled[(slice(None), slice(None), *(slice(0, extent) for extent in extents))]

        def convolved() -> Tensor:
            few = self.choose((1, 3, 8))
            weight = self._leaf(channels, few, *(1 for _ in extents))
            ones, none = [1] * len(extents), [(0, 0)] * len(extents)
            return ops.relu(ops.conv(self._leaf(batch, few, *extents), weight, ones, none, ones))

        def padded() -> Tensor:
            short = (batch, channels, *(max(extent - 2, 1) for extent in extents))
            widths = [(0, 0), (0, 0), *((extent > 1, extent > 2) for extent in extents)]
            return ops.pad(self._leaf(*short), [(int(low), int(high)) for low, high in widths])

        def mirrored() -> Tensor:
            short = (batch, channels, *(max(extent - 1, 1) for extent in extents))
            widths = [(0, 0), (0, 0), *((0, int(extent > 1)) for extent in extents)]
            return ops.pad_with(self._leaf(*short), widths, "replicate")

        def pooled() -> Tensor:
            return ops.window_max(self._leaf(*shape), [Window(3, 1, 1, 1, 1) for _ in extents])

        def flattened() -> Tensor:
            return ops.reshape(self._leaf(batch, math.prod(shape[1:])), shape)

        def gathered() -> Tensor:
            return ops.take(
                self._leaf(batch + 2, *shape[1:]), self._integers(batch, (batch,), "int64"), 0
            )

        def normalised() -> Tensor:
            x = self._leaf(*shape)
            axes = (0, *range(2, rank))
            return (x - ops.mean(x, axes, True)) / ops.sqrt(
                ops.variance(x, axes, keepdims=True) + 0.1
            )

        kinds: list[Callable[[], Tensor]] = [
            lambda: self._leaf(*shape),
            lambda: self._leaf(*shape),
            lambda: ops.relu(self._leaf(*shape)),
            lambda: ops.cast(self._integers(4, shape, "uint8"), self._dtype),
            lambda: ops.cast(self._integers(4, shape, "uint8"), self._dtype) * 0.25 - 0.5,
            lambda: ops.transpose(self._leaf(*shape[1:], batch), (rank - 1, *range(rank - 1))),
            lambda: self._leaf(*shape[:-1], 2 * shape[-1])[..., ::2],
            lambda: ops.flip(self._leaf(*shape), -1),
            lambda: ops.broadcast_to(self._leaf(1, *shape[1:]), shape),
            lambda: ops.tanh(self._leaf(*shape)),
            *(dropped, channels_last, joined, repeated, convolved, padded, mirrored, pooled),
            *(flattened, gathered, normalised),
        ]
        return self.choose(kinds)()

    def _weight(self, shape: tuple[int, ...]) -> Tensor:
        kinds: list[Callable[[], Tensor]] = [
            lambda: self._leaf(*shape, role="parameter"),
            lambda: self._leaf(*shape, role="parameter"),
            lambda: self._leaf(*shape),
            lambda: self._leaf(*shape, role="parameter") * 0.5,
            lambda: ops.transpose(self._leaf(*shape[::-1])),
            lambda: ops.flip(self._leaf(*shape, role="parameter"), -1),
        ]
        return self.choose(kinds)()

    # The graph ------------------------------------------------------------------------------------

    def _build(self) -> list[Tensor]:
        kind = self.choose((self._convolution,) * 3 + (self._transposed, self._product))
        result = kind()
        outputs = [self._finished(result)]
        if self.chance(0.3):
            outputs.append(ops.sum(outputs[0] * outputs[0], (0, *range(2, outputs[0].rank))))
        upstream = self.leaves.add(
            self.generator.uniform(-1, 1, static(outputs[0].shape)).astype(self._dtype.numpy)
        )
        outputs += gradients(ops.sum(outputs[0] * upstream), self._sources)
        return outputs

    def _numbers(self) -> tuple[list[int], list[tuple[int, int]], list[int], int]:
        along = self._along
        padding = [(one.before, one.after) for one in along]
        strides, dilations = [one.stride for one in along], [one.dilation for one in along]
        return strides, padding, dilations, self._groups

    def _weight_shape(self) -> tuple[int, ...]:
        sizes = (window.size for window in self._along)
        return (self._outputs * self._groups, self._inputs, *sizes)

    def _convolution(self) -> Tensor:
        x = self._image((self._batch, self._inputs * self._groups, *self._extents))
        return ops.conv(x, self._weight(self._weight_shape()), *self._numbers())

    def _transposed(self) -> Tensor:
        y = self._image((self._batch, self._outputs * self._groups, *self._counts))
        weight = self._weight(self._weight_shape())
        return ops.conv_transpose(y, weight, self._extents, *self._numbers())

    def _product(self) -> Tensor:
        """Windows in the order of axes that a user's einsum may have."""
        rank = len(self._along)
        x = self._image((self._batch, self._inputs, *self._extents))
        windowed = windows(x, range(2, 2 + rank), self._along)
        positions, elements = "pqr"[:rank], "uvw"[:rank]
        sizes = (window.size for window in self._along)
        weight = self._weight((self._outputs, self._inputs, *sizes))
        if self.chance(0.5):
            return ops.einsum(
                f"bc{positions}{elements},oc{elements}->bo{positions}", windowed, weight
            )
        y = self._leaf(self._batch, self._outputs, *self._counts)
        return ops.einsum(f"bc{positions}{elements},bo{positions}->oc{elements}", windowed, y)

    def _finished(self, result: Tensor) -> Tensor:
        """An epilogue, as networks have it."""
        shape = static(result.shape)
        channels = (shape[1], *(1 for _ in shape[2:]))

        def bias() -> Tensor:
            return self._leaf(*channels, role="parameter")

        kinds: list[Callable[[], Tensor]] = [
            lambda: result,
            lambda: result + bias(),
            lambda: ops.relu(result + bias()),
            lambda: ops.relu(result + self._leaf(*shape)),
            lambda: ops.relu(result * bias() + bias()) + self._leaf(*shape),
            lambda: ops.tanh(result * 0.1),
            lambda: ops.reshape(ops.relu(result), (shape[0], -1)) * 0.5,
            lambda: ops.pad(ops.relu(result), [(0, 0)] * (result.rank - 1) + [(1, 2)]),
            lambda: ops.window_sum(result, [Window(2) if n > 1 else Window(1) for n in shape[2:]]),
        ]
        return self.choose(kinds)()


class FilteredGraph(WindowedGraph):
    """The same with windows of 3x3 or 5x5 of stride 1, and more channels."""

    def _draw(self) -> None:
        padding = ((0, 0), (1, 1), (1, 1), (2, 1), (0, 2))
        size = self.choose((3, 5))
        self._along = [Window(size, 1, 1, *self.choose(padding)) for _ in range(2)]
        self._groups, self._batch = self.choose((1, 1, 1, 2)), self.choose((1, 2, 3, 5))
        channels = (12, 16, 17, 20, 32)
        self._inputs, self._outputs = self.choose(channels), self.choose(channels)
        self._extents = (self.choose(range(7, 24)), self.choose((5, 6, 9, 12, 13, 18)))
        pairs = zip(self._along, self._extents, strict=True)
        self._counts = tuple(window.count(extent) for window, extent in pairs)
