"""`Model`: a network with its parameters on an engine, to train, run and save."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Never, NoReturn, final

from lamina.base.shapes import Array, DTypeLike, as_dtype, float32
from lamina.checks import checked
from lamina.checks.kinds import (
    AnyOf,
    Count,
    FilePath,
    FloatType,
    Instance,
    ModelType,
    Number,
    OrNone,
    Row,
    Whole,
    Word,
)
from lamina.checks.origin import Origin, source_line
from lamina.data import Dataset, Stream, as_dataset
from lamina.data.conversion import rounded_parameters
from lamina.data.dataset import Data
from lamina.data.stream import AnyData, as_data, as_inputs, whole_of
from lamina.engines.discovery import DEFAULT_ENGINE, open_engine
from lamina.errors import DefinitionError, Named, errors_at
from lamina.files.model_file import ModelFile, read_arrays, read_model, write_model
from lamina.files.weights import (
    NamedArrays,
    Names,
    Pairing,
    Patterns,
    StateDict,
    pair,
    pair_by_name,
)
from lamina.inspect.explanation import Explanation, Profile, Tuning
from lamina.learning.by_output import Losses, Metrics, as_loss, as_metrics, options_of
from lamina.learning.protocols import BatchSize, Clip, MicroBatch, Optimizer, TrainingOptions
from lamina.learning.weighting import ClassWeightsKind, WeightsOfClasses, numbers_of
from lamina.network import Network
from lamina.runtime import Inference, Parameters
from lamina.runtime.predictor import Predictor
from lamina.runtime.random_examples import random_examples
from lamina.step.planning import bill_of
from lamina.step.precision import MIXED, ProductPrecision, Products, precision_of
from lamina.training.callbacks.hooks import AnyCallback
from lamina.training.evaluation import BATCH_SIZE, evaluating, summary
from lamina.training.fit import ON_INTERRUPT, RETURN, Fit
from lamina.training.history import History
from lamina.training.training import Training

if TYPE_CHECKING:
    from lamina.data import Coding

_ADVICE = "lm.Sequential(...) and lm.Network(...) make one."
OfNetwork = Annotated[Network, Instance(Network, "a model is made of a network", _ADVICE)]
OfFile = Annotated[DTypeLike | None, OrNone(ModelType())]
ProductsOfFile = Annotated[str | None, OrNone(ProductPrecision())]
FileOrArrays = Annotated[str | os.PathLike[str] | NamedArrays, AnyOf((FilePath(), StateDict()))]
GivenClassWeights = Annotated[WeightsOfClasses | None, ClassWeightsKind()]
Seconds = Annotated[float, Number("(0, 86400]")]


@final
class Model(Named):
    """A network, and its parameters in an engine's memory.

    Args:
        network: the definition.
        engine: `"cpu"`, `"interpreter"`, or `"opencl"`, also followed by the number of a device or
            a part of its name: `"opencl:1"`; `lamina.devices()` lists all.
        seed: the seed of the initial parameters and of training; the same seed gives the same model
            on every engine.
        dtype: `"float32"`, `"float64"`, `"bfloat16"`, `"float16"`, or `"mixed"`: parameters in
            float32, activations and operands of products in bfloat16 or float16, the one with which
            the device computes. `"mixed-bfloat16"` and `"mixed-float16"` choose one of them, on any
            device. See docs/precision.md.
        precision: the precision of products of float32: `"float32"`, or `"tf32"`: devices that
            multiply TF32 round the operands of matrix products, convolutions and attention to 11
            bits, and add up the products in float32. On other devices it changes nothing.

    Raises:
        EngineError: for an engine that does not exist or cannot be used, or for `"mixed"` if it
            computes with neither.
        DTypeError: for another dtype, or for `precision="tf32"` if the dtype is not float32.

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
        precision: Products = "float32",
    ) -> None:
        opened = open_engine(engine)
        types = precision_of(dtype, lambda: opened.device, precision)
        self._parameters = Parameters(network, opened, types, seed)
        self._inference = Inference(self._parameters)

    @classmethod
    def of_parameters(cls, parameters: Parameters) -> Model:
        """A model with these parameters; `lamina.load` calls it."""
        model = cls.__new__(cls)
        model._parameters, model._inference = parameters, Inference(parameters)
        return model

    @checked
    def part(self, network: OfNetwork) -> Model:
        """A model of another network that is made of the same layers: it shares the parameters.

        Both models use the same memory, so training one, or setting its parameters, changes the
        other. A part with the same inputs takes the same tables. A saved file of either is
        complete. Use it to run a decoder without its encoder, or to train two networks against each
        other, each with its own optimizer.

        Args:
            network: a network whose layers with parameters are layers of this model's network, the
                same objects.

        Raises:
            DefinitionError: if it has a layer that this model does not have.
            ShapeError: if a parameter has another shape in it.

        Example:
            >>> decoder = lm.Sequential(lm.Input(2), lm.Linear(8))
            >>> autoencoder = lm.Model(lm.Sequential(lm.Input(8), lm.Linear(2), decoder))
            >>> part = autoencoder.part(decoder)
            >>> bool((part.parameters()["1.weight"] == autoencoder.parameters()["2.weight"]).all())
            True
        """
        return Model.of_parameters(self._parameters.part(network))

    def __repr__(self) -> str:
        engine = self._parameters.engine.device.engine
        count = f"{self.network.parameter_count():,} parameters"
        return f"Model({count}, {self._parameters.precision}, engine={engine!r})"

    @property
    def network(self) -> Network:
        """The definition."""
        return self._parameters.network

    @property
    def coding(self) -> Coding | None:
        """How the columns of a table become inputs, if the model was trained on a table."""
        return self._parameters.coding

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
        """The outputs for any number of examples, computed in batches.

        Each new number of examples in a batch compiles a program; the last sixteen programs are
        kept. For calls with changing numbers, `predictor` has one program and pads.

        Args:
            inputs: an array, batch first; for several inputs a tuple of arrays, or a dict by their
                names, `{"image": a, "age": b}`; a `Dataset`, or a stream of batches (see
                `lm.data.Stream`), whose targets are ignored; or a data frame like the one that the
                model was trained on, or of numbers if it was trained on arrays.

        Returns:
            An array, batch first; a tuple for several outputs.

        Raises:
            ShapeError, DTypeError, DataError: if the arrays do not fit the network's inputs.
            DefinitionError: for any argument but the inputs.
        """
        if others or options:
            raise DefinitionError(
                "predict takes the inputs and nothing else",
                facts=(("expected", "predict(x), or predict((x1, x2)) for several inputs"),),
                where=str(Origin("Model.predict", source_line())),
                advice="It splits them into batches itself.",
            )
        inputs = as_inputs(inputs, self.coding)
        if isinstance(inputs, Stream):
            outputs = self._inference.of_stream(inputs)
        else:
            outputs = self._inference(inputs)
        return outputs[0] if len(outputs) == 1 else outputs

    @checked
    def predictor(self, batch_size: BatchSize = 1) -> Predictor:
        """A function that predicts batches with little work besides the arithmetic.

        Its program is compiled now. It reads the parameters where they are, so it predicts with the
        new ones after training. Several threads may call predictors of a model at the same time,
        each its own.

        Args:
            batch_size: the largest number of examples of a call. Smaller batches are padded.

        Returns:
            A function: `predict(x)` returns the outputs, and `predict(x, out=y)` writes them to an
            array. It takes arrays; data frames become arrays by `model.coding.inputs(frame)`.

        Raises:
            ShapeError: if the first axis of an output is not the batch.
            EngineError: if there is not enough memory.

        Example:
            >>> import numpy as np, lamina as lm
            >>> predict = lm.Model(lm.Sequential(lm.Input(3), lm.Linear(2))).predictor()
            >>> predict(np.zeros((1, 3), "float32")).shape
            (1, 2)
        """
        return Predictor(self._parameters, batch_size)

    @checked
    def evaluate(
        self, data: AnyData, loss: Losses, metrics: Metrics = (), batch_size: BatchSize = BATCH_SIZE
    ) -> dict[str, Any]:
        """Loss and metrics on a data set or a stream, in inference mode.

        Args:
            data: a data set, (x, y), or (x, y, weights) of the examples, each also by the names
                of inputs or outputs. Weights count in the loss and in all metrics.
            loss: a loss; a dict or a list of losses for the outputs of the network.
            metrics: a list of metrics and of functions of prediction and target, or a dict of them
                by the outputs of the network.
            batch_size: the largest number of examples in a batch.

        Returns:
            `{"loss": ..., "accuracy": ...}`: floats, or arrays such as a confusion matrix.
        """
        examples, loss, measured = as_data(data, self.coding), as_loss(loss), as_metrics(metrics)
        arguments = self._parameters, examples, loss, measured
        with evaluating(*arguments, batch_size=batch_size) as measure:
            assert measure is not None
            return summary(measure(), measured)

    @checked
    def training(
        self,
        loss: Losses,
        optimizer: Optimizer,
        batch_size: BatchSize,
        *,
        metrics: Metrics = (),
        clip: Clip | None = None,
        frozen: Sequence[str] = (),
        class_weights: GivenClassWeights = None,
        seed: int | None = None,
        data: Data | None = None,
        micro_batch: MicroBatch = None,
    ) -> Training:
        """Creates a training of this model, which changes its parameters; compiles immediately.

        Args:
            loss: a loss, or any function of (prediction, target) tensors; for a network with
                several outputs a dict of losses by their names, or a list (`lm.ByOutput`).
            optimizer: the optimizer that updates the parameters from their gradients.
            batch_size: the largest number of examples of a training step.
            metrics: the metrics that `fit` measures: a list of metrics, or of functions of
                (prediction, target) tensors; a dict of them by the names of the network's outputs.
            clip: `lm.ClipGlobalNorm(1.0)` and the like.
            frozen: patterns of the names of parameters that are not trained: `["0.*", "2.weight"]`.
                They keep their values, their gradients are not computed, and they have no state
                in the optimizer. `network.names_of(part)` gives the names in a sub-network.
            class_weights: weights of classes in the training loss: one for each class, a dict by
                class numbers (others have 1), or `"balanced"`, so that all classes count equally.
                They multiply the weights of the examples; metrics and validation do not use them.
            seed: the seed of dropout and other random layers; the model's own by default.
            data: a sample of the data, needed if its dtypes are not the default ones: uint8
                images, for example, or soft targets; if the examples have weights; and for
                `class_weights="balanced"`, all of it.
            micro_batch: the size of the micro-batches into which each batch is divided, which are
                computed one after the other: a large batch in the memory of a small one. Their
                gradients are added up, and the parameters change once. See docs/memory.md.

        Returns:
            A training, for a `with` block; otherwise call its `release()`.

        Raises:
            DefinitionError: if there is nothing to train, or a pattern fits no parameter.
        """
        dataset = None if data is None else as_dataset(data)
        targets = None if dataset is None else dataset.target_arrays
        weights = numbers_of(class_weights, targets)
        options = TrainingOptions(
            as_loss(loss), optimizer, as_metrics(metrics), clip, frozen, weights
        )
        return Training(
            self._parameters,
            options,
            dataset,
            batch_size,
            seed=self.seed if seed is None else seed,
            micro_batch=micro_batch,
        )

    @checked
    def fit(
        self,
        train: AnyData,
        *,
        loss: Losses,
        optimizer: Optimizer,
        validation: AnyData | None = None,
        epochs: Count = 1,
        batch_size: BatchSize = 32,
        metrics: Metrics = (),
        clip: Clip | None = None,
        frozen: Sequence[str] = (),
        class_weights: GivenClassWeights = None,
        seed: int | None = None,
        drop_last: bool = False,
        micro_batch: MicroBatch = None,
        progress: bool | None = None,
        shuffle: bool = True,
        record: Annotated[Sequence[str], Row(Word(("rate", "gradient_norm")))] = (),
        callbacks: Sequence[AnyCallback] = (),
        checkpoint: str | os.PathLike[str] | None = None,
        checkpoint_steps: Annotated[int | None, OrNone(Whole(1))] = None,
        resume: bool = False,
        on_interrupt: Annotated[str, Word(ON_INTERRUPT)] = RETURN,
    ) -> History:
        """Trains for some epochs. A second fit has new moments, and the same order of examples.

        Args:
            train, validation: data sets, pairs (x, y) of arrays, or (x, y, weights): the weights
                of the examples count in the loss and in all metrics. Several inputs or targets are
                tuples, or dicts by the names of inputs and outputs: `({"image": a, "age": b}, y)`.
                Or streams: generator functions, data loaders, lists of batches (see
                `lm.data.Stream` and docs/data.md).
            loss, optimizer, metrics, clip, frozen, class_weights: the arguments of `training`.
            epochs: the number of epochs in total, including the epochs of a resumed checkpoint.
            batch_size: examples in a training step; the last batch of an epoch may be smaller.
            seed: the seed of the examples' order and of random layers; the model's own by default.
            drop_last: whether to omit a smaller last batch of each epoch.
            micro_batch: the size of micro-batches, as in `training`.
            progress: whether to show a progress bar; by default on terminals only.
            shuffle: whether each epoch has another order; otherwise the data or source decides.
            record: further measures: `"rate"`, the learning rate at the begin of each epoch, and
                `"gradient_norm"`, the mean norm of all gradients together, before clipping.
            callbacks: objects of `lm.callbacks`, and functions that are called with the history
                after each epoch; a function that returns True ends the fit.
            checkpoint: a file that is written after each epoch; if it does not exist yet, also
                before the first training step.
            checkpoint_steps: the rough number of training steps between writings within an epoch.
            resume: whether to continue from that file if it exists: the result is the same, bit by
                bit, as without the interruption. A fit that ended in its first epoch begins again
                with its initial parameters.
            on_interrupt: the effect of Ctrl-C once the fit has ended: `"return"` or `"raise"`.

        Returns:
            Loss and metrics of every epoch, and the averages that an optimizer such as `lm.EMA`
            keeps. After Ctrl-C the model keeps the parameters trained so far.

        Raises:
            NonFiniteError: if the loss becomes NaN or infinite; the model is then restored to the
                end of the last good epoch, like the checkpoint file.
            DataError, ShapeError, DTypeError, DefinitionError: before the first training step, if
                the data or options do not fit, or the checkpoint could not be written.
            EngineError: if a training step needs more memory than the device has.
        """
        data = as_data(train, self.coding, is_training=True)
        data_coding = data.coding if isinstance(data, Dataset) else None
        coding = data_coding or self.coding
        targets = None if (dataset := whole_of(data)) is None else dataset.target_arrays
        weights, measured = numbers_of(class_weights, targets), as_metrics(metrics)
        options = TrainingOptions(
            as_loss(loss), optimizer, measured, clip, frozen, weights, "gradient_norm" in record
        )
        fit = Fit(
            model=self,
            parameters=self._parameters,
            options=options,
            train=data,
            validation=None if validation is None else as_data(validation, coding),
            coding=coding,
            epochs=epochs,
            batch_size=batch_size,
            seed=self.seed if seed is None else seed,
            drop_last=drop_last,
            micro_batch=micro_batch,
            shuffle=shuffle,
            record_rate="rate" in record,
            progress=progress,
            callbacks=callbacks,
            checkpoint=checkpoint,
            checkpoint_steps=checkpoint_steps,
            resume=resume,
            on_interrupt=on_interrupt,
        )
        return fit.run()

    @checked
    def explain(
        self,
        batch_size: BatchSize = 1,
        loss: Losses | None = None,
        optimizer: Optimizer | None = None,
        *,
        clip: Clip | None = None,
        frozen: Sequence[str] = (),
    ) -> Explanation:
        """The program of a training step or a forward pass: steps, arithmetic and memory traffic.

        Nothing is run. `print` shows it; its `listing` shows one step as generated code.

        Args:
            batch_size: the number of examples.
            loss, optimizer, clip, frozen: parts of the training step; without them a forward pass.

        Example:
            >>> model = lm.Model(lm.Sequential(lm.Input(3), lm.Linear(2)))
            >>> model.explain(batch_size=8).costs[0].operations  # 8 * 2 * (2 * 3 + 1)
            112
        """
        options = options_of(loss, optimizer, clip, frozen, "explain")
        return self._explained(batch_size, options)

    def _explained(self, batch_size: int, options: TrainingOptions | None) -> Explanation:
        engine = self._parameters.engine
        precision, target = self._parameters.precision, engine.target
        bill = bill_of(self.network, batch_size, options, precision, lambda: engine.device, target)
        return Explanation(bill.batch_size, bill.program, engine)

    @checked
    def tune(
        self,
        batch_size: BatchSize = 32,
        loss: Losses | None = None,
        optimizer: Optimizer | None = None,
        *,
        clip: Clip | None = None,
        frozen: Sequence[str] = (),
    ) -> Tuning:
        """Tunes the program: its most expensive steps are run with several schedules.

        The fastest are kept in the cache on disk, if there is one, and used when the program is
        compiled the next time. It runs on memory of its own: the model stays unchanged.

        Args:
            batch_size: the number of examples.
            loss, optimizer, clip, frozen: parts of the training step; without them a forward pass.

        Raises:
            EngineError: if the engine does not tune: only the opencl and cuda engines do.
        """
        options = options_of(loss, optimizer, clip, frozen, "tune")
        return self._explained(batch_size, options).tuning()

    @checked
    def profile(
        self,
        batch_size: BatchSize = 32,
        loss: Losses | None = None,
        optimizer: Optimizer | None = None,
        *,
        clip: Clip | None = None,
        frozen: Sequence[str] = (),
        data: Data | None = None,
        seconds: Seconds = 0.5,
    ) -> Profile:
        """The time of each step of the program, and the peak rates of the machine.

        It runs on a copy: the model stays unchanged.

        Args:
            batch_size: the number of examples.
            loss, optimizer, clip, frozen: parts of the training step; without them a forward pass.
            data: examples to run on, at least a batch; random ones by default.
            seconds: the approximate time to run the program untimed, and again with timers.

        Raises:
            DataError: if random examples cannot be made, because an input takes integers.
        """
        options = options_of(loss, optimizer, clip, frozen, "profile")
        dataset = None if data is None else as_dataset(data).subset(0, batch_size).dense()
        copy = self._parameters.copy()
        if dataset is None:
            loss, seed = None if options is None else options.loss, copy.seed
            dataset = random_examples(
                self.network, loss, batch_size, seed, copy.dtype, where="profile"
            )
        x, y, weights = dataset.inputs, dataset.targets, dataset.weights
        if options is None:
            return Inference(copy).profile(x, seconds)
        with Training(copy, options, dataset, batch_size, seed=copy.seed) as training:
            return training.profile(x, y, seconds, weights=weights)

    def parameters(self) -> dict[str, Array]:
        """Copies of all parameters, `{"1.weight": array, ...}`, in the order of the layers."""
        return self._parameters.read(list(self._parameters.variables))

    def states(self) -> dict[str, Array]:
        """Copies of the states of layers, such as running averages, by name."""
        return self._parameters.read(list(self._parameters.states))

    def set_parameters(self, values: Mapping[str, Any]) -> None:
        """Replaces parameters or states; existing trainings continue with the new values.

        Args:
            values: arrays by name, or values that NumPy converts, such as PyTorch's tensors.

        Raises:
            DefinitionError, ShapeError, DTypeError: before anything is changed.
        """
        self._parameters.write(values)

    @checked
    def load_parameters(self, source: FileOrArrays, *, skip: Patterns = ()) -> Pairing:
        """Sets the parameters and states whose names are in a file; the others keep their values.

        Args:
            source: a model file, any other safetensors file, or arrays by name.
            skip: patterns of names that keep their values: `["head.*"]`.

        Returns:
            What was set and what was not; `print` shows it.

        Raises:
            FileFormatError: if the file is missing, truncated, damaged or of another format.
            DefinitionError: if no name is the same, or the names have the numbers of PyTorch.
            DataError, DTypeError: for an array that is not of numbers.
            ShapeError: if an array has another shape than its parameter; then nothing is set.

        Example:
            >>> backbone = lm.Model(lm.Sequential(lm.Input(4), lm.Linear(3, name="first")))
            >>> net = lm.Sequential(lm.Input(4), lm.Linear(3, name="first"), lm.Linear(2))
            >>> lm.Model(net).load_parameters(backbone.parameters()).kept
            ('2.weight', '2.bias')
        """
        arrays = source if isinstance(source, Mapping) else read_arrays(source)
        pairing = pair_by_name(self.network, arrays, skip)
        self.set_parameters(rounded_parameters(pairing.values, self._parameters.dtype))
        return pairing

    @checked
    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes network, parameters and states to a safetensors file, atomically.

        Raises:
            DataError: if the file cannot be written.
        """
        values = self._parameters.read(list(self._parameters.memories))
        precision, seed = self._parameters.precision, self.seed
        write_model(path, ModelFile(self.network, precision, seed, values, coding=self.coding))


@checked
def load(
    path: str | os.PathLike[str],
    engine: str = DEFAULT_ENGINE,
    *,
    dtype: OfFile = None,
    precision: ProductsOfFile = None,
    layers: Annotated[Sequence[type], Row(Instance(type), example="[MyLayer]")] = (),
) -> Model:
    """A model from a file; runs no code from it.

    Args:
        path: a file written by `Model.save`, or a checkpoint of `Model.fit`.
        engine: the engine of the model, as in `Model`.
        dtype: the precision of the model, as in `Model`: parameters and states are rounded to it.
            By default it is the precision in the file.
        precision: the precision of products, as in `Model`; by default the file's precision.
        layers: the classes of your own layers, initializers and regularizers, if the network
            contains any.

    Raises:
        FileFormatError: if the file is missing, truncated, damaged or of another format.
        DataError: if a parameter is too large for float16.
        DTypeError: for `precision="tf32"` if the dtype is not float32.
    """
    saved, opened = read_model(path, layers), open_engine(engine)
    with errors_at(os.fspath(path)):
        saved.require_members(several=False)
    kept, values = saved.precision, saved.values
    if dtype is not None or precision is not None:
        new_dtype = dtype or kept.name
        if precision is None:
            # TF32 is for float32 only; the file's does not hold for another dtype.
            is_float32 = new_dtype not in MIXED and as_dtype(new_dtype) == float32
            precision = kept.products if is_float32 else "float32"
        kept = precision_of(new_dtype, lambda: opened.device, precision)
    if dtype is not None:
        values = rounded_parameters(values, kept.dtype)
    parameters = Parameters(saved.network, opened, kept, saved.seed, values)
    parameters.coding = saved.coding
    return Model.of_parameters(parameters)


@checked
def from_torch(
    network: OfNetwork,
    state_dict: NamedArrays,
    engine: str = DEFAULT_ENGINE,
    *,
    dtype: FloatType = "float32",
    precision: Products = "float32",
    names: Names | None = None,
    skip: Patterns = (),
    seed: int = 0,
    show: bool = True,
) -> Model:
    """A model with the weights of a PyTorch module of the same layers.

    Layers with a name are paired with the module of that name, and the others in order: the first
    layer that has parameters with the first module, and so on. The layers of a network with a name,
    `"trunk.1"`, are paired in order with the modules of that name, `"trunk.0"`. Running statistics
    are states of the model; counters of training steps are skipped.

    Args:
        network: the definition.
        state_dict: PyTorch's `module.state_dict()`, or any mapping from names to arrays.
        engine, dtype, precision: the arguments of `Model`.
        names: the modules of some layers, by the names of the layers here: `{"3": "features.3"}`;
            or the arrays of some parameters, `{"pos.weight": "pos"}`, such as those that are an
            `nn.Parameter` alone.
        skip: patterns of names of parameters that keep their initial values, and of arrays that
            are not needed: `["fc.*"]`.
        seed: the seed of the parameters that keep their initial values.
        show: whether to print which parameter takes which array.

    Raises:
        DefinitionError: if an array is missing or left over, or a pattern fits no name; if the
            order of the layers is not the order of the modules, or is not known.
        ShapeError: if an array has another shape than its parameter.
        DataError, DTypeError: for an array that is not of numbers.

    Example:
        >>> import numpy as np, lamina as lm
        >>> net = lm.Sequential(lm.Input(3), lm.Linear(2))
        >>> weights = {"0.weight": np.ones((2, 3)), "0.bias": np.zeros(2)}
        >>> model = lm.from_torch(net, weights)
        parameter  from      shape
        ---------  --------  ------
        1.weight   0.weight  [2, 3]
        1.bias     0.bias    [2]
    """
    pairing = pair(network, state_dict, names or {}, skip)
    model = Model(network, engine=engine, seed=seed, dtype=dtype, precision=precision)
    model.load_parameters(pairing.values)
    if show:
        print(pairing)
    return model
