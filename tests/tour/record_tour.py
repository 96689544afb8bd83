"""Writes the output of the tour's examples into docs/tour.md.

    python tests/tour/record_tour.py

Read the difference before you keep it. Expected errors, and lines with an ellipsis, stay as they
are written.
"""

import contextlib
import doctest
import io
from pathlib import Path

TOUR = Path(__file__).parents[2] / "docs" / "tour.md"


def main() -> None:
    parts: list[str] = []
    names: dict[str, object] = {}
    for part in doctest.DocTestParser().parse(TOUR.read_text()):
        if isinstance(part, str):
            parts.append(part)
            continue
        source = part.source.splitlines()
        lines = [">>> " + source[0], *("... " + line for line in source[1:])]
        output = part.want
        if part.exc_msg is None:
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(part.source, str(TOUR), "single"), names)
            if "..." not in output:
                output = printed.getvalue()
        parts.append("\n".join(lines).rstrip() + "\n" + output)
    TOUR.write_text("".join(parts))


if __name__ == "__main__":
    main()
