"""Products of matrices that a library of the device computes, and contractions that are such.

Matrices are in column-major order, as in BLAS: the elements of a column are neighbours.

A contraction qualifies if its operands and its result are matrices with a leading dimension: their
elements are neighbours along one axis, and a constant distance apart along the other one. Products
of a batch are a constant distance apart, too. `plain_product` says what the epilogue may be.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from lamina.base.records import frozen_dataclass
from lamina.base.shapes import float32
from lamina.codegen.matrix import stored, with_single_axes
from lamina.program.index import Axis, Index
from lamina.program.scalar import Apply, Load, Local, Scalar
from lamina.program.steps import Contraction, Store

# Libraries support sizes that fit into 32 bits; strides are limited likewise.
_LARGEST = 2**31 - 1


@frozen_dataclass
class Matrix:
    """A matrix in a buffer, or one for each product of a batch.

    Attributes:
        start: the element of the buffer with which the first matrix begins.
        rows, columns: its size.
        leading: the elements from one column to the next, at least `rows`.
        batch_stride: the elements from one matrix to the next; 0 if there is only one.
        dtype: NumPy's name, `"float32"`; or `"tf32"`, float32 that are rounded to TF32.
    """

    start: int
    rows: int
    columns: int
    leading: int
    batch_stride: int
    dtype: str

    def bytes_of(self, batch: int) -> int:
        """From the first element of the first of some matrices to the last one of the last."""
        last = (batch - 1) * self.batch_stride + (self.columns - 1) * self.leading + self.rows
        return last * self.itemsize

    @property
    def itemsize(self) -> int:
        """The bytes of an element."""
        return 4 if self.dtype in ("float32", "tf32") else 2


@frozen_dataclass
class Algorithm:
    """One of a library's algorithms for a product.

    Attributes:
        number: its place in the library's order, which begins with the one that it expects to be
            the fastest.
        data: the library's own description.
        workspace_bytes: the memory that it needs besides.
    """

    number: int
    data: tuple[int, ...]
    workspace_bytes: int


@frozen_dataclass
class MatrixProduct:
    """result = left * right, with what is added to it.

    Sums are float32, also of floats of 16 bits. They are rounded once, when they are stored.

    Attributes:
        batch: the number of products.
        left, right: the factors, as they are in memory.
        left_transposed, right_transposed: whether a factor is the transpose of what is in memory.
        result: the matrix that holds the products.
        bias_start: the element of a buffer with which a vector begins that is added to each column;
            None if there is no such vector.
        added: a matrix of the size of the result that is added; None if there is none.
    """

    batch: int
    left: Matrix
    right: Matrix
    left_transposed: bool
    right_transposed: bool
    result: Matrix
    bias_start: int | None = None
    added: Matrix | None = None

    @property
    def inner(self) -> int:
        """The length of its sums, K."""
        return self.left.rows if self.left_transposed else self.left.columns

    @property
    def multiplications(self) -> int:
        """The number of multiplications."""
        return self.batch * self.result.rows * self.result.columns * self.inner

    def __str__(self) -> str:
        size = f"{self.result.rows} x {self.result.columns} x {self.inner}"
        batch = f"{self.batch} of " if self.batch > 1 else ""
        dtypes = self.left.dtype
        if self.result.dtype != dtypes:
            dtypes += f" to {self.result.dtype}"
        properties = {
            "left transposed": self.left_transposed,
            "right transposed": self.right_transposed,
            "plus a bias": self.bias_start is not None,
            "plus a matrix": self.added is not None,
        }
        stated = [text for text, is_so in properties.items() if is_so]
        return ", ".join([f"{batch}{size} of {dtypes}", *stated])


@frozen_dataclass
class PlainProduct:
    """A contraction as a product of matrices, and their buffers; "" if nothing is added."""

    product: MatrixProduct
    left: str
    right: str
    result: str
    bias: str = ""
    added: str = ""

    @property
    def buffers(self) -> tuple[str, ...]:
        """The buffers, in the order in which drivers take them."""
        return self.left, self.right, self.result, self.bias, self.added


@frozen_dataclass
class _Strided:
    """Elements of a buffer whose indices are a start, and strides times the values of axes."""

    buffer: str
    dtype: str
    start: int
    strides: Mapping[Axis, int]

    def matrix(self, rows: Axis, columns: Axis, batch: Axis) -> Matrix | None:
        """The elements as a matrix in column-major order; None if they are none.

        Along an axis of extent 1 there are no neighbours, so its stride does not matter.
        """
        apart = [
            self.strides.get(axis, 0) if axis.extent > 1 else default
            for axis, default in ((rows, 1), (columns, rows.extent), (batch, 0))
        ]
        along_rows, leading, batch_stride = apart
        if along_rows != 1 or leading < rows.extent or (batch.extent > 1 and batch_stride < 1):
            return None
        if max(rows.extent, columns.extent, batch.extent, *apart) > _LARGEST:
            return None
        size = rows.extent, columns.extent
        return Matrix(self.start, *size, leading, batch_stride, self.dtype)

    def vector(self, rows: Axis, columns: Axis, batch: Axis) -> bool:
        """Whether the elements are a vector along rows, the same one in each column."""
        others = [self.strides.get(axis, 0) for axis in (columns, batch)]
        return not any(others) and (rows.extent == 1 or self.strides.get(rows, 0) == 1)


def plain_product(step: Contraction) -> PlainProduct | None:
    """The contraction as a product of matrices; None if it is none.

    Sums are float32. The factors are float32, or floats of 16 bits of one dtype, or stored rounded
    to TF32. There is one store, of one of these:

    - the sum;
    - the sum, rounded to the factors' dtype;
    - the sum plus a vector along the columns of the result, or plus a matrix, all float32.

    Other epilogues do not qualify: libraries do not document where they round, and what becomes
    of NaN in them. So a ReLU is none of these.
    """
    if len(step.stores) != 1 or not all(step.extents):
        return None
    single = with_single_axes(step, "batch", "m", "n", "k")
    (batch,), (m,), (n,), (k,) = single.batch, single.m, single.n, single.k
    (store,) = single.stores
    target = _strided(store.buffer, store.index, store.value.dtype.name, (batch, m, n))
    left, right = (_elements(view, (batch, m, n, k)) for view in (single.left, single.right))
    if left is None or right is None or target is None or left.dtype != right.dtype:
        return None
    if store.buffer in (left.buffer, right.buffer):
        return None
    rows, columns = n, m
    if target.matrix(rows, columns, batch) is None:
        rows, columns = m, n
    else:
        left, right = right, left
    result = target.matrix(rows, columns, batch)
    first, second = _factor(left, rows, k, batch), _factor(right, k, columns, batch)
    if result is None or first is None or second is None:
        return None
    product = MatrixProduct(batch.extent, first[0], second[0], first[1], second[1], result)
    plain = PlainProduct(product, left.buffer, right.buffer, store.buffer)
    return _with_epilogue(plain, single, store, (rows, columns, batch))


def _elements(view: Scalar, axes: tuple[Axis, ...]) -> _Strided | None:
    """What an operand reads, if it is a load that is at most converted without rounding."""
    source = stored(view)
    if source is None or source.load.bounds:
        return None
    load, converted = source.load, [conversion.primitive for conversion in source.conversions]
    if load.dtype == float32:
        kind = {"": "float32", "as_tf32": "tf32"}.get(" ".join(converted))
    else:
        is_widened = load.dtype.is_half and converted == ["cast"] and view.dtype == float32
        kind = load.dtype.name if is_widened else None
    return None if kind is None else _strided(load.buffer, load.index, kind, axes)


def _strided(buffer: str, index: Index, dtype: str, axes: tuple[Axis, ...]) -> _Strided | None:
    """Elements at an index; None if it is more than a sum of these axes."""
    strides: dict[Axis, int] = {}
    for atom, coefficient in index.terms:
        if not isinstance(atom, Axis) or atom not in axes:
            return None
        strides[atom] = coefficient
    return _Strided(buffer, dtype, index.constant, strides)


def _factor(
    elements: _Strided, rows: Axis, columns: Axis, batch: Axis
) -> tuple[Matrix, bool] | None:
    """A factor as it is in memory, and whether that is the transpose of rows x columns."""
    matrix = elements.matrix(rows, columns, batch)
    if matrix is not None:
        return matrix, False
    matrix = elements.matrix(columns, rows, batch)
    return None if matrix is None else (matrix, True)


def _with_epilogue(
    plain: PlainProduct, step: Contraction, store: Store, axes: tuple[Axis, Axis, Axis]
) -> PlainProduct | None:
    """The product with what is added to it; None if the epilogue is another one."""
    total, value = Local(step.result, step.dtype), store.value
    target = Load(store.buffer, store.index, float32)
    if store.accumulate:
        if value.dtype != float32:
            return None
        value = Apply("add", (target, value), float32)
    if value == total:
        return plain
    if not isinstance(value, Apply):
        return None
    if value.primitive == "cast" and value.operands == (total,):
        return plain if value.dtype.name == plain.product.left.dtype else None
    if value.primitive != "add" or total not in value.operands:
        return None
    other = value.operands[value.operands[0] == total]
    if not isinstance(other, Load) or other.bounds:
        return None
    rows, columns, batch = axes
    elements = _strided(other.buffer, other.index, float32.name, (batch, rows, columns))
    if elements is None:
        return None
    if elements.vector(rows, columns, batch) and other.buffer != store.buffer:
        product = replace(plain.product, bias_start=elements.start)
        return replace(plain, product=product, bias=other.buffer)
    added = elements.matrix(rows, columns, batch)
    # A part of the result that is read elsewhere than it is written may have been written before.
    if added is None or (other.buffer == store.buffer and other != target):
        return None
    return replace(plain, product=replace(plain.product, added=added), added=other.buffer)
