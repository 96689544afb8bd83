"""Gradient accumulation at run time: runs over micro-batches, and the update after them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import final

import numpy as np

from lamina.base.shapes import Array
from lamina.engines.engine import Memory
from lamina.errors import EngineError
from lamina.runtime.compiled import CompiledProgram
from lamina.step.micro_batches import EXAMPLES
from lamina.training.batches import Recorded, joined
from lamina.training.epochs import batches_of_rows


@final
class Accumulation:
    """Divides batches into micro-batches, and updates the parameters after each batch."""

    def __init__(self, size: int, update: CompiledProgram, sums: Mapping[str, Memory]) -> None:
        self.size = size
        self.update = update
        self._examples = sums[EXAMPLES]

    def in_order(self, batches: Iterable[Array]) -> Iterator[Array]:
        """The micro-batches of batches, as arrays (micro-batches, examples) of rows."""
        for rows in batches:
            for batch in rows:
                yield from batches_of_rows(batch, self.size)

    def run(self, rows: Array, run_micro: Callable[[Array], Recorded]) -> Recorded:
        """Trains on batches, int64 (batches, batch size), one after the other."""
        found: list[Recorded] = []
        for batch in rows:
            with self.whole():
                pieces = [run_micro(group) for group in batches_of_rows(batch, self.size)]
                self.update.run([])
                executable = self.update.executable
                whole = {name: executable.scalar(name) for name, _ in self.update.program.outputs}
            micro, loss = joined(pieces), whole.pop("loss")
            statistics = {
                name: values
                if name in micro.kept
                else values.sum(axis=0, keepdims=True, dtype=values.dtype)
                for name, values in micro.statistics.items()
            }
            # Losses by output are means of those of micro-batches, or their sums.
            for name, value in micro.losses_by_output.items():
                key = f"loss.{name.removesuffix('_loss')}"
                statistics[key] = np.full(1, value, statistics[key].dtype)
            statistics |= {name: np.full(1, value) for name, value in whole.items()}
            losses, examples = np.full(1, loss, micro.losses.dtype), np.full(1, len(batch))
            found.append(Recorded(losses, examples, statistics, micro.terms, micro.kept))
        return joined(found)

    @contextmanager
    def whole(self) -> Generator[None]:
        """Forgets the sums if the block does not end: the next batch begins new ones."""
        try:
            yield
        except BaseException:
            with suppress(EngineError):
                self._examples.write(np.zeros((), np.int64))
            raise
