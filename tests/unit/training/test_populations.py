"""Populations: what members share, what each has of its own, and what is refused."""

import re
import threading
import time

import numpy as np
import pytest
from error_texts import error_text

import lamina as lm
from lamina.engines.engine import padded
from lamina.engines.host import HostMemory
from lamina.errors import LaminaError, LaminaWarning

X = np.random.default_rng(0).standard_normal((24, 3), np.float32)
Y = np.sin(X @ np.ones((3, 2), np.float32))
NET = lm.Sequential(lm.Input(3), lm.Linear(5), lm.Tanh(), lm.Linear(2))


def population(members=3, **options):
    return lm.Population(NET, members, **options)


def fitted(made, optimizer, train=(X, Y), **options):
    usual = {"loss": lm.MSE(), "epochs": 2, "batch_size": 8, "progress": False}
    return made.fit(train, optimizer=optimizer, **usual | options)


def equal(left, right):
    return all(np.array_equal(left[name], right[name]) for name in left)


def test_a_member_is_a_model_in_the_same_memory():
    made = population()
    member = made[1]
    assert member.seed == 1
    assert equal(member.parameters(), {n: v[1] for n, v in made.parameters().items()})
    member.set_parameters({"1.weight": np.ones((5, 3), "float32")})
    assert (made.parameters()["1.weight"][1] == 1).all()
    assert not (made.parameters()["1.weight"][2] == 1).any()
    before = made[0].parameters()
    member.fit((X, Y), loss=lm.MSE(), optimizer=lm.SGD(0.1), progress=False)
    np.testing.assert_array_equal(made.predict(X)[1], member.predict(X))
    assert equal(before, made[0].parameters())
    assert [model.seed for model in made] == [0, 1, 2]
    with pytest.raises(IndexError):
        made[3]


def test_a_population_of_one_is_the_model():
    made, alone = population(1), lm.Model(NET, seed=0)
    history = fitted(made, lm.Adam(0.01))[0]
    assert history.values == fitted(alone, lm.Adam(0.01)).values
    assert equal(alone.parameters(), made[0].parameters())


def test_a_model_joins_a_population():
    model, made = lm.Model(NET, seed=7), population()
    made[2].set_parameters(model.parameters())
    np.testing.assert_array_equal(made.predict(X)[2], model.predict(X))


def test_memories_of_members_begin_at_cache_lines():
    memory = HostMemory((3, 5), np.dtype(np.float32), members=4)
    assert memory.shape == (4, 3, 5)
    values = np.arange(60, dtype=np.float32).reshape(4, 3, 5)
    memory.write(values)
    np.testing.assert_array_equal(memory.read(), values)
    for number in range(4):
        member = memory.member(number)
        assert member.array.flags.c_contiguous
        assert member.array.ctypes.data % 64 == 0
        np.testing.assert_array_equal(member.read(), values[number])


def test_one_seed_gives_equal_members():
    made = population(seeds=5)
    fitted(made, lm.Adam(0.01))
    values = made.parameters()
    assert all((array == array[:1]).all() for array in values.values())


def test_saved_populations_are_the_same(tmp_path):
    made, path = population(seeds=[4, 5, 6]), tmp_path / "population.safetensors"
    fitted(made, lm.SGD(0.1))
    made.save(path)
    again = lm.Population.load(path)
    assert again.seeds.tolist() == [4, 5, 6]
    np.testing.assert_array_equal(again.predict(X), made.predict(X))
    made[1].save(tmp_path / "member.safetensors")
    member = lm.load(tmp_path / "member.safetensors")
    np.testing.assert_array_equal(member.predict(X), made.predict(X)[1])
    error = error_text(LaminaError, lambda: lm.load(path))
    assert "this file holds a population, not a model" in error
    assert "Read it by lm.Population.load(path)." in error
    error = error_text(LaminaError, lambda: lm.Population.load(tmp_path / "member.safetensors"))
    assert "this file holds a model, not a population" in error


def test_evaluation_of_each_member_on_all_examples_or_its_own():
    made, subsets = population(), [[0, 1, 2], [3, 4], [5, 6]]
    measured = made.evaluate((X, Y), lm.MSE(), [lm.MAE()], batch_size=7)
    own = made.evaluate((X, Y), lm.MSE(), batch_size=2, subsets=subsets)
    for k, rows in enumerate(subsets):
        expected = made[k].evaluate((X, Y), lm.MSE(), [lm.MAE()], batch_size=7)
        assert {name: values[k] for name, values in measured.items()} == expected
        alone = made[k].evaluate((X[rows], Y[rows]), lm.MSE(), batch_size=2)
        assert own["loss"][k] == alone["loss"]


def test_a_member_that_fails_stops_alone_and_is_restored():
    made = population(4)
    rates = [0.1, 1e25, 0.05, 1e6]
    with pytest.warns(lm.errors.LaminaWarning, match="stopped: the loss became"):
        histories = fitted(made, [lm.SGD(rate) for rate in rates], epochs=4)
    assert sorted(histories.failures) == [1, 3]
    assert "member 1 stopped: the loss became" in str(histories.failures[1])
    assert "restored to its state before this epoch; the others go on" in str(histories.failures[1])
    assert [len(history) for history in histories] == [4, 0, 4, len(histories[3])]
    assert np.isnan(histories["loss"][1]).all()
    assert equal(made[1].parameters(), lm.Model(NET, seed=1).parameters())
    assert all(np.isfinite(array).all() for array in made.parameters().values())
    for k in (0, 2):
        alone = lm.Model(NET, seed=k)
        fitted(alone, lm.SGD(rates[k]), epochs=4)
        assert equal(alone.parameters(), made[k].parameters())


def test_callbacks_are_each_members_own():
    class Halving(lm.Callback):
        changes_rate = True

        def __init__(self):
            self.rates = []

        def epoch_ends(self, fit):
            self.rates.append(fit.rate)
            fit.rate = fit.rate / 2
            return fit.rate < 0.03

    callback = Halving()
    histories = fitted(
        population(), [lm.SGD(0.04), lm.SGD(0.1), lm.SGD(0.2)], epochs=5, callbacks=[callback]
    )
    assert [len(history) for history in histories] == [1, 2, 3]
    np.testing.assert_allclose(histories[2]["rate"], [0.2, 0.1, 0.05])
    assert callback.rates == []


@pytest.mark.parametrize("lanes", [False, True])
@pytest.mark.parametrize("count", [1, 3, 64])
@pytest.mark.parametrize("engine", ["interpreter", "cpu"])
def test_the_bill_is_the_memory_of_all_members(engine, count, lanes):
    how = {"loss": lm.MSE(), "optimizer": lm.Adam(0.01), "batch_size": 8}
    made = population(count, engine=engine, lanes=lanes)
    with made.training(**how) as training:
        bill, arena = training.bill, made._parameters.arena
        executable = training._program(8).executable
        memories = training._shared | made._parameters.memories
        held = sum(count * padded(memory.array[0].nbytes) for memory in memories.values())
        workspaces = (
            executable._threads * executable._code.layout.total_bytes if engine == "cpu" else 0
        )
        inputs = bill.input_bytes if engine == "interpreter" else 0
        # This program does not read the seed, which the training has in its state.
        held -= 64 * count
        assert 0 <= held + arena.bytes + inputs - workspaces - bill.peak_bytes <= 64 * 8
    if lanes:
        assert str(NET.plan(**how, engine=engine, members=count)) == str(bill)


def test_as_many_members_are_made_as_fit(monkeypatch):
    how = {"loss": lm.MSE(), "optimizer": lm.Adam(0.01)}
    for engine, memory in (("cpu", 2 << 20), ("interpreter", 100_000)):
        most = NET.max_members(8, memory, **how, engine=engine)
        for count, fits in ((most, True), (most + 1, False)):
            assert (NET.plan(8, **how, members=count, engine=engine).peak_bytes <= memory) == fits
    monkeypatch.setattr("lamina.engines.machine_memory.available_bytes", lambda: 2 << 20)
    assert error_text(LaminaError, population, 100_000) == (
        "in cpu: this population needs more memory than there is\n"
        "  available   2 MiB\n"
        "  needed      24.41 MiB\n"
        "  needed for  parameters: 24.41 MiB, drawing initial values: 120 B\n"
        "  largest     parameter 1.weight f32[100000, 5, 3], 5.72 MiB\n"
        "  Take fewer members: net.max_members(...) finds how many fit."
    )
    small = population(1000)
    text = error_text(LaminaError, small.training, **how, batch_size=100_000)
    assert "a batch of 100,000 examples needs" in text


def test_a_training_goes_on_from_its_state():
    numbers = (0.01, 0.02, 0.03)
    for rates in (numbers, [lm.schedules.Cosine(rate, 10) for rate in numbers]):
        how = {"loss": lm.MSE(), "optimizer": [lm.Adam(r) for r in rates], "batch_size": 8}
        made = population()
        with made.training(**how) as training, population(seeds=5).training(**how) as other:
            training.run((X, Y), 4)
            training.set_rates({"rate": [0.1, 0.2, 0.3]})
            training.member(1).rate = 0.5
            set_now = training.rates["rate"]
            values, state = training.snapshot()
            expected = training.run((X, Y), 4)
            other.restore(state, values)
            assert np.array_equal(other.run((X, Y), 4, seeds=[0, 1, 2]), expected)
            np.testing.assert_allclose(set_now, [0.1, 0.5, 0.3])
            np.testing.assert_array_equal(other.rates["rate"], training.rates["rate"])
            assert "another optimizer or network" in error_text(LaminaError, other.restore, {})


def decayed(strength, features=5):
    layer = lm.Linear(features, weight_regularizer=lm.L2(strength))
    return lm.Sequential(lm.Input(3), layer, lm.Tanh(), lm.Linear(2))


def test_each_member_has_its_own_strength_of_a_regularizer(tmp_path):
    strengths = (0.0, 1e-3, 0.5)
    networks = [decayed(strength) for strength in strengths]
    made = lm.Population(networks, lanes=False)
    assert len(made.groups) == 1
    histories = fitted(made, lm.Adam(0.01))
    made.save(tmp_path / "population.safetensors")
    loaded = lm.Population.load(tmp_path / "population.safetensors", lanes=False)
    again = fitted(loaded, lm.Adam(0.01))
    continued = fitted(made, lm.Adam(0.01))
    for number, network in enumerate(networks):
        alone = lm.Model(network, seed=number)
        assert histories[number].values == fitted(alone, lm.Adam(0.01), seed=number).values
        assert made[number].network is network
        assert again[number].values == continued[number].values


def test_members_of_several_shapes_are_fitted_by_one_call():
    networks = [decayed(0.1), decayed(0.1, 7), decayed(0.2), NET, decayed(0.3, 7)]
    made = lm.Population(networks, lanes=False)
    assert [numbers.tolist() for numbers, _ in made.groups] == [[0, 2], [1, 4], [3]]
    assert repr(made) == "Population(5 members of 32 to 44 parameters, float32, engine='cpu')"
    rates = [0.01, 0.02, 0.03, 0.04, 1e30]
    subsets = [np.arange(10 + number) for number in range(5)]
    how = {"subsets": subsets, "validation": (X, Y), "validation_subsets": subsets}
    with pytest.warns(LaminaWarning, match="member 4 stopped"):
        histories = fitted(made, [lm.SGD(rate) for rate in rates], **how)
    assert [*histories.failures] == [4]
    assert histories["loss"].shape == (5, 2)
    assert np.isnan(histories["loss"][4]).all()
    losses = made.evaluate((X, Y), lm.MSE(), subsets=subsets)["loss"]
    for number in range(4):
        alone, data = lm.Model(networks[number], seed=number), (X[: 10 + number], Y[: 10 + number])
        usual = {"loss": lm.MSE(), "epochs": 2, "batch_size": 8, "progress": False}
        own = alone.fit(
            data, optimizer=lm.SGD(rates[number]), seed=number, validation=data, **usual
        )
        assert own.values == histories[number].values
        np.testing.assert_array_equal(made.predict(X)[number], alone.predict(X))
        assert losses[number] == alone.evaluate(data, lm.MSE())["loss"]
    assert made.seeds.tolist() == [0, 1, 2, 3, 4]
    assert error_text(LaminaError, made.parameters) == (
        "in Population: the members have networks of several shapes\n"
        "  shapes  3\n"
        "  population.groups has a population for each shape, population[i] the models."
    )
    numbers, wide = made.groups[1]
    with wide.training(lm.MSE(), lm.SGD(0.1), 4) as training:
        training.run((X, Y), 3)
    np.testing.assert_array_equal(made.predict(X)[numbers], wide.predict(X))
    other = lm.Population([NET, lm.Sequential(lm.Input(3), lm.Linear(4))])
    assert "the outputs of the members have several shapes" in error_text(
        LaminaError, other.predict, X
    )


def test_weights_of_classes_and_norms_of_gradients():
    labels = (X[:, 0] > 0.5).astype(int)
    usual = {"loss": lm.CrossEntropy(), "optimizer": lm.SGD(0.1), "epochs": 2, "progress": False}
    usual |= {"class_weights": "balanced", "record": ["gradient_norm", "rate"]}
    made, alone = population(lanes=False), lm.Model(NET, seed=1)
    histories = made.fit((X, labels), **usual)
    assert histories[1].values == alone.fit((X, labels), **usual).values
    assert histories["gradient_norm"].shape == (3, 2)


def test_epochs_that_are_trained_together_are_those_of_fits_alone():
    # Nothing but the history is needed between the epochs, so many are one call.
    stopping = lm.callbacks.EarlyStopping("loss", patience=2, least_change=1e-3, restore_best=False)
    rates, sizes = (0.001, 0.3, 0.1, 1e20, 0.5), (24, 24, 17, 24, 9)
    options = {"epochs": 70, "callbacks": [stopping], "batch_size": 10}
    subsets = [np.arange(size) for size in sizes]
    made = population(5, lanes=False)
    with pytest.warns(LaminaWarning, match="member 3 stopped"):
        histories = fitted(made, [lm.SGD(rate) for rate in rates], subsets=subsets, **options)
    assert len({len(history) for history in histories}) > 2
    for number in (0, 1, 2, 4):
        alone, data = lm.Model(NET, seed=number), (X[: sizes[number]], Y[: sizes[number]])
        usual = {"loss": lm.MSE(), "optimizer": lm.SGD(rates[number]), "progress": False}
        history = alone.fit(data, seed=number, **usual, **options)
        assert history.values == histories[number].values
        assert equal(alone.parameters(), made[number].parameters())
    first = lm.Model(NET, seed=3)
    assert equal(first.parameters(), made[3].parameters()) == (len(histories[3]) == 0)


class Interrupted(lm.Callback):
    """Raises after so many epochs of a member."""

    def __init__(self, epochs):
        self.epochs = epochs

    def epoch_ends(self, fit):
        if len(fit.history) == self.epochs:
            raise KeyError


def test_a_fit_is_resumed_from_its_checkpoint(tmp_path):
    path = tmp_path / "fit.safetensors"
    rates = [0.01, 1e30, 0.02, 0.5]
    options = {
        "optimizer": [lm.SGD(rate, momentum=0.9) for rate in rates],
        "epochs": 6,
        "validation": (X, Y),
        "subsets": [np.arange(12), np.arange(24), np.arange(7, 20), np.arange(24)],
        "seeds": [3, 4, 5, 6],
    }
    stopping = lm.callbacks.EarlyStopping(patience=1)
    made = population(4)
    with pytest.warns(LaminaWarning, match="member 1 stopped"):
        whole = fitted(made, callbacks=[stopping], **options)
    interrupted = population(4)
    with pytest.warns(LaminaWarning, match="member 1 stopped"), pytest.raises(KeyError):
        fitted(interrupted, callbacks=[stopping, Interrupted(3)], checkpoint=path, **options)
    resumed = population(4, seeds=9)
    again = fitted(resumed, callbacks=[stopping], checkpoint=path, resume=True, **options)
    assert [history.values for history in again] == [history.values for history in whole]
    assert [str(error) for error in again.failures.values()] == [
        str(error) for error in whole.failures.values()
    ]
    assert len(again[0]) == 6
    assert equal(made.parameters(), resumed.parameters())
    assert len(lm.Population.load(path)) == 4
    text = error_text(LaminaError, lm.load, path)
    assert "this file holds a population, not a model" in text
    for changed, problem in (
        ({"seeds": [1, 2, 3, 4]}, "the checkpoint was written by a fit with other options"),
        ({"subsets": None}, "the checkpoint was written by a fit with other options"),
    ):
        given = {"checkpoint": path, "resume": True, **options, **changed}
        assert problem in error_text(LaminaError, lambda given=given: fitted(resumed, **given))
    text = error_text(LaminaError, lambda: fitted(resumed, lm.SGD(0.1), resume=True))
    assert "there is nothing to resume from" in text
    model = lm.Model(NET)
    usual = {"loss": lm.MSE(), "optimizer": lm.SGD(0.1), "progress": False}
    with pytest.raises(LaminaError, match="holds a population"):
        model.fit((X, Y), checkpoint=path, resume=True, **usual)


def test_a_fit_of_a_shuffled_stream_is_resumed_from_its_checkpoint(tmp_path):
    batches, path = [(X[:10], Y[:10]), (X[10:], Y[10:])], tmp_path / "fit.safetensors"
    options = {
        "optimizer": [lm.SGD(rate) for rate in (0.1, 0.01, 0.05)],
        "train": lm.data.Stream(batches, window=12),
        "validation": batches,
        "epochs": 6,
    }
    stopping = lm.callbacks.EarlyStopping("loss", patience=1, least_change=0.03)
    made, interrupted, resumed = population(), population(), population(seeds=9)
    whole = fitted(made, callbacks=[stopping], **options)
    lengths = [len(history) for history in whole]
    assert min(lengths) < 4 < max(lengths)
    with pytest.raises(KeyError):
        fitted(interrupted, callbacks=[stopping, Interrupted(4)], checkpoint=path, **options)
    how = {"checkpoint": path, "resume": True, "seeds": [0, 1, 2]}
    again = fitted(resumed, callbacks=[stopping], **options, **how)
    assert [history.values for history in again] == [history.values for history in whole]
    assert equal(made.parameters(), resumed.parameters())


def test_networks_of_two_shapes_read_a_stream_one_after_the_other():
    made = lm.Population([NET, lm.Sequential(lm.Input(3), lm.Linear(2))])
    batches = [(X[:10], Y[:10]), (X[10:], Y[10:])]
    assert fitted(made, lm.SGD(0.1), batches)["loss"].shape == (2, 2)
    np.testing.assert_array_equal(made.predict(batches), made.predict(X))
    for use in (
        lambda stream: fitted(made, lm.SGD(0.1), stream),
        made.predict,
        lambda stream: made.evaluate(stream, lm.MSE()),
    ):
        text = error_text(LaminaError, lambda use=use: use(iter(batches)))
        assert "can be read once, and there are 2 shapes of networks" in text


def test_members_have_examples_of_their_own():
    x, y = X.reshape(3, 8, 3), Y.reshape(3, 8, 2)
    positions = np.arange(24).reshape(3, 8)
    made, other = population(), population()
    options = {"validation_subsets": positions, "validation": (X, Y)}
    expected = fitted(other, lm.SGD(0.1), subsets=positions, **options)
    histories = fitted(made, lm.SGD(0.1), (x, y), validation=(x, y))
    assert [one.values for one in histories] == [one.values for one in expected]
    measured = made.evaluate((x, y), lm.MSE())
    np.testing.assert_array_equal(measured["loss"], expected["validation_loss"][:, -1])
    with made.training(lm.MSE(), lm.SGD(0.1), 4, data=(x, y), seeds=[3, 4, 5]) as training:
        losses = training.run((x, y), 5)
    for number in range(3):
        with other[number].training(lm.MSE(), lm.SGD(0.1), 4) as training:
            alone = training.run((x[number], y[number]), 5, seed=3 + number)
        np.testing.assert_array_equal(losses[number], alone)
    for data, options, problem in (
        ((x, y[:, :7]), {}, "an array has not as many examples of each member as the inputs"),
        ((x, y), {"subsets": positions}, "members with examples of their own have no subsets"),
    ):
        how = {"loss": lm.MSE(), "optimizer": lm.SGD(0.1), **options}
        text = error_text(LaminaError, lambda data=data, how=how: made.fit(data, **how))
        assert problem in text


def test_each_member_has_callbacks_and_files_of_its_own(tmp_path, capsys):
    files = (
        lm.callbacks.CSVLog(tmp_path / "log.csv"),
        lm.callbacks.SaveModels(tmp_path / "models", "loss"),
    )
    stopping = lm.callbacks.EarlyStopping("loss")
    made = lm.Population([NET, lm.Sequential(lm.Input(3), lm.Linear(2)), NET])
    histories = fitted(made, lm.SGD(0.1), callbacks=[*files, stopping, lm.callbacks.PrintEpochs(2)])
    assert "member 1  epoch 2/2  loss" in capsys.readouterr().out
    for number, history in enumerate(histories):
        rows = (tmp_path / f"log-{number}.csv").read_text().splitlines()
        assert [float(row.split(",")[1]) for row in rows[1:]] == history["loss"]
        saved = lm.load(tmp_path / f"models-{number}" / "last.safetensors")
        assert equal(saved.parameters(), made[number].parameters())
        *_, own, _ = histories.callbacks[number]
        assert own is not stopping
        assert own.best_epoch == 2
    lines = str(histories).splitlines()
    assert lines[0].split() == ["member", "epochs", "loss"]
    assert [line.split()[:2] for line in lines[2:]] == [["0", "2"], ["1", "2"], ["2", "2"]]


def test_a_fit_that_ends_before_a_batch_of_its_validation_keeps_its_epochs():
    opened = []

    def slow():
        opened.append(time.sleep(1.5 if len(opened) > 1 else 0))
        yield X, Y

    made = population(2)
    limit = [lm.callbacks.TimeLimit(1.0)]
    histories = fitted(made, lm.SGD(0.1), validation=slow, epochs=5, callbacks=limit)
    assert {len(history) for history in histories} == {len(opened) - 1}
    assert all(history.interrupted for history in histories)


def test_members_at_different_places_of_a_stream_are_refused():
    batches = [(X[:10], Y[:10]), (X[10:], Y[10:])]
    with population().training(lm.MSE(), lm.SGD(0.1), 8) as training:
        training.member(1).run(batches, 2)
        text = error_text(LaminaError, lambda: training.run(batches, 2))
    assert "the members are at different places of the stream" in text


def test_members_have_orders_of_their_own_of_sparse_examples():
    sparse = pytest.importorskip("scipy.sparse")
    losses = []
    for x in (X, sparse.csr_array(X)):
        with population(seeds=1).training(lm.MSE(), lm.SGD(0.0), 8) as training:
            losses.append(training.run((x, Y), 3, seeds=[1, 2, 3]))
    np.testing.assert_array_equal(*losses)
    assert len(np.unique(losses[0][:, 0])) == 3


def test_a_callback_that_cannot_be_copied_is_named():
    class Locked(lm.Callback):
        def __init__(self):
            self.lock = threading.Lock()

    text = error_text(LaminaError, lambda: fitted(population(), lm.SGD(0.1), callbacks=[Locked()]))
    assert "the callback Locked cannot be copied for each member" in text


def test_a_number_of_the_data_that_is_not_finite_is_named():
    broken = X.copy()
    broken[7, 2] = np.nan
    made = population()
    with pytest.warns(LaminaWarning, match="input 0 is not finite at example 7, column 2"):
        histories = fitted(made, lm.SGD(0.1), (broken, Y))
    assert sorted(histories.failures) == [0, 1, 2]
    assert "Correct that number" in str(histories.failures[1])


def test_rates_are_set_for_all_members_or_each():
    made = population()
    with made.training(lm.MSE(), lm.SGD(0.5), 8) as training:
        np.testing.assert_allclose(training.rate, [0.5, 0.5, 0.5])
        training.rate = 0.25
        np.testing.assert_allclose(training.rates["rate"], [0.25, 0.25, 0.25])
        training.rate = [0.1, 0.2, 0.3]
        np.testing.assert_allclose(training.rate, [0.1, 0.2, 0.3], 1e-6)


def test_a_population_of_schedules():
    schedules = [lm.schedules.Cosine(0.1 * (k + 1), steps=4 + k) for k in range(3)]
    made = population()
    histories = fitted(made, [lm.SGD(rate) for rate in schedules], record=["rate"])
    for k, schedule in enumerate(schedules):
        alone = lm.Model(NET, seed=k)
        history = fitted(alone, lm.SGD(schedule), record=["rate"])
        assert history["rate"] == histories[k]["rate"]
        assert equal(alone.parameters(), made[k].parameters())


def test_runs_of_a_training_continue_each_other():
    losses = []
    for runs in ((9,), (4, 5)):
        made = population()
        with made.training(lm.MSE(), lm.Adam(0.01), 5) as training:
            losses.append(np.concatenate([training.run((X, Y), n) for n in runs], axis=1))
            assert training.steps_done.tolist() == [9, 9, 9]
    np.testing.assert_array_equal(*losses)
    assert losses[0].shape == (3, 9)


REFUSED = {
    "another kind of optimizer": (
        {"optimizer": [lm.SGD(0.1), lm.Adam(0.1), lm.SGD(0.1)]},
        "member 1 cannot be trained in the same program as member 0: its optimizer is of another",
    ),
    "a number that decides the program": (
        {"optimizer": [lm.SGD(0.1), lm.SGD(0.1), lm.SGD(0.1, momentum=0.9)]},
        "its optimizer/momentum = 0.9 makes another program than 0",
    ),
    "too few optimizers": (
        {"optimizer": [lm.SGD(0.1)] * 2},
        "optimizer has another number of values than there are members",
    ),
    "too many seeds": (
        {"seeds": [1, 2, 3, 4]},
        "seeds has another number of values than there are members",
    ),
    "a position out of range": (
        {"subsets": [[0], [24], [1]]},
        "in subsets[1]: a position is outside the data set",
    ),
    "subsets that are masks": (
        {"subsets": [[True, False]] * 3},
        "the positions of examples must be a row of integers",
    ),
    "subsets of no validation data": (
        {"validation_subsets": [[0]] * 3},
        "there is no validation data for validation_subsets",
    ),
    "subsets of a stream": (
        {"validation": [(X, Y)], "validation_subsets": [[0]] * 3},
        "the examples of a stream have no positions for validation_subsets",
    ),
    "a stream that can be read once": (
        {"validation": iter([(X, Y)])},
        "the validation data can be read once, and there are 2 epochs",
    ),
    "fewer examples than a batch": (
        {"subsets": [[0]] * 3, "drop_last": True},
        "there are fewer examples than a batch holds",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_options(name):
    options, problem = REFUSED[name]
    made = population()
    before = made.parameters()
    error = error_text(LaminaError, lambda: fitted(made, **{"optimizer": lm.SGD(0.1), **options}))
    assert problem in error
    assert equal(before, made.parameters())


def test_a_batch_of_other_members_is_refused():
    with population().training(lm.MSE(), lm.SGD(0.1), 4) as training:
        error = error_text(LaminaError, lambda: training.step(np.ones((2, 4, 3), "float32"), Y[:4]))
        assert "input 0 has another number of members than the population" in error
        error = error_text(LaminaError, lambda: training.step(np.ones((3, 5, 3), "float32"), Y[:5]))
        assert "the batch is larger than the training was made for" in error
        error = error_text(LaminaError, lambda: training.member(3))
        assert re.search("there is no member 3", error)


def test_any_number_of_examples_is_predicted():
    made, x = population(2), np.random.default_rng(1).standard_normal((5000, 3), np.float32)
    outputs = made.predict(x)
    assert outputs.shape == (2, 5000, 2)
    for number, model in enumerate(made):
        np.testing.assert_array_equal(outputs[number], model.predict(x))
    assert made.predict(x[:0]).shape == (2, 0, 2)


def test_the_mean_over_the_members_is_predicted():
    network = lm.Network(inputs=(x := lm.Input(3)), outputs=[lm.Linear(5)(x), lm.Linear(2)(x)])
    made = lm.Population(network, 4)
    for mean, outputs in zip(made.predict(X, mean=True), made.predict(X), strict=True):
        np.testing.assert_array_equal(mean, outputs.mean(axis=0))


def test_inputs_of_each_members_own_are_predicted():
    made = population(4)
    own = np.random.default_rng(1).standard_normal((4, 70, 3), np.float32)
    expected = np.stack([made[n].predict(own[n]) for n in range(4)])
    assert np.allclose(made.predict(own), expected, atol=1e-6)
    several = lm.Population(
        [NET, lm.Sequential(lm.Input(3), lm.Linear(2)), NET, NET], engine="interpreter"
    )
    expected = np.stack([several[n].predict(own[n]) for n in range(4)])
    assert np.allclose(several.predict(own), expected, atol=1e-6)
    text = error_text(LaminaError, lambda: made.predict(own[:3]))
    assert "another number of members" in text
    assert "expected  4" in text


def test_a_table_is_coded_for_all_members(tmp_path):
    rows = {"age": [30.0, 40.0, None, 20.0], "town": ["A", "B", "A", "B"], "y": [0, 1, 1, 0]}
    data = lm.data.from_frame(rows, target="y", gaps="mean")
    made = lm.Population(lm.Sequential(lm.Input(data.input_shapes[0][0]), lm.Linear(2)), 3)
    made.fit(data, loss=lm.CrossEntropy(), optimizer=lm.SGD(0.1), epochs=2, progress=False)
    new = {"age": [25.0], "town": ["B"]}
    expected = np.stack([member.predict(new) for member in made])
    assert np.array_equal(made.predict(new), expected)
    made.save(tmp_path / "members.safetensors")
    again = lm.Population.load(tmp_path / "members.safetensors")
    assert again.coding == made.coding == data.coding
    assert np.array_equal(again.predict(new), expected)
    other = lm.data.from_frame({"town": ["A", "C"], "age": [1.0, 2.0], "y": [0, 1]}, target="y")
    assert "coded otherwise" in error_text(
        LaminaError, lambda: made.evaluate(other, lm.CrossEntropy())
    )


@pytest.mark.parametrize("frozen", [(), ("1.*",)])
def test_a_member_alone_equals_a_model_with_a_small_last_batch(frozen, monkeypatch):
    """Operands that a program packs before its runs must last as long as its runs."""
    monkeypatch.setenv("LAMINA_THREADS", "2")
    net = lm.Sequential(lm.Input(64), lm.Linear(300), lm.ReLU(), lm.Linear(300), lm.Linear(10))
    random = np.random.default_rng(2)
    x = random.standard_normal((140, 64), np.float32)
    y = random.integers(0, 10, 140)
    made, model = lm.Population(net, 1), lm.Model(net)
    how = {"epochs": 2, "batch_size": 64, "loss": lm.CrossEntropy(), "optimizer": lm.SGD(0.1)}
    histories = made.fit((x, y), frozen=frozen, progress=False, **how)
    history = model.fit((x, y), frozen=frozen, progress=False, seed=0, **how)
    assert list(histories[0]["loss"]) == list(history["loss"])
    for size in (32, 64, 100):
        values = made.evaluate((x, y), lm.CrossEntropy(), batch_size=size)
        assert (
            values["loss"][0] == model.evaluate((x, y), lm.CrossEntropy(), batch_size=size)["loss"]
        )


def test_networks_whose_layers_are_tied_otherwise_are_of_several_shapes():
    def tied(number):
        first, second = lm.Linear(4), lm.Linear(4)
        x = lm.Input(4)
        hidden = second(lm.Tanh()(first(x)))
        return lm.Network(x, lm.TiedLinear((first, second)[number])(hidden))

    networks = [tied(0), tied(1), tied(0)]
    assert networks[0].definition == networks[2].definition != networks[1].definition
    made = lm.Population(networks, seeds=[0, 0, 0])
    assert [numbers.tolist() for numbers, _ in made.groups] == [[0, 2], [1]]
    x = np.ones((1, 4), "float32")
    for number, network in enumerate(networks):
        assert np.allclose(made.predict(x)[number], lm.Model(network, seed=0).predict(x), atol=1e-6)


def test_the_training_of_a_member_is_gone_with_that_of_all():
    training = population().training(lm.MSE(), lm.SGD(0.1), 8)
    training.release()
    assert "was released" in error_text(LaminaError, lambda: training.member(0))
