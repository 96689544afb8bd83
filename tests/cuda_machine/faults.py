"""What a kernel may not do: a fault names the kernel, the line of PTX, the block and the thread."""

from __future__ import annotations

Index = tuple[int, int, int]


class Fault(Exception):
    """A kernel did something that is undefined, or that this machine does not know.

    Its line, from 1, is 0 if there is none; block and thread are None if the text itself is wrong.
    """

    def __init__(
        self,
        what: str,
        *,
        kernel: str = "",
        line: int = 0,
        text: str = "",
        block: Index | None = None,
        thread: Index | None = None,
    ) -> None:
        self.what, self.kernel, self.line, self.text = what, kernel, line, text
        self.block, self.thread = block, thread
        super().__init__(self._told())

    def _told(self) -> str:
        where = [f"kernel {self.kernel}"] if self.kernel else []
        if self.line:
            where.append(f"line {self.line} of the PTX: {self.text}")
        if self.block is not None:
            where.append(f"block {self.block}")
        if self.thread is not None:
            where.append(f"thread {self.thread}")
        return ", ".join([self.what, *where]) if not where else f"{self.what} ({', '.join(where)})"


class OutOfMemory(Exception):
    """The device's memory has no gap of that size."""
