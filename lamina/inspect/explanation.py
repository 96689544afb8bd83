"""The steps of a compiled program with their costs and times, as tables."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict, field
from itertools import zip_longest
from typing import Any

from lamina.base.cache import folder
from lamina.base.records import frozen_dataclass
from lamina.checks import checked
from lamina.engines.engine import Engine, Peaks, TunedStep
from lamina.errors import DefinitionError, EngineError
from lamina.program.cost import Cost, cost_of, space_of
from lamina.program.program import Program
from lamina.program.steps import Contraction
from lamina.program.tf32 import unrounded
from lamina.reports import bytes_text, count_text, seconds_text, table_text

_NO_CACHE = "There is no cache on disk (LAMINA_CACHE): the choices are neither kept nor used."
# Of columns in the table of schedules; longer texts continue in the next line.
_STEPS_WIDTH, _SCHEDULE_WIDTH = 12, 70


@frozen_dataclass
class Explanation:
    """The steps of a compiled program; `print` shows them. Nothing is run or allocated."""

    batch_size: int
    program: Program
    engine: Engine = field(repr=False)

    @property
    def title(self) -> str:
        """The program, the number of examples, and the device."""
        examples = f"{self.batch_size:,} example{'' if self.batch_size == 1 else 's'}"
        device = self.engine.device
        return f"{self.program.name}, {examples}, on {device.engine} ({device.description})"

    @property
    def costs(self) -> tuple[Cost, ...]:
        """The cost of each step: its arithmetic, and the bytes it reads and writes.

        Steps that prepare copies cost nothing: most runs omit them.
        """
        program = self.program
        return tuple(
            Cost(0, 0, 0)
            if number < program.prepared
            else cost_of(step, program.buffers, program.iteration(number))
            for number, step in enumerate(program.steps)
        )

    def __str__(self) -> str:
        costs = self.costs
        rows = [
            (*head, count_text(cost.operations), *_traffic(cost))
            for head, cost in zip(_heads(self.program), costs, strict=True)
        ]
        total = _sum(costs)
        footer = ("", "in all", "", "", count_text(total.operations), *_traffic(total))
        header = ("step", "name", "kind", "over", "FLOPs", "read", "written")
        table = table_text(header, rows, align="rlllrrr", footer=footer)
        lines = [self.title, "", table]
        workspaces = self.engine.workspace_bytes(self.program)
        if workspaces is not None:
            text = f"in addition to its memory bill it takes {bytes_text(workspaces)} of workspaces"
            lines += ["", text]
        return "\n".join(lines)

    @property
    def languages(self) -> tuple[str, ...]:
        """The languages of `listing`, from the most abstract to the machine's."""
        return self.engine.languages

    @checked
    def listing(self, step: int | None, language: str = "program") -> str:
        """One step, or all of them, as text.

        Args:
            step: the number of the step; None for all steps.
            language: one of `languages`: `"program"`, the compiler's output; `"schedule"`, the
                engine's decisions; `"llvm"` or `"assembly"` on the cpu engine; `"opencl"` on the
                opencl engine.

        Raises:
            DefinitionError: if there is no such step or language.
        """
        count = len(self.program.steps)
        if step is not None and not 0 <= step < count:
            raise DefinitionError(
                "the program has no such step",
                facts=(("expected", f"0 to {count - 1}"), ("found", str(step))),
                where="listing",
                advice="Print the explanation: it numbers the steps.",
            )
        if language not in self.languages:
            raise DefinitionError(
                f"the engine has no listing in the language {language!r}",
                facts=(("expected", " or ".join(self.languages)), ("found", repr(language))),
                where="listing",
                advice=f"The engine is {self.engine.device.engine}; others have other languages.",
            )
        return self.engine.listing(self.program, step, language)

    def tuning(self) -> Tuning:
        """Runs schedules of the most expensive steps on the device, and keeps the best on disk.

        Raises:
            EngineError: if the engine does not tune, or the device fails.
        """
        engine = self.engine
        steps = engine.tune(self.program)
        if steps is None:
            name = engine.device.engine
            raise EngineError(
                f"the engine {name} does not tune schedules",
                facts=(("expected", "an engine that does, such as opencl"), ("found", name)),
                where="tune",
                advice="Name another engine: lm.Model(net, engine='opencl'), or --engine opencl on "
                "the command line.",
            )
        return Tuning(self, steps, has_cache=folder() is not None)


@frozen_dataclass
class Profile:
    """The time of each step of a program; `print` shows it, the slowest step first.

    Attributes:
        seconds: the time of each step, the mean of all runs.
        seconds_alone: the time of a run from Python, if the program is compiled without clocks; the
            median, or the mean if runs overlap on a device.
        peaks: the peaks of the device, measured at the same time; None if the engine has none.
    """

    explanation: Explanation
    runs: int
    seconds: tuple[float, ...]
    seconds_alone: float
    peaks: Peaks | None

    def record(self) -> dict[str, Any]:
        """The figures as plain values, the steps in their order: `lamina profile --json`."""
        explanation, total = self.explanation, sum(self.seconds)
        costs, heads = explanation.costs, _heads(explanation.program)
        steps = [
            {
                "step": number,
                "name": name,
                "kind": kind,
                "over": over,
                "seconds": seconds,
                "share": seconds / total if total else None,
                "flops": cost.operations,
                "bytes": cost.bytes,
            }
            for number, ((_, name, kind, over), cost, seconds) in enumerate(
                zip(heads, costs, self.seconds, strict=True)
            )
        ]
        peaks = self.peaks
        return {
            "program": explanation.title,
            "runs": self.runs,
            "seconds": total,
            "seconds_alone": self.seconds_alone,
            "peak_flops": peaks and peaks.operations,
            "peak_bytes": peaks and peaks.bytes,
            "steps": steps,
        }

    def __str__(self) -> str:
        explanation, total = self.explanation, sum(self.seconds)
        costs = explanation.costs
        rows = [
            (*head[:2], head[3], *_speeds(cost, seconds, total))
            for head, cost, seconds in zip(
                _heads(explanation.program), costs, self.seconds, strict=True
            )
        ]
        order = sorted(range(len(rows)), key=lambda number: -self.seconds[number])
        header = ("step", "name", "over", "time", "share", "GFLOP/s", "GB/s")
        footer = ("", "in all", "", *_speeds(_sum(costs), total, total))
        slowest_first = [rows[number] for number in order]
        table = table_text(header, slowest_first, align="rllrrrr", footer=footer)
        lines = [explanation.title, "", table, ""]
        lines.append(
            f"mean of {self.runs:,} runs; without the clocks a run takes "
            f"{seconds_text(self.seconds_alone)}, calling it from Python included"
        )
        if self.peaks is not None:
            lines.append(
                f"this machine's measured peaks: {self.peaks.operations / 1e9:.0f} GFLOP/s, "
                f"{self.peaks.bytes / 1e9:.1f} GB/s from memory (caches are faster)"
            )
        return "\n".join(lines)


@frozen_dataclass
class Tuning:
    """The schedules of a program that were run on its device; `print` shows them and the choices.

    Attributes:
        steps: the steps that take a considerable share of the time, the longest first.
        has_cache: whether there is a cache on disk; without it the choices are neither kept nor
            used.
    """

    explanation: Explanation
    steps: tuple[TunedStep, ...]
    has_cache: bool

    def record(self) -> dict[str, Any]:
        """The steps, candidates and choices as plain values: `lamina tune --json`."""
        explanation = self.explanation
        heads = list(_heads(explanation.program))
        steps = [{**asdict(step), "over": heads[step.steps[0]][3]} for step in self.steps]
        return {"program": explanation.title, "steps": steps}

    def __str__(self) -> str:
        explanation = self.explanation
        heads = list(_heads(explanation.program))
        rows = [row for step in self.steps for row in _tried(step, heads[step.steps[0]][3])]
        if not rows:
            text = "No step takes long enough, and has several schedules: the cost model decides."
            return "\n".join([explanation.title, "", text])
        header = ("step", "over", "time", "expected", "choice", "schedule")
        lines = [explanation.title, "", table_text(header, rows, align="llrrll")]
        if not self.has_cache:
            lines += ["", _NO_CACHE]
        return "\n".join(lines)


def _tried(step: TunedStep, over: str) -> Iterator[tuple[str, ...]]:
    """The lines of a table with the candidates of equal steps over these extents."""
    numbers = textwrap.wrap(", ".join(map(str, step.steps)), _STEPS_WIDTH)
    lines: list[tuple[str, str, str, str]] = []
    for number, candidate in enumerate(step.candidates):
        time, expected = (
            "-" if seconds is None else seconds_text(seconds)
            for seconds in (candidate.seconds, candidate.expected)
        )
        choice = "chosen" if number == step.chosen else ""
        text = candidate.schedule
        if candidate.seconds is None:
            text += f": {candidate.problem or 'not run'}"
        first, *rest = textwrap.wrap(text, _SCHEDULE_WIDTH, break_on_hyphens=False)
        lines += [(time, expected, choice, first), *(("", "", "", line) for line in rest)]
    for left, extents, line in zip_longest(numbers, [over], lines):
        yield (left or "", extents or "", *(line or ("", "", "", "")))


def _heads(program: Program) -> Iterator[tuple[str, str, str, str]]:
    """Number, name, kind and extents of each step."""
    for number, step in enumerate(program.steps):
        kind = "preparation" if number < program.prepared else type(step).__name__.lower()
        if isinstance(step, Contraction) and unrounded(step) is not None:
            kind = "contraction in TF32"
        # Names begin with their number, which makes them unique.
        iteration = program.iteration(number)
        iterations = f"{iteration.extent} times " if iteration is not None else ""
        yield str(number), step.name.partition(".")[2], kind, iterations + space_of(step)


def _traffic(cost: Cost) -> tuple[str, str]:
    return bytes_text(cost.read_bytes), bytes_text(cost.written_bytes)


def _sum(costs: Sequence[Cost]) -> Cost:
    totals = ("operations", "read_bytes", "written_bytes")
    return Cost(*(sum(getattr(cost, total) for cost in costs) for total in totals))


def _speeds(cost: Cost, seconds: float, total: float) -> tuple[str, str, str, str]:
    operations, moved = (
        f"{count / seconds / 1e9:.1f}" if seconds else "-"
        for count in (cost.operations, cost.bytes)
    )
    share = f"{100 * seconds / total:.1f} %" if total else "-"
    return seconds_text(seconds), share, operations, moved
