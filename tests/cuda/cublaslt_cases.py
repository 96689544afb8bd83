"""Products of matrices for the tests of cuBLASLt, and a CUDA engine on doubles of all libraries."""

from dataclasses import dataclass

import numpy as np
from harness import run_program

from lamina.base.shapes import DType, as_dtype, float32
from lamina.engines.interpreter.engine import InterpreterEngine
from lamina.program.index import Axis, axis_index
from lamina.program.program import Buffer, Plan, Program
from lamina.program.scalar import Apply, Load, Local
from lamina.program.steps import Contraction, Store

RESULT = Local("sum", float32)


@dataclass(frozen=True)
class Stored:
    """How a matrix is in memory: its elements are neighbours along `unit`.

    Attributes:
        unit: the axis along which elements are neighbours.
        start: the element of the buffer with which it begins.
        gap: the unused elements after each column, and after each matrix of a batch.
    """

    unit: str
    start: int = 0
    gap: int = 0


@dataclass(frozen=True)
class Product:
    """A contraction [b, m, n] whose matrices have given locations."""

    batch: int = 1
    m: int = 5
    n: int = 7
    k: int = 6
    left: Stored = Stored("k")
    right: Stored = Stored("n")
    result: Stored = Stored("n")
    factors: DType = float32
    stored: DType = float32

    @property
    def axes(self):
        sizes = {"b": self.batch, "m": self.m, "n": self.n, "k": self.k}
        return {name: Axis(name, size) for name, size in sizes.items()}

    def index(self, stored, outer, inner):
        """The index of a matrix with these axes."""
        other = outer if stored.unit == inner else inner
        axes = self.axes
        leading = axes[stored.unit].extent + stored.gap
        stride = leading * axes[other].extent + stored.gap
        index = axis_index(axes[stored.unit]) + axis_index(axes[other]) * leading + stored.start
        return index + axis_index(axes["b"]) * stride if self.batch > 1 else index

    def step(self, value=RESULT, *, accumulate=False):
        """The contraction, which stores a value."""
        axes = self.axes
        views = [
            Load("left", self.index(self.left, "m", "k"), self.factors),
            Load("right", self.index(self.right, "k", "n"), self.factors),
        ]
        if self.factors != float32:
            views = [Apply("cast", (view,), float32) for view in views]
        if value == RESULT and self.stored != float32:
            value = Apply("cast", (RESULT,), self.stored)
        store = Store("result", self.index(self.result, "m", "n"), value, accumulate)
        batch = (axes["b"],) if self.batch > 1 else ()
        return Contraction(
            *("0.product", batch, (axes["m"],), (axes["n"],), (axes["k"],)),
            *(*views, "sum", float32, (store,)),
        )

    def feeds(self, **more):
        """Random values of all buffers, from a fixed seed; `more` has the sizes of further ones."""
        generator = np.random.default_rng(7)
        indices = {
            "left": self.index(self.left, "m", "k"),
            "right": self.index(self.right, "k", "n"),
            "result": self.index(self.result, "m", "n"),
        }
        sizes = {name: index.bounds[1] + 3 for name, index in indices.items()} | more
        dtypes = {"left": self.factors, "right": self.factors, "result": self.stored}
        return {
            name: generator.normal(size=size).astype(dtypes.get(name, float32).numpy)
            for name, size in sizes.items()
        }

    def program(self, step, feeds):
        """The step as a program, whose buffers are all states."""
        buffers = {
            name: Buffer(name, "state", values.shape, as_dtype(values.dtype))
            for name, values in feeds.items()
        }
        return Program("product", buffers, (step,), (), {}, Plan((), 0, ()))

    def expected(self, step, feeds):
        """The result's buffer after the step, on the interpreter."""
        program = self.program(step, feeds)
        return run_program(program, InterpreterEngine(), feeds)[1]["result"]
