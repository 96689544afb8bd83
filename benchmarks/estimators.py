"""Estimators for scikit-learn beside its own perceptrons, on data sets that it ships.

    python benchmarks/estimators.py [--seeds 10] [--epochs 200] [--ensemble 32] [--json FILE]

Both get standardized features, the same splits, layers and batches. Scores are those of fits that
end by themselves: accuracy, or R2. Times are those of fits of equally many epochs, taken in turn.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import sklearn
from harness import machine, write_json
from sklearn import datasets
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from lamina.reports import table_text
from lamina.sklearn import LaminaClassifier, LaminaRegressor

DATA: dict[str, tuple[Callable[..., Any], Any, Any]] = {
    "iris": (datasets.load_iris, LaminaClassifier, MLPClassifier),
    "wine": (datasets.load_wine, LaminaClassifier, MLPClassifier),
    "breast cancer": (datasets.load_breast_cancer, LaminaClassifier, MLPClassifier),
    "digits": (datasets.load_digits, LaminaClassifier, MLPClassifier),
    "diabetes": (datasets.load_diabetes, LaminaRegressor, MLPRegressor),
}


def seconds(estimators: list[Any], X: Any, y: Any) -> float:
    """The time of the fits of some estimators."""
    started = time.perf_counter()
    for estimator in estimators:
        estimator.fit(X, y)
    return time.perf_counter() - started


def compared(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Scores, and seconds of fits of equally many epochs, of both."""
    load, ours, theirs = DATA[name]
    X, y = load(return_X_y=True)
    report: dict[str, Any] = {"ours": [], "theirs": [], "seconds": [], "their_seconds": []}
    fixed = {"max_iter": arguments.epochs, "tol": 0.0, "n_iter_no_change": arguments.epochs}
    for seed in range(arguments.seeds):
        train, test, y_train, y_test = train_test_split(X, y, test_size=0.25, random_state=seed)
        made = ours(random_state=seed).fit(train, y_train)
        peer = make_pipeline(StandardScaler(), theirs(random_state=seed)).fit(train, y_train)
        report["ours"].append(made.score(test, y_test))
        report["theirs"].append(peer.score(test, y_test))
        fixed_peer = make_pipeline(StandardScaler(), theirs(random_state=seed, **fixed))
        report["seconds"].append(seconds([ours(random_state=seed, **fixed)], train, y_train))
        report["their_seconds"].append(seconds([fixed_peer], train, y_train))
    together = ours(random_state=0, ensemble=arguments.ensemble, **fixed)
    report["ensemble"] = statistics.median(seconds([together], X, y) for _ in range(3))
    loop = [ours(random_state=seed, **fixed) for seed in range(arguments.ensemble)]
    report["loop"] = seconds(loop, X, y)
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--ensemble", type=int, default=32)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    reports = {name: compared(name, arguments) for name in DATA}
    rows: list[tuple[str, ...]] = []
    for name, report in reports.items():
        ours, theirs = (statistics.median(report[key]) for key in ("seconds", "their_seconds"))
        rows.append(
            (
                name,
                *(f"{np.mean(report[key]):.4f}" for key in ("ours", "theirs")),
                f"{ours * 1e3:.0f} ms",
                f"{theirs * 1e3:.0f} ms",
                f"{theirs / ours:.1f}x",
                f"{report['ensemble'] * 1e3:.0f} ms",
                f"{report['loop'] / report['ensemble']:.1f}x",
            )
        )
    print(f"scikit-learn {sklearn.__version__}, {arguments.seeds} seeds, {arguments.epochs} epochs")
    header = ("data", "score", "scikit-learn's", "fit", "scikit-learn's", "ratio")
    ensembles = (f"ensemble of {arguments.ensemble}", "its members in a loop")
    print(table_text((*header, *ensembles), rows, align="lrrrrrrr"))
    if arguments.json:
        write_json(arguments.json, {"machine": machine(), "data": reports})


if __name__ == "__main__":
    main()
