"""The command `bench`, which measures the workloads, with Lamina only.

`benchmarks/run.py` in the repository measures other frameworks too.
"""

from __future__ import annotations

import statistics
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import lamina as lm
from lamina.cli import options
from lamina.files.atomic import write_atomically
from lamina.reports import seconds_text, table_text

if TYPE_CHECKING:
    from lamina.base.shapes import DTypeLike


class _NamesWorkloads(click.Option):
    """An option whose help lists the names of the workloads; they are loaded for the help only."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        from lamina.workloads import NAMES

        record = super().get_help_record(ctx)
        return record and (record[0], f"{record[1]} {', '.join(NAMES)}.")


@click.command()
@options.engine
@options.precision(note="")
@click.option(
    "--workload",
    "names",
    multiple=True,
    cls=_NamesWorkloads,
    metavar="NAME",
    help="Measure this workload only; may be given several times:",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=1.0,
    show_default=True,
    help="How long each workload is measured.",
)
@options.output("--json", "FILE", "Write all measurements to this file.")
def bench(
    engine: str,
    dtype: DTypeLike | None,
    precision: str | None,
    names: tuple[str, ...],
    seconds: float,
    json: Path | None,
) -> None:
    """Measure how long a training step or a forward pass takes.

    Networks are tiny to large; data is synthetic, and nothing is written without --json.
    """
    # Imported only here, as it builds networks.
    from lamina.engines.discovery import open_engine
    from lamina.step.precision import precision_of
    from lamina.workloads import Runner, chosen, measure

    workloads = chosen(names)
    device = open_engine(engine).device
    types = precision_of(dtype or "float32", lambda: device, precision or "float32")
    click.echo(f"lamina {lm.__version__} in {types} on {device.engine}: {device.description}\n")
    rows: list[tuple[str, ...]] = []
    measured: dict[str, Any] = {}
    for workload in workloads:
        runner = Runner(workload, engine, types.name, types.products)
        samples = measure(runner, seconds)
        median = statistics.median(samples)
        rate = workload.flops() / median / 1e9
        figures = (str(workload.batch), seconds_text(median), f"{rate:.3g}")
        rows.append((workload.name, workload.timed, *figures))
        record = {"workload": workload.record(), "samples": samples}
        measured[workload.name] = {**record, "median": median, "gflops": rate}
    header = ("workload", "timed", "batch", "time", "GFLOP/s")
    click.echo(table_text(header, rows, align="llrrr"))
    if json is not None:
        report = {
            "lamina": lm.__version__,
            "engine": device.engine,
            "dtype": types.name,
            "precision": types.products,
            "device": device.description,
            "workloads": measured,
        }
        write_atomically(json, f"{dumps(report, indent=1)}\n".encode())
        click.echo(f"\nwrote {json}")
