"""The memory plan as a picture: which bytes of the arena each buffer holds, and when.

Time runs to the right, one column a step; offsets in the arena run upwards. A buffer is a
rectangle. Persistent memory (parameters, optimizer state, inputs) is a bar next to it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from lamina.base.records import frozen_dataclass
from lamina.errors import DataError
from lamina.reports.figure import CENTRED, INK, ORANGE, PALETTE, clean_axes, new_figure, save_figure
from lamina.reports.tables import bytes_text

_DRAWN = 0.68  # the share of the height without the title and the names of the steps
_CHARACTER = 0.062  # inches that a character of a label is wide
_LINE = 0.13  # inches that a line of a label is tall
_EDGE: Mapping[str, Any] = {"edgecolor": "white", "linewidth": 0.8}


@frozen_dataclass
class Rectangle:
    """A buffer's offset and lifetime in the arena.

    Attributes:
        offset: bytes from the start of the arena.
        first: the step that writes it first.
        last: the last step that reads it; the number of steps if it outlives them.
        group: buffers of one group have one colour: "activation", "gradient".
        in_place: whether it takes over, in step `first`, the memory of a buffer that ends there.
    """

    name: str
    offset: int
    bytes: int
    first: int
    last: int
    group: str = ""
    in_place: bool = False


def plot_plan(
    rectangles: Sequence[Rectangle],
    path: str | os.PathLike[str],
    *,
    steps: Sequence[str],
    peak_bytes: int,
    lower_bound_bytes: int,
    persistent: Mapping[str, int] | None = None,
    edges: Sequence[int] = (),
    title: str = "",
) -> None:
    """Writes the picture.

    Args:
        path: the file; PNG, unless its ending says otherwise.
        peak_bytes: the size of the arena.
        lower_bound_bytes: the most bytes alive in any one step.
        persistent: name -> bytes outside the arena; drawn from the bottom upwards.
        edges: offsets of the borders between blocks of the arena; a line is drawn at each.

    Raises:
        DataError: if there are no steps.
        MissingExtraError: without matplotlib.
    """
    if not steps:
        raise DataError("a plan without steps cannot be drawn", advice="Plan a program first.")
    outside = {name: count for name, count in (persistent or {}).items() if count > 0}
    plan_width = min(max(5.5, 0.20 * len(steps)), 24.0)
    bar_width = 1.5 if outside else 0.0
    height = 5.6 if len(rectangles) <= 25 else 7.0
    figure = new_figure(plan_width + bar_width + 0.8, height, purpose="a picture of a memory plan")
    from matplotlib.patches import Patch

    if outside:
        bar_axes, plan_axes = figure.subplots(1, 2, width_ratios=[bar_width, plan_width])
        _draw_persistent(bar_axes, outside, height * _DRAWN)
    else:
        plan_axes = figure.subplots()
    top = max([peak_bytes, lower_bound_bytes, *(r.offset + r.bytes for r in rectangles), 1])
    inches_a_step, inches_a_byte = plan_width / len(steps), height * _DRAWN / top
    groups = dict.fromkeys(rectangle.group for rectangle in rectangles)
    colours = {group: PALETTE[number % len(PALETTE)] for number, group in enumerate(groups)}
    plan_axes.set_xlim(-0.5, len(steps) - 0.5)
    plan_axes.set_ylim(0, top * 1.02)
    clean_axes(plan_axes)
    _draw_rectangles(plan_axes, rectangles, len(steps), colours, inches_a_step, inches_a_byte)
    bounds = _draw_bounds(plan_axes, peak_bytes, lower_bound_bytes)
    for edge in edges:
        plan_axes.axhline(edge, color=INK, linewidth=0.8, linestyle=":", zorder=3)
    _bytes_axis(plan_axes, top)
    _steps_axis(plan_axes, steps, inches_a_step)
    plan_axes.set_ylabel("offset in the arena", fontsize=9, color=INK)
    named = [Patch(color=colour, label=group) for group, colour in colours.items() if group]
    figure.legend(
        handles=[*bounds, *named],
        loc="outside upper right",
        ncols=max(1, min(len(bounds) + len(named), int(plan_width / 1.7))),
        frameon=False,
        fontsize=8,
        title=title or None,
        title_fontsize=11,
    )
    save_figure(figure, path)


def _draw_rectangles(
    axes: Any,
    rectangles: Sequence[Rectangle],
    step_count: int,
    colours: Mapping[str, str],
    inches_a_step: float,
    inches_a_byte: float,
) -> None:
    from matplotlib.patches import Rectangle as Box

    successors = [rectangle for rectangle in rectangles if rectangle.in_place]
    for rectangle in rectangles:
        # In the step where one buffer takes over another's memory, each has half of the column.
        left = rectangle.first if rectangle.in_place else rectangle.first - 0.5
        taken = any(_takes_over(successor, rectangle) for successor in successors)
        right = rectangle.last if taken else min(rectangle.last, step_count - 1) + 0.5
        colour = colours[rectangle.group]
        width = (right - left) * inches_a_step
        height = rectangle.bytes * inches_a_byte
        # A white edge would hide a very thin rectangle.
        edge = _EDGE if height > 0.03 else {**_EDGE, "edgecolor": colour}
        corner = left, rectangle.offset
        box = Box(corner, right - left, rectangle.bytes, facecolor=colour, zorder=2, **edge)
        axes.add_patch(box)
        text, rotation = _label(rectangle, width, height)
        middle = (left + right) / 2, rectangle.offset + rectangle.bytes / 2
        axes.text(*middle, text, rotation=rotation, zorder=4, **CENTRED)


def _takes_over(successor: Rectangle, rectangle: Rectangle) -> bool:
    return (
        successor is not rectangle
        and successor.first == rectangle.last
        and successor.offset < rectangle.offset + rectangle.bytes
        and rectangle.offset < successor.offset + successor.bytes
    )


def _label(rectangle: Rectangle, width: float, height: float) -> tuple[str, int]:
    """A label that fits width x height inches, and its rotation in degrees; "" if none fits."""
    size = bytes_text(rectangle.bytes)
    for text in (f"{rectangle.name}\n{size}", f"{rectangle.name}  {size}", rectangle.name):
        lines = text.split("\n")
        long = max(len(line) for line in lines) * _CHARACTER + 0.06
        tall = len(lines) * _LINE + 0.02
        if long <= width and tall <= height:
            return text, 0
        if long <= height and tall <= width:
            return text, 90
    return "", 0


def _draw_bounds(axes: Any, peak_bytes: int, lower_bound_bytes: int) -> list[Any]:
    """Draws the lines of the peak and the lower bound; returns them for the legend."""
    if peak_bytes == lower_bound_bytes:
        lines = [(peak_bytes, f"arena = lower bound  {bytes_text(peak_bytes)}", INK, "-")]
    else:
        excess = peak_bytes / lower_bound_bytes - 1 if lower_bound_bytes else 0.0
        lines = [
            (peak_bytes, f"arena  {bytes_text(peak_bytes)}  (+{excess:.1%})", INK, "-"),
            (lower_bound_bytes, f"lower bound  {bytes_text(lower_bound_bytes)}", ORANGE, "--"),
        ]
    return [
        axes.axhline(height, label=text, color=colour, linestyle=style, linewidth=1.4, zorder=3)
        for height, text, colour, style in lines
    ]


def _draw_persistent(axes: Any, persistent: Mapping[str, int], height: float) -> None:
    total = sum(persistent.values())
    axes.set_xlim(-0.5, 0.5)
    axes.set_ylim(0, total * 1.02)
    bottom = 0
    small: list[str] = []
    for number, (name, count) in enumerate(persistent.items()):
        colour = PALETTE[(len(PALETTE) - 1 - number) % len(PALETTE)]
        size = {"bottom": bottom, "width": 0.9}
        axes.bar(0, count, **size, color=colour, alpha=0.45, zorder=2, **_EDGE)
        share = count / total * height
        text = f"{name}\n{bytes_text(count)}"
        if share >= 2 * _LINE + 0.02:
            middle = bottom + count / 2
            axes.text(0, middle, text, zorder=4, **CENTRED)
        else:
            small.append(text)
        bottom += count
    clean_axes(axes, grid="")
    _bytes_axis(axes, total)
    axes.set_xticks([])
    if small:
        axes.set_xlabel("thin parts:\n" + "\n".join(small), fontsize=7, color=INK)
    axes.set_title(f"persistent  {bytes_text(total)}", fontsize=8, color=INK)


def _bytes_axis(axes: Any, top: int) -> None:
    """Ticks at round numbers of one binary unit."""
    from matplotlib.ticker import MultipleLocator

    unit = 1
    while top >= 4 * unit * 1024:
        unit *= 1024
    spacing = float(unit)
    while top / spacing > 8:
        spacing *= 2
    axes.yaxis.set_major_locator(MultipleLocator(spacing))

    def text(count: float, _: object) -> str:
        return bytes_text(round(count))

    axes.yaxis.set_major_formatter(text)


def _steps_axis(axes: Any, steps: Sequence[str], inches_a_step: float) -> None:
    """Number and name of each step, or of every second, fifth, ... if there are too many."""
    every = next(
        (n for n in (1, 2, 5, 10, 20, 50, 100, 200, 500) if n * inches_a_step >= 0.15), 1000
    )
    shown = range(0, len(steps), every)
    names = (name if len(name) <= 22 else f"{name[:21]}…" for name in steps)
    labels = [f"{name} {number}" for number, name in enumerate(names)]
    axes.set_xticks(list(shown), [labels[number] for number in shown], rotation=90, fontsize=7)
    axes.set_xlabel("step", fontsize=9, color=INK)
