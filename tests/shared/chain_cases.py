"""Attention and its gradients as chains, for engines whose targets form them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from harness import run_program

from lamina import ops
from lamina.base.shapes import Array, DType, bfloat16, bool_, float16, float32, float64
from lamina.compiler.pipeline import compile_graph
from lamina.engines.interpreter.engine import InterpreterEngine
from lamina.graph import Graph, Tensor, apply, leaf
from lamina.ops.attention import ATTENTION, ATTENTION_GRADIENT
from lamina.ops.conversion import rounded
from lamina.ops.differentiate import gradients
from lamina.program.program import Program
from lamina.program.steps import Chain
from lamina.program.target import Target


@dataclass(frozen=True)
class ChainCase:
    """An attention with its gradients.

    Attributes:
        name: for people.
        shape: batch, heads, queries, keys, features, and features of the values.
        causal: as of the op.
        others: which of `"mask"`, `"bias"` and `"factors"` it has; one value for each key is
            `"keys"`.
        dtype: of the operands.
        products: the floats of 16 bits that are multiplied, or `"tf32"`; None for the operands'.
    """

    name: str
    shape: tuple[int, int, int, int, int, int]
    causal: bool = False
    others: tuple[str, ...] = ()
    dtype: DType = float32
    products: DType | str | None = None

    @property
    def tolerance(self) -> float:
        """Of a result, as a share of its largest element."""
        if self.products is not None:
            return {"bfloat16": 2.0**-7, "float16": 2.0**-10, "tf32": 2.0**-9}[str(self._name)]
        return {"float64": 1e-13, "float32": 2e-5}.get(self.dtype.name, 2.0**-6)

    @property
    def _name(self) -> str:
        return self.products.name if isinstance(self.products, DType) else str(self.products)

    def leaves(self) -> list[Tensor]:
        batch, heads, queries, keys, features, results = self.shape
        shapes = {
            "mask": (batch, 1, queries, keys),
            "keys": (batch, 1, 1, keys),
            "bias": (1, heads, queries, keys),
            "factors": (batch, heads, queries, keys),
        }
        tensors = [
            leaf(name, "input", (batch, heads, length, size), self.dtype)
            for name, length, size in (
                ("q", queries, features),
                ("k", keys, features),
                ("v", keys, results),
            )
        ]
        for name in self.others:
            dtype = bool_ if name in ("mask", "keys") else self.dtype
            tensors.append(leaf(name, "input", shapes[name], dtype))
        return tensors

    def program(self, target: Target) -> Program:
        """The result, and the gradients of queries, keys and values."""
        leaves = self.leaves()
        scale = self.shape[4] ** -0.5
        attributes: dict[str, object] = {"causal": self.causal, "scale": scale}
        half = self.products if isinstance(self.products, DType) else None
        operands = [rounded(x, half) if half else x for x in leaves[:3]] + leaves[3:]
        if self.products is not None:
            attributes |= {"products": half} if half else {"tf32": True}
        if "bias" in self.others:
            attributes["biased"] = True
        result = apply(ATTENTION, *operands, **attributes)
        if self.products is not None:
            # As in mixed precision, what arrives is rounded too.
            arriving = [rounded(x, half) if half else x for x in (result * result * 3, result)]
            gradients_ = [
                apply(ATTENTION_GRADIENT, *arriving, *operands, **attributes, operand=number)
                for number in range(3)
            ]
        else:
            wide = ops.cast(result, float32) if self.dtype.is_half else result
            # Its gradient needs the result.
            gradients_ = gradients(ops.sum(wide * wide * wide), leaves[:3])
        results = [result, *gradients_]
        outputs = tuple((f"y{number}", tensor) for number, tensor in enumerate(results))
        graph = Graph(tuple(leaves), outputs)
        return compile_graph(graph, batch=1, name=self.name, target=target)

    def feeds(self) -> dict[str, Array]:
        generator = np.random.default_rng(0)
        return {
            x.attributes["name"]: generator.random(x.shape) < 0.7
            if x.dtype == bool_
            else generator.normal(size=x.shape).astype(x.dtype.numpy)
            for x in self.leaves()
        }


_SMALL = (2, 2, 13, 11, 4, 6)
CASES = (
    ChainCase("plain", _SMALL),
    ChainCase("causal", (2, 2, 21, 21, 8, 8), causal=True),
    ChainCase("few-queries", (1, 2, 9, 20, 3, 5), causal=True),
    ChainCase("few-keys", (1, 2, 20, 9, 5, 3), causal=True),
    ChainCase("masked", _SMALL, others=("mask", "bias")),
    ChainCase("dropped", (2, 2, 16, 16, 8, 8), causal=True, others=("keys", "factors")),
    ChainCase("float64", _SMALL, causal=True, dtype=float64),
    ChainCase("bfloat16", _SMALL, dtype=bfloat16),
    ChainCase("mixed-bfloat16", (1, 2, 24, 24, 16, 16), causal=True, products=bfloat16),
    ChainCase("mixed-float16", (1, 2, 24, 24, 24, 40), products=float16),
    ChainCase("tf32", (1, 2, 24, 24, 16, 16), products="tf32"),
)
# Lengths of more than a tile.
LARGE = (
    ChainCase("large", (1, 2, 150, 170, 64, 64)),
    ChainCase("large-causal", (1, 2, 150, 150, 128, 128), causal=True),
    ChainCase("large-mixed", (1, 2, 150, 150, 32, 32), causal=True, products=bfloat16),
)


def chains_of(program: Program) -> int:
    """The number of chains in a program."""
    return sum(isinstance(step, Chain) for step in program.steps)


def check_chains(case: ChainCase, engine, target: Target, schedules) -> None:
    """Runs a case with the engine's schedule and others; equal bits twice, and the right values."""
    program = case.program(replace(target, chains=True))
    assert chains_of(program) == 3, program
    feeds = case.feeds()
    expected, _ = run_program(program, InterpreterEngine(), feeds)
    for schedule in (None, *schedules(program)):
        runs = [run_program(program, engine, feeds, schedule=schedule)[0] for _ in range(2)]
        for name, value in expected.items():
            first, second = (outputs[name] for outputs in runs)
            assert first.tobytes() == second.tobytes(), f"{name}\n{schedule}"
            largest = np.abs(value.astype("float64")).max()
            difference = np.abs(first.astype("float64") - value.astype("float64")).max()
            assert difference <= case.tolerance * largest, f"{name}\n{schedule}"
