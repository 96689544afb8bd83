"""What a kernel may not do: a fault names the kernel, the line of PTX, the block and the thread."""

from dataclasses import dataclass

Index = tuple[int, int, int]


@dataclass(eq=False)
class Fault(Exception):
    """A kernel did something that is undefined, or that this machine does not know.

    Its line, from 1, is 0 if there is none; block and thread are None if the text itself is wrong.
    """

    what: str
    kernel: str = ""
    line: int = 0
    text: str = ""
    block: Index | None = None
    thread: Index | None = None

    def __str__(self):
        where = [f"kernel {self.kernel}"] if self.kernel else []
        if self.line:
            where.append(f"line {self.line} of the PTX: {self.text}")
        if self.block is not None:
            where += [f"block {self.block}", f"thread {self.thread}"]
        return f"{self.what} ({', '.join(where)})" if where else self.what


class OutOfMemory(Exception):
    """The device's memory has no gap of that size."""
