"""Memory is counted before it is allocated; more than the available memory is refused."""

import copy
import os
import pickle
import re
import tracemalloc

import numpy as np
import pytest
from error_texts import error_text, refused

import lamina as lm
from lamina import ops
from lamina.engines import host, machine_memory, room
from lamina.engines.cpu.engine import CpuEngine
from lamina.engines.cpu.run import binding
from lamina.engines.interpreter.engine import InterpreterEngine
from lamina.errors import DefinitionError, EngineError, ShapeError
from lamina.runtime import compiled as runtime

# The advice for a training whose batch does not fit.
DIVIDED = r"Take a batch of at most (\d+) examples, or divide the batch: micro_batch=\1\."

ENGINES = ("cpu", "interpreter")
X, Y = np.ones((8, 4), "float32"), np.arange(8) % 3


def network(width=5):
    return lm.Sequential(lm.Input(4), lm.Linear(width), lm.Tanh(), lm.Linear(3))


def attach(model, batch_size=8, optimizer=None):
    optimizer = optimizer or lm.Adam(0.01)
    return model.training(loss=lm.CrossEntropy(), optimizer=optimizer, batch_size=batch_size)


@pytest.fixture(autouse=True)
def every_allocation_is_checked(monkeypatch):
    """Tests are about tiny networks."""
    monkeypatch.setattr(room, "NOT_ASKED_BYTES", 0)


@pytest.fixture
def available(monkeypatch):
    return lambda count: monkeypatch.setattr(machine_memory, "available_bytes", lambda: count)


@pytest.fixture
def fits_exactly(available):
    """Checks that a call fits into so many bytes, and not into fewer."""

    def check(needed, call, subject="this model"):
        available(needed)
        call()
        available(needed - 1)
        with pytest.raises(EngineError, match=f"{subject} needs more memory than there is"):
            call()

    return check


@pytest.fixture
def leave(available, monkeypatch):
    """Limits the available memory, and fails where memory is allocated or a program compiled."""

    def only_scalars(_, shape, dtype, members=None):
        assert not shape
        return host.HostMemory(shape, dtype)

    def only(count):
        available(count)
        for engine in (CpuEngine, InterpreterEngine):
            monkeypatch.setattr(engine, "allocate", only_scalars)
            monkeypatch.setattr(engine, "compile", None)

    return only


def test_small_allocations_are_not_checked(monkeypatch):
    monkeypatch.setattr(room, "NOT_ASKED_BYTES", 1000)

    def require(count, ask):
        room.require_room("this needs", [room.Need("arena", count)], ask, where="cpu", advice="")

    require(1000, None)
    with pytest.raises(EngineError, match="this needs more memory than there is"):
        require(1001, lambda: 1000)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_model_that_does_not_fit_is_refused(engine, leave):
    leave(10 << 20)
    net = lm.Sequential(lm.Input(1 << 20), lm.BatchNorm(), lm.Linear(1 << 20))
    assert error_text(EngineError, lambda: lm.Model(net, engine)) == (
        f"in {engine}: this model needs more memory than there is\n"
        "  available   10 MiB\n"
        "  needed      12 TiB\n"
        "  needed for  drawing initial values: 8 TiB, parameters: 4 TiB, states of layers: 8 MiB\n"
        "  largest     parameter 2.weight f32[1048576, 1048576], 4 TiB\n"
        "  Make the layer of the largest tensor smaller."
    )


@pytest.mark.parametrize(
    "initializer",
    [lm.init.Uniform(0.5, 1.0), lm.init.XavierUniform(), lm.init.KaimingUniform()],
    ids=lambda initializer: type(initializer).__name__,
)
def test_initial_values_are_counted_once_while_they_are_drawn(initializer):
    shape = (4096, 512)
    initializer(shape, 0, 0)
    tracemalloc.start()
    try:
        size = initializer(shape, 0, 0).nbytes
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # The rest is temporary memory while pieces are drawn.
    assert peak < 1.2 * size


@pytest.mark.cases(
    ("layer", "arrays"),
    # The largest parameter is drawn in 8 bytes each.
    (lm.Linear(8), 1),
    (lm.Linear(8, weight_init=lm.init.Orthogonal()), 5),
    (lm.Embedding(8, 4, padding=0), 2),
    (lm.Embedding(8, 4, padding=0, weight_init=lm.init.Orthogonal()), 5),
    ids=["uniform", "orthogonal", "padding", "orthogonal with padding"],
)
def test_all_that_an_initializer_holds_at_once_is_counted(layer, arrays, fits_exactly):
    embeds = isinstance(layer, lm.Embedding)
    net = lm.Sequential(lm.Input(4, dtype="int64" if embeds else None), layer)
    fits_exactly(4 * net.parameter_count() + arrays * 8 * 32, lambda: lm.Model(net))


@pytest.mark.parametrize("copied", [copy.deepcopy, pickle.dumps], ids=lambda f: f.__name__)
def test_a_copy_that_does_not_fit_is_refused(copied, leave):
    model = lm.Model(lm.Sequential(lm.Input(4), lm.Linear(8)))
    leave(2 * 4 * 40 - 1)
    with pytest.raises(EngineError, match="a copy of this model needs more memory than there is"):
        copied(model)


def test_a_model_in_a_file_draws_no_values(tmp_path, fits_exactly):
    lm.Model(lm.Sequential(lm.Input(4), lm.Linear(8))).save(tmp_path / "model")
    fits_exactly(4 * 40, lambda: lm.load(tmp_path / "model"))


# More bytes than there are addresses.
HUGE = {
    "2**80 elements": lambda: lm.Model(lm.Sequential(lm.Input(2**40), lm.Linear(2**40))),
    "extents of 63 bits": lambda: lm.Model(lm.Sequential(lm.Input(2**62), lm.Linear(2**62))),
    "a batch": lambda: attach(lm.Model(network()), 2**62),
}


@pytest.mark.parametrize("case", HUGE)
def test_sizes_that_no_machine_has_are_refused(case):
    with pytest.raises(ShapeError, match="the result is larger than any memory"):
        HUGE[case]()


def test_more_axes_than_an_array_can_have_are_refused():
    x = lm.Input(2)
    ops.expand_dims(x, tuple(range(2, 64)))
    with pytest.raises(ShapeError, match="more axes than an array can have") as caught:
        ops.expand_dims(x, tuple(range(2, 65)))
    assert "at most 64 axes" in str(caught.value)
    with pytest.raises(ShapeError, match="at most 64 axes"):
        lm.Input(*(1,) * 64)


@pytest.mark.parametrize("extent", [2**63, 2**70, 2**500])
def test_an_extent_that_cannot_be_counted_is_refused(extent):
    with pytest.raises(ShapeError, match="whole numbers above zero of 64 bits"):
        lm.Input(extent)
    with pytest.raises(DefinitionError, match="features must be a whole number of 64 bits"):
        lm.Linear(extent)


def test_a_batch_that_cannot_be_counted_is_refused():
    for make in (lambda: attach(lm.Model(network()), 2**63), lambda: network().plan(2**63)):
        error = refused(DefinitionError, make)
        assert error.problem == "a batch has more examples than can be counted in 64 bits"


@pytest.mark.parametrize("engine", ENGINES)
def test_a_training_that_does_not_fit_is_refused(engine, leave):
    model = lm.Model(lm.Sequential(lm.Input(40), lm.Linear(3)), engine)
    leave(1 << 20)
    assert error_text(EngineError, lambda: attach(model, 1_000_000)) == (
        f"in {engine}: a batch of 1,000,000 examples needs more memory than there is\n"
        "  available   1 MiB\n"
        "  needed      179.29 MiB\n"
        "  needed for  inputs and targets: 160.22 MiB, arena: 19.07 MiB, "
        "state of the optimizer: 1012 B\n"
        "  largest     input input0 f32[1000000, 40], 152.59 MiB\n"
        "  Take a batch of at most 5,571 examples, or divide the batch: micro_batch=5571."
    )


def test_the_largest_batch_of_an_error_fits_and_the_next_does_not(available, on_call):
    model = lm.Model(network(100), "interpreter")
    sizes = []
    on_call(runtime, "compile_cached", lambda _, *, batch, **__: sizes.append(batch))
    available(300_000)
    with pytest.raises(EngineError, match="a batch of 50,000 examples needs more") as caught:
        attach(model, 50_000)
    match = re.fullmatch(DIVIDED, caught.value.advice)
    # The refused size, 1, the refused size again, and those between them.
    assert len(sizes) <= 8
    attach(model, int(match[1])).release()
    with pytest.raises(EngineError, match="needs more memory than there is"):
        attach(model, int(match[1]) + 1)


def test_the_state_of_an_optimizer_is_counted(leave):
    model = lm.Model(network(10_000))
    leave(500_000)
    error = refused(EngineError, lambda: attach(model, 1))
    assert dict(error.facts)["needed for"].startswith("state of the optimizer: 625.05 KiB")
    assert error.advice == (
        "Not even one example fits: take a smaller network, or an optimizer with less state."
    )


def test_a_training_needs_exactly_the_memory_of_its_bill(available):
    bill = network().plan(64, lm.CrossEntropy(), lm.Adam(0.01))
    needed = bill.peak_bytes - bill.parameter_bytes - bill.constant_bytes
    model = lm.Model(network(), "interpreter")
    available(needed)
    attach(model, 64).release()
    available(needed - 32)
    with pytest.raises(EngineError, match="a batch of 64 examples needs more memory"):
        attach(model, 64)


USES = {
    "a batch of 2,000 examples": lambda model, _: model.predict(np.ones((2000, 4), "float32")),
    "a batch of 4,000 examples": lambda _, run: run(np.ones(4000, "float32")),
    "this model": lambda model, _: model.profile(1, seconds=0.01),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("subject", USES)
def test_every_use_of_a_model_is_checked_against_the_available_memory(subject, engine, leave):
    model, x = lm.Model(network(100), engine), lm.Input()
    run = lm.compile(x, ops.cumsum(x, 0), engine)
    leave(100)
    with pytest.raises(EngineError, match=f"{subject} needs more memory than there is"):
        USES[subject](model, run)


def test_workspaces_count_before_they_are_allocated(available, monkeypatch):
    net = lm.Sequential(lm.Input(64, 16, 16), lm.Conv2d(64, 3, padding=1))
    model, x = lm.Model(net), np.ones((4, 64, 16, 16), "float32")
    bill = net.plan(4)
    workspaces = CpuEngine().workspace_bytes(bill.program)
    assert workspaces > 100_000
    available(bill.arena_bytes + bill.input_bytes + workspaces)
    model.predict(x)
    other = lm.Model.part(model, net)
    available(1000)
    # The allocated arena serves the same program again, but has no room for its packed operands.
    monkeypatch.setattr(binding, "aligned", None)
    error = refused(EngineError, lambda: other.predict(x))
    assert "workspaces: " in dict(error.facts)["needed for"]


def test_an_allocated_arena_is_not_counted_again(available):
    with attach(lm.Model(network(), "interpreter"), 4000) as training:
        available(8000 * 4)
        training.step(np.ones((2000, 4), "float32"), np.zeros(2000, int))


@pytest.mark.parametrize("size", [1 << 62, 1 << 63, 1 << 70])
def test_failed_allocations_are_engine_errors(size, available):
    available(None)
    error = refused(EngineError, lambda: host.aligned(size))
    assert error.problem == "the system refuses more memory"


@pytest.fixture
def system(tmp_path, monkeypatch):
    """Files of a system, where `PROC` and `GROUPS` are folders."""
    monkeypatch.setattr(machine_memory, "_PROC", tmp_path / "PROC")

    def write(files):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text.replace("GROUPS", str(tmp_path / "GROUPS")))

    return write


MEMINFO = "MemTotal:       1000 kB\nMemFree:         100 kB\nMemAvailable:    900 kB\n"
V2 = {
    "PROC/meminfo": MEMINFO,
    "PROC/self/cgroup": "0::/outer/inner\n",
    "PROC/self/mountinfo": "30 23 0:26 / GROUPS rw - cgroup2 cgroup2 rw,nsdelegate\n",
}
V1 = {
    "PROC/meminfo": MEMINFO,
    "PROC/self/cgroup": "5:cpu:/x\n4:memory,hugetlb:/docker/abc\n0::/\n",
    "PROC/self/mountinfo": (
        "29 23 0:25 / GROUPS/unified rw - cgroup2 none rw\n"
        "30 23 0:26 / GROUPS/cpu rw shared:9 - cgroup cgroup rw,cpu\n"
        "31 23 0:27 /docker/abc GROUPS/memory rw shared:8 - cgroup cgroup rw,memory,hugetlb\n"
    ),
}
INNER, OUTER = "GROUPS/outer/inner/memory.", "GROUPS/outer/memory."
SYSTEMS = {
    "without groups": ({"PROC/meminfo": MEMINFO}, 900 << 10),
    "groups without limits": (V2 | {f"{OUTER}max": "max\n"}, 900 << 10),
    "a limit": (V2 | {f"{INNER}max": "5000", f"{INNER}current": "3000"}, 2000),
    "a limit further out": (
        V2
        | {f"{INNER}max": "5000", f"{INNER}current": "3000"}
        | {f"{OUTER}max": "6000", f"{OUTER}current": "5500"},
        500,
    ),
    "cache of files": (
        V2
        | {f"{INNER}max": "5000", f"{INNER}current": "4800"}
        | {f"{INNER}stat": "anon 300\ninactive_file 1000\nactive_file 500\n"},
        1700,
    ),
    "more than the limit": (V2 | {f"{INNER}max": "50", f"{INNER}current": "90"}, 0),
    "the first version": (
        V1
        | {"GROUPS/memory/memory.limit_in_bytes": "5000"}
        | {"GROUPS/memory/memory.usage_in_bytes": "4000"}
        | {"GROUPS/memory/memory.stat": "inactive_file 1\ntotal_inactive_file 70\n"},
        1070,
    ),
    "a group outside of what is seen": (
        V2
        | {"PROC/self/cgroup": "0::/../../outer\n"}
        | {"GROUPS/memory.max": "5000", "GROUPS/memory.current": "1000"},
        4000,
    ),
}


@pytest.mark.skipif(os.name == "nt", reason="Windows says it otherwise")
@pytest.mark.cases("files, expected", SYSTEMS)
def test_available_memory_is_the_smallest_of_the_system_and_every_control_group(
    files, expected, system, monkeypatch
):
    monkeypatch.setattr(machine_memory, "_rest_of_addresses", lambda: None)
    system(files)
    assert machine_memory.available_bytes() == expected


def test_without_system_figures_the_physical_memory_is_available(system, monkeypatch):
    system({"PROC/meminfo": "nonsense", "PROC/self/cgroup": "", "PROC/self/mountinfo": "1 - \n"})
    monkeypatch.setattr(machine_memory, "_rest_of_addresses", lambda: None)
    assert machine_memory.available_bytes() == machine_memory.physical_bytes()
    monkeypatch.setattr(machine_memory, "physical_bytes", lambda: None)
    assert machine_memory.available_bytes() is None


def test_this_machine_has_available_memory():
    physical, available = machine_memory.physical_bytes(), machine_memory.available_bytes()
    assert 0 < available <= physical
