"""Training: changes the parameters of a model, and owns the optimizer state and the seed."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, final

import numpy as np

from lamina.base.shapes import Array, bind
from lamina.checks import checked
from lamina.checks.kinds import Instance, Number, Whole
from lamina.data import Dataset, Stream
from lamina.data.conversion import is_ranged
from lamina.data.stream import AnyData, as_data
from lamina.errors import DefinitionError
from lamina.inspect.explanation import Profile
from lamina.learning.protocols import TrainingOptions
from lamina.runtime.compiled import RecentPrograms
from lamina.runtime.index_checks import check_indices
from lamina.runtime.memories import read_all
from lamina.runtime.parameters import Parameters
from lamina.runtime.profile import profiled
from lamina.runtime.streaming import Streamed
from lamina.step.derive import RATE
from lamina.step.loss_scaling import SCALE, SKIPPED
from lamina.training.batches import joined
from lamina.training.deferred import DeferredLoss
from lamina.training.epochs import batches_after, orders_by
from lamina.training.interrupt import held_interrupts
from lamina.training.rates import LearningRates
from lamina.training.steps import TrainingSteps

# Type, shape and dtype of the input and of the target, and the check of the target's values.
_Exact = tuple[tuple[Any, ...], Callable[[Any], object] | None]


@final
class Training(TrainingSteps):
    """Trains a model: activations, gradients and optimizer state. Made by `Model.training`.

    It changes the model's parameters in place and owns everything else; `release`, or the end of
    a `with` block, frees it and leaves the model as trained.

    Example:
        >>> import numpy as np, lamina as lm
        >>> model = lm.Model(lm.Sequential(lm.Input(2), lm.Linear(1)))
        >>> with model.training(loss=lm.MSE(), optimizer=lm.SGD(0.1), batch_size=4) as training:
        ...     loss = training.step(np.ones((4, 2), "float32"), np.zeros((4, 1), "float32"))
        >>> float(loss) >= 0
        True
    """

    _rates: LearningRates

    @property
    def _advice_on_sizes(self) -> str:
        return (
            f"Fill smaller batches up to {self.batch_size} examples, with examples of weight 0: "
            "training.step(x, y, weights=w) of a training made with "
            "data=lm.data.Dataset(x, y, weights=w), or batches (x, y, w) of a stream."
        )

    def __init__(
        self,
        parameters: Parameters,
        options: TrainingOptions,
        dataset: Dataset | None,
        batch_size: int,
        *,
        seed: int,
        micro_batch: int | None = None,
    ) -> None:
        super().__init__(
            parameters, options, dataset, batch_size, seed=seed, micro_batch=micro_batch
        )
        self._exact = self._exact_arrays()
        self._rates = LearningRates(self._numbers, self._shared)

    @classmethod
    def of_member(cls, steps: TrainingSteps, number: int, rates: LearningRates) -> Training:
        """The training of one member of a population, which has these rates, on the same memory."""
        training = cls.__new__(cls)
        parameters = steps._parameters.member(number)
        shared = {name: memory.member(number) for name, memory in steps._shared.items()}
        training.__dict__ |= vars(steps) | {
            "_parameters": parameters,
            "_own_inputs": False,
            "_running": None,
            "_programs": RecentPrograms[int](),
            "_shared": shared | parameters.memories,
            "_slots": {name: shared[name] for name in steps._slots},
            "_rates": rates,
        }
        training._exact = training._exact_arrays()
        return training

    @property
    def steps_done(self) -> int:
        """The number of finished training steps; reads it from the device."""
        with self._lock.mutex:
            self._require_alive()
            return int(self._slots["step"].read())

    @property
    def rate(self) -> float:
        """The learning rate of the next training step; NaN if the optimizer has none.

        It can be set; nothing is compiled. If the rate is a function of the training step, setting
        it multiplies the function, also in later training steps. With `lm.ByPath` it is the rate of
        the default optimizer, and setting it sets all rates; `rates` has them by name.
        """
        return self.rates.get(RATE, math.nan)

    @rate.setter
    def rate(self, value: float) -> None:
        self.set_rates(dict.fromkeys(self.rates or {RATE: value}, value))

    @property
    def rates(self) -> dict[str, float]:
        """The learning rates of the next training step: `{"rate": ..., "rate:*.bias": ...}`."""
        with self._lock.mutex:
            return self._rates.values(self.steps_done)

    @checked
    def set_rates(self, values: Annotated[Mapping[str, float], Instance(Mapping)]) -> None:
        """Sets learning rates by name, as `rate` does.

        Raises:
            DefinitionError: if they cannot be set, for a name without a rate, or a rate below 0.
        """
        with self._lock.mutex:
            self._rates.set(values, self.steps_done)

    @property
    def skipped_steps(self) -> int:
        """The training steps that loss scaling skipped, because a gradient overflowed.

        They changed no parameter. Only in mixed precision with float16; otherwise 0. Reads it from
        the device.
        """
        with self._lock.mutex:
            self._require_alive()
            return int(self._slots[SKIPPED].read()) if SKIPPED in self._slots else 0

    @property
    def loss_scale(self) -> float | None:
        """The number by which the loss is multiplied; None unless it is scaled.

        Reads it from the device.
        """
        with self._lock.mutex:
            self._require_alive()
            return float(self._slots[SCALE].read()) if SCALE in self._slots else None

    def step(self, x: Any, y: Any = None, weights: Any = None) -> DeferredLoss:
        """One training step on a batch of at most `batch_size` examples.

        Each new number of examples compiles a program; the last sixteen programs are kept.

        Args:
            x: inputs, batch first; for several inputs a tuple of arrays, or a dict by their names.
            y: targets; for several outputs a tuple, or a dict by their names; None for a loss
                without targets.
            weights: the weights of the examples, if the training was made with data that has them.

        Returns:
            The loss before the update; `float(loss)` waits for the device.

        Raises:
            ShapeError, DTypeError, DataError: before anything is computed.
            ReleasedError: after `release`.
        """
        if self._released:
            self._require_alive()
        arrays = self._as_compiled(x, y) if weights is None else None
        arrays = arrays or self._converted(x, y, weights)
        count = len(arrays[0])
        self._require_fitting(count)
        with self._lock.mutex:
            if self._released:
                self._require_alive()
            divided = self._accumulation
            if divided is None:
                compiled = self._programs.get(count, self._compile)
                compiled.run(arrays)
            else:
                with divided.whole():
                    for start in range(0, count, divided.size):
                        micro = [array[start : start + divided.size] for array in arrays]
                        self._programs.get(len(micro[0]), self._compile).run(micro)
                    compiled = divided.update
                    compiled.run([])
            executable = compiled.executable
            if executable.synchronous:
                return DeferredLoss(executable.scalar("loss"))
            loss = DeferredLoss(program=compiled)
            self._lock.unread = weakref.ref(loss)
            return loss

    def _as_compiled(self, x: Any, y: Any) -> list[Array] | None:
        """The arrays unconverted, if they have the types that a full batch was compiled for."""
        # A training step of a small network takes less time than a full check of its arrays, so
        # this function is written for speed.
        if self._exact is None:
            return None
        expected, check = self._exact
        try:
            types: tuple[Any, ...] = (x.__class__, x.shape, x.dtype, y.__class__, y.shape, y.dtype)
        except AttributeError:
            return None
        if types != expected or not (x.flags.c_contiguous and y.flags.c_contiguous):
            return None
        if self._parameters.index_checks:
            check_indices(self._parameters.index_checks, (x, y))
        if check is not None:
            check(y)
        return [x, y]

    def _exact_arrays(self) -> _Exact | None:
        """The types that `_as_compiled` expects; None unless there is one input and one target."""
        specs = self._specs()
        if len(self._wanted_inputs) != 1 or len(self._batch.targets) != 1 or len(specs) != 2:
            return None
        (x, x_dtype), (y, y_dtype) = specs
        if is_ranged(x_dtype, self._wanted_inputs[0][1]):
            return None
        size = self.batch_size
        arrays = (np.ndarray, bind(x, size), x_dtype.numpy)
        targets = (np.ndarray, bind(y, size), y_dtype.numpy)
        checks = [check for _, check in self._target_checks]
        if len(checks) > 1:
            return (*arrays, *targets), lambda y: [check(y) for check in checks]
        return (*arrays, *targets), next(iter(checks), None)

    @checked
    def run(
        self,
        dataset: AnyData,
        steps: Annotated[int, Whole(0)],
        seed: int = 0,
        *,
        drop_last: bool = False,
    ) -> Array:
        """Trains for a number of training steps without Python between them.

        Batches are drawn from the data set in shuffled order, epoch after epoch. A later run
        continues after the training steps done so far: two runs of 5 equal one of 10.

        Args:
            dataset: a data set or a pair (x, y), which is on the device for the time of the run;
                or a stream, which is read up to the training steps done so far first, unless its
                source is an iterator.
            steps: the number of training steps, at least 0.
            seed: the seed of the order of the examples.
            drop_last: whether to omit a smaller last batch of each epoch.

        Returns:
            The loss of each training step, shape (steps,); fewer if an iterator ends before.

        Raises:
            DefinitionError: if `steps` is not a whole number, or negative.
            KeyboardInterrupt: after Ctrl-C, between two training steps; the model keeps the
                parameters trained so far.
        """
        self._require_alive()
        data = as_data(dataset)
        if isinstance(data, Stream):
            pieces = self._run_stream(data, steps, seed, self.steps_done, drop_last=drop_last)
            return joined(pieces).losses
        size, done = self.batch_size, self.steps_done
        orders = orders_by(self.engine, len(data), seed)
        batches = batches_after(len(data), size, done, steps, orders, drop_last=drop_last)
        with held_interrupts() as interrupt, self.uploaded(data) as resident:
            groups, are_there = self.in_order(resident, batches), not isinstance(resident, Streamed)
            pieces = list(self.pieces(groups, interrupt, are_there=are_there))
        return joined(pieces).losses

    @checked
    def profile(
        self,
        x: Any,
        y: Any = None,
        seconds: Annotated[float, Number("(0, 86400]")] = 0.5,
        *,
        weights: Any = None,
    ) -> Profile:
        """The time of each step of the program; trains on these examples repeatedly.

        Args:
            x, y, weights: a batch, as for `step`; of several micro-batches, the first one is run.
            seconds: the approximate time to run the program untimed, and again with timers.
        """
        self._require_alive()
        arrays = self._converted(x, y, weights)
        if self._accumulation is not None:
            arrays = [array[: self._accumulation.size] for array in arrays]
        make = partial(self._compile, len(arrays[0]))
        return profiled(make, arrays, self._parameters, seconds)

    def averaged_parameters(self) -> dict[str, Array]:
        """Copies of the averages of all parameters, for `Model.set_parameters`.

        Before the first training step, and for parameters that are frozen or whose optimizer keeps
        no average, they are the parameters themselves. States of layers, such as running
        statistics, are not averaged and not included.

        Returns:
            `{"1.weight": array, ...}`, like `Model.parameters`.

        Raises:
            DefinitionError: if the optimizer keeps no averages.
        """
        with self._lock.mutex:
            self._require_alive()
            averages = self._averages()
            if not averages:
                raise DefinitionError(
                    "the optimizer of this training keeps no averages",
                    where="averaged_parameters",
                    advice="Wrap it in EMA or SWA: lm.EMA(lm.Adam(1e-3), decay=0.999).",
                )
            values = self._parameters.read(list(self._parameters.variables))
            if self.steps_done:
                values |= read_all(averages)
            return values
