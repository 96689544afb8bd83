"""Products of matrices that a library of the device computes, as frozen records.

Matrices are in column-major order, as in BLAS: the elements of a column are neighbours.
"""

from __future__ import annotations

from lamina.base.records import frozen_dataclass


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
