"""Schedules of the CPU engine, and native programs: fusion, packed operands, phases, caches."""

import copy
import math
import pickle
import re
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from cpu_cases import classifier, same_for_threads
from gpu_cases import CASES, compiled
from harness import Leaves, run_program
from llvm_text import functions
from program_cases import program_of
from simd_alternatives import alternatives_of, legal_schedules

import lamina as lm
from lamina import ops
from lamina.codegen.filtering import FILTERINGS
from lamina.engines.cpu.compilation import compile_program
from lamina.engines.cpu.engine import CpuEngine
from lamina.engines.cpu.native_program import write_llvm, write_program
from lamina.engines.cpu.processor import host
from lamina.engines.cpu.run.thread_pool import Job
from lamina.engines.interpreter.engine import InterpreterEngine
from lamina.engines.simd.decide.packing import Packing
from lamina.engines.simd.decide.program import decide
from lamina.engines.simd.decide.schedule import (
    DIRECT,
    PACKED,
    PREPACKED,
    FusedSum,
    GemmSchedule,
    LoopSchedule,
)
from lamina.engines.simd.decide.windows import (
    COL2IM,
    IMPLICIT_GEMM,
    WEIGHT_GRADIENT,
    WINOGRAD,
    WINOGRAD_WEIGHT_GRADIENT,
    readings,
)
from lamina.engines.simd.decide.work import Slices
from lamina.ops.differentiate import gradients
from lamina.program.cost import cost_of
from lamina.program.steps import Contraction, Loop

PROCESSOR = replace(
    host(),
    vectors="avx2",
    vector_bytes=32,
    registers=16,
    fused=True,
    level1_bytes=32 << 10,
    level2_bytes=512 << 10,
    threads=2,
)

SGD = lm.SGD(0.1)


def trained(*widths, batch=64, optimizer=SGD):
    return classifier(*widths).plan(batch, lm.CrossEntropy(), optimizer).program


def convolution(size=3, stride=1, *, extent=8, channels=(4, 5)):
    """A small convolution and its gradients, with `channels` of input and output."""
    leaves = Leaves()
    inputs, outputs = channels
    x = leaves.add(np.ones((2, inputs, extent, extent), "float32"))
    weight = leaves.add(np.ones((outputs, inputs, size, size), "float32"))
    y = ops.conv(x, weight, [stride] * 2, [(1, 1)] * 2, [1, 1])
    return program_of([y, *gradients(ops.sum(y * y), [x, weight])])


def test_a_schedule_is_printed_step_by_step():
    lines = str(decide(trained(200, 128, 10), PROCESSOR)).splitlines()
    first = next(line for line in lines if "M=64, N=128, K=200" in line)
    assert first.partition(": ")[2] == (
        "tiles of 6x16 for M=64, N=128, K=200; 8 panels of 2 x 8 lanes; left direct; "
        "right packed by panel, transposed in registers; 8 work items, 204,800 cycles"
    )
    assert any(line.startswith("  column sums of step ") for line in lines)


def test_every_algorithm_is_an_alternative_at_every_size():
    steps = [step for size in (3, 5) for step in convolution(size).steps]
    steps += convolution(3, 2).steps
    algorithms = {
        schedule.algorithm
        for step in steps
        if isinstance(step, Contraction)
        for schedule in alternatives_of(step, PROCESSOR)
    }
    filtered = {WINOGRAD[FILTERINGS[n]] for n in (3, 5)}
    filtered |= {WINOGRAD_WEIGHT_GRADIENT[FILTERINGS[n]] for n in (3, 5)}
    assert algorithms >= {*filtered, IMPLICIT_GEMM, WEIGHT_GRADIENT, COL2IM, "loop", "tiles"}


def test_without_sliding_windows_a_step_has_two_readings():
    # Windows of 4 with stride 4 do not overlap: the program has no sliding windows.
    net = lm.Sequential(lm.Input(16, 32, 32), lm.Conv2d(64, 4, stride=4))
    program = net.plan(16, lm.MSE(), lm.SGD(0.1)).program
    steps = decide(program, PROCESSOR).steps
    chosen = {
        schedule.algorithm: set(readings(step))
        for step, schedule in zip(program.steps, steps, strict=True)
        if isinstance(step, Contraction) and not (step.left_windows or step.right_windows)
    }
    both = {IMPLICIT_GEMM, WEIGHT_GRADIENT}
    assert chosen == {IMPLICIT_GEMM: both, WEIGHT_GRADIENT: both}


def test_forced_schedules_decide_which_operands_are_packed():
    program = trained(20, 12, 10)
    assert not decide(program, PROCESSOR).prepackings
    number = next(n for n, step in enumerate(program.steps) if isinstance(step, Contraction))
    choices = alternatives_of(program.steps[number], PROCESSOR)
    packed = next(
        gemm for gemm in choices if isinstance(gemm, GemmSchedule) and gemm.right == PREPACKED
    )
    schedule = decide(program, PROCESSOR, {number: packed})
    assert [prepacking.users for prepacking in schedule.prepackings] == [(number,)]
    assert schedule.steps[number] == packed


@cache
def strided():
    return convolution(3, 2, extent=16, channels=(16, 32))


def contraction_of(program, algorithm):
    steps = decide(program, PROCESSOR).steps
    return next(n for n, step in enumerate(steps) if step.algorithm == algorithm)


K_BY_K, TRANSPOSED = Packing(False, in_memory_order=False), Packing(True, in_memory_order=False)
# A program, an algorithm, a field of its schedule, the decided value, and another correct value.
OBEYED = [
    (lambda: trained(200, 128, 10), "tiles", "packing", TRANSPOSED, K_BY_K),
    (strided, IMPLICIT_GEMM, "copied", 2, 0),
    (strided, IMPLICIT_GEMM, "unrolled", 6, 0),
    (strided, WEIGHT_GRADIENT, "right", DIRECT, PACKED),
    (strided, WEIGHT_GRADIENT, "copied", 2, 0),
]


@pytest.mark.parametrize(("made", "algorithm", "field", "decided", "other"), OBEYED)
def test_kernels_follow_the_schedule(made, algorithm, field, decided, other):
    program = made()
    schedule = decide(program, PROCESSOR)
    number = contraction_of(program, algorithm)
    step = schedule.steps[number]
    assert getattr(step, field) == decided
    changed = replace(step, **{field: other})
    assert str(changed) != str(step) or field == "unrolled"
    forced = decide(program, PROCESSOR, {number: changed})
    texts = {write_program(program, PROCESSOR, variant).text for variant in (schedule, forced)}
    assert len(texts) == 2


def test_kernels_are_shared_as_the_schedule_states():
    program = trained(200, 128, 10)
    schedule = decide(program, PROCESSOR)
    assert "\n  shared in 2 slices, 4 work items at once" in str(schedule)
    alone = replace(
        schedule,
        kernels=tuple(
            tuple(Slices(slices.work, 1, slices.work.items) for slices in kernels)
            for kernels in schedule.kernels
        ),
    )
    layouts = [write_program(program, PROCESSOR, variant).layout for variant in (schedule, alone)]
    most = [max(kernel.slice_count for kernel in layout.program.kernels) for layout in layouts]
    assert most == [2, 1]
    apart = replace(schedule, least_shared_cycles=math.inf)
    phases = write_program(program, PROCESSOR, apart).layout.program.phases
    assert any(phase.shared for phase in layouts[0].program.phases)
    assert not any(phase.shared for phase in phases)


def test_weights_are_packed_in_memory_order():
    number = contraction_of(strided(), COL2IM)
    prepackings = decide(strided(), PROCESSOR).prepackings
    (packed,) = (one for one in prepackings if number in one.users)
    assert packed.packed.packing.in_memory_order
    assert "in the order of memory" in str(packed)


@pytest.mark.parametrize("registers", [4, 1])
@pytest.mark.parametrize("vector_bytes", [16, 32, 64])
def test_numbers_that_are_inputs_change_no_loop(vector_bytes, registers):
    processor = replace(PROCESSOR, vector_bytes=vector_bytes, registers_at_once=registers)

    def planned(*, as_inputs):
        leaves = Leaves()

        def number(value):
            return -leaves.add(np.float32(value)) if as_inputs else value

        results = []
        for shape in ((40, 2), (10, 40), (2, 2), (300, 1), (5, 7)):
            extents = (shape, shape, (1, shape[1]), (shape[0], 1))
            w, m, row, column = (leaves.add(np.ones(extent, "float32")) for extent in extents)
            mean = m * number(0.9) + (w * number(0.5) + row * column)
            results += [mean, w - mean * number(0.01)]
        program = program_of(results)
        steps = decide(program, processor).steps
        loops = [step for step in steps if isinstance(step, LoopSchedule)]
        nests = [(n.order, n.lane, n.lanes, n.style) for loop in loops for n in loop.nests]
        return nests, sum(cost_of(step, program.buffers).operations for step in program.steps)

    inputs, constants = planned(as_inputs=True), planned(as_inputs=False)
    assert inputs[0] == constants[0]
    # Each of the three numbers of five loops is negated, once.
    assert inputs[1] == constants[1] + 15


def test_more_workers_are_used_for_more_work_only():
    many = replace(PROCESSOR, threads=4)
    assert decide(trained(200, 128, 10), many).workers == 4
    assert decide(trained(4, 4, 2), many).workers == 1


def test_a_reduction_of_what_an_earlier_stage_writes_is_split_after_it():
    (case,) = (candidate for candidate in CASES if candidate.name == "written")
    engine = CpuEngine()
    program, feeds = compiled(case, engine.target), case.feeds()
    expected, _ = run_program(program, InterpreterEngine(), feeds)
    others = legal_schedules(program, engine.processor)
    split = [alternative for alternative in others if "partial results" in str(alternative)]
    assert split
    for schedule in split:
        outputs, _ = run_program(program, engine, feeds, schedule=schedule)
        for name, value in expected.items():
            np.testing.assert_allclose(outputs[name], value, rtol=1e-6)


HOST = replace(host(), threads=2)


def test_gradients_of_biases_are_fused_after_the_contraction_that_computes_them():
    program = trained(200, 128, 64, 10)
    schedule = decide(program, HOST)
    fused = {
        number: step for number, step in enumerate(schedule.steps) if isinstance(step, FusedSum)
    }
    # The last layer's comes from the loss, which is no contraction.
    assert len(fused) == 2
    assert all(isinstance(program.steps[step.carrier], Contraction) for step in fused.values())
    steps = write_program(program, HOST).layout.steps
    assert set(range(len(program.steps))) - set(steps) == fused.keys()


def test_row_sums_and_total_sums_are_not_fused():
    x = lm.Input(64)
    y = lm.Linear(96)(x)
    # Sums along the rows of a panel, and sums of everything.
    for outputs in (lm.ops.sum(y, 1), lm.ops.sum(y)):
        program = lm.Network(inputs=x, outputs=[outputs, y]).plan(64).program
        assert not decide(program, HOST).column_sums()
        native = write_program(program, HOST)
        assert set(native.layout.steps) == set(range(len(program.steps)))


def functions_of(calls):
    return {call.function for call in calls}


def test_steps_of_equal_blocks_share_their_functions():
    how = {"batch": 32, "optimizer": lm.Adam(1e-3)}
    few, many = (trained(64, *[64] * n, 10, **how) for n in (4, 12))
    written = [write_llvm(program, HOST) for program in (few, many)]
    assert len(many.steps) >= 2 * len(few.steps)
    assert len(functions_of(written[0].calls)) == len(functions_of(written[1].calls))
    assert len(functions_of(written[0].calls)) < len(few.steps)
    # Each calls with a section of the table of its own: no kernel is omitted.
    sections = {call.section for call in written[1].calls}
    assert len(sections) == len({call.step for call in written[1].calls})
    schedule = decide(many, HOST)
    fused = sum(isinstance(step, FusedSum) for step in schedule.steps)
    assert len(sections) == len(many.steps) - fused


def test_equal_steps_with_different_schedules_share_nothing():
    equal = classifier(64, 64, 64, 64).plan(32).program
    usual = decide(equal, HOST)
    assert usual.steps[0] == usual.steps[1]
    forced = {1: next(alternatives_of(equal.steps[1], HOST))}
    different = decide(equal, HOST, forced)
    written = (write_llvm(equal, HOST, schedule).calls for schedule in (usual, different))
    alike, apart = map(functions_of, written)
    assert len(apart) == len(alike) + 1


def test_steps_of_different_sizes_share_no_functions():
    x = lm.Input(40)
    outputs = [lm.ops.exp(x), lm.ops.exp(lm.ops.concat([x, x], 1)), lm.ops.exp(x * 2)]
    program = lm.Network(inputs=x, outputs=outputs).plan(8).program
    assert len(functions_of(write_llvm(program, HOST).calls)) == len(program.steps)


def test_equal_operands_are_packed_by_one_function_each_into_its_own_memory():
    program = classifier(96, 96, 96, 96).plan(64).program
    written = write_llvm(program, HOST)
    assert (len(written.load), len(functions_of(written.load))) == (3, 1)
    assert sorted(written.workspace_offsets.values()) == [0, 4 * 96 * 96, 2 * 4 * 96 * 96]


def test_a_step_is_shown_by_itself_even_if_it_shares_its_function():
    model = lm.Model(classifier(64, 64, 64, 64))
    explanation = model.explain(32)
    one, other, last = (functions(explanation.listing(number, "llvm")) for number in (0, 1, 2))
    assert one == other
    assert one != last


def shared_weights():
    a, b = lm.Input(200), lm.Input(200)
    shared = lm.Linear(96)
    net = lm.Network(inputs=[a, b], outputs=shared(a) - shared(b))
    return net.plan(64, lm.MSE(), lm.SGD(0.1)).program


# A program, the number of users of each packed operand, whether they are packed when parameters
# change, and the elements of all packed operands.
PACKED = {
    "inference": (lambda: classifier(200, 96, 64).plan(64).program, [1, 1], True, 96 * (200 + 64)),
    "training": (lambda: trained(200, 96, 64), [], False, 0),
    "several users": (shared_weights, [2], False, 200 * 96),
}


@pytest.mark.cases("made, users, at_load, elements", PACKED)
def test_weights_are_packed_if_several_runs_or_steps_use_them(made, users, at_load, elements):
    program = made()
    prepackings = decide(program, HOST).prepackings
    assert [len(prepacking.users) for prepacking in prepackings] == users
    assert {prepacking.at_load for prepacking in prepackings} <= {at_load}
    layout = write_program(program, HOST).layout
    assert (layout.load.threads >= 1) == at_load
    assert not users or layout.shared_bytes == 4 * elements


@pytest.mark.parametrize(("channels", "count", "operands"), [(32, 8, 2), (192, 4, 1)])
def test_packed_operands_of_later_steps_reuse_the_memory_of_earlier_ones(channels, count, operands):
    """A small operand keeps its memory for one more step."""
    layers = [lm.Conv2d(channels, 3, padding=1) for _ in range(count)]
    net = lm.Sequential(lm.Input(channels, 8, 8), *layers)
    program = net.plan(4, lm.MSE(), lm.SGD(0.1)).program
    assert len(decide(program, HOST).prepackings) >= len(layers)
    # Weights of 3x3 elements are transformed to 4x4. Partial sums of weight gradients fit as well.
    each = 4 * (channels * channels * 16)
    shared = write_program(program, HOST).layout.shared_bytes
    assert each <= shared <= operands * each * 9 // 8


def test_frozen_weights_are_packed_once_for_all_steps(monkeypatch):
    net = classifier(200, 96, 64)
    model = lm.Model(net)
    jobs = []
    run = Job.run
    monkeypatch.setattr(Job, "run", lambda job: (jobs.append(job), run(job)))
    x, y = np.ones((64, 200), "float32"), np.zeros(64, np.int64)
    frozen = [name for name in model.parameters() if name.startswith("1.")]
    with model.training(lm.CrossEntropy(), lm.SGD(0.1), 64, frozen=frozen) as training:
        for _ in range(3):
            training.step(x, y)
        # Packing after parameters have changed, and three training steps.
        assert len(jobs) == 4
        model.set_parameters(model.parameters())
        training.step(x, y)
        assert len(jobs) == 6


def test_packed_weights_follow_the_parameters():
    net = classifier(200, 96, 64)
    models = [lm.Model(net, engine=engine) for engine in ("cpu", "interpreter")]
    generator = np.random.default_rng(0)
    x = generator.uniform(-1, 1, (64, 200)).astype("float32")
    y = generator.integers(0, 64, 64)
    trainings = [model.training(lm.CrossEntropy(), lm.SGD(0.5), 64) for model in models]

    def changed(change):
        """Both models predict the same after a change, and other than before."""
        before = models[0].predict(x)
        for number in range(2):
            change(number)
        predicted, expected = (model.predict(x) for model in models)
        np.testing.assert_allclose(predicted, expected, rtol=1e-4, atol=1e-5)
        assert not np.allclose(predicted, before)

    def double(number):
        own = models[number]
        own.set_parameters({name: 2 * value for name, value in own.parameters().items()})

    changed(double)
    for _ in range(2):
        changed(lambda number: trainings[number].step(x, y))
    changed(lambda number: trainings[number].run((x, y), steps=3))


def test_packed_weights_follow_the_parameters_of_copies():
    model = lm.Model(classifier(200, 96, 64))
    x = np.random.default_rng(0).uniform(-1, 1, (64, 200)).astype("float32")
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        np.testing.assert_array_equal(other.predict(x), model.predict(x))
        other.set_parameters({"3.weight": np.zeros((64, 96), "float32")})
        bias = other.parameters()["3.bias"]
        np.testing.assert_array_equal(other.predict(x), np.broadcast_to(bias, (64, 64)))


@pytest.mark.parametrize(("size", "expected"), [(1000, (1, 0)), (100_000, (2, 1))])
def test_long_reductions_are_split_into_blocks_for_all_threads(size, expected):
    x = lm.Input(size)
    program = lm.Network(inputs=x, outputs=lm.ops.sum(lm.ops.exp(x))).plan(1).program
    layout = write_program(program, HOST).layout
    assert (layout.threads, len(layout.shared_offsets)) == expected


@pytest.mark.cases(
    ("rows", "columns", "split"),
    *((2048, 100, True), (2085, 4000, True)),
    *((2047, 100, False), (2048, 5000, False), (40, 4000, False)),
)
def test_long_columns_are_split_so_that_rows_are_read_in_order(rows, columns, split):
    x = lm.Input(rows, columns)
    mean = lm.ops.mean(x, 1, keepdims=True)
    # The last one depends on another reduction.
    results = [mean, lm.ops.max(x, 1), lm.ops.argmax(x, 1), lm.ops.sum((x - mean) * (x - mean), 1)]
    program = lm.Network(inputs=x, outputs=results).plan(1).program
    (schedule,) = decide(program, HOST).steps
    assert bool(schedule.split) == split


def test_reductions_of_the_same_columns_share_a_loop_nest():
    x = lm.Input(2048, 100)
    sums = [lm.ops.sqrt(lm.ops.sum(x * x, 1)), lm.ops.sum(x, 1)]
    program = lm.Network(inputs=x, outputs=sums).plan(1).program
    (schedule,) = decide(program, HOST).steps
    # One loop nest for both sums of a block, one that combines the blocks.
    assert (len(schedule.nests), len(schedule.split)) == (2, 2)


def inputs_of(*shapes):
    generator, leaves = np.random.default_rng(0), Leaves()
    for shape in shapes:
        leaves.add(generator.normal(size=shape).astype("float32"))
    return leaves


def random_sum(kind, draw):
    """A sum of random extents; `draw` gives numbers from low to high."""
    if kind == "reduction":
        leaves = inputs_of((draw(1, 90), draw(1, 90), draw(1, 90)))
        axes = tuple(axis for axis in range(3) if draw(0, 2)) or 1
        reduce = (ops.sum, ops.variance, ops.logsumexp)[draw(0, 2)]
        return leaves, reduce(leaves.tensors[0], axes)
    if kind == "product":
        k = draw(1, 10 ** draw(2, 4))
        leaves = inputs_of((draw(1, 3), draw(1, 100), k), (k, draw(1, 100)))
        return leaves, ops.matmul(*leaves.tensors)
    images, inputs, outputs = draw(1, 50), draw(1, 48), draw(1, 48)
    size, window = draw(3, 16), draw(1, 3)
    positions = size - window + 1 + 2 * (window // 2)
    shapes = (inputs, size, size), (outputs, positions, positions)
    leaves = inputs_of(*((images, *shape) for shape in shapes))
    x, upstream = leaves.tensors
    weights = ops.full((outputs, inputs, window, window), 0.0)
    y = ops.conv(x, weights, 1, window // 2, 1)
    return leaves, gradients(ops.sum(y * upstream), [weights])[0]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("kind", ["reduction", "product", "weight gradient"])
def test_sums_do_not_depend_on_the_number_of_threads(kind, seed):
    generator = np.random.default_rng(seed)
    leaves, result = random_sum(kind, lambda low, high: int(generator.integers(low, high + 1)))
    same_for_threads(program_of(result), leaves.feeds, (1, 2, 3, 4))


def test_a_program_that_was_compiled_before_is_not_written_again(tmp_path, monkeypatch):
    monkeypatch.setenv("LAMINA_CACHE", str(tmp_path))
    program = trained(20, 40, 10, batch=8)
    first = compile_program(program, HOST)
    monkeypatch.setattr("lamina.engines.cpu.native_program.write_program", None)
    assert compile_program(trained(20, 40, 10, batch=8), HOST) == first
    forced = decide(program, HOST, {0: next(alternatives_of(program.steps[0], HOST))})
    others = (
        {"program": trained(20, 41, 10, batch=8), "processor": HOST},
        {"program": program, "processor": replace(HOST, threads=3)},
        {"program": program, "processor": HOST, "timed": True},
        {"program": program, "processor": HOST, "schedule": forced},
    )
    for other in others:
        with pytest.raises(TypeError, match="not callable"):
            compile_program(**other)


def test_nothing_is_cached_where_the_engine_cannot_tell_its_own_version(tmp_path, monkeypatch):
    monkeypatch.setenv("LAMINA_CACHE", str(tmp_path))
    monkeypatch.setattr("lamina.engines.cpu.compilation.SOURCES.checksum", "")
    compile_program(trained(20, 40, 10, batch=8), HOST)
    assert not list(tmp_path.rglob("*.object"))


def test_barriers_are_only_between_dependent_kernels():
    program = trained(784, 256, 128, 10, batch=128)
    native = write_program(program, HOST)
    small = write_program(trained(2, 40, 10, 2, batch=1), HOST)
    assert (small.layout.threads, len(small.layout.program.phases)) == (1, 1)
    assert native.layout.threads == 2
    # Two chains of dependent steps, forward and backward; updates need no barrier.
    assert len(native.layout.program.phases) < len(native.layout.steps)


def test_two_independent_steps_need_no_barrier():
    a, b = lm.Input(300), lm.Input(300)
    net = lm.Network(inputs=[a, b], outputs=[lm.Linear(200)(a), lm.Linear(200)(b)])
    native = write_program(net.plan(100).program, HOST)
    assert native.layout.threads == 2
    assert [phase.shared for phase in native.layout.program.phases] == [True]


def test_large_inputs_may_be_read_only():
    model, x = lm.Model(classifier(200, 96, 64)), np.ones((64, 200), "float32")
    expected = model.predict(x)
    x.flags.writeable = False
    np.testing.assert_array_equal(model.predict(x), expected)


def loops():
    """The text of each step that sums over the elements of windows: a result, and a gradient."""
    leaves = Leaves()
    x = leaves.add(np.ones((2, 9, 40, 19), "float32"))
    weight = leaves.add(np.ones((19, 1, 3, 3), "float32"))
    images = ops.transpose(x, (0, 3, 1, 2))
    y = ops.conv(images, weight, groups=19, strides=1, padding=1, dilations=1)
    slopes = gradients(ops.sum(y * ops.stop_gradient(ops.sin(y))), [x])
    program = program_of([ops.transpose(y, (0, 2, 3, 1)), *slopes])
    texts = [
        write_llvm(program, host(), only=number).module.text()
        for number, step in enumerate(program.steps)
        if isinstance(step, Loop)
        and any([axis.extent for axis in stage.axes] == [3, 3] for stage in step.stages[:1])
    ]
    assert len(texts) == 2
    return texts


def test_weights_are_gathered_before_the_loop_over_positions():
    for text in loops():
        blocks = re.split(r"\n(?=\w+:)", text)
        reading = [block for block in blocks if "= call" in block and "@llvm.masked.load" in block]
        gathering = [block for block in blocks if re.search(r"= call .*@load_strided_\w+\(", block)]
        assert len(reading) == len(gathering) == 2, "for whole vectors, and for the rest"
        assert not set(reading) & set(gathering)


def test_index_arithmetic_of_neighbours_is_written_once():
    for text in loops():
        assert len(re.findall(r"= icmp \w+ i64", text)) > 4
        for block in re.split(r"\n(?=\w+:|define)", text):
            # Loops count with an addition of their own.
            written = re.findall(
                r"= ((?:mul|add|icmp \w+) i64 (?!%i\d+, 1$).*)", block, re.MULTILINE
            )
            assert len(written) == len(set(written))
