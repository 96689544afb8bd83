"""Reading untrusted files: all their faults become one clear error.

Sizes that a file declares are not trusted. Memory is allocated as bytes arrive. A declared size is
refused before anything is read if a file of this length cannot hold so much.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from lamina.errors import DataError, FileFormatError, LaminaError, LaminaWarning

PathLike = str | os.PathLike[str]

# DEFLATE, the method of gzip, zip and HDF5, makes at most 1032 bytes of one
# (https://zlib.net/zlib_tech.html, "Maximum Compression Factor").
_LARGEST_EXPANSION = 1032
# Enough for the few bytes of headers around the smallest streams.
_SLACK_BYTES = 4096
_CHUNK_BYTES = 1 << 20

RESTORE = "Fetch or write the file again; it was changed or truncated."


@contextmanager
def reading(path: Path, kind: str) -> Generator[None]:
    """Names the file in every error, and converts a parser's exceptions to `FileFormatError`."""
    try:
        yield
    except LaminaError as error:
        error.at(str(path))
        raise
    except LaminaWarning:  # where the user makes errors of warnings
        raise
    # Broad on purpose: parsers raise almost any exception for damaged files.
    except Exception as error:
        raise _error_of(error, path, kind).at(str(path)) from error


def _error_of(error: Exception, path: Path, kind: str) -> LaminaError:
    match error:
        case FileNotFoundError() | NotADirectoryError():
            problem, fact = "there is no such file", ("current folder", str(Path.cwd()))
            advice = "Check the spelling; a relative path counts from the current folder."
        case PermissionError():
            problem, fact = "the file may not be read", ("reason", error.strerror or str(error))
            advice = "Check who may read it."
        case MemoryError():
            fact = "bytes on disk", f"{path.stat().st_size:,}"
            problem = "the data does not fit into memory"
            advice = "Split the file, or use a machine with more memory."
        case _:
            cause = f"{type(error).__name__}: {' '.join(str(error).split())}"
            facts = (("expected", kind), ("found", cause))
            return FileFormatError("the file is damaged", facts=facts, advice=RESTORE)
    return DataError(problem, facts=(fact,), advice=advice)


def require_plausible(declared_bytes: int, stored_bytes: int, what: str) -> None:
    """Refuses a declared size that compression cannot have reduced to the stored size."""
    largest = _LARGEST_EXPANSION * stored_bytes + _SLACK_BYTES
    if declared_bytes > largest:
        stored = f"{stored_bytes:,} bytes, which expand to {largest:,} at most"
        raise FileFormatError(
            f"the header of {what} declares more than the file can hold",
            facts=(("declared", f"{declared_bytes:,} bytes"), ("stored", stored)),
            advice=RESTORE,
        )


def read_at_most(read: Callable[[int], bytes], count: int) -> bytearray:
    """The next `count` bytes, or all up to the end; memory grows with the bytes that arrive."""
    result = bytearray()
    while len(result) < count and (chunk := read(min(_CHUNK_BYTES, count - len(result)))):
        result += chunk
    return result
