"""`Model`: a network with its parameters on an engine; the handle that users hold."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Never, NoReturn, final

from lamina.calls import checked
from lamina.data import Dataset, as_dataset
from lamina.data.dataset import Data
from lamina.engines.discovery import DEFAULT_ENGINE, open_engine
from lamina.errors import DataError, DefinitionError, FileFormatError
from lamina.explanation import Explanation, Profile
from lamina.files.atomic import require_writable
from lamina.files.classes import classes_of
from lamina.files.encode import encode
from lamina.files.model_file import ModelFile, read_model, write_model
from lamina.graph import Origin, Tensor, source_line
from lamina.graph.kinds import Count, FloatType, Instance, Number, Row
from lamina.network import Network, bill_of
from lamina.protocols import BatchSize, Clip, Loss, Optimizer, check_callbacks, half_a_training
from lamina.runtime import (
    Evaluation,
    Function,
    Inference,
    Parameters,
    Training,
    target_specs,
)
from lamina.runtime.examples import random_examples
from lamina.shapes import Array, as_dtype
from lamina.training.fit import Fit, fit, summary
from lamina.training.history import History
from lamina.training.metrics import Metric
from lamina.training.optimizers import Averaging, ByPath

_ADVICE = "lm.Sequential(...) and lm.Network(...) make one."
OfNetwork = Annotated[Network, Instance(Network, "a model is made of a network", _ADVICE)]
Seconds = Annotated[float, Number("(0, 86400]")]


@final
class Model:
    """A network, and its parameters in an engine's memory.

    Args:
        network: the definition.
        engine: `"cpu"`, `"interpreter"`, or `"opencl"`, also with the number of a device or a part
            of its name behind it: `"opencl:1"`; `lamina.devices()` lists what there is.
        seed: of the initial parameters and of training; the same seed gives the same model on
            every engine.
        dtype: `"float32"` or `"float64"`.

    Raises:
        EngineError: for an engine that is not there.
        DTypeError: for another dtype.

    Example:
        >>> import numpy as np, lamina as lm
        >>> model = lm.Model(lm.Sequential(lm.Input(3), lm.Linear(2)))
        >>> model.predict(np.zeros((5, 3), "float32")).shape
        (5, 2)
    """

    @checked
    def __init__(
        self,
        network: OfNetwork,
        engine: str = DEFAULT_ENGINE,
        seed: int = 0,
        dtype: FloatType = "float32",
    ) -> None:
        wanted = as_dtype(dtype)
        self._parameters = Parameters(network, open_engine(engine), wanted, seed)
        self._inference = Inference(self._parameters)

    @classmethod
    def from_file(cls, saved: ModelFile, engine: str) -> Model:
        """The model in a file that was read; `lamina.load` calls it. No initializer is run."""
        model = cls.__new__(cls)
        model._parameters = Parameters(
            saved.network, open_engine(engine), saved.dtype, saved.seed, saved.values
        )
        model._inference = Inference(model._parameters)
        return model

    @checked
    def part(self, network: OfNetwork) -> Model:
        """A model of another network that is made of the same layers: it shares the parameters.

        There is one copy. What one of them learns, or is given, the other one knows at once; saved,
        each is complete by itself. So a decoder is used without its encoder, and two networks are
        trained against each other, each with an optimizer of its own.

        Args:
            network: its layers with parameters are layers of this model's network, the same
                objects.

        Raises:
            DefinitionError: if it has a layer that this model has not.
            ShapeError: if a parameter has another shape there.

        Example:
            >>> import lamina as lm
            >>> decoder = lm.Sequential(lm.Input(2), lm.Linear(8))
            >>> whole = lm.Model(lm.Sequential(lm.Input(8), lm.Linear(2), decoder))
            >>> part = whole.part(decoder)
            >>> bool((part.parameters()["1.weight"] == whole.parameters()["2.weight"]).all())
            True
        """
        model = Model.__new__(Model)
        model._parameters = self._parameters.part(network)
        model._inference = Inference(model._parameters)
        return model

    def __repr__(self) -> str:
        engine = self._parameters.engine.device.engine
        count = f"{self.network.parameter_count():,} parameters"
        return f"Model({count}, {self._parameters.dtype.name}, engine={engine!r})"

    @property
    def network(self) -> Network:
        """The definition."""
        return self._parameters.network

    @property
    def seed(self) -> int:
        """The seed that the model was made with."""
        return self._parameters.seed

    def __call__(self, *_: Never, **__: Never) -> NoReturn:
        raise DefinitionError(
            "a model is not called",
            facts=(("expected", "model.predict(x)"), ("found", "model(x)")),
            where=str(Origin("Model", source_line())),
            advice="Its network is applied to tensors: model.network(x).",
        )

    def predict(self, inputs: Any, *others: Never, **options: Never) -> Any:
        """The outputs for any number of examples; it cuts them into batches itself.

        Args:
            inputs: an array, batch first; a tuple of arrays for several inputs; or a `Dataset`,
                whose targets are left aside.

        Returns:
            An array, batch first; a tuple for several outputs.

        Raises:
            ShapeError, DTypeError, DataError: where the arrays do not fit the network's inputs.
            DefinitionError: for anything beside the inputs.
        """
        if others or options:
            raise DefinitionError(
                "predict takes the inputs and nothing else",
                facts=(("expected", "predict(x), or predict((x1, x2)) for several inputs"),),
                where=str(Origin("Model.predict", source_line())),
                advice="It cuts them into batches itself.",
            )
        if isinstance(inputs, Dataset):
            inputs = inputs.inputs
        outputs = self._inference(inputs)
        return outputs[0] if len(outputs) == 1 else outputs

    @checked
    def evaluate(
        self,
        data: Data,
        loss: Loss,
        metrics: Sequence[Metric] = (),
        batch_size: BatchSize = 256,
    ) -> dict[str, Any]:
        """Loss and metrics on a data set, in the inference form.

        Returns:
            `{"loss": ..., "accuracy": ...}`: floats, or arrays such as a confusion matrix.
        """
        dataset = as_dataset(data)
        evaluation = self._evaluation(dataset, loss, metrics, min(batch_size, len(dataset)))
        try:
            with evaluation.placed(dataset) as resident:
                recorded = evaluation.run(resident, len(dataset))
        finally:
            evaluation.release()
        return summary(recorded, metrics)

    @checked
    def training(
        self,
        loss: Loss,
        optimizer: Optimizer,
        batch_size: BatchSize,
        *,
        metrics: Sequence[Metric] = (),
        clip: Clip | None = None,
        frozen: Sequence[str] = (),
        seed: int | None = None,
        data: Data | None = None,
    ) -> Training:
        """Attaches a training to the model; it shares the parameters and compiles at once.

        Args:
            loss: a loss, or any function of (prediction, target) tensors.
            optimizer: how parameters follow their gradients.
            batch_size: the most examples of a step.
            metrics: measured by `fit`.
            clip: `lm.ClipGlobalNorm(1.0)` and the like.
            frozen: patterns of the names of parameters that are not trained: `["0.*", "2.weight"]`.
                They keep their values, their gradients are not computed, and they have no state
                in the optimizer. `network.names_of(part)` gives those of a part.
            seed: of dropout and other random layers; the model's own by default.
            data: an example of the data to come, where its dtypes are not the usual ones: uint8
                images, say, or soft targets.

        Returns:
            A training, to be used in a `with` block or released by `.release()`.

        Raises:
            DefinitionError: if there is nothing to train, or a pattern fits no parameter.
        """
        dataset = None if data is None else as_dataset(data)
        return Training(
            self._parameters,
            loss,
            optimizer,
            batch_size,
            metrics=metrics,
            clip=clip,
            frozen=frozen,
            seed=self.seed if seed is None else seed,
            input_dtypes=None if dataset is None else dataset.input_dtypes,
            targets=None if dataset is None else target_specs(dataset),
        )

    def _evaluation(
        self, dataset: Dataset, loss: Loss, metrics: Sequence[Metric], batch_size: int
    ) -> Evaluation:
        return Evaluation(
            self._parameters,
            loss,
            metrics,
            batch_size,
            input_dtypes=dataset.input_dtypes,
            targets=target_specs(dataset),
        )

    @checked
    def fit(
        self,
        train: Data,
        *,
        loss: Loss,
        optimizer: Optimizer,
        validation: Data | None = None,
        epochs: Count = 1,
        batch_size: BatchSize = 32,
        metrics: Sequence[Metric] = (),
        clip: Clip | None = None,
        frozen: Sequence[str] = (),
        seed: int | None = None,
        drop_last: bool = False,
        progress: bool | None = None,
        callbacks: Sequence[Callable[[History], bool | None]] = (),
        checkpoint: str | os.PathLike[str] | None = None,
        resume: bool = False,
    ) -> History:
        """Trains for some epochs.

        Args:
            train, validation: data sets, or pairs (x, y) of arrays.
            loss, optimizer, metrics, clip, frozen: as in `training`.
            epochs: how many in all; those of a resumed checkpoint count.
            batch_size: examples in a step; the last batch of an epoch may be smaller.
            seed: of the order of the examples and of random layers; the model's own by default.
            drop_last: leave out the smaller last batch.
            progress: show a progress bar; by default on terminals only.
            callbacks: called with the history after each epoch; one that returns True ends the fit.
            checkpoint: a file that is written after each epoch; where there is none yet, before
                the first step, too.
            resume: go on from that file if it is there: the result is the same, bit by bit, as
                without the interruption. So a fit that ended in its first epoch begins again with
                the parameters that it began with.

        Returns:
            Loss and metrics of every epoch, and the averages that an optimizer such as `lm.EMA`
            keeps. Ctrl-C ends the fit cleanly; what was learned stays.

        Raises:
            NonFiniteError: if the loss becomes NaN or infinite; the model is then put back to the
                last good epoch, and the checkpoint file keeps it.
            DataError, ShapeError, DTypeError: where the data does not fit, or the checkpoint could
                not be written, before the first step.
            DefinitionError: for options that mean nothing, before the first step.
            EngineError: if a step needs more memory than the device has.
        """
        dataset = as_dataset(train)
        examined = None if validation is None else as_dataset(validation)
        check_callbacks(callbacks)
        if drop_last and len(dataset) < batch_size:
            raise DataError(
                "there are fewer examples than a batch holds, and the last one is dropped",
                facts=(("examples", str(len(dataset))), ("batch", str(batch_size))),
                where="fit",
                advice="Leave drop_last out, or take a smaller batch_size.",
            )
        if resume and checkpoint is None:
            raise DefinitionError(
                "there is nothing to resume from",
                facts=(("expected", "checkpoint=PATH"), ("found", "None")),
                where="fit",
                advice="Name the checkpoint file that the earlier fit wrote.",
            )
        if checkpoint is not None:
            require_writable(checkpoint)
        chosen = self.seed if seed is None else seed
        history = History()
        training = self.training(
            loss,
            optimizer,
            min(batch_size, len(dataset)),
            metrics=metrics,
            clip=clip,
            frozen=frozen,
            seed=chosen,
            data=dataset,
        )
        # What a continued fit must have in common with the one that it continues.
        terms = {
            "optimizer": _kind(optimizer),
            "frozen": list(frozen),
            "batch_size": batch_size,
            "seed": str(chosen),
            "drop_last": drop_last,
            "dtype": self._parameters.dtype.name,
        }
        evaluation = None
        with training:
            if checkpoint is not None and not Path(checkpoint).exists():
                # What a fit that is interrupted in its first epoch is resumed from.
                self._checkpoint(checkpoint, training, history, terms)
            elif resume and checkpoint is not None:
                history = self._resume(training, checkpoint, terms)
            if examined is not None:
                evaluation = self._evaluation(examined, loss, metrics, min(256, len(examined)))
            after = list(callbacks)
            if checkpoint is not None:
                path = checkpoint
                after.insert(0, lambda done: self._checkpoint(path, training, done, terms))
            job = Fit(
                parameters=self._parameters,
                training=training,
                train=dataset,
                metrics=metrics,
                epochs=epochs,
                seed=chosen,
                evaluation=evaluation,
                validation=examined,
                drop_last=drop_last,
                progress=progress,
                after_epoch=after,
            )
            try:
                return fit(job, history)
            finally:
                if evaluation is not None:
                    evaluation.release()

    def _resume(
        self, training: Training, path: str | os.PathLike[str], terms: Mapping[str, Any]
    ) -> History:
        saved = read_model(path, classes_of(self.network))
        notes = saved.notes
        if not {"history", "seconds"} <= notes.keys():
            raise FileFormatError(
                "this file holds a model and no checkpoint to resume from",
                facts=(("expected", "what fit(checkpoint=...) wrote"), ("found", "a saved model")),
                where=os.fspath(path),
                advice="Start from its parameters: lm.load(path), and leave resume out.",
            )
        if encode(saved.network)[0] != encode(self.network)[0]:
            raise DefinitionError(
                "the checkpoint belongs to a network of other layers or hyper-parameters",
                facts=(("in the file", _outline(saved.network)), ("here", _outline(self.network))),
                where=os.fspath(path),
                advice="Resume with the network it was made with, or take another file.",
            )
        before = notes.get("terms", {})
        differing = [name for name, value in terms.items() if before.get(name) != value]
        if differing:
            raise DefinitionError(
                "the checkpoint was written by a fit on other terms",
                facts=tuple(
                    (name, f"{before.get(name)} in the file, {terms[name]} here")
                    for name in differing
                ),
                where=os.fspath(path),
                advice="Resume with the same, or start anew from its parameters: lm.load(path).",
            )
        training.restore(saved.extra, saved.values)
        return History(dict(notes["history"]), list(notes["seconds"]))

    def _checkpoint(
        self,
        path: str | os.PathLike[str],
        training: Training,
        history: History,
        terms: Mapping[str, Any],
    ) -> None:
        notes = {"history": history.values, "seconds": history.seconds, "terms": dict(terms)}
        write_model(path, self._file(*training.snapshot(), notes))

    def _file(
        self, values: Mapping[str, Array], extra: Mapping[str, Array], notes: Mapping[str, Any]
    ) -> ModelFile:
        return ModelFile(self.network, self._parameters.dtype, self.seed, values, extra, notes)

    @checked
    def explain(
        self,
        batch_size: BatchSize = 1,
        loss: Loss | None = None,
        optimizer: Optimizer | None = None,
        *,
        clip: Clip | None = None,
        frozen: Sequence[str] = (),
    ) -> Explanation:
        """The program that a step becomes: its parts, their arithmetic and their traffic.

        Nothing is run. `print` shows it; its `listing` shows one part as machine code.

        Args:
            batch_size: the number of examples of the step.
            loss, optimizer, clip, frozen: of the training step; without them it is the forward
                pass.

        Example:
            >>> import lamina as lm
            >>> model = lm.Model(lm.Sequential(lm.Input(3), lm.Linear(2)))
            >>> model.explain(batch_size=8).costs[0].operations  # 8 * 2 * (2 * 3 + 1)
            112
        """
        if (loss is None) != (optimizer is None):
            raise half_a_training(loss, optimizer, "explain")
        parameters = self._parameters
        bill = bill_of(
            self.network,
            batch_size,
            loss,
            optimizer,
            dtype=parameters.dtype,
            clip=clip,
            frozen=frozen,
            target=parameters.engine.target,
        )
        return Explanation(bill.batch_size, bill.program, parameters.engine)

    @checked
    def profile(
        self,
        batch_size: BatchSize = 32,
        loss: Loss | None = None,
        optimizer: Optimizer | None = None,
        *,
        clip: Clip | None = None,
        frozen: Sequence[str] = (),
        data: Data | None = None,
        seconds: Seconds = 0.5,
    ) -> Profile:
        """How long each part of a step takes, beside what the machine can do at most.

        It runs on a copy: the model stays as it is.

        Args:
            batch_size: the number of examples of the step.
            loss, optimizer, clip, frozen: of the training step; without them it is the forward
                pass.
            data: examples to run on, at least a batch; random ones by default.
            seconds: about how long the step is run without clocks, and again with them.

        Raises:
            DataError: if random examples cannot be made, because an input takes integers.
        """
        if (loss is None) != (optimizer is None):
            raise half_a_training(loss, optimizer, "profile")
        copy = self._parameters.copy()
        if data is None:
            dataset = random_examples(
                self.network, loss, batch_size, self.seed, copy.dtype, where="profile"
            )
        else:
            dataset = as_dataset(data).subset(0, batch_size)
        if loss is None or optimizer is None:
            return Inference(copy).profile(dataset.inputs, seconds)
        with Training(
            copy,
            loss,
            optimizer,
            batch_size,
            clip=clip,
            frozen=frozen,
            seed=self.seed,
            input_dtypes=dataset.input_dtypes,
            targets=target_specs(dataset),
        ) as training:
            return training.profile(dataset.inputs, dataset.targets, seconds)

    def parameters(self) -> dict[str, Array]:
        """Copies of all parameters, `{"1.weight": array, ...}`, in the order of the layers."""
        return self._parameters.read(list(self._parameters.variables))

    def states(self) -> dict[str, Array]:
        """Copies of what layers keep beside their parameters: running averages, by name."""
        return self._parameters.read(list(self._parameters.states))

    def set_parameters(self, values: Mapping[str, Any]) -> None:
        """Replaces parameters or states; trainings that are attached go on with the new ones.

        Args:
            values: by name arrays, or what NumPy makes arrays of, such as PyTorch's tensors.

        Raises:
            DefinitionError, ShapeError, DTypeError: before anything is changed.
        """
        self._parameters.write(values)

    @checked
    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes network and parameters to a safetensors file, all or nothing.

        Raises:
            DataError: if the file cannot be written.
        """
        parameters = self._parameters
        write_model(path, self._file(parameters.read(list(parameters.memories)), {}, {}))


def _kind(optimizer: Optimizer) -> str:
    """The classes of an optimizer and of those within it: `"EMA(Adam)"`."""
    inner: list[Optimizer] = []
    if isinstance(optimizer, Averaging):
        inner = [optimizer.optimizer]
    elif isinstance(optimizer, ByPath):
        inner = [*optimizer.patterns.values(), optimizer.default]
    name = type(optimizer).__name__
    return f"{name}({', '.join(map(_kind, inner))})" if inner else name


def _outline(network: Network) -> str:
    """The layers in one line, with what makes each of them."""
    layers = (node.attributes.get("layer") for node in network.nodes)
    return ", ".join(repr(layer) for layer in layers if layer is not None)


@checked
def load(
    path: str | os.PathLike[str],
    engine: str = DEFAULT_ENGINE,
    *,
    layers: Annotated[Sequence[type], Row(Instance(type), example="[MyLayer]")] = (),
) -> Model:
    """A model from a file; runs no code from it.

    Args:
        path: what `Model.save` wrote, or a checkpoint of `Model.fit`.
        engine: where the model shall live.
        layers: the classes of your own layers, initializers and regularizers, if the network
            contains any.

    Raises:
        FileFormatError: if the file is missing, cut short, damaged or of another kind.
    """
    return Model.from_file(read_model(path, layers), engine)


@checked
def compile(
    inputs: Tensor | Sequence[Tensor],
    outputs: Tensor | Sequence[Tensor],
    engine: str = DEFAULT_ENGINE,
) -> Function:
    """A graph of ops, compiled to a function of arrays.

    Args:
        inputs: what `lamina.Input` made; one or several.
        outputs: tensors computed from them; one or several.

    Returns:
        A function: arrays in the order of the inputs, batch first, to a tuple of arrays.

    Example:
        >>> import lamina as lm
        >>> x = lm.Input()
        >>> square = lm.compile(inputs=[x], outputs=[x * x])
        >>> square([1.0, 2.0])[0].tolist()
        [1.0, 4.0]
    """
    return Function(inputs, outputs, open_engine(engine))
