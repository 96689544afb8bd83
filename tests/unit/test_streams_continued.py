"""Streams and data sets are continued within an epoch, with the same bits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fit_cases import same
from stream_cases import TEST, TRAIN, batches_of, fault, trained
from test_fit_checkpoints import at_step

import lamina as lm
from lamina.data import Stream
from lamina.data.positions import Position
from lamina.errors import DataError
from lamina.training.history import History

ROOT = Path(__file__).parents[2]


@contextmanager
def failing(step: int) -> Iterator[None]:
    """The fit in the block fails after so many training steps."""

    def fail() -> None:
        raise ZeroDivisionError

    with pytest.MonkeyPatch.context() as patch:
        at_step(patch, step, fail)
        with pytest.raises(ZeroDivisionError):
            yield


class Stateful:
    """A source with a state, as loaders of torchdata have one."""

    def __init__(self) -> None:
        self.next = 0
        self.given: list[int] = []

    def __iter__(self) -> Iterator[Any]:
        while self.next < 90:
            start, self.next = self.next, self.next + 7
            self.given.append(start)
            yield TRAIN.inputs[start : start + 7], TRAIN.targets[start : start + 7]
        self.next = 0

    def state_dict(self) -> dict[str, int]:
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.next = state["next"]


def skipping(epoch: int, skip: int) -> Iterator[Any]:
    """A source that omits batches itself; every epoch has another order."""
    order = np.random.default_rng(epoch).permutation(90)
    for start in range(7 * skip, 90, 7):
        rows = order[start : start + 7]
        yield TRAIN.inputs[rows], TRAIN.targets[rows]


class Shuffled:
    """A source that draws an order in each epoch, as PyTorch's loaders do."""

    def __init__(self) -> None:
        self.generator = np.random.default_rng(5)

    def __iter__(self) -> Iterator[Any]:
        order = self.generator.permutation(90)
        for start in range(0, 90, 7):
            rows = order[start : start + 7]
            yield TRAIN.inputs[rows], TRAIN.targets[rows]


CONTINUED: dict[str, Callable[[], Any]] = {
    "data set": lambda: TRAIN,
    "function": lambda: batches_of(TRAIN, 7),
    "window": lambda: Stream(batches_of(TRAIN, 7), window=30),
    "small window": lambda: Stream(batches_of(TRAIN, 20), window=3),
    "skip": lambda: skipping,
    "skip and window": lambda: Stream(skipping, window=25),
    "state": Stateful,
    "state and window": lambda: Stream(Stateful(), window=25),
    "shuffled": Shuffled,
    "steps_per_epoch": lambda: Stream(skipping, steps_per_epoch=7, window=10),
    "regroup": lambda: Stream(skipping, regroup=False),
}


def fitted(make: Callable[[], Any], **how: Any) -> tuple[dict[str, Any], History]:
    return trained(make(), epochs=4, validation=TEST, **how)


@pytest.mark.parametrize("make", CONTINUED.values(), ids=CONTINUED.keys())
@pytest.mark.parametrize("step", [2, 17, 23, 26])
def test_a_fit_that_failed_in_an_epoch_continues_from_its_training_step(
    make: Callable[[], Any], step: int, tmp_path: Path
) -> None:
    path = tmp_path / "checkpoint"
    with failing(step):
        fitted(make, checkpoint=path, checkpoint_steps=1)
    whole, part = fitted(make), fitted(make, checkpoint=path, resume=True)
    assert same(whole[0], part[0])
    assert whole[1].values == part[1].values


def test_the_rate_of_an_epoch_that_is_continued_is_that_of_its_begin(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    falling = lm.Adam(lm.schedules.Linear(0.02, 60))
    how: Any = {"epochs": 4, "optimizer": falling, "record": ["rate"]}
    with failing(17):
        trained(TRAIN, checkpoint=path, checkpoint_steps=1, **how)
    part, whole = trained(TRAIN, checkpoint=path, resume=True, **how), trained(TRAIN, **how)
    assert part[1].values == whole[1].values
    assert len(set(whole[1]["rate"])) == 4


@pytest.mark.skipif(os.name != "posix", reason="SIGKILL is of POSIX")
@pytest.mark.parametrize("name", ["data set", "window", "skip and window", "state", "shuffled"])
def test_a_fit_that_was_killed_in_an_epoch_continues_from_its_training_step(
    name: str, tmp_path: Path
) -> None:
    path = tmp_path / "checkpoint"
    code = f"""
        import os, signal, sys
        sys.path[:0] = [{str(ROOT)!r}, {str(Path(__file__).parent)!r}]
        import pytest, test_streams_continued as own, test_fit_checkpoints as other
        kill = lambda: os.kill(os.getpid(), signal.SIGKILL)
        other.at_step(pytest.MonkeyPatch(), 29, kill)
        own.fitted(own.CONTINUED[{name!r}], checkpoint={str(path)!r}, checkpoint_steps=2)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=False)
    assert done.returncode == -signal.SIGKILL
    make = CONTINUED[name]
    whole, part = fitted(make), fitted(make, checkpoint=path, resume=True)
    assert same(whole[0], part[0])
    assert whole[1].values == part[1].values


@pytest.mark.torch
def test_a_shuffling_loader_of_pytorch_continues_in_its_order(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    def make() -> Any:
        pairs = torch.utils.data.TensorDataset(
            torch.tensor(TRAIN.inputs), torch.tensor(TRAIN.targets)
        )
        generator = torch.Generator().manual_seed(4)
        return torch.utils.data.DataLoader(pairs, 20, shuffle=True, generator=generator)

    path = tmp_path / "checkpoint"
    with failing(29):
        fitted(make, checkpoint=path, checkpoint_steps=1)
    whole, part = fitted(make), fitted(make, checkpoint=path, resume=True)
    assert same(whole[0], part[0])


def test_a_source_with_a_state_reads_nothing_again(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    with failing(10):
        trained(Stream(Stateful(), window=20), checkpoint=path, checkpoint_steps=1, epochs=1)
    source = Stateful()
    trained(Stream(source, window=20), checkpoint=path, resume=True, epochs=1)
    assert source.given[0] > 0


def test_a_state_that_is_not_plain_data_is_refused(tmp_path: Path) -> None:
    class Odd(Stateful):
        def state_dict(self) -> Any:
            return {"next": object()}

    text = fault(Odd(), DataError, checkpoint=tmp_path / "checkpoint")
    assert "the state of the source is not plain data" in text
    assert text.endswith("Give a function with a parameter `skip`, which omits so many batches.")


def test_checkpoints_of_steps_need_a_file() -> None:
    with pytest.raises(lm.errors.DefinitionError, match="there is no file for a checkpoint"):
        trained(TRAIN, checkpoint_steps=3)


def test_a_position_is_plain_data() -> None:
    position = Position(1, 2, 3, 4, 5, {"next": 6})
    assert Position.of(position.notes()) == position
