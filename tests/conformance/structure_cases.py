"""Functions that order, index, rearrange, sample or factorise, written twice: here and in PyTorch.

The conformance tests run them on every engine, and tests marked `torch` compare them with PyTorch.
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np

from lamina import ops
from lamina.base.shapes import Array
from lamina.graph import Tensor


@dataclass(frozen=True, eq=False)
class Case:
    """A function of tensors.

    Attributes:
        name: of the case, for people.
        ours: the function.
        theirs: (torch, tensors) -> the same in PyTorch; None if PyTorch has no such function.
        shapes: of the operands, drawn from -1.7 to 1.7.
        second: whether PyTorch has second derivatives of it, everywhere.
        diagonal: added to the diagonal of the first operand.
    """

    name: str
    ours: Callable[..., Tensor]
    theirs: Callable[..., Any] | None
    shapes: tuple[tuple[int, ...], ...]
    second: bool = True
    diagonal: float = 0.0

    def arrays(self) -> list[Array]:
        generator = np.random.default_rng(sum(self.name.encode()))
        arrays = [generator.uniform(-1.7, 1.7, shape) for shape in self.shapes]
        if self.diagonal:
            arrays[0] = arrays[0] + self.diagonal * np.eye(self.shapes[0][-1])
        return arrays


X = (2, 3, 4)
MASK = np.array([[True, False, True, True], [False, False, True, False], [True, True, False, True]])
KEYS: dict[str, Any] = {
    "a list": (slice(None), [0, 2, -1]),
    "an array of two axes": (..., np.array([[0, 1], [2, -1]])),
    "two arrays": (slice(None), [1, 2, 0], [0, -1, 3]),
    "two arrays apart": ([0, 1], slice(None), [0, -1]),
    "an array and an int": (1, slice(None), [0, 3]),
    "an int and an array": (slice(None), 2, [[0], [3]]),
    "a mask of two axes": (slice(None), MASK),
    "a mask and a slice": (slice(None), slice(0, 2), MASK[0]),
    "a mask and an array": ([0, 1], MASK[:, 0]),
    "new axes": (None, slice(None), None, [1, 1]),
    "nothing": (slice(None), []),
}
INDICES = np.array([[[0, 2, 1, 1], [2, 2, 0, 1]], [[1, 0, 0, 2], [2, 1, 0, 1]]])
DISTINCT = np.array([[[0, 2, 1], [2, 0, 0]], [[1, 0, 0], [2, 1, 2]]])


def symmetric(x: Any) -> Any:
    return (x + ops.swapaxes(x, -1, -2)) * 0.5 if isinstance(x, Tensor) else (x + x.mT) / 2


def _alike(
    name: str, *arguments: Any, theirs: str = "", label: str = "", shapes: Any = (X,), **how: Any
) -> Case:
    """A function that has the same arguments in PyTorch: of this name, or of another one."""
    return Case(
        label or name,
        lambda *x: getattr(ops, name)(*x, *arguments),
        lambda torch, *x: attrgetter(theirs or name)(torch)(*x, *arguments),
        shapes,
        **how,
    )


def _ordering() -> Iterator[Case]:
    for falling in (False, True):
        order = "falling" if falling else "rising"
        yield Case(
            f"sort, {order}",
            lambda x, d=falling: ops.sort(x, 1, d),
            lambda torch, x, d=falling: torch.sort(x, dim=1, descending=d, stable=True)[0],
            (X,),
        )
        yield Case(
            f"top_k, {order}",
            lambda x, d=falling: ops.top_k(x, 2, 2, d)[0],
            lambda torch, x, d=falling: torch.topk(x, 2, 2, largest=d)[0],
            (X,),
        )
    for axis in (1, 2):
        yield Case(
            f"median along {axis}",
            lambda x, axis=axis: ops.median(x, axis),
            lambda torch, x, axis=axis: torch.median(x, axis)[0],
            (X,),
        )


def _scattered(label: str, indices: Array, value: float | None, name: str = "scatter") -> Case:
    """Values of the shape of the indices, or a number, put or added along axis 1."""
    how = ("add",) if name == "scatter_add" else ()
    values = () if value is None else (value,)
    return Case(
        label,
        lambda x, *v: ops.scatter(x, indices, *v, *values, 1, *how),
        lambda torch, x, *v: getattr(torch, name)(x, 1, torch.tensor(indices), *v, *values),
        (X, indices.shape) if value is None else (X,),
    )


def _indexing() -> Iterator[Case]:
    for name, key in KEYS.items():
        # An int and an array that a slice separates: here as in NumPy.
        theirs = None if name == "an array and an int" else lambda torch, x, k=key: x[k]
        yield Case(f"getitem with {name}", lambda x, k=key: x[k], theirs, (X,))
    yield Case(
        "gather",
        lambda x: ops.gather(x, INDICES[:, :, :3], 1),
        lambda torch, x: torch.gather(x, 1, torch.tensor(INDICES[:, :, :3])),
        (X,),
    )
    yield _scattered("scatter by addition", INDICES, None, "scatter_add")
    yield _scattered("scatter", DISTINCT, None)
    yield _scattered("scatter of a number", DISTINCT, 0.5)
    yield Case(
        "masked_fill",
        lambda x: ops.masked_fill(x, MASK, 2.0),
        lambda torch, x: x.masked_fill(torch.tensor(MASK), 2.0),
        (X,),
    )


def _rearranging() -> Iterator[Case]:
    for k in (-1, 0, 2):
        for name, *arguments in (
            ("tril", k),
            ("triu", k),
            ("diag_embed", k),
            ("roll", (k, -k), (0, 2)),
            ("rot90", k, (2, 0)),
        ):
            yield _alike(name, *arguments, label=f"{name} {k}")
        yield Case(
            f"diagonal {k}",
            lambda x, k=k: ops.diagonal(x, k, (2, 0)),
            lambda torch, x, k=k: torch.diagonal(x, k, 2, 0),
            (X,),
        )


def _repeating() -> Iterator[Case]:
    yield _alike("roll", 5)
    yield _alike("rot90")
    yield _alike("tile", (2, 1, 3))
    yield _alike("tile", (2, 1, 2, 1), label="tile with more axes")
    yield _alike("repeat", 2, 1, theirs="repeat_interleave")
    yield Case(
        "repeat by counts",
        lambda x: ops.repeat(x, [1, 0, 2], 1),
        lambda torch, x: torch.repeat_interleave(x, torch.tensor([1, 0, 2]), 1),
        (X,),
    )
    yield _alike("moveaxis", (0, 1), (1, -1), theirs="movedim")
    yield Case(
        "trace",
        lambda x: ops.trace(x, 1),
        lambda torch, x: torch.diagonal(x, 1, -2, -1).sum(-1),
        (X,),
    )
    yield Case(
        "meshgrid",
        lambda x, y: ops.mul(*ops.meshgrid([x, y], "xy")),
        lambda torch, x, y: torch.mul(*torch.meshgrid(x, y, indexing="xy")),
        ((3,), (4,)),
    )
    yield Case(
        "chunk", lambda x: ops.chunk(x, 3)[2], lambda torch, x: torch.chunk(x, 3)[2], ((7, 2),)
    )
    yield Case(
        "pad that crops",
        lambda x: ops.pad(x, [0, (-1, 2), (1, -3)], 0.5),
        lambda torch, x: torch.nn.functional.pad(x, (1, -3, -1, 2), value=0.5),
        (X,),
    )


def _norms() -> Iterator[Case]:
    for order in (0, 1, 2, 3, 1.5, -1, np.inf, -np.inf):
        yield _alike("norm", order, 1, theirs="linalg.vector_norm", label=f"norm {order}")
    yield Case(
        "standard deviation", lambda x: ops.std(x, 1, 1), lambda torch, x: torch.std(x, 1), (X,)
    )
    yield _alike("normalize", 2, 1, theirs="nn.functional.normalize")
    yield _alike("cosine_similarity", 1, theirs="nn.functional.cosine_similarity", shapes=(X, X))
    for order in (1.0, 2.0):
        yield _alike("cdist", order, label=f"cdist {order}", shapes=(X, (2, 5, 4)), second=False)
    yield Case(
        "cross",
        lambda x, y: ops.cross(x, y, 1),
        lambda torch, x, y: torch.linalg.cross(x, y, dim=1),
        (X, X),
    )


EINSUMS: dict[str, tuple[tuple[int, ...], ...]] = {
    "ii->i": ((3, 3),),
    "iij->j": ((3, 3, 2),),
    "...ij,jk->...ik": ((2, 3, 3, 4), (4, 2)),
    "...ij,...jk": ((2, 1, 3, 4), (3, 4, 2)),
    "ij,jk,kl,lm->im": ((2, 3), (3, 4), (4, 5), (5, 3)),
    "i,j,k->kji": ((2,), (3,), (4,)),
    "ai,bi,ci->abc": ((2, 3), (4, 3), (5, 3)),
    "iji,jk->ik": ((3, 2, 3), (2, 4)),
    "bij,bjk,bk->b": ((2, 3, 4), (2, 4, 5), (2, 5)),
}


def _products() -> Iterator[Case]:
    for spec, shapes in EINSUMS.items():
        yield Case(
            f"einsum {spec}",
            lambda *x, spec=spec: ops.einsum(spec, *x),
            lambda torch, *x, spec=spec: torch.einsum(spec, *x),
            shapes,
        )


def _matrices() -> Iterator[Case]:
    matrix, right = (2, 4, 4), (2, 4, 3)
    yield Case(
        "cholesky",
        lambda x: ops.cholesky(symmetric(x)),
        lambda torch, x: torch.linalg.cholesky(symmetric(x)),
        (matrix,),
        diagonal=8.0,
    )
    for lower, unit in itertools.product((False, True), (False, True)):
        yield Case(
            f"solve_triangular, lower={lower}, unit={unit}",
            lambda x, y, lower=lower, unit=unit: ops.solve_triangular(x, y, lower, unit),
            lambda torch, x, y, lower=lower, unit=unit: torch.linalg.solve_triangular(
                x, y, upper=not lower, unitriangular=unit
            ),
            (matrix, right),
            diagonal=3.0,
        )
    for name, shape in (("columns", right), ("a vector", (2, 4))):
        how: Any = {"shapes": (matrix, shape), "diagonal": -2.0}
        yield _alike("solve", theirs="linalg.solve", label=f"solve for {name}", **how)
    yield _alike("inverse", theirs="linalg.inv", shapes=(matrix,))
    yield _alike("det", theirs="linalg.det", shapes=(matrix,))
    yield Case(
        "slogdet",
        lambda x: ops.mul(*ops.slogdet(x)),
        lambda torch, x: torch.mul(*torch.linalg.slogdet(x)),
        (matrix,),
    )


WINDOWS = [ops.Window(3, 2, 1, 1, 1), ops.Window(2, 1, 2)]
PADDINGS = {"zeros": "zeros", "border": "border", "reflect": "reflection"}


def _images() -> Iterator[Case]:
    yield Case(
        "unfold",
        lambda x: ops.unfold(x, WINDOWS),
        lambda torch, x: torch.nn.functional.unfold(x, (3, 2), (1, 2), (1, 0), (2, 1)),
        ((2, 3, 5, 4),),
    )
    yield Case(
        "fold",
        lambda x: ops.fold(x, WINDOWS, (5, 4)),
        lambda torch, x: torch.nn.functional.fold(x, (5, 4), (3, 2), (1, 2), (1, 0), (2, 1)),
        ((2, 18, 6),),
    )
    for corners in (False, True):
        yield Case(
            f"affine_grid, align_corners={corners}",
            lambda x, c=corners: ops.affine_grid(x, (4, 3), c),
            lambda torch, x, c=corners: torch.nn.functional.affine_grid(
                x, (2, 1, 4, 3), align_corners=c
            ),
            ((2, 2, 3),),
        )
        for mode, padding in itertools.product(("nearest", "bilinear", "bicubic"), PADDINGS):
            yield _sampled(mode, padding, corners, (2, 3, 5, 4), (2, 6, 3, 2))
    for mode, padding in itertools.product(("nearest", "bilinear"), PADDINGS):
        yield _sampled(mode, padding, False, (2, 2, 3, 4, 2), (2, 2, 3, 2, 3))


def _sampled(
    mode: str, padding: str, corners: bool, image: tuple[int, ...], grid: tuple[int, ...]
) -> Case:
    return Case(
        f"grid_sample, {mode}, {padding}, {corners}, {len(image) - 2} axes",
        lambda x, g: ops.grid_sample(x, g, mode, padding, corners),
        lambda torch, x, g: torch.nn.functional.grid_sample(
            x, g, mode, PADDINGS[padding], align_corners=corners
        ),
        (image, grid),
        second=False,
    )


CASES: dict[str, list[Case]] = {
    "ordering": [*_ordering()],
    "indexing": [*_indexing()],
    "rearranging": [*_rearranging(), *_repeating()],
    "norms": [*_norms()],
    "products": [*_products()],
    "matrices": [*_matrices()],
    "images": [*_images()],
}
