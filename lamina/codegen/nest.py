"""A loop nest while it is written: the values known at each level, and the block for new code.

A nest is written from the outside in. Loop-invariant code is hoisted: an expression is computed
in the innermost level on which it depends. One axis may run along the lanes of vectors.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import final

from lamina.codegen.builder import BasicBlock, Builder
from lamina.codegen.values import Value
from lamina.errors import InternalError
from lamina.program.index import Axis, Gathered, Index, Quotient, Remainder
from lamina.program.scalar import (
    Apply,
    Bound,
    Literal,
    Load,
    Local,
    Position,
    Scalar,
    Within,
    loads,
    postorder,
)


@dataclass
class _Level:
    """One loop of the nest, or the function around the loops.

    Attributes:
        bound: the values of the axes, and of the locals by their names, that this level binds.
        values: the values computed in this level, by their expressions.
        block_before_inner_loop: the block before the loop that is written inside this level: code
            of this level goes there. None if no loop is open in this level.
    """

    bound: dict[Axis | str, Value] = field(default_factory=dict[Axis | str, Value])
    values: dict[object, Value] = field(default_factory=dict[object, Value])
    block_before_inner_loop: BasicBlock | None = None


@dataclass
class Lanes:
    """The axis along the lanes of vectors.

    Attributes:
        axis: the axis; None if no axis runs along the lanes.
        count: the number of lanes; 0 for scalars.
        multiple: the axis's value in the first lane is a multiple of this number.
    """

    axis: Axis | None = None
    count: int = 0
    multiple: int = 1


@final
class Nest:
    """The levels of a loop nest, the outermost first, in a function that is being written."""

    def __init__(self, code: Builder) -> None:
        self._code = code
        self._levels = [_Level()]
        self._depths: dict[object, int] = {}
        # The outermost level in which buffers are read.
        self._reading = 0
        self.lanes = Lanes()

    def fix(self, axis: Axis, value: Value) -> None:
        """The axis has this value in the whole function."""
        self._levels[0].bound[axis] = value

    @contextmanager
    def level(self, before: BasicBlock | None) -> Generator[None]:
        """Inside, there is a further level; code of the outer level goes to the block `before`."""
        self._levels[-1].block_before_inner_loop = before
        self._levels.append(_Level())
        outer_depths, self._depths = self._depths, dict(self._depths)
        yield
        self._depths = outer_depths
        self._levels.pop()
        self._levels[-1].block_before_inner_loop = None

    @contextmanager
    def reading(self) -> Generator[None]:
        """Inside, no load is hoisted out of the innermost level of now.

        Only the work items that get there may read what others replace.
        """
        saved = self._reading, self._depths
        self._reading, self._depths = self.innermost, {}
        yield
        self._reading, self._depths = saved

    @contextmanager
    def along(self, lanes: Lanes) -> Generator[None]:
        """Inside, vectors have these lanes."""
        saved, self.lanes = self.lanes, lanes
        yield
        self.lanes = saved

    def bind(self, bound: Axis | str, value: Value) -> None:
        """Sets the value of an axis, or of a local by its name, in the innermost level."""
        self._levels[-1].bound[bound] = value

    @property
    def innermost(self) -> int:
        """The number of the innermost level."""
        return len(self._levels) - 1

    def value(self, bound: Axis | str) -> Value:
        """The value of an axis, or of a local by its name."""
        return self._levels[self._bound_depth(bound)].bound[bound]

    def values(self, depth: int) -> dict[object, Value]:
        """The values computed in a level, by their expressions."""
        return self._levels[depth].values

    @contextmanager
    def at(self, depth: int) -> Generator[dict[object, Value]]:
        """Inside, instructions go to the level of this number; yields the values known there."""
        blocks = (level.block_before_inner_loop for level in self._levels[depth:])
        block = next(filter(None, blocks), None)
        with self._code.at(block) if block is not None else nullcontext():
            yield self._levels[depth].values

    def forget(self, buffers: set[str]) -> None:
        """Drops known values that depend on loads from these buffers."""
        for level in self._levels:
            level.values = {
                key: value for key, value in level.values.items() if not _reads(key, buffers)
            }

    def depth(self, scalar: Scalar) -> int:
        """The innermost level on which the scalar depends."""
        depths = self._depths
        if scalar not in depths:
            for part in postorder(scalar, without=depths):
                depths[part] = self._depth_of(part)
        return depths[scalar]

    def _depth_of(self, scalar: Scalar) -> int:
        if isinstance(scalar, Literal):
            return 0
        if isinstance(scalar, Local):
            return self._bound_depth(scalar.name)
        if isinstance(scalar, Position):
            return self.index_depth(scalar.index)
        if isinstance(scalar, Within):
            return self._bounds_depth(scalar.bounds)
        if isinstance(scalar, Load):
            depths = self.index_depth(scalar.index), self._bounds_depth(scalar.bounds)
            return max(self._reading, *depths)
        return max(self.depth(operand) for operand in scalar.operands)

    def _bounds_depth(self, bounds: Sequence[Bound]) -> int:
        return max((self.index_depth(bound.index) for bound in bounds), default=0)

    def index_depth(self, index: Index) -> int:
        """The innermost level on which an index expression depends."""
        if index not in self._depths:
            depth = 0
            for atom, _ in index.terms:
                if isinstance(atom, Axis):
                    depth = max(depth, self._bound_depth(atom))
                elif isinstance(atom, Gathered):
                    depth = max(depth, self.depth(atom.value))
                else:
                    depth = max(depth, self.index_depth(atom.index))
            self._depths[index] = depth
        return self._depths[index]

    def _bound_depth(self, bound: Axis | str) -> int:
        for number in range(len(self._levels) - 1, -1, -1):
            if bound in self._levels[number].bound:
                return number
        kind = "axis" if isinstance(bound, Axis) else "local"
        raise InternalError(f"the {kind} {bound} has no value here", where=self._code.name)


def _reads(key: object, buffers: set[str]) -> bool:
    """Whether the known value of this expression depends on loads from these buffers."""
    if isinstance(key, Quotient | Remainder):
        key = Position(key.index)
    if not isinstance(key, Load | Apply | Position | Within):
        return False
    return any(load.buffer in buffers for load in loads(key))
