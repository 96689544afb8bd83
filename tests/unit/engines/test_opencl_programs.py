"""Programs on an OpenCL device, as kernels that are written by hand here."""

import copy
import gc
import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from error_texts import error_text
from gpu_cases import TRAITS
from opencl_cases import cl, refusing, with_offsets

from lamina.base.shapes import float32
from lamina.engines.discovery import open_engine
from lamina.engines.gpu.arena import arena_layout
from lamina.engines.gpu.executable import GpuProgram
from lamina.engines.gpu.launches import Gather, Launch, Launches, RepeatedLaunches, Workspace
from lamina.engines.opencl import build
from lamina.engines.opencl import driver as driver_module
from lamina.errors import EngineError, InternalError
from lamina.program.index import Axis, axis_index
from lamina.program.program import Allocation, Buffer, Plan, Program
from lamina.program.scalar import Literal
from lamina.program.steps import Loop, Store, Write

# t = 2 x + c, in a repeated step and through s; y = t + p; p += 1.
TEXT = with_offsets("""
kernel void take(global const float* data, global float* x, global const long* rows, int run) {
    size_t n = get_global_id(0);
    if (n < 6) x[n] = data[2 * rows[3 * run + n / 2] + n % 2];
}
kernel void twice(global const float* x, global const float* c, global float* s, int i) {
    size_t n = get_global_id(0);
    if (n < 6) s[n] = (i == 0 ? c[n] : s[n]) + x[n];
}
kernel void keep(global float* t, global const float* s, global const float* nothing) {
    size_t n = get_global_id(0);
    if (n < 6) t[n] = nothing == 0 ? s[n] : 0.0f;
}
kernel void last(global float* y, global const float* t, global float* p) {
    size_t n = get_global_id(0);
    if (n < 3) {
        y[n] = t[n] + p[n];
        y[n + 3] = t[n + 3] + p[n];
        p[n] += 1.0f;
    }
}
""")
LAUNCHES = Launches(
    TEXT,
    (
        Launch("twice", ("x", "c", "s"), 6, 0),
        Launch("keep", ("t", "s", "empty"), 6, 1),
        Launch("last", ("y", "t", "p"), 3, 2),
    ),
    (RepeatedLaunches(0, 1, 2),),
    Gather("take", ("x",), 6),
)
C = np.arange(6, dtype="float32")
X = np.array([[1, 2], [3, 4], [5, 6]], "float32")
EMPTY = np.zeros((3, 0), "float32")


def program(arena_bytes=280):
    axis = Axis("i", 3)
    steps = [
        Loop(name, (axis,), (Write((), (Store(buffer, axis_index(axis), Literal(0, float32)),)),))
        for name, buffer in (("first", "t"), ("second", "t"), ("third", "p"))
    ]
    buffers = [
        Buffer("x", "input", (3, 2), float32),
        Buffer("p", "parameter", (3,), float32),
        Buffer("c", "constant", (6,), float32),
        Buffer("empty", "input", (3, 0), float32),
        Buffer("s", "temporary", (6,), float32),
        Buffer("t", "temporary", (6,), float32),
        Buffer("y", "temporary", (3, 2), float32),
    ]
    allocations = (
        Allocation("t", 0, 24, 0, 2),
        Allocation("y", 128, 24, 2, 3),
        Allocation("s", 256, 24, 0, 1),
    )
    return Program(
        "test",
        {buffer.name: buffer for buffer in buffers},
        tuple(steps),
        (("result", "y"), ("given", "x"), ("parameter", "p"), ("nothing", "empty")),
        {"c": C},
        Plan((arena_bytes,), 72, allocations),
    )


def made(engine, arena=None, launches=LAUNCHES, of=None, **options):
    memory = engine.allocate((3,), np.dtype("float32"))
    arena = arena or engine.arena()
    return GpuProgram(of or program(), launches, {"p": memory}, arena, **options), memory


def expected(x, run):
    return (2 * x.reshape(-1) + C + run).reshape(3, 2)


def check_run(executable, run=0, x=X):
    """Runs the program, whose parameter has been increased by so many runs."""
    executable.run([x, EMPTY])
    np.testing.assert_array_equal(executable.output("result"), expected(x, run))


def test_runs_return_the_results_of_the_kernels(engine):
    executable, memory = made(engine)
    for run in range(3):
        check_run(executable, run, X + run)
    np.testing.assert_array_equal(executable.output("given"), X + 2)
    np.testing.assert_array_equal(memory.read(), [3, 3, 3])
    assert executable.output("nothing").shape == (3, 0)


DATA = {"x": (10, 2), "empty": (10, 0)}


def test_a_timed_program_returns_the_seconds_of_each_step(engine):
    executable, _ = made(engine, timed=True)
    check_run(executable)
    assert (executable.step_seconds() > 0).all()
    assert (executable.step_seconds() == 0).all()


def test_programs_share_an_arena_and_are_moved_when_it_changes(engine):
    arena = engine.arena()
    first, memory = made(engine, arena)
    small = arena.bytes
    second, other = made(engine, arena, of=program(5000))
    assert arena.bytes > small
    for executable, shift in ((first, 0), (second, 0), (first, 1)):
        check_run(executable, shift)
    third, last = made(engine, arena)
    check_run(third)
    second.release()
    assert arena.bytes == small
    check_run(first, 2)
    first.release()
    assert arena.bytes == small
    third.release()
    assert arena.bytes == 0
    for parameter in (memory, other, last):
        parameter.release()


def test_programs_of_different_sizes_share_a_block_without_sub_buffers(engine, monkeypatch):
    calls = []
    monkeypatch.setattr(cl.Buffer, "get_sub_region", lambda *region: calls.append(region))
    arena = engine.arena()
    pairs = [made(engine, arena, of=program(size)) for size in (280, 5000)]
    used = [[executable._buffers[name] for name in "xsty"] for executable, _ in pairs]
    assert len({part.block.int_ptr for row in used for part in row}) == 1
    assert [[part.offset for part in row] for row in used] == [
        [384, 256, 0, 128],
        [5120, 256, 0, 128],
    ]
    for run in range(3):
        for executable, _ in pairs:
            check_run(executable, run, X + run)
    for executable, memory in pairs:
        executable.release()
        memory.release()
    assert calls == []


def test_programs_continue_when_the_arena_of_another_one_cannot_be_allocated(engine, monkeypatch):
    from lamina.engines.gpu import executable as module

    arena = engine.arena()
    first, _ = made(engine, arena)
    before = arena.bytes
    monkeypatch.setattr(module, "require_room", lambda *_, **__: None)
    text = error_text(EngineError, lambda: made(engine, arena, of=program(1 << 50)))
    assert "there is not enough memory on the device" in text
    assert arena.bytes == before
    check_run(first)


def test_programs_that_lost_their_memory_allocate_it_again(engine, monkeypatch):
    arena = engine.arena()
    driver = arena.driver
    first, memory = made(engine, arena)
    small = arena.bytes
    second, _ = made(engine, arena, of=program(5000))

    # Blocks are exchanged for smaller ones, and these are refused.
    monkeypatch.setattr(driver, "allocate", NO_BUFFER)
    second.release()
    assert arena.bytes == 0
    with pytest.raises(EngineError, match="MEM_OBJECT_ALLOCATION_FAILURE in clCreateBuffer"):
        first.run([X, EMPTY])
    np.testing.assert_array_equal(memory.read(), [0, 0, 0])
    monkeypatch.undo()
    first.run([X, EMPTY])
    assert arena.bytes == small
    np.testing.assert_array_equal(first.output("result"), expected(X, 0))


NO_BUFFER = refusing("MEM_OBJECT_ALLOCATION_FAILURE", "clCreateBuffer")


class Counting:
    """A program that only knows its blocks."""

    blocks: Any = "none yet"

    def detach(self):
        self.blocks = None

    def move_to(self, blocks):
        self.blocks = blocks


def test_every_program_is_moved_when_blocks_are_exchanged(engine):
    arena = engine.arena()
    tenant, other = Counting(), Counting()
    arena.enter(tenant, (64,))
    before = tenant.blocks
    arena.enter(other, (4096, 64))
    assert tenant.blocks == other.blocks != before
    assert len(tenant.blocks) == 2
    arena.leave(other)
    assert len(tenant.blocks) == 1
    arena.leave(tenant)


def test_programs_without_blocks_continue_after_a_failure(engine, monkeypatch):
    arena = engine.arena()
    alone = Counting()
    arena.enter(alone, ())
    first, _ = made(engine, arena)
    second, _ = made(engine, arena, of=program(5000))
    monkeypatch.setattr(arena.driver, "allocate", NO_BUFFER)
    second.release()
    first.release()
    assert alone.blocks is None
    arena.restore()
    assert alone.blocks == []


@pytest.mark.cases(
    ("routine", "doing"),
    ("CommandQueue", "running a program"),
    ("Kernel", "creating a program's kernels"),
    ("enqueue_nd_range_kernel", "running a program"),
)
def test_failures_of_the_driver_are_engine_errors(engine, driver, monkeypatch, routine, doing):
    def work():
        executable, _ = made(engine, timed=routine == "CommandQueue")
        executable.run([X, EMPTY])

    monkeypatch.setattr(driver, "_command_buffers", None)
    monkeypatch.setattr(driver, "_timing", None)
    monkeypatch.setattr(driver_module.cl, routine, refusing("OUT_OF_RESOURCES", routine))
    text = error_text(EngineError, work)
    assert f"the OpenCL driver failed at {doing}" in text
    assert f"OUT_OF_RESOURCES in {routine}" in text
    monkeypatch.undo()
    work()


def test_a_data_set_that_cannot_be_gathered_is_an_engine_error(engine, monkeypatch):
    executable, _ = made(engine)
    resident = {name: engine.allocate(shape, X.dtype) for name, shape in DATA.items()}
    refuse = refusing("OUT_OF_HOST_MEMORY", "clCreateKernel")
    monkeypatch.setattr(driver_module.cl, "Kernel", refuse)
    with pytest.raises(EngineError, match="failed at preparing runs of a program"):
        executable.run_many(resident, np.zeros((2, 3), "int64"), ["result"])


def test_arenas_and_memories_of_another_engine_are_refused(engine):
    other = open_engine("interpreter")
    with pytest.raises(InternalError, match="an engine was given an arena of another one"):
        engine.compile(program(), {}, other.arena())
    memories = {"p": other.allocate((3,), X.dtype)}
    with pytest.raises(InternalError, match="an engine was given memory of another one"):
        GpuProgram(program(), LAUNCHES, memories, engine.arena())


def test_inputs_are_taken_in_any_layout_but_in_their_own_dtype(engine):
    executable, _ = made(engine)
    for n, x in enumerate((np.asfortranarray(X), X.reshape(-1), X[::-1][::-1])):
        executable.run([x, EMPTY])
        np.testing.assert_array_equal(executable.output("result"), expected(X, n))
    with pytest.raises(TypeError, match="Cannot cast"):
        executable.run([X.astype("int32"), EMPTY])


def test_released_and_unreferenced_memory_is_not_counted(engine):
    gc.collect()
    allocated = engine.arena().driver.allocated
    before = allocated.bytes
    executable, memory = made(engine)
    assert allocated.bytes > before
    for _ in range(2):
        executable.release()
        memory.release()
        assert allocated.bytes == before
    pair = made(engine)
    del pair
    gc.collect()
    assert allocated.bytes == before


def test_kernels_that_the_compiler_refuses_are_shown(engine):
    launches = Launches(
        "kernel void f(global float* a) {\n    a[0] = unheard;\n}\n",
        (Launch("f", ("y",), 1, 0),),
        (),
        (),
    )
    text = error_text(InternalError, lambda: made(engine, launches=launches))
    assert "the OpenCL compiler refuses a kernel" in text
    assert "a[0] = unheard;" in text


def test_a_listing_shows_the_launches_of_a_step_and_their_kernels(engine, monkeypatch):
    monkeypatch.setattr(type(engine), "_launches", lambda *_: LAUNCHES)
    assert engine.listing(program(), 1, "opencl") == with_offsets(
        "// step 1: keep(t, s, empty), 6 work items\n"
        "kernel void keep(global float* t, global const float* s, global const float* nothing) {\n"
        "    size_t n = get_global_id(0);\n"
        "    if (n < 6) t[n] = nothing == 0 ? s[n] : 0.0f;\n"
        "}"
    )


def test_binaries_are_kept_and_built_anew_if_they_are_refused(engine, on_call, monkeypatch):
    # PoCL keeps them itself.
    monkeypatch.setattr(build, "has_src_build_cache", lambda _: None)
    kept = {}
    monkeypatch.setattr(build, "find", kept.get)
    monkeypatch.setattr(build, "keep", kept.__setitem__)
    text = "kernel void alone(global float* a) { a[0] = 1; }"
    driver = engine.arena().driver
    driver.build(text)
    (key,) = kept
    good = kept[key]
    assert driver.build(text).kernel_names == "alone"
    assert kept[key] is good
    refused = b"no binary"
    kept[key] = refused

    def check(_, *rest):
        # Not by the driver itself: some end the process where others refuse.
        if rest[-1] == [refused]:
            raise build.cl.LogicError("refused")

    on_call(build.cl, "Program", check)
    assert driver.build(text).kernel_names == "alone"
    assert kept[key] != refused


def test_an_arena_above_the_limit_of_a_block_has_several_blocks():
    example = program()
    no_workspaces = Launches("", (), (), ())
    unsplit = arena_layout(example, no_workspaces, TRAITS)
    assert unsplit.blocks == (280 + 104 + 24,)
    assert unsplit.locations["y"] == (0, 128, 24)
    split = arena_layout(example, no_workspaces, replace(TRAITS, largest_block_bytes=310))
    assert split.blocks == (280, 24)
    assert split.locations == {
        "t": (0, 0, 24),
        "y": (0, 128, 24),
        "s": (0, 256, 24),
        "x": (1, 0, 24),
    }


def test_workspaces_that_are_used_at_different_times_share_memory():
    workspaces = {"a": Workspace(0, 100), "b": Workspace(128, 8), "c": Workspace(0, 40)}
    launches = Launches("", (), (), (), workspaces)
    layout = arena_layout(program(), launches, TRAITS)
    assert layout.blocks == (512 + 136,)
    assert layout.locations["a"] == (0, 512, 100)
    assert layout.locations["b"] == (0, 640, 8)
    assert layout.locations["c"] == (0, 512, 40)


def test_an_engine_is_copied_and_pickled_by_its_name(engine):
    for again in (copy.deepcopy(engine), pickle.loads(pickle.dumps(engine))):
        assert again.device == engine.device
        made(again, copy.deepcopy(engine.arena()))[0].release()


def test_threads_may_use_programs_of_their_own(engine):
    def work(shift):
        executable, _ = made(engine)
        for run in range(20):
            check_run(executable, run, X + shift)

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(work, range(3)))


def test_a_compiler_without_memory_is_an_engine_error(engine, monkeypatch):
    no_memory = refusing("OUT_OF_HOST_MEMORY", "build", lambda _: MemoryError())
    monkeypatch.setattr(build, "_built", no_memory)
    text = error_text(EngineError, lambda: engine._driver.build("kernel void f(void) {}"))
    assert "in opencl: the OpenCL compiler has too little memory\n  device  " in text
    assert "raise the limit of the process's memory." in text
