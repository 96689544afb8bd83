"""Numbers and rows as text: for memory bills, network summaries and lists of devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lamina.errors import InternalError

_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
# No machine can address more: larger numbers are not shown exactly.
_MOST_BYTES = 1 << 63
_COUNT_UNITS = ("M", "G", "T", "P", "E")


def bytes_text(count: int) -> str:
    """Bytes in the largest binary unit that leaves at least 1, with at most two decimals.

    Example:
        >>> bytes_text(1_310_720), bytes_text(1023)
        ('1.25 MiB', '1023 B')
    """
    if count < 0:
        return "-" + bytes_text(-count)
    if count >= _MOST_BYTES:
        return "8 EiB or more"
    value, unit = float(count), 0
    # A value that rounds to 1024 is shown as 1 of the next unit.
    while round(value, 2) >= 1024 and unit < len(_BYTE_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{f'{value:.2f}'.rstrip('0').rstrip('.')} {_BYTE_UNITS[unit]}"


def count_text(count: int) -> str:
    """A count: exact below ten million, then in M, G, T with three digits.

    Example:
        >>> count_text(431_080), count_text(25_557_032)
        ('431,080', '25.6 M')
    """
    if count < 0:
        return "-" + count_text(-count)
    if count < 10_000_000:
        return f"{count:,}"
    value, unit = count / 1e6, 0
    while float(f"{value:.3g}") >= 1000 and unit < len(_COUNT_UNITS) - 1:
        value, unit = value / 1000, unit + 1
    return f"{_three_digits(value)} {_COUNT_UNITS[unit]}"


def seconds_text(seconds: float) -> str:
    """A time in the unit that leaves at least 1, with three digits.

    Example:
        >>> seconds_text(0.000_025_31), seconds_text(3.2)
        ('25.3 us', '3.20 s')
    """
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{_three_digits(seconds / size)} {unit}"
    return f"{seconds / 1e-9:.0f} ns"


def _three_digits(value: float) -> str:
    return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}"


def measured_text(values: Mapping[str, float]) -> str:
    """Measured values in a line: counts exact, other numbers with four decimals.

    Example:
        >>> measured_text({"loss": 0.25, "skipped_steps": 3})
        'loss 0.2500  skipped_steps 3'
    """
    return "  ".join(f"{name} {value_text(value)}" for name, value in values.items())


def value_text(value: float) -> str:
    """A measured value: a count exact, another number with four decimals."""
    return str(value) if isinstance(value, int) else f"{value:.4f}"


def table_text(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    align: str = "",
    footer: Sequence[str] = (),
) -> str:
    """Rows as lines of aligned columns, a rule under the header and above the footer.

    Args:
        align: one letter for each column, "l" left or "r" right; the last letter applies to the
            columns that follow; all left if empty.
        footer: a last row, such as totals.

    Returns:
        Lines without trailing blanks, joined by line ends, without one after the last.

    Example:
        >>> print(table_text(("layer", "bytes"), [("0:Linear", "64 B")], align="lr"))
        layer     bytes
        --------  -----
        0:Linear   64 B
    """
    every = [tuple(header), *(tuple(row) for row in rows)]
    if footer:
        every.append(tuple(footer))
    if any(len(row) != len(header) for row in every):
        raise InternalError(f"a table of {len(header)} columns has a row of another length")
    letters = (align or "l").ljust(len(header), (align or "l")[-1])
    widths = [max(map(len, column)) for column in zip(*every, strict=True)]

    def line(row: Sequence[str]) -> str:
        cells = (
            text.rjust(width) if letter == "r" else text.ljust(width)
            for text, width, letter in zip(row, widths, letters, strict=False)
        )
        return "  ".join(cells).rstrip()

    rule = line(["-" * width for width in widths])
    lines = [line(header), rule, *(line(row) for row in rows)]
    if footer:
        lines += [rule, line(footer)]
    return "\n".join(lines)
