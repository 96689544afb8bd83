"""`from_frame`: a table with named columns as a data set."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Annotated, Any

from lamina.checks import checked
from lamina.checks.kinds import AnyOf, Misfit, Number, OrNone, ReadBy, Word
from lamina.data.coding import Words, coded
from lamina.data.columns import Kinds, recognised
from lamina.data.dataset import Dataset
from lamina.data.frames import columns_of
from lamina.errors import errors_at

GAP_RULES = ("error", "mean", "median", "indicator")


def _column_name(value: Any) -> str:
    """The name of a column as text; pandas has numbers too."""
    if isinstance(value, Hashable) and value is not None:
        return str(value)
    raise Misfit("the name of a column", "'rent'")


ColumnName = Annotated[Any, OrNone(ReadBy(_column_name))]
Gaps = Annotated[str | float, AnyOf((Word(GAP_RULES), Number()))]


@checked
def from_frame(
    frame: Any,
    target: ColumnName = None,
    *,
    words: Words = "one-hot",
    gaps: Gaps = "error",
    standardise: bool = False,
    kinds: Kinds = None,
) -> Dataset:
    """A data frame as a data set, whose `coding` codes further frames alike.

    `fit` stores the coding with the model, so that `model.predict(frame)` takes such frames.

    | column | becomes |
    | --- | --- |
    | numbers, bools | one float32 feature |
    | dates | one float32 feature: days since 1970 |
    | words, one-hot | a feature for each word, in sorted order; an unknown word is all zeros |
    | words, index | an int64 index in a second input: 1, 2, ... in sorted order, 0 is unknown |
    | target, whole numbers | int64 class numbers; see `kinds` |
    | target, other numbers | float32 of shape (n, 1) |
    | target, words | int64 class numbers in sorted order: `coding.classes` |

    Args:
        frame: a data frame of pandas, Polars, PyArrow, or another that narwhals reads; or columns
            by name, such as `read_table` returns; or a list of rows, dicts by the names of columns.
        target: the name of the column of targets. Names that are not text, as pandas has them,
            become text.
        words: the coding of words: `"one-hot"`, or `"index"` for `lm.Embedding`. A missing word is
            the word "".
        gaps: the replacement of missing numbers: `"mean"`, `"median"`, a number, or `"indicator"`,
            the mean and a further feature that is 1 where a number is missing. `"error"` refuses
            them.
        standardise: whether numbers and dates are shifted and scaled to mean 0 and deviation 1.
        kinds: the kinds of columns, by name, where the values do not tell: `"number"`, `"date"` or
            `"word"`, and `"class"` for a target. `{"rent": "number"}` makes a regression of whole
            numbers, and `{"zip": "word"}` words of numbers.

    Raises:
        DataError: if numbers or targets are missing, or a column cannot be coded.
        MissingExtraError: if narwhals is not installed, unless columns are given by name.

    Example:
        >>> data = lm.data.from_frame({"size": [30, 52], "town": ["Ulm", "Bonn"], "rent": [1.5, 2]},
        ...                           target="rent")
        >>> data.coding.features, data.inputs.tolist()
        (('size', 'town=Bonn', 'town=Ulm'), [[30.0, 0.0, 1.0], [52.0, 1.0, 0.0]])
    """
    with errors_at("from_frame"):
        stated = {target, *(kinds or {})}
        columns = columns_of(frame).items()
        table = {n: values if n in stated else recognised(n, values) for n, values in columns}
        return coded(table, target, words, gaps, standardise=standardise, kinds=kinds)
