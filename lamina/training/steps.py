"""The compiled training steps of a model or a population, and the state that they change."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from functools import partial
from typing import Annotated, Any

import numpy as np

from lamina.base.garbage import without_collections
from lamina.base.shapes import Array, as_dtype, converted
from lamina.checks import checked
from lamina.checks.kinds import Instance
from lamina.data import Dataset, Stream
from lamina.data.background import Reader
from lamina.data.conversion import convert
from lamina.engines.engine import Memory
from lamina.errors import DefinitionError, ShapeError
from lamina.inspect.bill import MemoryBill
from lamina.learning.protocols import AVERAGE, TrainingOptions
from lamina.runtime.compiled import compile_for_batch, program_for_batch
from lamina.runtime.memories import (
    allocate_states,
    need_of_tensors,
    read_all,
    release_all,
    write_all,
)
from lamina.runtime.parameters import Parameters
from lamina.step.derive import TrainingNumbers
from lamina.step.loss_scaling import SKIPPED
from lamina.step.micro_batches import MICRO_STEP, UPDATE_NAME, step_graphs
from lamina.training.batches import Accumulation, BatchRunner, Examples, Recorded
from lamina.training.interrupt import Interrupt, held_interrupts

# The native loop returns after about this time, to show progress and notice Ctrl-C.
PIECE_SECONDS = 0.05


class TrainingSteps(BatchRunner):
    """Base of trainings: compiles the training step, allocates its state, and runs pieces of it.

    Args:
        seed: the seed of random layers; of a population an array, with one for each member.
    """

    # The same as in `planning.bill_of`: both have the same entries in the cache.
    _program_name = "training step"
    # `LearningRates`, or `RatesOfMembers`.
    _rates: Any

    @without_collections
    def __init__(
        self,
        parameters: Parameters,
        options: TrainingOptions,
        dataset: Dataset | None,
        batch_size: int,
        *,
        seed: int | Array,
        micro_batch: int | None = None,
    ) -> None:
        super().__init__(parameters, options.loss, dataset, batch_size)
        self._own_inputs = parameters.members is not None
        micro = batch_size if micro_batch is None else min(micro_batch, batch_size)
        self._graph, update = step_graphs(self._batch, options, divided=micro < batch_size)
        # The training steps of a piece; the next epoch begins with as many.
        self._at_once = 1
        engine, slots = parameters.engine, self._graph.slots
        if update is not None:
            slots = {**slots, **update.slots}
        numbers = (update or self._graph).hyperparameters or TrainingNumbers()
        memories = {**slots, **numbers.leaves}
        # Before the state is allocated; `compile_for_batch` checks again when it is.
        placement, divisible = parameters.placement, "batch" if update is None else "micro-batch"
        tensors = ((name, tensor) for name, (tensor, _) in memories.items())
        what = "state of the optimizer"
        needs = [need_of_tensors(what, "state", tensors, parameters.members)]
        program = program_for_batch(
            *(self._graph, micro, placement, self._program_name, needs, divisible),
            members=placement.of_members(own_inputs=self._own_inputs),
        )
        with self._lock.mutex:
            states = allocate_states(engine, seed, memories, parameters.members)
            self._shared |= states
            # Hyper-parameters are not saved. Neither are sums of gradients, which are the same
            # before any training step.
            sums = set[str]() if update is None else self._graph.slots.keys() - {MICRO_STEP}
            unsaved = sums | numbers.leaves.keys()
            self._slots = {name: memory for name, memory in states.items() if name not in unsaved}
            self._numbers = numbers
            self._accumulation: Accumulation | None = None
            try:
                self._programs.get(micro, partial(self._compile, program=program))
                if update is not None:
                    compiled = compile_for_batch(
                        *(update, micro, placement, self._shared, UPDATE_NAME),
                        own_inputs=self._own_inputs,
                    )
                    self._accumulation = Accumulation(micro, compiled, self._shared)
            except BaseException:
                release_all(states)
                raise

    @property
    def bill(self) -> MemoryBill:
        """The memory of a training step of `batch_size` examples, in bytes."""
        with self._lock.mutex:
            self._require_alive()
            divided, placement = self._accumulation, self._parameters.placement
            if divided is None:
                program = self._program(self.batch_size).program
                members = placement.of_members(own_inputs=self._own_inputs)
                if members is None:
                    return MemoryBill(self.batch_size, program)
                grouping = self.engine.grouping(program, members)
                given = self.batch_size, grouping.program
                return MemoryBill(*given, members=members.count, grouping=grouping)
            program = self._program(divided.size).program
            return MemoryBill(divided.size, program, (divided.update.program,))

    @property
    def scales_loss(self) -> bool:
        """Whether the loss is scaled: in mixed precision with float16."""
        return SKIPPED in self._slots

    @property
    def has_averages(self) -> bool:
        """Whether the optimizer keeps averages of parameters, as `lm.EMA` and `lm.SWA` do."""
        return bool(self._averages())

    def _averages(self) -> dict[str, Memory]:
        names = {name: f"{name}/{AVERAGE}" for name in self._parameters.variables}
        return {name: self._slots[slot] for name, slot in names.items() if slot in self._slots}

    def _require_fitting(self, count: int) -> None:
        """Raises ShapeError for a batch that is larger than the training was made for."""
        if count > self.batch_size:
            raise ShapeError(
                "the batch is larger than the training was made for",
                facts=(("expected", f"at most {self.batch_size}"), ("found", str(count))),
                where="step",
                advice=f"Make it with batch_size={count}, or give fewer examples.",
            )

    def pieces(
        self,
        groups: Iterable[tuple[Examples, Array]],
        interrupt: Interrupt,
        *,
        are_there: bool = False,
    ) -> Iterator[Recorded]:
        """Trains on rows of uploaded examples, given as arrays (batches, batch size).

        Yields about every 50 ms the losses and metrics of the batches since the last time. After
        Ctrl-C it ends early, between two training steps.

        Args:
            are_there: whether all groups are rows of the same examples, which are there, so that
                batches of several sizes may be run together.
        """
        self._require_alive()
        together = are_there and self._accumulation is None
        given, rest = iter(groups), list[tuple[Examples, Array]]()
        while not interrupt.is_ending:
            resident, turns = _taken(given, rest, self._at_once, together=together)
            if not turns:
                return
            started = time.perf_counter()
            piece = self._run_batches(resident, *turns)
            seconds = max(time.perf_counter() - started, 1e-6)
            steps = piece.losses.shape[-1]
            if steps == self._at_once or seconds > PIECE_SECONDS:
                fitting = int(steps * PIECE_SECONDS / seconds)
                self._at_once = max(1, min(fitting, 2 * steps))
            yield piece

    def _run_batches(self, resident: Examples, *turns: Array) -> Recorded:
        divided = self._accumulation
        if divided is None:
            return super()._run_batches(resident, *turns)
        (rows,) = turns
        with self._lock.mutex:
            return divided.run(rows, partial(super()._run_batches, resident))

    def _as_run(self, batches: Iterable[Array]) -> Iterable[Array]:
        divided = self._accumulation
        return super()._as_run(batches) if divided is None else divided.in_order(batches)

    def _run_stream(
        self, stream: Stream, steps: int, seed: int, done: int, *, drop_last: bool
    ) -> list[Recorded]:
        """Trains on the batches of a stream after those of the training steps that are done."""
        epochs, omitted = (1, 0) if stream.is_one_shot else (None, done)
        with closing(Reader(stream, seed=seed)) as reader:
            sample, read = reader.sample(), {"epochs": epochs, "steps": omitted + steps}
            with (
                held_interrupts() as interrupt,
                self.fed(reader, sample, drop_last=drop_last, **read) as feed,
            ):
                feed.skip(omitted, lambda: interrupt.is_ending)
                groups = feed.groups(steps, lambda: interrupt.is_ending)
                return list(self.pieces(groups, interrupt))

    def memories(self) -> dict[str, Memory]:
        """All memories that training steps change: of the model, and of `state()`."""
        with self._lock.mutex:
            self._require_alive()
            return self._parameters.memories | self._slots

    def snapshot(self) -> tuple[dict[str, Array], dict[str, Array]]:
        """The model's parameters and states, and `state()`, read under one lock."""
        with self._lock.mutex:
            return self._parameters.read(list(self._parameters.memories)), self.state()

    def state(self) -> dict[str, Array]:
        """Everything needed to continue later: optimizer state, step counter and seed, by name.

        Also learning rates that were set.
        """
        with self._lock.mutex:
            self._require_alive()
            return read_all(self._slots) | self._rates.state()

    @checked
    def restore(
        self,
        state: Annotated[Mapping[str, Array], Instance(Mapping)],
        parameters: Annotated[Mapping[str, Array], Instance(Mapping)] | None = None,
    ) -> None:
        """Continues from a result of `state()`, which is checked before anything is written.

        Args:
            state: the state of this training, or of another of the same network and optimizer.
            parameters: new values for the model, written together with the state.

        Raises:
            DefinitionError: if the state belongs to another network or optimizer.
            DataError, DTypeError: for an array that is not of its numbers.
        """
        with self._lock.mutex:
            self._restore(state, self._parameters.checked(parameters or {}))

    def _restore(self, state: Mapping[str, Array], parameters: Mapping[str, Array]) -> None:
        self._require_alive()
        rates, state = self._rates.divided(state)
        fits = state.keys() == self._slots.keys() and all(
            np.shape(state[name]) == memory.shape for name, memory in self._slots.items()
        )
        if not fits:
            names = ", ".join(sorted(state))
            raise DefinitionError(
                "the saved state belongs to another optimizer or network",
                facts=(("expected", ", ".join(sorted(self._slots))), ("found", names)),
                advice="Resume with the same network and the same optimizer.",
            )
        new = [(self._parameters.memories[name], value) for name, value in parameters.items()]
        for name, memory in self._slots.items():
            dtype = as_dtype(memory.dtype)
            value = convert(state[name], dtype, f"state {name!r}", narrow=False)
            new.append((memory, converted(value, memory.dtype)))
        write_all(new)
        self._rates.restore(rates)

    def release(self) -> None:
        with self._lock.mutex:
            divided, self._accumulation = self._accumulation, None
            if divided is not None:
                divided.update.executable.release()
            super().release()
            self._slots = {}


def _taken(
    given: Iterator[tuple[Examples, Array]],
    rest: list[tuple[Examples, Array]],
    steps: int,
    *,
    together: bool,
) -> tuple[Any, list[Array]]:
    """The batches of at most so many training steps.

    Args:
        together: whether they may be those of several groups.
        rest: a group that was taken in part, if there is one; changed.
    """
    resident, turns = None, list[Array]()
    while steps and (together or not turns):
        group = rest.pop() if rest else next(given, None)
        if group is None:
            break
        resident, rows = group
        taken = rows[..., :steps, :]
        if rows.shape[-2] > steps:
            rest.append((resident, rows[..., steps:, :]))
        steps -= taken.shape[-2]
        if turns and turns[-1].shape[-1] == taken.shape[-1]:
            taken = np.concatenate((turns.pop(), taken), axis=-2)
        turns.append(taken)
    return resident, turns
