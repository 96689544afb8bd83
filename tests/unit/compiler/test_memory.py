"""The plan of the arena: no overlap, little waste, results in place, blocks within a limit."""

from dataclasses import replace

import numpy as np
import pytest
from harness import run_program
from hypothesis import given, settings
from hypothesis import strategies as st
from program_cases import program_of
from training_cases import same

import lamina as lm
from lamina import ops
from lamina.base.records import frozen_dataclass
from lamina.base.shapes import DType, float32, float64, uint8
from lamina.compiler.memory import plan_memory
from lamina.engines import host
from lamina.engines.interpreter.engine import InterpreterEngine
from lamina.errors import EngineError, FileFormatError
from lamina.graph import leaf
from lamina.inspect.bill import MemoryBill
from lamina.program.check import verify
from lamina.program.encoding import decode, encode
from lamina.program.index import Axis, Index, axis_index
from lamina.program.program import Buffer, Program
from lamina.program.scalar import Apply, Literal, Load, Local
from lamina.program.steps import Loop, Reduce, Store, Write, reads_of, writes_of

# The largest allowed ratio of the arena to the largest live set.
WASTE = 1.05


def _residual():
    x = lm.Input(20)
    h = lm.Linear(30)(x)
    for _ in range(3):
        h = h + lm.GELU()(lm.Linear(30)(lm.ReLU()(lm.Linear(50)(h))))
    return lm.Network(inputs=[x], outputs=lm.Linear(7)(lm.concat([h, x])))


NETWORKS = {
    "one layer": lambda: [lm.Input(1), lm.Linear(1)],
    "tiny": lambda: [lm.Input(2), lm.Linear(3), lm.Sigmoid(), lm.Linear(1)],
    "wide": lambda: [
        *(lm.Input(100), lm.Linear(333), lm.ReLU(), lm.Linear(50), lm.SiLU(), lm.Linear(9))
    ],
    "narrowing": lambda: [
        *(lm.Input(64), lm.Linear(48), lm.ELU(), lm.Linear(32), lm.ELU(), lm.Linear(16), lm.ELU()),
        *(lm.Linear(8), lm.ELU(), lm.Linear(3)),
    ],
    "deep": lambda: [
        lm.Input(24),
        *(layer for _ in range(8) for layer in (lm.Linear(24), lm.Tanh())),
        lm.Linear(2),
    ],
    "dropout": lambda: [
        *(lm.Input(30), lm.Linear(40), lm.GELU(), lm.Dropout(0.5), lm.Linear(40), lm.Softplus()),
        *(lm.Dropout(0.2), lm.Linear(5)),
    ],
    "residual": _residual,
}
TRAININGS = {
    "sgd": (lm.MSE(), lm.SGD(0.1, momentum=0.9), None),
    "adam": (lm.MSE(), lm.Adam(1e-3), None),
    "clipped": (lm.Huber(), lm.AdamW(1e-3), lm.ClipGlobalNorm(1.0)),
}
BATCHES = (1, 3, 7, 32, 257)


def largest_live_bytes(program):
    """The most bytes of temporaries alive in one step; memory that is taken over counts once."""
    first = {}
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
def test_arena_is_hardly_larger_than_the_largest_live_set(network, training, training_program):
    loss, optimizer, clip = TRAININGS[training]
    for batch in BATCHES:
        program = training_program(NETWORKS[network](), loss, optimizer, batch, clip=clip)
        verify(program)
        lower_bound = largest_live_bytes(program)
        assert program.plan.largest_live_bytes == lower_bound
        assert lower_bound <= program.plan.arena_bytes <= WASTE * lower_bound, f"batch {batch}"


def _chain(length):
    """Loops in a row over one shape: expressions that are too deep for one."""
    y = leaf("x", "input", (50, 20), float32)
    for _ in range(length):
        y = ops.sin(y)
    return program_of(y)


def test_results_take_over_the_memory_of_dying_operands():
    program = _chain(200)
    taken = [allocation for allocation in program.plan.allocations if allocation.in_place_of]
    assert len(program.steps) > 3
    assert len(taken) == len(program.steps) - 1
    assert program.plan.arena_bytes == 50 * 20 * 4


def test_an_operand_that_is_read_at_other_indices_keeps_its_memory():
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


def test_large_buffers_start_at_cache_lines(training_program):
    program = training_program(NETWORKS["wide"](), lm.MSE(), lm.SGD(0.1), 100)
    large = [a for a in program.plan.allocations if a.bytes >= 4096]
    assert large
    assert all(allocation.offset % 64 == 0 for allocation in large)


def test_runs_allocate_no_arena(training_program, monkeypatch):
    program = training_program(NETWORKS["wide"](), lm.MSE(), lm.Adam(1e-3), 8)
    engine = InterpreterEngine()
    memories = {
        buffer.name: engine.allocate(buffer.shape, buffer.dtype.numpy)
        for buffer in (*program.of_kind("parameter"), *program.of_kind("state"))
    }
    inputs = [np.ones(buffer.shape, buffer.dtype.numpy) for buffer in program.of_kind("input")]
    sizes = []
    allocate = host.aligned
    monkeypatch.setattr(host, "aligned", lambda size: sizes.append(size) or allocate(size))
    executable = engine.compile(program, memories)
    allocated = sum(size > 0 for size in sizes)
    assert program.plan.arena_bytes in sizes
    for _ in range(3):
        executable.run(inputs)
        executable.output("loss")
    assert sum(size > 0 for size in sizes) == allocated


def test_a_program_without_temporaries_needs_no_arena():
    p = leaf("p", "parameter", (3,), float32)
    program = program_of([], [(p, p * 0.5)])
    assert program.plan.arena_bytes == 0
    assert program.plan.largest_live_bytes == 0


DTYPES = (float32, float64, uint8)


@frozen_dataclass
class Row:
    """A step of a random program: the buffer that it writes, and the earlier ones that it reads."""

    size: int
    dtype: DType
    reads: tuple[int, ...]


@st.composite
def _rows(draw, count):
    rows = []
    for number in range(count):
        # Mostly of few sizes, so that memory is taken over.
        size = draw(st.sampled_from((0, 1, 7, 64, 64, 100, 1024, 2000)))
        earlier = st.integers(max(0, number - 6), number - 1)
        reads = draw(st.lists(earlier, max_size=3, unique=True)) if number else []
        rows.append(Row(size, draw(st.sampled_from(DTYPES)), tuple(reads)))
    return rows


def random_program(rows, **limits):
    """Each step stores the sum of the buffers that it reads, plus its own number."""
    buffers = {
        f"b{number}": Buffer(f"b{number}", "temporary", (row.size,), row.dtype)
        for number, row in enumerate(rows)
    }
    steps = tuple(_step(number, rows) for number in range(len(rows)))
    outputs = tuple((f"y{number}", f"b{number}") for number in range(0, len(rows), 5))
    plan = plan_memory(buffers, steps, [buffer for _, buffer in outputs], **limits)
    return Program("random", buffers, steps, outputs, {}, plan)


def _step(number, rows):
    row = rows[number]
    axis = Axis("i", row.size)
    stages = []
    value = Literal(number, row.dtype)
    for read in row.reads:
        other = rows[read]
        if not other.size:
            continue
        if other.size == row.size:
            term = Load(f"b{read}", axis_index(axis), other.dtype)
        else:
            local = f"r{len(stages)}"
            first = Load(f"b{read}", Index(other.size - 1), other.dtype)
            stages.append(Reduce(local, "sum", (), first, other.dtype))
            term = Local(local, other.dtype)
        value = Apply("add", (value, Apply("cast", (term,), row.dtype)), row.dtype)
    stages.append(Write((), (Store(f"b{number}", axis_index(axis), value),)))
    return Loop(f"{number}.step", (axis,) if row.size != 1 else (), tuple(stages))


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.integers(1, 30).flatmap(_rows), st.sampled_from((1, 64, 128)), st.integers(125, 700))
def test_blocks_are_aligned_and_within_the_limit(rows, alignment, units):
    limit = 128 * units + 5
    program = random_program(rows, alignment=alignment, largest_block=limit)
    verify(program)
    plan = program.plan
    assert max(plan.blocks) <= limit
    assert all(allocation.offset % alignment == 0 for allocation in plan.allocations)
    assert all(size % max(alignment, 64) == 0 for size in plan.blocks[:-1])
    assert plan.largest_live_bytes <= plan.arena_bytes
    outputs, expected = (
        run_program(variant, InterpreterEngine(poison=True), {})[0]
        for variant in (program, random_program(rows))
    )
    assert same(outputs, expected)


@settings(max_examples=10, deadline=None, derandomize=True)
@given(st.integers(1, 20).flatmap(_rows))
def test_a_limit_that_holds_everything_changes_nothing(rows):
    assert random_program(rows, largest_block=1 << 30).plan == random_program(rows).plan
    assert len(random_program(rows).plan.blocks) == 1


def large_rows():
    """Two buffers of 8000 bytes that are alive together, then one that takes over memory."""
    return [
        *(Row(1000, float64, ()), Row(1000, float64, ()), Row(1000, float64, (0, 1))),
        *(Row(2000, uint8, (2,)), Row(7, uint8, (3,)), Row(1000, float64, (2, 4))),
    ]


def test_a_buffer_that_is_larger_than_every_block_is_named():
    with pytest.raises(EngineError) as caught:
        random_program(large_rows(), alignment=128, largest_block=8000)
    assert str(caught.value) == (
        "b0 is larger than the largest block of memory on this device\n"
        "  buffer  temporary b0 f64[1000], 8,000 bytes\n"
        "  limit   7,936 bytes in one block\n"
        "  Take a smaller batch (Network.max_batch_size returns the largest that fits), "
        "or another engine: some have no such limit."
    )


def test_programs_in_several_blocks_are_written_and_read():
    program = random_program(large_rows(), largest_block=8192)
    assert len(program.plan.blocks) == 3
    assert decode(encode(program)).plan == program.plan
    assert "temporary b1 f64[1000] at 0 of block 2" in str(program)


def test_the_bill_of_several_blocks_names_them(tmp_path):
    program = random_program(large_rows(), largest_block=8192)
    bill = MemoryBill(1, program)
    assert bill.arena_bytes == sum(program.plan.blocks)
    rows = [line.split() for line in bill.buffers().splitlines()]
    assert ["b1", "f64[1000]", "7.81", "KiB", "2:0", "1-2"] in rows
    bill.plot(tmp_path / "plan.png")
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


@pytest.mark.parametrize(
    "blocks", [(), (-1,), (8128,), (8192, 8192), (8192.0, 8192, 8192), (True, 8192, 8192)]
)
def test_blocks_that_do_not_hold_their_buffers_are_refused(blocks):
    program = random_program(large_rows(), largest_block=8192)
    data = encode(replace(program, plan=replace(program.plan, blocks=blocks)))
    with pytest.raises(FileFormatError, match="this is not a program"):
        decode(data)


def test_a_network_trains_to_the_same_numbers_in_several_blocks():
    layers = [lm.Input(6), lm.Linear(50), lm.GELU(), lm.Linear(40), lm.Tanh(), lm.Linear(3)]
    program = lm.Sequential(*layers).plan(16, lm.MSE(), lm.Adam(1e-2)).program
    limit = max(buffer.bytes for buffer in program.of_kind("temporary"))
    plan = plan_memory(
        *(program.buffers, program.steps, [buffer for _, buffer in program.outputs]),
        program.repeats,
        alignment=128,
        largest_block=-(-limit // 128) * 128,
    )
    assert len(plan.blocks) > 1
    divided = replace(program, plan=plan)
    verify(divided)
    generator = np.random.default_rng(0)
    feeds = {
        buffer.name: np.asarray(generator.uniform(-1, 1, buffer.shape), buffer.dtype.numpy)
        for kind in ("input", "parameter", "state")
        for buffer in program.of_kind(kind)
    }
    (_, memories), (_, expected) = (
        run_program(variant, InterpreterEngine(poison=True), feeds, 3)
        for variant in (divided, program)
    )
    for name, value in expected.items():
        np.testing.assert_array_equal(memories[name], value, name)
