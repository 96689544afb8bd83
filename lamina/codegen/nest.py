"""A loop nest while it is written: the values known at each level, and the block for new code.

A nest is written from the outside in. Loop-invariant code is hoisted: an expression is computed
in the innermost level on which it depends. One axis may run along the lanes of vectors.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
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
)


@dataclass
class _Level:
    """One loop of the nest, or the function around the loops.

    Attributes:
        axes: the values of the axes that this level binds.
        locals: the values of the locals that are defined here.
        known: the values computed in this level, by their expressions.
        block_before_inner_loop: while a loop inside this level is written, the block before that
            loop: code of this level goes there. None if no loop is open in this level.
    """

    axes: dict[Axis, Value] = field(default_factory=dict[Axis, Value])
    locals: dict[str, Value] = field(default_factory=dict[str, Value])
    known: dict[object, Value] = field(default_factory=dict[object, Value])
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

    # Levels

    def fix(self, axis: Axis, value: Value) -> None:
        """The axis has this value in the whole function."""
        self._levels[0].axes[axis] = value

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

    def bind(self, axis: Axis, value: Value) -> None:
        """The axis has this value in the innermost level."""
        self._levels[-1].axes[axis] = value

    def define(self, name: str, value: Value) -> None:
        """A local of the step, in the innermost level."""
        self._levels[-1].locals[name] = value

    @property
    def innermost(self) -> int:
        """The number of the innermost level."""
        return len(self._levels) - 1

    # Known values

    def axis(self, axis: Axis) -> Value:
        """The value of an axis."""
        return self._levels[self._axis_depth(axis)].axes[axis]

    def local(self, name: str) -> Value:
        """The value of a local."""
        return self._levels[self._local_depth(name)].locals[name]

    def known(self, depth: int) -> dict[object, Value]:
        """The values computed in a level, by their expressions."""
        return self._levels[depth].known

    @contextmanager
    def at(self, depth: int) -> Generator[dict[object, Value]]:
        """Inside, instructions go to the level of this number; yields the values known there."""
        level = self._levels[depth]
        block = next(
            (
                outer.block_before_inner_loop
                for outer in self._levels[depth:]
                if outer.block_before_inner_loop is not None
            ),
            None,
        )
        if block is None:
            yield level.known
        else:
            with self._code.at(block):
                yield level.known

    def forget(self, buffers: set[str]) -> None:
        """Drops known values that depend on loads from these buffers."""
        for level in self._levels:
            level.known = {
                key: value for key, value in level.known.items() if not _reads(key, buffers)
            }

    # Depths

    def depth(self, scalar: Scalar) -> int:
        """The innermost level on which the scalar depends."""
        depths = self._depths
        pending = [scalar] if scalar not in depths else []
        while pending:
            top = pending[-1]
            operands = top.operands if isinstance(top, Apply) else ()
            missing = [operand for operand in operands if operand not in depths]
            pending += missing
            if not missing:
                depths[top] = self._depth_of(top)
                pending.pop()
        return depths[scalar]

    def _depth_of(self, scalar: Scalar) -> int:
        if isinstance(scalar, Literal):
            return 0
        if isinstance(scalar, Local):
            return self._local_depth(scalar.name)
        if isinstance(scalar, Position):
            return self.index_depth(scalar.index)
        if isinstance(scalar, Within):
            return self._bounds_depth(scalar.bounds)
        if isinstance(scalar, Load):
            own = self.index_depth(scalar.index), self._bounds_depth(scalar.bounds)
            return max(self._reading, *own)
        return max(self.depth(operand) for operand in scalar.operands)

    def _bounds_depth(self, bounds: Sequence[Bound]) -> int:
        return max((self.index_depth(bound.index) for bound in bounds), default=0)

    def index_depth(self, index: Index) -> int:
        """The innermost level on which an index expression depends."""
        if index not in self._depths:
            depth = 0
            for atom, _ in index.terms:
                if isinstance(atom, Axis):
                    depth = max(depth, self._axis_depth(atom))
                elif isinstance(atom, Gathered):
                    depth = max(depth, self.depth(atom.value))
                else:
                    depth = max(depth, self.index_depth(atom.index))
            self._depths[index] = depth
        return self._depths[index]

    def _axis_depth(self, axis: Axis) -> int:
        for number in range(len(self._levels) - 1, -1, -1):
            if axis in self._levels[number].axes:
                return number
        raise InternalError(f"the axis {axis} has no value here", where=self._code.name)

    def _local_depth(self, name: str) -> int:
        for number in range(len(self._levels) - 1, -1, -1):
            if name in self._levels[number].locals:
                return number
        raise InternalError(f"the local {name} has no value here", where=self._code.name)


def _reads(key: object, buffers: set[str]) -> bool:
    """Whether the known value of this expression depends on loads from these buffers."""
    if isinstance(key, Quotient | Remainder):
        key = Position(key.index)
    if not isinstance(key, Load | Apply | Position | Within):
        return False
    return any(load.buffer in buffers for load in loads(key))
