"""Frozen dataclasses whose methods are compiled when they are first used."""

# As in the package: annotations are text, which the compiled methods keep.
from __future__ import annotations

import copy
import dataclasses
import inspect
import itertools
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import FrozenInstanceError, dataclass, field
from functools import partial
from typing import Any, get_type_hints

import numpy as np
import pytest
from error_texts import error_text

from lamina.base.records import frozen_dataclass


def plain(decorated):
    @decorated
    class Point:
        """A point."""

        x: int
        y: float = 0.5

    return Point


def records(decorated):
    """Classes, and the arguments of calls that make their objects."""

    @decorated
    class Base:
        first: int
        shared: str = "base"

    @decorated
    class Rich(Base):
        entries: list[int] = field(default_factory=list[int])
        shared: str = "derived"
        hidden: int = field(default=3, repr=False)
        apart: int = field(default=4, compare=False)
        unhashed: list[int] = field(default_factory=list[int], hash=False, repr=False)
        computed: int = field(init=False, compare=False)
        fixed: int = field(init=False, default=7)
        named: int = field(default=9, kw_only=True)

        def __post_init__(self):
            object.__setattr__(self, "computed", self.first * 2)

    @decorated
    class Custom:
        a: int
        b: int = 1

        def __eq__(self, other):
            return isinstance(other, Custom)

        def __hash__(self):
            return 5

        def __repr__(self):
            return "custom"

    @decorated
    class OwnEquality:
        a: int

        def __eq__(self, other):
            return self is other

    @decorated
    class Empty:
        """Nothing."""

    return {
        plain(decorated): ((1,), (2,), (1, 0.5), (1, 0.6)),
        Rich: ((1,), (2,), (1, "x"), (1, "derived", [], 3, 8), (1, "derived", [], 4)),
        Custom: ((1,), (2,)),
        OwnEquality: ((1,), (1,)),
        Empty: ((), ()),
    }


def outcome(action):
    try:
        return action()
    except Exception as error:
        return type(error), str(error)


PAIRS = zip(records(frozen_dataclass).items(), records(dataclass(frozen=True)), strict=True)


@pytest.mark.parametrize(("ours", "calls", "theirs"), [(*pair, cls) for pair, cls in PAIRS])
def test_a_record_behaves_like_a_frozen_dataclass(ours, calls, theirs):
    assert str(inspect.signature(ours)) == str(inspect.signature(theirs))
    assert ours.__match_args__ == theirs.__match_args__
    assert repr(dataclasses.fields(ours)) == repr(dataclasses.fields(theirs))
    assert ours.__init__.__qualname__ == theirs.__init__.__qualname__
    pairs = [[cls(*call) for call in calls] for cls in (ours, theirs)]
    for record, reference in zip(*pairs, strict=True):
        assert repr(record) == repr(reference)
        assert dataclasses.asdict(record) == dataclasses.asdict(reference)
        if "OwnEquality" not in repr(ours):
            assert outcome(partial(hash, record)) == outcome(partial(hash, reference))
        for name in ("x", "first", "unknown"):
            for act in (lambda v, n=name: setattr(v, n, 1), lambda v, n=name: delattr(v, n)):
                assert outcome(partial(act, record)) == outcome(partial(act, reference))
    for (a, c), (b, d) in itertools.product(zip(*pairs, strict=True), repeat=2):
        assert (a == b) == (c == d)
    assert pairs[0][0] != pairs[1][0] or "Custom" in repr(ours)


@frozen_dataclass
class Ours:
    """One that can be pickled."""

    x: int
    entries: list[int] = field(default_factory=list[int])


@frozen_dataclass
class Single:
    """One with a single field."""

    x: Any


def test_wrong_arguments_raise_the_errors_of_dataclasses():
    ours, theirs = plain(frozen_dataclass), plain(dataclass(frozen=True))
    for call in (lambda c: c(), lambda c: c(1, 2, 3), lambda c: c(1, z=2), lambda c: c(1, x=2)):
        assert outcome(lambda c=call: c(ours)) == outcome(lambda c=call: c(theirs))


def test_each_instance_has_its_own_default():
    assert Ours(1).entries is not Ours(1).entries
    assert "entries: 'list[int]' = <factory>" in str(inspect.signature(Ours))
    assert get_type_hints(Ours.__init__) == {"x": int, "entries": list[int], "return": type(None)}


def test_copies_pickles_and_replacements_are_equal():
    record = Ours(1, [2])
    copies = pickle.loads(pickle.dumps(record)), copy.deepcopy(record), dataclasses.replace(record)
    assert copies == (record,) * 3
    assert dataclasses.replace(record, x=3) == Ours(3, [2])
    assert dataclasses.is_dataclass(Ours)
    # Values are compared as in a tuple: an object equals itself even if it is NaN or an array.
    for value in (float("nan"), np.zeros(2)):
        assert Single(value) == Single(value)


def is_compiled(cls, name):
    """Whether the method is compiled from text."""
    method = vars(cls)[name]
    return inspect.isfunction(method) and method.__code__.co_filename.startswith("<")


def test_the_constructor_is_compiled_when_it_is_first_used():
    cls = plain(frozen_dataclass)
    assert not is_compiled(cls, "__init__")
    point = cls(1)
    assert is_compiled(cls, "__init__")
    # All records share the code of the others.
    assert point == cls(1)
    assert hash(point) == hash(cls(1))
    assert not any(is_compiled(cls, name) for name in ("__eq__", "__hash__", "__repr__"))


def test_a_subclass_may_be_a_frozen_dataclass_or_no_dataclass():
    @dataclass(frozen=True)
    class Dataclass(Ours):
        z: int = 3

    class Plain(Ours):
        def __init__(self):
            super().__init__(5)
            self.own = 6

    assert repr(Dataclass(1)).endswith("Dataclass(x=1, entries=[], z=3)")
    assert Dataclass(1) == Dataclass(1) != Dataclass(1, z=4)
    plain = Plain()
    assert (plain.x, plain.own) == (5, 6)
    del plain.own
    with pytest.raises(FrozenInstanceError) as raised:
        plain.x = 6
    assert str(raised.value) == "cannot assign to field 'x'"


def test_a_subclass_that_is_not_frozen_is_refused():
    text = error_text(TypeError, lambda: dataclass(type("Thawed", (Ours,), {})))
    assert text == "cannot inherit non-frozen dataclass from a frozen one"


def test_options_omit_methods():
    @frozen_dataclass(eq=False, repr=False, init=False)
    class Bare:
        x: int = 1

    assert Bare() != Bare()
    assert hash(Bare()) != hash(Bare()) or Bare.__hash__ is object.__hash__
    assert repr(Bare()).startswith("<")
    with pytest.raises(TypeError):
        Bare(2)


def test_threads_that_come_at_once_find_the_same_class():
    for _ in range(20):
        cls = plain(frozen_dataclass)
        barrier = threading.Barrier(4)

        def make(_, cls=cls, barrier=barrier):
            barrier.wait()
            return cls(1), hash(cls(1)), cls(1) == cls(1)

        with ThreadPoolExecutor(4) as threads:
            results = list(threads.map(make, range(4)))
        assert results == [(cls(1), hash(cls(1)), True)] * 4
