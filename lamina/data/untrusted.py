"""Reading untrusted files: all their faults become one clear error.

Sizes that a file declares are not trusted. Memory is allocated as bytes arrive. A declared size is
refused before anything is read if a file of this length cannot hold so much.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from lamina.errors import DataError, FileFormatError, LaminaError, LaminaWarning

PathLike = str | os.PathLike[str]

# DEFLATE, the method of gzip, zip and HDF5, makes at most 1032 bytes of one
# (https://zlib.net/zlib_tech.html, "Maximum Compression Factor").
_LARGEST_EXPANSION = 1032
# Enough for the few bytes of headers around the smallest streams.
_SLACK_BYTES = 4096
_CHUNK_BYTES = 1 << 20

RESTORE = "Fetch or write the file again; it was changed or truncated."


class ByteStream(Protocol):
    """A stream of bytes."""

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes; none at the end."""
        ...


@contextmanager
def reading(path: Path, kind: str) -> Generator[None]:
    """Names the file in every error, and converts a parser's exceptions to `FileFormatError`.

    Args:
        path: the file.
        kind: its expected format, with an article: `"an npz archive"`.
    """
    try:
        yield
    except LaminaError as error:
        error.at(str(path))
        raise
    except LaminaWarning:  # where the user makes errors of warnings
        raise
    except (FileNotFoundError, NotADirectoryError) as error:
        raise DataError(
            "there is no such file",
            facts=(("current folder", str(Path.cwd())),),
            advice="Check the spelling; a relative path counts from the current folder.",
            where=str(path),
        ) from error
    except PermissionError as error:
        raise DataError(
            "the file may not be read",
            facts=(("reason", error.strerror or str(error)),),
            advice="Check who may read it.",
            where=str(path),
        ) from error
    except MemoryError as error:
        raise DataError(
            "the data does not fit into memory",
            facts=(("bytes on disk", f"{path.stat().st_size:,}"),),
            advice="Split the file, or use a machine with more memory.",
            where=str(path),
        ) from error
    # Broad on purpose: parsers raise almost any exception for damaged files.
    except Exception as error:
        raise FileFormatError(
            "the file is damaged",
            facts=(
                ("expected", kind),
                ("found", f"{type(error).__name__}: {' '.join(str(error).split())}"),
            ),
            advice=RESTORE,
            where=str(path),
        ) from error


def require_plausible(declared_bytes: int, stored_bytes: int, what: str) -> None:
    """Refuses a declared size that compression cannot have reduced to the stored size.

    Raises:
        FileFormatError: without the path; `reading` adds it.
    """
    largest = _LARGEST_EXPANSION * stored_bytes + _SLACK_BYTES
    if declared_bytes > largest:
        raise FileFormatError(
            f"the header of {what} declares more than the file can hold",
            facts=(
                ("declared", f"{declared_bytes:,} bytes"),
                ("stored", f"{stored_bytes:,} bytes, which expand to {largest:,} at most"),
            ),
            advice=RESTORE,
        )


def read_at_most(stream: ByteStream, count: int) -> bytearray:
    """The next `count` bytes, or all up to the end; memory grows with the bytes that arrive."""
    result = bytearray()
    while len(result) < count:
        chunk = stream.read(min(_CHUNK_BYTES, count - len(result)))
        if not chunk:
            break
        result += chunk
    return result
