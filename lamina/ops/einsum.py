"""Einstein's sum of any number of tensors.

Diagonals are taken first. Then pairs of tensors are multiplied and summed, in the order that needs
the fewest multiplications (Pfeifer, Haegeman, Verstraete: Faster identification of optimal
contraction sequences for tensor networks, 2014). Each product is the op `einsum` of two tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from lamina.base.records import frozen_dataclass
from lamina.base.shapes import Dim, Size, bind_dim, size_of
from lamina.checks import checked_as_given as checked
from lamina.graph import Tensor, TensorLike, apply
from lamina.graph.attributes import LABEL
from lamina.ops.arguments import read
from lamina.ops.conversion import numeric, operands_of
from lamina.ops.linalg import EINSUM, EINSUM_SINGLE, parsed_spec, refused_spec
from lamina.ops.movement import transpose
from lamina.ops.rearranging import diagonal
from lamina.ops.reduce import summable

__all__ = ["einsum"]

# Of up to so many tensors the best order is searched; of more, the cheapest pair comes first.
MOST_SEARCHED = 8
# The batch that costs are computed for while its size is open.
_NOMINAL_BATCH = 64


@frozen_dataclass
class _Term:
    """A tensor and one letter for each of its axes."""

    tensor: Tensor
    letters: str


@checked
def einsum(spec: str, *tensors: TensorLike) -> Tensor:
    """Einstein's sum of tensors: `einsum("ij,jk->ik", a, b)` is the matrix product.

    Letters that the result lacks are summed over. A letter that occurs twice in one tensor means
    the diagonal of these axes. `...` stands for further axes, which broadcast from the last one.
    Axes of one letter have the same extent, or extent 1. Without `->` the result has the axes of
    `...`, then the letters that occur once, in alphabetical order. A sum of one tensor is int64 for
    bool and integers, as `sum` is.
    """
    spec = read("spec", LABEL, spec)
    operands = list(operands_of(*tensors))
    if len(operands) > 1:
        operands = [numeric(x) for x in operands]
    letters, output = parsed_spec(spec, operands)
    terms = [_Term(x, each) for x, each in zip(operands, letters, strict=True)]
    extents = _extents(spec, terms)
    terms = [_without_repeated(term) for term in terms]
    if len(terms) == 1:
        (only,) = terms
        if len(only.letters) == len(output):
            return transpose(only.tensor, [only.letters.index(letter) for letter in output])
        only = _Term(summable(only.tensor), only.letters)
        return apply(EINSUM_SINGLE, only.tensor, spec=f"{only.letters}->{output}")
    for number, (first, second) in enumerate(
        _order([term.letters for term in terms], output, extents)
    ):
        left, right = terms[first], terms[second]
        rest = [term for at, term in enumerate(terms) if at not in (first, second)]
        kept = output
        if number < len(operands) - 2:
            needed = {*output, *(letter for term in rest for letter in term.letters)}
            joint = dict.fromkeys(left.letters + right.letters)
            kept = "".join(letter for letter in joint if letter in needed)
        product = apply(
            EINSUM, left.tensor, right.tensor, spec=f"{left.letters},{right.letters}->{kept}"
        )
        terms = [*rest, _Term(product, kept)]
    return terms[0].tensor


def _extents(spec: str, terms: Sequence[_Term]) -> dict[str, Dim]:
    """The extent of each letter; extent 1 broadcasts."""
    extents: dict[str, Dim] = {}
    for term in terms:
        for letter, dim in zip(term.letters, term.tensor.shape, strict=True):
            extent = extents.get(letter, 1)
            if extent != dim and extent != 1 and dim != 1:
                raise refused_spec(
                    f"two axes that must be equal differ, {extent} against {dim}",
                    spec,
                    [other.tensor for other in terms],
                )
            extents[letter] = dim if extent == 1 else extent
    return extents


def _without_repeated(term: _Term) -> _Term:
    """The diagonal of axes with one letter; its axis is the last one."""
    for letter in dict.fromkeys(term.letters):
        while term.letters.count(letter) > 1:
            first = term.letters.index(letter)
            second = term.letters.index(letter, first + 1)
            rest = "".join(
                other for axis, other in enumerate(term.letters) if axis not in (first, second)
            )
            term = _Term(diagonal(term.tensor, 0, (first, second)), rest + letter)
    return term


def _order(letters: Sequence[str], output: str, extents: dict[str, Dim]) -> list[tuple[int, int]]:
    """Pairs of numbers of tensors; the product of a pair comes after the remaining tensors."""
    sizes = {
        letter: max(bind_dim(dim, _NOMINAL_BATCH), 1) if isinstance(dim, Size) else dim
        for letter, dim in extents.items()
    }
    search = _best_tree if len(letters) <= MOST_SEARCHED else _greedy_tree
    tree = search([set(labels) for labels in letters], set(output), sizes)
    pairs: list[tuple[int, int]] = []
    # The tree of each tensor that is left.
    left: list[_Tree] = list(range(len(letters)))
    for node in _postorder(tree):
        first, other = left.index(node[0]), left.index(node[1])
        pairs.append((first, other))
        left = [x for number, x in enumerate(left) if number not in (first, other)] + [node]
    return pairs


# The number of a tensor, or the product of two trees.
_Tree = int | tuple["_Tree", "_Tree"]


def _postorder(tree: _Tree) -> list[tuple[_Tree, _Tree]]:
    return [] if isinstance(tree, int) else [*_postorder(tree[0]), *_postorder(tree[1]), tree]


def _best_tree(letters: Sequence[set[str]], output: set[str], sizes: dict[str, int]) -> _Tree:
    """The tree of the fewest multiplications, by the best trees of all smaller sets."""
    count = len(letters)
    best: dict[frozenset[int], tuple[int, _Tree]] = {
        frozenset((number,)): (0, number) for number in range(count)
    }
    kept = {
        members: _kept(members, letters, output)
        for size in range(1, count + 1)
        for members in map(frozenset, combinations(range(count), size))
    }
    for size in range(2, count + 1):
        for members in map(frozenset, combinations(range(count), size)):
            first = min(members)
            for half in range(1, size):
                for part in map(frozenset, combinations(sorted(members), half)):
                    if first not in part:
                        continue
                    rest = members - part
                    product = size_of([sizes[letter] for letter in kept[part] | kept[rest]])
                    cost = best[part][0] + best[rest][0] + product
                    if members not in best or cost < best[members][0]:
                        best[members] = cost, (best[part][1], best[rest][1])
    return best[frozenset(range(count))][1]


def _kept(members: frozenset[int], letters: Sequence[set[str]], output: set[str]) -> set[str]:
    """The letters of the product of some tensors: the result or another tensor has them too."""
    joined = set[str]().union(*(letters[number] for number in members))
    others = (subscript for number, subscript in enumerate(letters) if number not in members)
    return joined & output.union(*others)


def _greedy_tree(letters: Sequence[set[str]], output: set[str], sizes: dict[str, int]) -> _Tree:
    """The pair of the fewest multiplications comes first, again and again."""
    parts: list[tuple[frozenset[int], _Tree]] = [
        (frozenset((number,)), number) for number in range(len(letters))
    ]

    def cost(pair: tuple[tuple[frozenset[int], _Tree], tuple[frozenset[int], _Tree]]) -> int:
        joint = set[str]().union(*(_kept(members, letters, output) for members, _ in pair))
        return size_of([sizes[letter] for letter in joint])

    while len(parts) > 1:
        first, other = min(combinations(parts, 2), key=cost)
        parts = [part for part in parts if part not in (first, other)]
        parts.append((first[0] | other[0], (first[1], other[1])))
    return parts[0][1]
