"""The estimators for scikit-learn: what they learn, take and give back."""

import pickle

import numpy as np
import pytest

pytest.importorskip("sklearn", "1.6")

from scipy import sparse
from sklearn import datasets
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline

import lamina as lm
from lamina.sklearn import LaminaClassifier, LaminaEmbedding, LaminaRegressor

FAST = {"hidden_layer_sizes": (16,), "max_iter": 60, "random_state": 0, "learning_rate_init": 0.02}
X, Y = datasets.load_iris(return_X_y=True)
NAMES = np.array(["setosa", "versicolor", "virginica"])


def classifier(**options):
    return LaminaClassifier(**FAST | options)


@pytest.mark.parametrize("ensemble", [1, 4])
def test_a_classifier_learns_names(ensemble):
    made = classifier(ensemble=ensemble).fit(X, NAMES[Y])
    assert made.score(X, NAMES[Y]) > 0.9
    assert made.classes_.tolist() == NAMES.tolist()
    assert len(made.population_) == len(made.histories_) == ensemble
    probabilities = made.predict_proba(X)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0)
    each = np.exp(made.population_.predict(made._features.read(made, X)))
    np.testing.assert_allclose(probabilities, (each / each.sum(-1, keepdims=True)).mean(axis=0))
    assert made.n_iter_ == len(made.loss_curve_) == 60
    assert made.loss_curve_[-1] < made.loss_curve_[0]


def test_a_member_of_an_ensemble_is_the_network_of_its_seed():
    together, alone = classifier(ensemble=3).fit(X, Y), classifier().fit(X, Y)
    first = {name: value[0] for name, value in together.population_.parameters().items()}
    for name, value in alone.population_.parameters().items():
        np.testing.assert_array_equal(value[0], first[name])


def test_weights_of_classes_and_examples_and_labels_that_are_several():
    rare = np.concatenate([np.flatnonzero(Y == 1), np.flatnonzero(Y == 2)[:5]])
    plain = classifier(max_iter=20).fit(X[rare], Y[rare])
    balanced = classifier(max_iter=20, class_weight="balanced").fit(X[rare], Y[rare])
    assert (
        balanced.predict_proba(X[Y == 2])[:, 1].mean() > plain.predict_proba(X[Y == 2])[:, 1].mean()
    )
    given = classifier().fit(X, Y, sample_weight=np.where(Y == 0, 0.0, 1.0))
    assert not (given.predict(X) == 0).any()
    labels = np.stack([Y == 0, Y == 2], axis=1).astype(int)
    several = classifier().fit(X, labels)
    assert several.score(X, labels) > 0.85
    assert several.predict_proba(X).shape == (150, 2)


def test_numbers_one_or_several():
    x, y = datasets.load_diabetes(return_X_y=True)
    one = LaminaRegressor(**FAST).fit(x, y)
    assert one.score(x, y) > 0.4
    assert one.predict(x).shape == y.shape
    two = LaminaRegressor(**FAST, ensemble=2).fit(x, np.stack([y, -1000 * y], axis=1))
    assert two.predict(x).shape == (len(x), 2)
    assert two.score(x, np.stack([y, -1000 * y], axis=1)) > 0.4


def test_early_stopping_keeps_the_best_epoch():
    made = classifier(early_stopping=True, max_iter=200, n_iter_no_change=3).fit(X, Y)
    assert made.n_iter_ < 200
    assert made.score(X, Y) > 0.9


def test_fits_are_continued():
    whole = classifier(max_iter=3).fit(X, Y)
    parts = classifier()
    for _ in range(3):
        parts.partial_fit(X, Y, classes=[0, 1, 2])
    for name, value in whole.population_.parameters().items():
        np.testing.assert_array_equal(value, parts.population_.parameters()[name])
    warm = classifier(max_iter=3, warm_start=True).fit(X, Y)
    before = warm.loss_curve_[0]
    assert warm.fit(X, Y).loss_curve_[0] < before
    assert parts.fit(X, NAMES[Y]).classes_.tolist() == NAMES.tolist()
    parts = classifier().partial_fit(X, Y, classes=[0, 1, 2])
    with pytest.raises(ValueError, match="classes must be passed"):
        classifier().partial_fit(X, Y)
    with pytest.raises(ValueError, match="classes not in"):
        parts.partial_fit(X, Y + 5)


def test_sparse_features_and_float32():
    made = classifier(standardize=False).fit(sparse.csr_array(X), Y)
    dense = classifier(standardize=False).fit(X, Y)
    np.testing.assert_allclose(made.predict_proba(X), dense.predict_proba(sparse.csc_array(X)))
    assert classifier().fit(X.astype("float32"), Y).predict_proba(X[:1]).dtype == np.float32


def test_data_frames_with_words_and_gaps():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"size": X[:, 0], "kind": NAMES[Y], "length": X[:, 2]})
    frame.loc[3, "size"] = np.nan
    made = classifier().fit(frame, Y)
    assert made.score(frame, Y) > 0.95
    assert made.feature_names_in_.tolist() == ["size", "kind", "length"]
    assert made.n_features_in_ == 3
    again = pickle.loads(pickle.dumps(made))
    np.testing.assert_array_equal(again.predict_proba(frame), made.predict_proba(frame))
    with pytest.raises(ValueError, match="feature names should match"):
        made.predict(frame.rename(columns={"kind": "sort"}))


def test_networks_of_ones_own():
    network = lm.Sequential(lm.Input(4), lm.Linear(8), lm.Tanh(), lm.Linear(3))
    made = classifier(network=network, ensemble=2).fit(X, Y)
    assert made.score(X, Y) > 0.9
    assert clone(made).get_params()["network"] is not None

    def conv(inputs, outputs):
        layers = lm.Reshape(1, inputs), lm.Conv1d(4, 3), lm.ReLU(), lm.Flatten()
        return lm.Sequential(lm.Input(inputs), *layers, lm.Linear(outputs))

    assert classifier(network=conv, optimizer=lm.Adam(0.02)).fit(X, Y).score(X, Y) > 0.9
    with pytest.raises(lm.errors.DefinitionError, match="there is no activation 'softplus'"):
        classifier(activation="softplus").fit(X, Y)


@pytest.mark.parametrize(("made", "outputs"), [(LaminaClassifier, 3), (LaminaRegressor, 1)])
def test_a_network_with_other_outputs_than_the_targets_is_refused(made, outputs):
    for found in (outputs + 1, outputs + 20):
        network = lm.Sequential(lm.Input(4), lm.Linear(found))
        with pytest.raises(lm.errors.DefinitionError, match=rf"lm.Linear\({outputs}\)"):
            made(network=network).fit(X, Y)


@pytest.mark.filterwarnings("ignore:member . stopped")
@pytest.mark.parametrize("ensemble", [1, 3])
def test_a_fit_whose_networks_all_overflow_is_an_error(ensemble):
    estimator = LaminaRegressor(optimizer=lm.SGD(1e30), max_iter=5, ensemble=ensemble)
    with pytest.raises(lm.errors.NonFiniteError, match="Lower its learning rate"):
        estimator.fit(X, Y)


def test_embeddings():
    made = LaminaEmbedding(**FAST | {"hidden_layer_sizes": (16, 3), "max_iter": 200}).fit(X, Y)
    assert made.transform(X).shape == (150, 3)
    assert made.get_feature_names_out().tolist() == [f"laminaembedding{n}" for n in range(3)]
    assert make_pipeline(made, classifier()).fit(X, Y).score(X, Y) > 0.9
    alone = LaminaEmbedding(**FAST | {"hidden_layer_sizes": (2,)}, ensemble=2).fit(X)
    assert alone.transform(X).shape == (150, 4)


def test_searches_in_several_processes_divide_the_cores():
    search = GridSearchCV(classifier(), {"hidden_layer_sizes": [(8,), (32,)]}, n_jobs=2, cv=3)
    search.fit(X, Y)
    assert search.best_score_ > 0.9
    assert cross_val_score(Threads(), X, Y, cv=2, n_jobs=2).max() == 1.0


class Threads(LaminaClassifier):
    """Its score is the number of threads, times the processes, by the cores."""

    def score(self, X, y, sample_weight=None):
        from lamina.base.cores import usable_cores
        from lamina.engines.cpu.processor import host

        return 1.0 if host().threads * 2 <= max(usable_cores(), 2) else 0.0


def test_a_notebook_shows_the_parameters():
    assert "LaminaClassifier" in classifier()._repr_html_()
    assert repr(LaminaClassifier(ensemble=3)) == "LaminaClassifier(ensemble=3)"
