"""Rewriting replaces axes, buffers, locals and loads everywhere, and keeps everything else."""

from dataclasses import replace

from lamina.base.shapes import float32, int64
from lamina.program.index import Axis, axis_index, gathered_index
from lamina.program.rewrite import Rewrite
from lamina.program.scalar import Apply, Bound, Load, Local, Position, Within
from lamina.program.steps import Contraction, Loop, Reduce, Scan, Store, Write

OLD, NEW = Axis("i", 12), Axis("j", 4)
HERE, THERE = axis_index(OLD), axis_index(NEW) * 3
CHANGE = {OLD: THERE}
# A row that is read from data, of a row that is read from data.
GATHERED = gathered_index(Load("rows", HERE, int64), 5)


def load(index, buffer="x"):
    return Load(buffer, index, float32, (Bound(index, 0, 7),))


def test_bounds_indices_and_gathered_indices_are_rewritten():
    bound = Within((Bound(HERE, 1, 5),))
    before = Apply("select", (bound, load(GATHERED * 2), Local("a", float32)), float32)
    after = Rewrite(CHANGE).scalar(before)
    there = gathered_index(Load("rows", THERE, int64), 5)
    bound = Within((Bound(THERE, 1, 5),))
    assert after == Apply("select", (bound, load(there * 2), Local("a", float32)), float32)
    assert Rewrite(CHANGE).scalar(Position(HERE + 1)) == Position(THERE + 1)
    assert Rewrite(CHANGE).index(HERE // 3 * 5 + HERE % 3) == axis_index(NEW) * 5


def test_unchanged_expressions_are_the_same_objects():
    index = gathered_index(load(axis_index(NEW)), 5) // 2 * 4 + 1
    scalar = Apply("negative", (Apply("cast", (load(index),), float32),), float32)
    change = Rewrite(CHANGE)
    assert change.scalar(scalar) is scalar
    assert change.index(index) is index
    bounds = (Bound(index, 0, 3),)
    assert change.bounds(bounds) is bounds


def test_shared_operands_stay_shared_between_scalars():
    shared = Apply("exp", (load(HERE),), float32)
    change = Rewrite(CHANGE)
    one = change.scalar(Apply("add", (shared, shared), float32))
    other = change.scalar(Apply("negative", (shared,), float32))
    assert one.operands[0] is one.operands[1] is other.operands[0]


def test_deep_scalars_are_rewritten():
    deep = load(HERE)
    for _ in range(5000):
        deep = Apply("negative", (deep,), float32)
    after = Rewrite(CHANGE).scalar(deep)
    for _ in range(5000):
        after = after.operands[0]
    assert after == load(THERE)


def test_buffers_are_renamed_in_the_order_of_the_text():
    asked = []

    def renamed(name):
        asked.append(name)
        return name.upper()

    index = gathered_index(Load("at", axis_index(NEW), int64), 4)
    store = Store("c", index, Apply("add", (Local("sum", float32), load(HERE, "d")), float32))
    step = Contraction(
        *("product", (), (OLD,), (NEW,), ()),
        *(load(HERE, "a"), load(axis_index(NEW), "b"), "sum", float32, (store,)),
    )
    after = Rewrite(buffer=renamed).record(step)
    assert asked == ["a", "b", "c", "at", "d"]
    assert "C[@(AT[j])] = sum + D[i if 0 <= i < 7]" in str(after)


def test_stages_are_rewritten_but_for_their_own_axes():
    reduce = Reduce("r", "sum", (OLD,), load(HERE), float32)
    scan = Scan(OLD, "sum", load(HERE), "y", HERE, float32)
    write = Write(
        (OLD,), (Store("y", HERE, Local("r", float32), accumulate=True),), sequential=True
    )
    step = Loop("loop", (), (reduce, scan, write))
    change = Rewrite(CHANGE, {"r": Local("s", float32)}, buffer=lambda name: name + "2")
    new = load(THERE, "x2")
    assert change.record(step) == Loop(
        "loop",
        (),
        (
            replace(reduce, value=new),
            replace(scan, value=new, buffer="y2", index=THERE),
            replace(write, stores=(Store("y2", THERE, Local("s", float32), accumulate=True),)),
        ),
    )


def test_loads_are_replaced_after_their_indices():
    inner = Load("rows", HERE, int64)
    outer = Load("x", gathered_index(inner, 5), float32)
    change = Rewrite(load=lambda one: replace(one, index=one.index + 1))
    assert str(change.scalar(outer)) == "x[@(rows[i + 1]) + 1]"


def test_a_buffer_may_become_a_range_of_another():
    i = Axis("i", 4)
    store = Store("0", axis_index(i), Load("1", axis_index(i), float32))
    rewrite = Rewrite(
        buffer=lambda name: {"0": "rows", "1": "x"}[name],
        place=lambda name, index: index + (40 if name == "0" else 0),
    )
    assert rewrite.record(store) == Store(
        "rows", axis_index(i) + 40, Load("x", axis_index(i), float32)
    )
