"""Streams and data sets are continued within an epoch, with the same bits."""

from contextlib import contextmanager

import numpy as np
import pytest
from stream_cases import TEST, batches_of, fault, trained
from training_cases import at_step, data, same

import lamina as lm
from lamina.checks.stored import stored
from lamina.data import Stream
from lamina.data.positions import Position
from lamina.errors import DataError
from lamina.training import checkpoints, steps

TRAIN = data(20)


@contextmanager
def failing(step):
    """The fit in the block fails after so many training steps."""

    with pytest.MonkeyPatch.context() as patch:
        at_step(patch, step, lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            yield


def rows_of(order):
    """Batches of 7 examples of `TRAIN` in an order."""
    for start in range(0, len(order), 7):
        yield TRAIN.inputs[order[start : start + 7]], TRAIN.targets[order[start : start + 7]]


class Stateful:
    """A source with a state, as loaders of torchdata have one."""

    def __init__(self):
        self.next = 0
        self.given = []

    def __iter__(self):
        while self.next < len(TRAIN):
            start, self.next = self.next, self.next + 7
            self.given.append(start)
            yield TRAIN.inputs[start : start + 7], TRAIN.targets[start : start + 7]
        self.next = 0

    def state_dict(self):
        return {"next": self.next}

    def load_state_dict(self, state):
        self.next = state["next"]


def skipping(epoch, skip):
    """A source that omits batches itself; every epoch has another order."""
    return rows_of(np.random.default_rng(epoch).permutation(len(TRAIN))[7 * skip :])


class Shuffled:
    """A source that draws an order in each epoch, as PyTorch's loaders do."""

    def __init__(self):
        self.generator = np.random.default_rng(5)

    def __iter__(self):
        return rows_of(self.generator.permutation(len(TRAIN)))


def of_sizes(*sizes):
    """Batches of these sizes."""
    parts = zip(
        *(np.split(a, np.cumsum(sizes)) for a in (TRAIN.inputs, TRAIN.targets)), strict=True
    )
    return [*parts][: len(sizes)]


def of_epochs(epoch):
    """A source that has no more than two epochs."""
    return [of_sizes(7, 9), of_sizes(4, 4, 4)][epoch]


CONTINUED = {
    "data set": lambda: TRAIN,
    "function": lambda: batches_of(TRAIN, 7),
    "window": lambda: Stream(batches_of(TRAIN, 7), window=9),
    "small window": lambda: Stream(batches_of(TRAIN, 20), window=3),
    "skip": lambda: skipping,
    "skip and window": lambda: Stream(skipping, window=8),
    "state": Stateful,
    "state and window": lambda: Stream(Stateful(), window=8),
    "shuffled": Shuffled,
    "steps_per_epoch": lambda: Stream(skipping, steps_per_epoch=4, window=10),
    "regroup": lambda: Stream(skipping, regroup=False),
    "list": lambda: of_sizes(5, 10, 5),
    "batches that divide": lambda: of_sizes(8, 8),
    "batches that divide, and window": lambda: Stream(of_sizes(8, 8), window=8),
    "batches as they are": lambda: Stream(of_sizes(8, 3, 9), regroup=False),
    "steps_per_epoch of all batches": lambda: Stream(of_sizes(8, 8), steps_per_epoch=2),
    "steps_per_epoch as they are": lambda: Stream(
        of_sizes(8, 3, 9), steps_per_epoch=2, regroup=False
    ),
    "epochs of its own": lambda: of_epochs,
    "iterator": lambda: iter(of_sizes(7, 9)),
}


def fitted(make, **how):
    return trained(make(), **({"epochs": 4, "validation": TEST} | how))


class Halving(lm.Callback):
    """A callback whose hooks change the rate: each has to be called once."""

    changes_rate = True

    def epoch_begins(self, fit):
        fit.rate /= 2

    def steps_done(self, fit, steps):
        fit.rate *= 1.25

    def epoch_ends(self, fit):
        fit.rate += 0.001


# One for each method of continuing a source; the others are sampled.
FEW = ("data set", "skip and window", "state and window", "shuffled", "batches as they are")
FEW += ("steps_per_epoch", "epochs of its own", "iterator")
DROPPED = ("window", "batches as they are")


@pytest.mark.cases(
    ("name", "drop_last"),
    *(
        pytest.param(source, False, marks=[pytest.mark.sampled] * (source not in FEW))
        for source in CONTINUED
    ),
    *(pytest.param(source, True, marks=pytest.mark.sampled) for source in DROPPED),
)
def test_a_fit_is_resumed_from_each_state_of_its_checkpoint(name, drop_last, tmp_path, monkeypatch):
    """A killed process leaves the file as it was written last, whatever ran since then."""
    written = []
    write = checkpoints.write_model

    def kept(path, file):
        written.append(tmp_path / str(len(written)))
        write(written[-1], file)

    monkeypatch.setattr(steps, "PIECE_SECONDS", 0.0)  # each training step is a piece
    monkeypatch.setattr(checkpoints, "write_model", kept)

    def result(**how):
        epochs = 1 if name == "iterator" else 2
        how |= {"epochs": epochs, "drop_last": drop_last, "metrics": [], "validation": None}
        return fitted(CONTINUED[name], callbacks=[Halving()], **how)

    parameters, history = result(checkpoint=tmp_path / "file", checkpoint_steps=1)
    for path in list(written):
        again, part = result(checkpoint=path, resume=True)
        assert same(again, parameters), path.name
        assert part.values == history.values, path.name


def test_the_rate_of_an_epoch_that_is_continued_is_that_of_its_begin(path):
    falling = lm.Adam(lm.schedules.Linear(0.02, 12))
    how = {"epochs": 4, "optimizer": falling, "record": ["rate"]}
    with failing(7):
        trained(TRAIN, checkpoint=path, checkpoint_steps=1, **how)
    part, unbroken = trained(TRAIN, checkpoint=path, resume=True, **how), trained(TRAIN, **how)
    assert part[1].values == unbroken[1].values
    assert len(set(unbroken[1]["rate"])) == 4


def test_a_shuffling_loader_of_pytorch_continues_in_its_order(torch, path):
    def make():
        pairs = torch.utils.data.TensorDataset(
            torch.tensor(TRAIN.inputs), torch.tensor(TRAIN.targets)
        )
        generator = torch.Generator().manual_seed(4)
        return torch.utils.data.DataLoader(pairs, 6, shuffle=True, generator=generator)

    with failing(7):
        fitted(make, checkpoint=path, checkpoint_steps=1)
    uninterrupted, part = fitted(make), fitted(make, checkpoint=path, resume=True)
    assert same(uninterrupted[0], part[0])


def test_a_source_with_a_state_reads_nothing_again(path):
    with failing(2):
        trained(Stream(Stateful(), window=5), checkpoint=path, checkpoint_steps=1, epochs=1)
    source = Stateful()
    trained(Stream(source, window=5), checkpoint=path, resume=True, epochs=1)
    assert source.given[0] > 0


def test_a_state_that_is_not_plain_data_is_refused(tmp_path):
    class Odd(Stateful):
        def state_dict(self):
            return {"next": object()}

    text = fault(Odd(), DataError, checkpoint=tmp_path / "checkpoint")
    assert "the state of the source is not plain data" in text
    assert text.endswith("Give a function with a parameter `skip`, which omits so many batches.")


def test_checkpoints_of_steps_need_a_file():
    with pytest.raises(lm.errors.DefinitionError, match="there is no file for a checkpoint"):
        trained(TRAIN, checkpoint_steps=3)


def test_a_position_is_plain_data():
    position = Position(1, 2, 3, 4, 5, {"next": 6})
    assert stored(Position, dict(vars(position)), "position") == position
