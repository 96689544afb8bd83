"""Sums of products: the contraction, and the products that are defined by it.

All axes have labels. A label of both operands that the result lacks is summed over. A label of all
three is a batch axis. matmul, dot, outer and einsum only choose the labels of the axes.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from lamina.base.records import frozen_dataclass
from lamina.base.shapes import Array, Dim, Shape
from lamina.checks import checked_as_given as checked
from lamina.checks.kinds import Kind, entries_of
from lamina.errors import DTypeError, LaminaError, ShapeError
from lamina.graph import Op, Sample, Tensor, TensorLike, apply, described
from lamina.graph.attributes import LABEL, Many
from lamina.ops.arguments import as_tensor, refused
from lamina.ops.broadcast import broadcast_to, require_numbers, sum_axes
from lamina.ops.conversion import numbers_of
from lamina.ops.lowering_rules import Contracting
from lamina.ops.movement import reshape, transpose
from lamina.ops.records import Gradients, Operands, Typed, decorating, make_op

__all__ = ["contract", "dot", "matmul", "outer"]

Labels = tuple[str, ...]


def _infer_contract(x: Tensor, y: Tensor, left: Labels, right: Labels, output: Labels) -> Typed:
    check_dtypes("contract", x, y)
    extents: dict[str, Dim] = {}
    for tensor, labels in ((x, left), (y, right)):
        fits = len(labels) == tensor.rank and len(set(labels)) == tensor.rank
        for label, dim in zip(labels, tensor.shape, strict=False):
            fits = fits and extents.setdefault(label, dim) == dim
        if not fits:
            raise ShapeError(
                "contract: the labels do not fit the axes",
                facts=(
                    ("left", f"{described(x)} as {' '.join(left)}"),
                    ("right", f"{described(y)} as {' '.join(right)}"),
                ),
                advice="Each axis needs one label, and axes of one label the same extent.",
            )
    names = (left, right, output)
    everywhere = [label for labels in names for label in set(labels)]
    once = any(everywhere.count(label) < 2 for label in everywhere)
    if once or len(set(output)) < len(output):
        raise ShapeError(
            "contract: a label occurs in one tensor only, or twice in one",
            facts=tuple(zip(("left", "right", "output"), map(" ".join, names), strict=True)),
            advice="Each label must occur in two of the three tensors, and at most once in each.",
        )
    return tuple(extents[label] for label in output), x.dtype


def check_dtypes(name: str, left: Tensor, right: Tensor) -> None:
    """Raises DTypeError unless both are of one dtype that has products."""
    if left.dtype != right.dtype or left.dtype.kind == "bool":
        raise DTypeError(
            f"{name}: the dtypes do not fit",
            facts=(("left", described(left)), ("right", described(right))),
            advice="Both must be of one dtype, float or integer; convert with ops.cast.",
        )


def _contract_reference(
    left_tensor: Array, right_tensor: Array, left: Labels, right: Labels, output: Labels
) -> Array:
    numbers = {label: number for number, label in enumerate(dict.fromkeys(left + right))}
    subscripts = ([numbers[label] for label in labels] for labels in (left, right, output))
    a, b, c = subscripts
    return np.einsum(left_tensor, a, right_tensor, b, c, optimize=True)


def _contract_sample(left: str, right: str, output: str, *shapes: tuple[int, ...]) -> Sample:
    names = {"left": tuple(left), "right": tuple(right), "output": tuple(output)}
    return Sample(shapes, names)


CONTRACT = make_op(
    "contract",
    _infer_contract,
    lambda x, y, _, g, left, right, output: (
        contract(g, y, output, right, left),
        contract(x, g, left, output, right),
    ),
    _contract_reference,
    Contracting(),
    (
        _contract_sample("mk", "kn", "mn", (3, 5), (5, 7)),
        _contract_sample("bmk", "nkb", "bnm", (2, 3, 4), (5, 4, 2)),
        _contract_sample("mab", "anb", "nm", (3, 2, 5), (2, 4, 5)),
        _contract_sample("k", "k", "", (9,), (9,)),
        _contract_sample("m", "n", "nm", (3,), (4,)),
        _contract_sample("mk", "kn", "mn", (1, 1), (1, 17)),
        _contract_sample("mk", "kn", "mn", (3, 0), (0, 2)),
        _contract_sample("bm", "b", "mb", (3, 2), (3,)),
    ),
    operands=2,
    attributes={"left": Many(LABEL), "right": Many(LABEL), "output": Many(LABEL)},
    multiplies=2,
)


@checked
def contract(
    left_tensor: Tensor, right_tensor: Tensor, left: Labels, right: Labels, output: Labels
) -> Tensor:
    """The sum of products over all labels that the output lacks.

    Args:
        left_tensor: the first operand.
        right_tensor: the second operand, of the same dtype.
        left: one label for each axis of the first operand, in a tuple, or as the letters of a text.
        right: one label for each axis of the second.
        output: the labels of the result's axes, in order. Each label occurs in at least two of
            the three tensors, and at most once in each.
    """
    operands = as_tensor(left_tensor), as_tensor(right_tensor)
    given = (("left", left), ("right", right), ("output", output))
    return apply(CONTRACT, *operands, **{name: _labels_of(name, labels) for name, labels in given})


def _labels_of(name: str, labels: object) -> Labels:
    """The labels in a tuple or list, or the letters of a text."""
    entries = tuple(labels) if isinstance(labels, str) else entries_of(labels)
    if entries is None:
        raise refused(name, "a label for each axis", labels)
    return entries


# Products defined by it ---------------------------------------------------------------------------

# (operands..., **attributes) -> the labels of both operands and of the result. An operand is
# repeated along a label whose extent is 1 in it alone.
LabelRule = Callable[..., tuple[Labels, Labels, Labels]]


@frozen_dataclass
class _Labelled:
    """A tensor and the labels of its axes."""

    tensor: Tensor
    labels: Labels

    @property
    def extents(self) -> dict[str, Dim]:
        return dict(zip(self.labels, self.tensor.shape, strict=True))

    def summed(self, over: set[str]) -> _Labelled:
        """The sum over some labels."""
        axes = tuple(axis for axis, label in enumerate(self.labels) if label in over)
        kept = tuple(label for label in self.labels if label not in over)
        return _Labelled(sum_axes(self.tensor, axes), kept)

    def squeezed(self, away: set[str]) -> _Labelled:
        """The tensor without some axes of extent 1."""
        kept = {label: dim for label, dim in self.extents.items() if label not in away}
        return _Labelled(reshape(self.tensor, tuple(kept.values())), tuple(kept))


def _labelled_product(left: _Labelled, right: _Labelled, output: Labels, shape: Shape) -> Tensor:
    """The sum of products, in a given shape.

    Labels that only one operand has are summed over. So are labels whose extent is 1 in the shape,
    but not in the operands. The result is repeated along labels that it alone has, and along labels
    whose extent is 1 in the operands, but not in the shape.
    """
    extents = dict(zip(output, shape, strict=True))
    left = _fitted(left, right, extents)
    right = _fitted(right, left, extents)
    left = _fitted(left, right, extents)
    operand_extents = left.extents | right.extents
    kept = tuple(label for label in output if operand_extents.get(label) == extents[label])
    result = contract(left.tensor, right.tensor, left.labels, right.labels, kept)
    ones = [extents[label] if label in kept else 1 for label in output]
    return broadcast_to(reshape(result, ones), shape)


def _fitted(x: _Labelled, other: _Labelled, extents: dict[str, Dim]) -> _Labelled:
    """Sums x over axes that only x has; drops axes of extent 1 that are longer in the other."""
    alone = {
        label
        for label, dim in x.extents.items()
        if label not in other.labels and extents.get(label) != dim
    }
    x = x.summed(alone)
    others = other.extents
    return x.squeezed(
        {label for label, dim in x.extents.items() if dim == 1 and others.get(label, 1) != 1}
    )


def _product_op(
    name: str,
    labels_of: LabelRule,
    reference: Callable[..., Array],
    samples: tuple[Sample, ...],
    attributes: Mapping[str, Kind] | None = None,
) -> Op:
    """An op whose axes have labels; all but the summed one, `"k"`, broadcast."""

    def infer(left: Tensor, right: Tensor, **attributes: Any) -> Typed:
        first, second, output = labels_of(left, right, **attributes)
        check_dtypes(name, left, right)
        extents: dict[str, Dim] = {}
        rows = zip((*first, *second), (*left.shape, *right.shape), strict=True)
        for label, dim in rows:
            extent = extents.get(label, 1)
            summed = label == "k" and name != "einsum" and label in extents
            if extent != dim and (summed or (extent != 1 and dim != 1)):
                raise ShapeError(
                    f"{name}: two axes that must be equal differ, {extent} against {dim}",
                    facts=(("left", described(left)), ("right", described(right))),
                    advice=_ADVICE[name],
                )
            extents[label] = dim if extent == 1 else extent
        return tuple(extents[label] for label in output), left.dtype

    def gradient(
        left: Tensor, right: Tensor, _: Tensor, upstream: Tensor, **attributes: Any
    ) -> Gradients:
        first, second, output = labels_of(left, right, **attributes)
        above = _Labelled(upstream, output)
        return (
            _labelled_product(above, _Labelled(right, second), first, left.shape),
            _labelled_product(_Labelled(left, first), above, second, right.shape),
        )

    def build(left: Tensor, right: Tensor, **attributes: Any) -> Tensor:
        first, second, output = labels_of(left, right, **attributes)
        shape, _ = infer(left, right, **attributes)
        return _labelled_product(_Labelled(left, first), _Labelled(right, second), output, shape)

    further = {"operands": 2, "attributes": attributes or {}, "multiplies": 2}
    return make_op(name, infer, gradient, reference, build, samples, **further)


_ADVICE = {
    "einsum": "Axes of one letter must have the same extent.",
    "matmul": "The last axis of left and the last but one of right must be equal, and the axes "
    "before them equal or 1; try ops.transpose.",
    "dot": "The last axis of left and the last but one (or only) axis of right must be equal.",
}


def _need_axes(name: str, left: Tensor, right: Tensor, most: int, problem: str) -> None:
    if any(not 1 <= x.rank <= most for x in (left, right)):
        raise ShapeError(
            f"{name}: {problem}",
            facts=(("left", described(left)), ("right", described(right))),
            advice="Use * to multiply by a number, and ops.reshape to change the number of axes.",
        )


def _matmul_labels(left: Tensor, right: Tensor) -> tuple[Labels, Labels, Labels]:
    _need_axes("matmul", left, right, 99, "a tensor without axes has no matrix product")
    m = ("m",) if left.rank > 1 else ()
    n = ("n",) if right.rank > 1 else ()
    ranks = max(left.rank - 2, 0), max(right.rank - 2, 0)
    names = tuple(f"b{number}" for number in range(max(*ranks), 0, -1))
    batches = [names[len(names) - rank :] for rank in ranks]
    return (*batches[0], *m, "k"), (*batches[1], "k", *n), (*names, *m, *n)


_product = decorating(_product_op)


@_product(
    _matmul_labels,
    np.matmul,
    (
        Sample(((3, 5), (5, 4))),
        Sample(((5,), (5,))),
        Sample(((2, 3, 5), (5,))),
        Sample(((5,), (2, 5, 3))),
        Sample(((2, 1, 3, 4), (5, 4, 2))),
        Sample(((1, 3, 4), (6, 4, 1))),
        Sample(((7, 1), (1, 3))),
        Sample(((2, 0), (0, 3))),
    ),
)
def matmul(left: TensorLike, right: TensorLike) -> Operands:
    """The matrix product by NumPy's rules: of vectors, matrices, and batches that broadcast."""
    return numbers_of(left, right)


def _dot_labels(left: Tensor, right: Tensor) -> tuple[Labels, Labels, Labels]:
    _need_axes("dot", left, right, 99, "a tensor without axes has no inner product")
    m = tuple(f"m{number}" for number in range(left.rank - 1))
    n = tuple(f"n{number}" for number in range(right.rank - 1))
    return (*m, "k"), (*n[:-1], "k", *n[-1:]), (*m, *n)


@_product(
    _dot_labels,
    np.dot,
    (
        Sample(((9,), (9,))),
        Sample(((3, 5), (5,))),
        Sample(((5,), (2, 5, 3))),
        Sample(((2, 1, 4), (3, 4, 2))),
    ),
)
def dot(left: TensorLike, right: TensorLike) -> Operands:
    """The sum of products over left's last axis and right's last but one (or only) axis."""
    return numbers_of(left, right)


def _outer_labels(left: Tensor, right: Tensor) -> tuple[Labels, Labels, Labels]:
    _need_axes("outer", left, right, 1, "two tensors with one axis each are needed")
    return ("m",), ("n",), ("m", "n")


@_product(_outer_labels, np.outer, (Sample(((3,), (4,))), Sample(((1,), (5,)))))
def outer(left: TensorLike, right: TensorLike) -> Operands:
    """All products of an element of one vector with an element of another."""
    return numbers_of(left, right)


def refused_spec(problem: str, spec: str, operands: Sequence[Tensor]) -> LaminaError:
    """The error for letters that do not fit."""
    facts = (("spec", spec), *((f"operand {i}", described(x)) for i, x in enumerate(operands)))
    return ShapeError(
        f"einsum: {problem}",
        facts=facts,
        advice="Write one letter for each axis, or ... for several, as in '...ij,jk->...ik'.",
    )


def parsed_spec(spec: str, operands: Sequence[Tensor]) -> tuple[list[str], str]:
    """A letter for each axis of each operand, and the letters of the result."""
    left_side, arrow, right_side = spec.replace(" ", "").partition("->")
    inputs = left_side.split(",")
    letters = "".join(inputs).replace("...", "")
    output = right_side.replace("...", "", 1)
    problem = ""
    dots = {part.count(".") for part in inputs}
    if not set(letters + output) <= set(string.ascii_letters) or not dots <= {0, 3}:
        problem = "only letters, and ... once in each tensor, may name axes"
    elif len(inputs) != len(operands):
        problem = f"{len(inputs)} operands are named and {len(operands)} given"
    elif len(set(output)) < len(output):
        problem = "a letter occurs twice in the result"
    elif not set(output) <= set(letters):
        problem = "the result has a letter that no operand has"
    if problem:
        raise refused_spec(problem, spec, operands)
    counts = [
        x.rank - len(part.replace("...", "")) for part, x in zip(inputs, operands, strict=True)
    ]
    pairs = list(zip(inputs, counts, strict=True))
    if any(count < 0 or (count > 0 and "..." not in part) for part, count in pairs):
        problem = "the number of letters of an operand is not its number of axes"
        raise refused_spec(problem, spec, operands)
    spare = [letter for letter in string.ascii_letters if letter not in letters]
    most = max(counts)
    if most > len(spare):
        raise refused_spec("there are too many axes", spec, operands)
    further = "".join(spare[:most])
    named = [part.replace("...", further[most - count :]) for part, count in pairs]
    if arrow:
        return named, right_side.replace("...", further)
    alone = sorted(letter for letter in set(letters) if letters.count(letter) == 1)
    return named, further + "".join(alone)


def _parsed(spec: str, operands: Sequence[Tensor]) -> tuple[Labels, ...]:
    """The labels of each operand and of the result, for products without diagonals."""
    letters, output = parsed_spec(spec, operands)
    if any(len(set(part)) < len(part) for part in letters):
        raise refused_spec("a letter occurs twice in one tensor", spec, operands)
    return (*map(tuple, letters), tuple(output))


def _einsum_labels(left: Tensor, right: Tensor, spec: str) -> tuple[Labels, Labels, Labels]:
    first, second, output = _parsed(spec, (left, right))
    return first, second, output


def _einsum_reference(*operands: Array, spec: str) -> Array:
    return np.einsum(spec, *operands)


EINSUM = _product_op(
    "einsum",
    _einsum_labels,
    _einsum_reference,
    (
        Sample(((3, 5), (5, 4)), {"spec": "ij,jk->ik"}),
        Sample(((2, 3, 5), (2, 4, 5)), {"spec": "bij,bkj->bik"}),
        Sample(((3, 5, 2), (5, 4)), {"spec": "ijx,jk->ki"}),
        Sample(((3,), (1,)), {"spec": "i,j"}),
        Sample(((2, 3), (2, 3)), {"spec": "ij,ij->"}),
        Sample(((2, 3), (4,)), {"spec": "ab,c->"}),
    ),
    attributes={"spec": LABEL},
)


def _infer_single(x: Tensor, spec: str) -> Typed:
    require_numbers(x)
    labels, output = _parsed(spec, (x,))
    extents = dict(zip(labels, x.shape, strict=True))
    return tuple(extents[label] for label in output), x.dtype


def _single_build(x: Tensor, spec: str) -> Tensor:
    labels, output = _parsed(spec, (x,))
    summed = tuple(axis for axis, label in enumerate(labels) if label not in output)
    kept = [label for label in labels if label in output]
    return transpose(sum_axes(x, summed), [kept.index(label) for label in output])


def _single_gradient(x: Tensor, _: Tensor, upstream: Tensor, spec: str) -> Gradients:
    labels, output = _parsed(spec, (x,))
    kept = [label for label in labels if label in output]
    ordered = transpose(upstream, [output.index(label) for label in kept])
    extents = zip(labels, x.shape, strict=True)
    ones = [dim if label in output else 1 for label, dim in extents]
    return (broadcast_to(reshape(ordered, ones), x.shape),)


EINSUM_SINGLE = make_op(
    "einsum_single",
    _infer_single,
    _single_gradient,
    _einsum_reference,
    _single_build,
    (
        Sample(((2, 3, 4),), {"spec": "ijk->ki"}),
        Sample(((3, 5),), {"spec": "ij->"}),
        Sample(((1, 4),), {"spec": "ba"}),
        Sample(((7,),), {"spec": "i->i"}),
    ),
    attributes={"spec": LABEL},
)
