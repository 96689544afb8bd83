"""Arenas in several blocks: blocks are small enough, no buffer is in two, offsets are aligned."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from harness import run_program
from hypothesis import given, settings
from hypothesis import strategies as st

import lamina as lm
from lamina.base.records import frozen_dataclass
from lamina.base.shapes import DType, float32, float64, uint8
from lamina.compiler.memory import plan_memory
from lamina.engines.interpreter.engine import InterpreterEngine
from lamina.errors import EngineError, FileFormatError
from lamina.inspect.bill import MemoryBill
from lamina.program.check import verify
from lamina.program.encoding import decode, encode
from lamina.program.index import Axis, axis_index, constant_index
from lamina.program.program import Buffer, Plan, Program
from lamina.program.scalar import Apply, Literal, Load, Local, Scalar
from lamina.program.steps import Loop, Reduce, Step, Store, Write

DTYPES = (float32, float64, uint8)


@frozen_dataclass
class Row:
    """A step of a random program: the buffer that it writes, and the earlier ones that it reads."""

    size: int
    dtype: DType
    reads: tuple[int, ...]


@st.composite
def _rows(draw: st.DrawFn, count: int) -> list[Row]:
    rows: list[Row] = []
    for number in range(count):
        # Mostly of few sizes, so that memory is taken over.
        size = draw(st.sampled_from((0, 1, 7, 64, 64, 100, 1024, 2000)))
        earlier = st.integers(max(0, number - 6), number - 1)
        reads = draw(st.lists(earlier, max_size=3, unique=True)) if number else []
        rows.append(Row(size, draw(st.sampled_from(DTYPES)), tuple(reads)))
    return rows


def rows_of(counts: st.SearchStrategy[int]) -> st.SearchStrategy[list[Row]]:
    return counts.flatmap(_rows)


def program_of(rows: list[Row], *, alignment: int = 1, largest_block: int | None = None) -> Program:
    """Each step stores the sum of the buffers that it reads, plus its own number."""
    buffers = {
        f"b{number}": Buffer(f"b{number}", "temporary", (row.size,), row.dtype)
        for number, row in enumerate(rows)
    }
    steps = tuple(_step(number, rows) for number in range(len(rows)))
    outputs = tuple((f"y{number}", f"b{number}") for number in range(0, len(rows), 5))
    plan = plan_memory(
        buffers,
        steps,
        [buffer for _, buffer in outputs],
        alignment=alignment,
        largest_block=largest_block,
    )
    return Program("random", buffers, steps, outputs, {}, plan)


def _step(number: int, rows: list[Row]) -> Step:
    row = rows[number]
    axis = Axis("i", row.size)
    stages: list[Reduce | Write] = []
    value: Scalar = Literal(number, row.dtype)
    for read in row.reads:
        other = rows[read]
        if not other.size:
            continue
        if other.size == row.size:
            term: Scalar = Load(f"b{read}", axis_index(axis), other.dtype)
        else:
            local = f"r{len(stages)}"
            first = Load(f"b{read}", constant_index(other.size - 1), other.dtype)
            stages.append(Reduce(local, "sum", (), first, other.dtype))
            term = Local(local, other.dtype)
        value = Apply("add", (value, Apply("cast", (term,), row.dtype)), row.dtype)
    stages.append(Write((), (Store(f"b{number}", axis_index(axis), value),)))
    return Loop(f"{number}.step", (axis,) if row.size != 1 else (), tuple(stages))


def outputs_of(program: Program) -> dict[str, bytes]:
    outputs, _ = run_program(program, InterpreterEngine(poison=True), {})
    return {name: value.tobytes() for name, value in outputs.items()}


@settings(max_examples=30, deadline=None, derandomize=True)
@given(rows_of(st.integers(1, 30)), st.sampled_from((1, 64, 128)), st.integers(125, 700))
def test_blocks_are_aligned_and_within_the_limit(
    rows: list[Row], alignment: int, units: int
) -> None:
    limit = 128 * units + 5
    program = program_of(rows, alignment=alignment, largest_block=limit)
    verify(program)
    plan = program.plan
    assert max(plan.blocks) <= limit
    assert all(allocation.offset % alignment == 0 for allocation in plan.allocations)
    assert all(size % max(alignment, 64) == 0 for size in plan.blocks[:-1])
    assert plan.largest_live_bytes <= plan.arena_bytes
    assert outputs_of(program) == outputs_of(program_of(rows))


@settings(max_examples=10, deadline=None, derandomize=True)
@given(rows_of(st.integers(1, 20)))
def test_a_limit_that_holds_everything_changes_nothing(rows: list[Row]) -> None:
    assert program_of(rows, largest_block=1 << 30).plan == program_of(rows).plan
    assert len(program_of(rows).plan.blocks) == 1


def large_rows() -> list[Row]:
    """Two buffers of 8000 bytes that are alive together, then one that takes over memory."""
    return [
        *(Row(1000, float64, ()), Row(1000, float64, ()), Row(1000, float64, (0, 1))),
        *(Row(2000, uint8, (2,)), Row(7, uint8, (3,)), Row(1000, float64, (2, 4))),
    ]


def test_a_buffer_that_is_larger_than_every_block_is_named() -> None:
    with pytest.raises(EngineError) as caught:
        program_of(large_rows(), alignment=128, largest_block=8000)
    assert str(caught.value) == (
        "b0 is larger than the largest block of memory on this device\n"
        "  buffer  temporary b0 f64[1000], 8,000 bytes\n"
        "  limit   7,936 bytes in one block\n"
        "  Take a smaller batch (Network.max_batch_size returns the largest that fits), "
        "or another engine: some have no such limit."
    )


def test_programs_in_several_blocks_are_written_and_read() -> None:
    program = program_of(large_rows(), largest_block=8192)
    assert len(program.plan.blocks) == 3
    assert decode(encode(program)).plan == program.plan
    assert "temporary b1 f64[1000] at 0 of block 2" in str(program)


def test_the_bill_of_several_blocks_names_them(tmp_path: Path) -> None:
    program = program_of(large_rows(), largest_block=8192)
    bill = MemoryBill(1, program)
    assert bill.arena_bytes == sum(program.plan.blocks)
    rows = [line.split() for line in bill.buffers().splitlines()]
    assert ["b1", "f64[1000]", "7.81", "KiB", "2:0", "1-2"] in rows
    bill.plot(tmp_path / "plan.png")
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


@pytest.mark.parametrize(
    "blocks", [(), (-1,), (8128,), (8192, 8192), (8192.0, 8192, 8192), (True, 8192, 8192)]
)
def test_blocks_that_do_not_hold_their_buffers_are_refused(blocks: tuple[int, ...]) -> None:
    program = program_of(large_rows(), largest_block=8192)
    changed = Plan(blocks, program.plan.largest_live_bytes, program.plan.allocations)
    data = encode(Program("x", program.buffers, program.steps, program.outputs, {}, changed))
    with pytest.raises(FileFormatError, match="this is not a program"):
        decode(data)


def test_damaged_plans_never_reach_outside_their_blocks() -> None:
    data = encode(program_of(large_rows(), largest_block=8192))
    end = 8 + int.from_bytes(data[:8], "little")
    rows = json.loads(data[8:end])
    generator = np.random.default_rng(0)
    accepted = 0
    for _ in range(300):
        damaged = [list(row) if isinstance(row, list) else row for row in rows]
        number = int(generator.integers(len(rows)))
        if not isinstance(damaged[number], list):
            damaged[number] = [-1, 3, 8191, 10**12, None, 1.5][int(generator.integers(6))]
        else:
            row = damaged[number]
            row[int(generator.integers(len(row)))] = int(generator.integers(number + 1))
        text = json.dumps(damaged).encode()
        try:
            plan = decode(len(text).to_bytes(8, "little") + text).plan
        except FileFormatError:
            continue
        accepted += 1
        for allocation in plan.allocations:
            end = allocation.offset + allocation.bytes
            assert 0 <= allocation.offset <= end <= plan.blocks[allocation.block]
    assert accepted < 150


def test_a_network_trains_to_the_same_numbers_in_several_blocks() -> None:
    layers = [lm.Input(6), lm.Linear(50), lm.GELU(), lm.Linear(40), lm.Tanh(), lm.Linear(3)]
    program = lm.Sequential(*layers).plan(16, lm.MSE(), lm.Adam(1e-2)).program
    limit = max(buffer.bytes for buffer in program.of_kind("temporary"))
    plan = plan_memory(
        program.buffers,
        program.steps,
        [buffer for _, buffer in program.outputs],
        program.repeats,
        alignment=128,
        largest_block=-(-limit // 128) * 128,
    )
    assert len(plan.blocks) > 1
    fields = (program.steps, program.outputs, program.constants)
    divided = Program(program.name, program.buffers, *fields, plan, program.repeats)
    verify(divided)
    generator = np.random.default_rng(0)
    feeds = {
        one.name: np.asarray(generator.uniform(-1, 1, one.shape), one.dtype.numpy)
        for kind in ("input", "parameter", "state")
        for one in program.of_kind(kind)
    }
    (_, found), (_, expected) = (
        run_program(one, InterpreterEngine(poison=True), feeds, 3) for one in (divided, program)
    )
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, name)
