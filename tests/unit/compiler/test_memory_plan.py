"""The plan of the arena: no overlap, little waste, results in place, unchanged bits."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from program_cases import program_of

import lamina as lm
from lamina import ops
from lamina.base.shapes import float32
from lamina.engines import host
from lamina.engines.interpreter.engine import InterpreterEngine
from lamina.graph import leaf
from lamina.program.check import verify
from lamina.program.program import Program
from lamina.program.steps import reads_of, writes_of

# The largest allowed ratio of the arena to the largest live set.
WASTE = 1.05

ProgramMaker = Callable[..., Program]


def _deep(width: int, layers: int) -> list[object]:
    hidden = [layer for _ in range(layers) for layer in (lm.Linear(width), lm.Tanh())]
    return [lm.Input(width), *hidden, lm.Linear(2)]


def _residual() -> lm.Network:
    x = lm.Input(20)
    h = lm.Linear(30)(x)
    for _ in range(3):
        h = h + lm.GELU()(lm.Linear(30)(lm.ReLU()(lm.Linear(50)(h))))
    return lm.Network(inputs=[x], outputs=lm.Linear(7)(lm.concat([h, x])))


NETWORKS: dict[str, Callable[[], object]] = {
    "one layer": lambda: [lm.Input(1), lm.Linear(1)],
    "tiny": lambda: [lm.Input(2), lm.Linear(3), lm.Sigmoid(), lm.Linear(1)],
    "wide": lambda: [
        *(lm.Input(100), lm.Linear(333), lm.ReLU(), lm.Linear(50), lm.SiLU(), lm.Linear(9))
    ],
    "narrowing": lambda: [
        *(lm.Input(64), lm.Linear(48), lm.ELU(), lm.Linear(32), lm.ELU(), lm.Linear(16), lm.ELU()),
        *(lm.Linear(8), lm.ELU(), lm.Linear(3)),
    ],
    "deep": lambda: _deep(24, 8),
    "dropout": lambda: [
        *(lm.Input(30), lm.Linear(40), lm.GELU(), lm.Dropout(0.5), lm.Linear(40), lm.Softplus()),
        *(lm.Dropout(0.2), lm.Linear(5)),
    ],
    "residual": _residual,
}
TRAININGS: dict[str, tuple[object, object, object]] = {
    "sgd": (lm.MSE(), lm.SGD(0.1, momentum=0.9), None),
    "adam": (lm.MSE(), lm.Adam(1e-3), None),
    "clipped": (lm.Huber(), lm.AdamW(1e-3), lm.ClipGlobalNorm(1.0)),
}
BATCHES = (1, 3, 7, 32, 257)


def largest_live_bytes(program: Program) -> int:
    """The most bytes of temporaries alive in one step; memory that is taken over counts once."""
    first: dict[str, int] = {}
    last = dict.fromkeys((buffer for _, buffer in program.outputs), len(program.steps))
    for number, step in enumerate(program.steps):
        for name in writes_of(step):
            first.setdefault(name, number)
        for name in reads_of(step) | writes_of(step):
            last[name] = max(last.get(name, 0), number)
    taken = {a.in_place_of: a.buffer for a in program.plan.allocations if a.in_place_of}
    live = [0] * len(program.steps)
    for buffer in program.of_kind("temporary"):
        name = buffer.name
        # In the step in which another buffer takes over, the memory counts for that one.
        end = last[name] - 1 if name in taken else last[name]
        for number in range(first[name], min(end, len(live) - 1) + 1):
            live[number] += buffer.bytes
    return max(live)


@pytest.mark.parametrize("training", TRAININGS)
@pytest.mark.parametrize("network", NETWORKS)
def test_arena_is_hardly_larger_than_the_largest_live_set(
    network: str, training: str, training_program: ProgramMaker
) -> None:
    loss, optimizer, clip = TRAININGS[training]
    for batch in BATCHES:
        program = training_program(NETWORKS[network](), loss, optimizer, batch, clip=clip)
        verify(program)
        lower_bound = largest_live_bytes(program)
        assert program.plan.largest_live_bytes == lower_bound
        assert lower_bound <= program.plan.arena_bytes <= WASTE * lower_bound, f"batch {batch}"


def _chain(length: int) -> Program:
    """Loops in a row over one shape: expressions that are too deep for one."""
    y = leaf("x", "input", (50, 20), float32)
    for _ in range(length):
        y = ops.sin(y)
    return program_of(y)


def test_results_take_over_the_memory_of_dying_operands() -> None:
    program = _chain(200)
    taken = [allocation for allocation in program.plan.allocations if allocation.in_place_of]
    assert len(program.steps) > 3
    assert len(taken) == len(program.steps) - 1
    assert program.plan.arena_bytes == 50 * 20 * 4


def test_an_operand_that_is_read_at_other_indices_keeps_its_memory() -> None:
    x = leaf("x", "input", (50, 50), float32)
    expensive = ops.exp(x)
    # Every element of the sum needs another element of the operand as well.
    result = ops.exp(ops.sum(expensive, 1, keepdims=True) * 0.01) * expensive + ops.transpose(
        expensive
    )
    program = program_of(result)
    final = program.plan.allocations[-1]
    assert final.buffer == dict(program.outputs)["y0"]
    assert final.in_place_of == ""


def test_large_buffers_start_at_cache_lines(training_program: ProgramMaker) -> None:
    program = training_program(NETWORKS["wide"](), lm.MSE(), lm.SGD(0.1), 100)
    large = [a for a in program.plan.allocations if a.bytes >= 4096]
    assert large
    assert all(allocation.offset % 64 == 0 for allocation in large)


def test_runs_allocate_no_arena(
    training_program: ProgramMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = training_program(NETWORKS["wide"](), lm.MSE(), lm.Adam(1e-3), 8)
    engine = InterpreterEngine()
    memories = {
        buffer.name: engine.allocate(buffer.shape, buffer.dtype.numpy)
        for buffer in (*program.of_kind("parameter"), *program.of_kind("state"))
    }
    inputs = [np.ones(one.shape, one.dtype.numpy) for one in program.of_kind("input")]
    sizes: list[int] = []
    allocate = host.aligned
    monkeypatch.setattr(host, "aligned", lambda size: sizes.append(size) or allocate(size))
    executable = engine.compile(program, memories)
    allocated = sum(size > 0 for size in sizes)
    assert program.plan.arena_bytes in sizes
    for _ in range(3):
        executable.run(inputs)
        executable.output("loss")
    assert sum(size > 0 for size in sizes) == allocated


def test_a_program_without_temporaries_needs_no_arena() -> None:
    p = leaf("p", "parameter", (3,), float32)
    program = program_of([], [(p, p * 0.5)])
    assert program.plan.arena_bytes == 0
    assert program.plan.largest_live_bytes == 0
