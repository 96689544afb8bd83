"""The layout of a native program: kernels and workspaces. It is kept with the machine code."""

from __future__ import annotations

from lamina.base.records import frozen_dataclass
from lamina.engines.cpu.native.jobs import Kernel, Phase


@frozen_dataclass
class Entry:
    """The kernels and phases of one job.

    Attributes:
        threads: the number of threads that pay; 0 if there is nothing to run.
        functions: the number of functions that its kernels call. The module exports a table of
            their addresses under `exported_name`.
        kernels, phases: see `jobs`.
    """

    threads: int
    functions: int
    kernels: tuple[Kernel, ...]
    phases: tuple[Phase, ...]


@frozen_dataclass
class Layout:
    """The kernels of a native program, and its memory in addition to the program's buffers.

    Attributes:
        program: the job of every run.
        load: the job that runs once after the parameters were changed.
        thread_bytes: the size of a thread's workspace.
        shared_bytes: the size of the shared workspaces: prepacked operands and workspaces of
            steps. Packed parameters stay from run to run; all others reuse memory.
        shared_offsets: the offset of each of them.
        table: the table of addresses. Each entry is the number of a buffer: the program's buffers
            in its order, then the shared workspaces. Negative numbers count from the end and name
            the fixed workspaces.
        steps: the number of the step of each kernel of the program.
    """

    program: Entry
    load: Entry
    thread_bytes: int
    shared_bytes: int
    shared_offsets: tuple[int, ...]
    table: tuple[int, ...]
    steps: tuple[int, ...]

    @property
    def threads(self) -> int:
        """The number of threads that need a workspace."""
        return max(self.program.threads, self.load.threads, 1)

    @property
    def total_bytes(self) -> int:
        """The size of all workspaces."""
        return self.thread_bytes * self.threads + self.shared_bytes


def exported_name(entry: str) -> str:
    """The name of the table of functions of an entry, `"program"` or `"load"`."""
    return f"kernels_of_{entry}"
