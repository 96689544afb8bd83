"""A program as kernels: the records that pass from the kernel writers to the executable."""

from __future__ import annotations

from lamina.records import frozen_dataclass


@frozen_dataclass
class Traits:
    """The properties of a device for which kernels are written.

    Attributes:
        has_float64: whether the device computes with float64.
        lanes: the device's preferred vector width, in float32 numbers; 1 for scalars.
        compute_units: the least number of work groups that run at the same time.
        exact_division: whether division and square root of float32 are correctly rounded.
        fused: whether a fused multiply-add is as fast as a multiplication and an addition.
        alignment_bytes: offsets of buffers within another buffer are multiples of it.
        largest_block_bytes: the limit of one allocation.
    """

    has_float64: bool
    lanes: int
    compute_units: int
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
        items: the number of work items that have work, at least one. Further ones do nothing.
        step: the number of its step in the program.
    """

    kernel: str
    buffers: tuple[str, ...]
    items: int
    step: int


@frozen_dataclass
class RepeatedLaunches:
    """Launches of a repeated part of a program: all of them run in order for each iteration.

    Each of their kernels takes the number of the iteration as its last argument, an int.

    Attributes:
        first, last: the first of the launches, and the launch after the last.
        count: the number of iterations.
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
        items: the number of work items that have work.
    """

    kernel: str
    input: str
    items: int


@frozen_dataclass
class Launches:
    """A program as kernels.

    Attributes:
        text: the functions, in the driver's language.
        launches: in the order in which they run.
        repeats: ranges of launches that are repeated, in order and without overlap.
        gathers: one for each input that has examples with elements.
    """

    text: str
    launches: tuple[Launch, ...]
    repeats: tuple[RepeatedLaunches, ...]
    gathers: tuple[Gather, ...]
