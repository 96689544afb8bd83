"""A program as kernels: what those who write kernels give to those who launch them."""

from __future__ import annotations

from lamina.records import frozen_dataclass


@frozen_dataclass
class Traits:
    """What kernels are written for.

    Attributes:
        has_float64: whether the device computes with float64.
        lanes: float32 numbers of a vector that the device prefers; 1 if it takes them one by one.
        units: how many work groups run at the same time, at least.
        exact_division: whether division and square root of float32 are correctly rounded.
        fused: whether it multiplies and adds in one rounding as fast as in two.
        alignment_bytes: a buffer within another one begins at a multiple of so many bytes.
        largest_block_bytes: the most bytes of one allocation.
    """

    has_float64: bool
    lanes: int
    units: int
    exact_division: bool
    fused: bool
    alignment_bytes: int
    largest_block_bytes: int


@frozen_dataclass
class Launch:
    """One kernel of one step.

    Attributes:
        kernel: the name of its function in the text.
        buffers: the function's first arguments, in order: buffers of the program. One without
            elements is a null pointer.
        items: how many work items have work, at least one. Work items beyond these do nothing.
        step: the number of the step of the program that it belongs to.
    """

    kernel: str
    buffers: tuple[str, ...]
    items: int
    step: int


@frozen_dataclass
class Repeated:
    """Launches that are run again and again, all of them for each iteration, in order.

    Each of their kernels gets the number of the iteration as its last argument, an int.

    Attributes:
        first, last: the first of the launches, and the one behind the last.
        count: how often.
    """

    first: int
    last: int
    count: int


@frozen_dataclass
class Gather:
    """The kernel that copies the examples of a batch from a data set to an input.

    Its arguments are the data set, the input, the examples of all runs (int64), and the number of
    the run, an int.

    Attributes:
        kernel: the name of its function in the text.
        input: the buffer of the program.
        items: how many work items have work.
    """

    kernel: str
    input: str
    items: int


@frozen_dataclass
class Launches:
    """A program as kernels.

    Attributes:
        text: the functions, in OpenCL C (or CUDA C).
        launches: in the order in which they run.
        repeats: which of them are repeated; these ranges are in order, and do not overlap.
        gathers: of the inputs that have examples with elements.
    """

    text: str
    launches: tuple[Launch, ...]
    repeats: tuple[Repeated, ...]
    gathers: tuple[Gather, ...]
