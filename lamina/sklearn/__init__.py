"""Estimators for scikit-learn: networks with `fit`, `predict` and `score`, for pipelines.

Comes in: arrays, sparse matrices or data frames. Leaves: predictions of one network, or of a
population of them. Read `base.py` first.

    from lamina.sklearn import LaminaClassifier

    LaminaClassifier(hidden_layer_sizes=(64,), ensemble=8).fit(X, y).predict_proba(X)

`pip install "lamina[sklearn]"` installs scikit-learn with it.
"""

from lamina.errors import imported_extra

imported_extra("sklearn", "sklearn", "lamina.sklearn", "scikit-learn")

from lamina.sklearn.embedding import LaminaEmbedding as LaminaEmbedding  # noqa: E402
from lamina.sklearn.estimators import LaminaClassifier as LaminaClassifier  # noqa: E402
from lamina.sklearn.estimators import LaminaRegressor as LaminaRegressor  # noqa: E402
