"""A program as kernels: what those who write kernels give to those who launch them."""

from __future__ import annotations

from collections.abc import Mapping

from lamina.records import frozen_dataclass


@frozen_dataclass
class Traits:
    """What kernels are written for.

    Attributes:
        has_float64: whether the device computes with float64.
        largest_group: the most work items of a work group.
        local_bytes: the local memory of a work group.
        lanes: float32 numbers of a vector that the device prefers; 1 if it takes them one by one.
        exact_division: whether division and square root of float32 are correctly rounded.
        alignment_bytes: a buffer within another one begins at a multiple of so many bytes.
        largest_block_bytes: the most bytes of one allocation.
        is_cpu: whether work items are run by a processor with caches, in vectors.
        fused: whether it multiplies and adds in one rounding as fast as in two.
    """

    has_float64: bool
    largest_group: int
    local_bytes: int
    lanes: int
    exact_division: bool
    alignment_bytes: int
    largest_block_bytes: int
    is_cpu: bool
    fused: bool


@frozen_dataclass
class Launch:
    """One kernel of one step.

    Attributes:
        kernel: the name of its function in the text.
        buffers: the function's first arguments, in order: buffers of the program, or scratch. A
            buffer without elements is a null pointer.
        items: how many work items have work. The global size is that, rounded up to groups; work
            items beyond it do nothing. A launch without any is left out.
        group: the work items of a work group; 0 if the driver may choose.
        step: the number of the step of the program that it belongs to.
    """

    kernel: str
    buffers: tuple[str, ...]
    items: int
    group: int
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
class Launches:
    """A program as kernels.

    Attributes:
        text: the functions, in OpenCL C (or CUDA C).
        launches: in the order in which they run.
        repeats: which of them are repeated; these ranges are in order, and do not overlap.
        scratch: bytes of the buffers that kernels use beside the program's. They hold nothing from
            one run to the next.
    """

    text: str
    launches: tuple[Launch, ...]
    repeats: tuple[Repeated, ...]
    scratch: Mapping[str, int]
