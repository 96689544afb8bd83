"""Every public call with wrong values for each of its parameters.

A valid call of a class is the example in its docstring; the table `ROWS` has the others. A
parameter takes the `VALUES` that its kind reads, unless a row says less. `KINDS` says what
kinds read.

In wider runs (`--part`) all calls are made. For all other values a call must raise a `LaminaError`
that names the parameter or the callable; no other error, and no silent acceptance. Results of
accepted calls are used.
"""

import contextlib
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cache, partial
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
import pytest
from docstring_examples import example_of, inputs_like

import lamina as lm
from lamina import ops
from lamina.base.shapes import float32
from lamina.checks import Called
from lamina.checks.calls import _kinds_of, _kinds_of_class
from lamina.checks.kinds import (
    AnyOf,
    Either,
    ElementType,
    FilePath,
    Flag,
    Function,
    Instance,
    Misfit,
    ModelType,
    Number,
    OrNone,
    Text,
    Whole,
    Word,
)
from lamina.checks.kinds import Row as Several
from lamina.errors import EngineError, InternalError, LaminaError
from lamina.learning.protocols import TrainingOptions
from lamina.step.derive import BatchSpecs, default_targets, training_graph


class ForeignTensor:
    """A tensor of another library, on a device that NumPy cannot read."""

    shape = (2,)
    dtype = "float32"
    requires_grad = False

    def __array__(self, *_, **__):
        raise TypeError("can't convert device tensor to numpy")

    def __len__(self):
        return 2

    def detach(self):
        return self

    def __repr__(self):
        return "tensor([1., 2.], device='far:0')"


class NearTensor(ForeignTensor):
    """One that NumPy can read."""

    def __array__(self, *_, **__):
        return np.array([1.0, 2.0])


# Some by their texts, others by names.
TEXTS = ("None", "-1", "0", "1", "1.5", "True", "np.True_", "()", "(1.0,)", "{}", "np.int64(1)")
VALUES = {text: eval(text) for text in TEXTS} | {
    "[1, 2]": [1, 2],
    "text": "a",
    "empty": "",
    "half": np.float32(0.5),
    "nan": math.nan,
    "inf": math.inf,
    "object": object(),
    "lambda": lambda *_, **__: None,
    "class": dict,
    "vector": np.array([1.0, 2.0]),
    "matrix": np.array([[1.0, 2.0], [3.0, 4.0]]),
    "huge": 10**30,
    "foreign": ForeignTensor(),
    "near": NearTensor(),
}
# Values that must mean the same.
EQUAL = {"np.int64(1)": "1", "np.True_": "True", "near": "vector"}

# Values that parameters accept.
Accepted = frozenset[str]


def some(*names):
    assert set(names) <= VALUES.keys()
    return frozenset(names)


NOTHING = some()
OPTIONAL = some("None")
FLAG = some("True", "np.True_")
COUNT = some("1", "np.int64(1)")
FROM_ZERO = COUNT | some("0")
WHOLE = FROM_ZERO | some("-1")
POSITIVE = COUNT | some("1.5", "half", "huge")
NOT_NEGATIVE = POSITIVE | some("0")
NUMBER = NOT_NEGATIVE | some("-1")
FRACTION = some("0", "half")
UNIT = FRACTION | COUNT
TEXT = some("text", "empty")
PATH = some("text")
FUNCTION = some("lambda")
COUNTS = some("()", "[1, 2]")
NUMBERS = some("()", "(1.0,)", "[1, 2]", "vector", "near")

# By the parameter's name: parameters without a kind, and those that take less than it reads.
USUAL = {
    **dict.fromkeys(("engine", "inputs", "loss", "network", "optimizer", "outputs"), NOTHING),
    **dict.fromkeys(("prediction", "target"), NOTHING),
    **dict.fromkeys(("clip", "weights"), OPTIONAL),
    "frozen": some("()"),
    "metrics": some("()", "{}"),
    "name": OPTIONAL | some("text"),
}


@dataclass(frozen=True)
class Row:
    """A public call.

    Attributes:
        valid: arguments of a valid call; a `Made` is made anew for each call.
        accepts: by parameter, or several in one text, where it differs from `USUAL` and from what
            its kind reads.
        use: a function of the result, which uses it.
        call: the callable, if neither the public name itself nor a method of `OBJECTS`.
        words: names in errors that may replace the parameter or the callable.
    """

    valid: Mapping[str, Any] = field(default_factory=dict[str, Any])
    accepts: Mapping[str, Accepted] = field(default_factory=dict[str, Accepted])
    use: Callable[[Any], object] | None = None
    call: Callable[..., Any] | None = None
    words: tuple[str, ...] = ()


@dataclass(frozen=True)
class Made:
    make: Callable[[], Any]


ROWS = {}


# Records ------------------------------------------------------------------------------------------


def applied(layer, operands):
    """Builds both modes of a network of the layer."""
    lm.Network(operands, layer(*operands)).variables(float32)


def computed(loss, operands):
    assert loss(*operands).shape == ()


def updated(optimizer):
    """Builds the training graph of a network with the optimizer."""
    if not callable(getattr(optimizer, "rate", None)):
        network, loss = net(), lm.MSE()
        specs = BatchSpecs(network, float32, targets=default_targets(network, loss, float32))
        training_graph(specs, TrainingOptions(loss, optimizer))


def net():
    return lm.Sequential(lm.Input(3), lm.Linear(2))


INPUT = lm.Input(3)
OUTPUT, SQUARE = lm.Linear(2)(INPUT), INPUT * INPUT
NET = lm.Network(INPUT, OUTPUT)


def unused(_):
    return


A_PREDICTION = lm.Input(2)
# By their module: the use of an object, which gets inputs like the operands in its docstring and
# may tell whether its result is right, and what it is called with.
RECORDS = {
    "lamina.layers.init": (
        lambda init: init((4, 3), 0, 0).shape == (4, 3),
        {"shape": (4, 3), "seed": 0, "stream": 0},
    ),
    "lamina.layers.regularizers": (lambda term: term(lm.Input(3)), {"parameter": A_PREDICTION}),
    "lamina.layers": (applied, {}),
    "lamina.learning.clipping": (
        lambda clip: len(clip([lm.Input(3), lm.Input(2)])) == 2,
        {"gradients": [A_PREDICTION]},
    ),
    "lamina.learning.schedules": (
        lambda schedule: callable(getattr(schedule, "then", None)) or schedule.at(3) >= 0,
        {"step": lm.Input()},
    ),
    "lamina.learning.optimizers": (updated, {}),
    "lamina.learning.losses": (computed, {}),
    "": (unused, {}),
}


@cache
def row_of(name):
    """The row of a public call.

    What the table lacks for a class is in the example of its docstring: the arguments, and the
    operands to which an object is applied.
    """
    row, call = ROWS.get(name, Row()), PUBLIC[name]
    cls = call if isinstance(call, type) else reached().get(name.removesuffix(".__call__"))
    if not isinstance(cls, Called) or (row.valid and (row.use or row.call)):
        return row
    example = example_of(cls)
    use, called_with = next(RECORDS[room] for room in RECORDS if cls.__module__.startswith(room))
    if cls is not call:
        return replace(row, valid=called_with, call=example.made)
    if use in (applied, computed):
        use = partial(use, operands=inputs_like(example.operands))
    return replace(row, valid=row.valid or example.arguments, use=row.use or use)


# Parameters that take less than their kind reads, or have none.
FANS = {"shape": COUNTS - some("()")}
ROWS |= {
    # Above the default of `low`, below the default of `high`.
    "RReLU": Row({}, {"low": some("-1", "0"), "high": POSITIVE}),
    # The bounds of the example are 0 and 6.
    "Hardtanh": Row({}, {"low": NUMBER - some("huge"), "high": POSITIVE}),
    "Reshape": Row({"shape": (28, 28)}),
    "TiedLinear": Row({"layer": lm.Linear(4)}, use=unused),
    "RandomFlip": Row({}, {"axis": COUNT | some("-1")}),
    "AvgPool2d": Row({"window": 3}, {"padding": FROM_ZERO}),
    "MaxPool2d": Row({}, {"padding": FROM_ZERO}),
    "LPPool2d": Row({}, {"padding": FROM_ZERO}),
    "ConvTranspose2d": Row({}, {"output_padding": FROM_ZERO}),
    "Precision": Row({"average": "macro"}),
    "MultiHeadAttention": Row({}, {"features": OPTIONAL}),
    "Upsample": Row(
        {"scale": 2, "mode": "bilinear"},
        {"scale": POSITIVE | some("(1.0,)", "[1, 2]", "vector", "near"), "size": OPTIONAL},
    ),
    "ops.Window": Row(
        {"size": 3},
        {"size stride dilation": COUNT, "before after": FROM_ZERO, "ceil": FLAG},
        lambda window: ops.window_max(lm.Input(4, 8), [window]),
    ),
    "ByOutput": Row(
        {"losses": {"a": lm.MSE()}}, {"losses": NOTHING, "factors": OPTIONAL | some("{}")}, unused
    ),
    "FunctionMetric": Row(
        {"function": lambda prediction, target: prediction, "name": "own"},
        {"function": FUNCTION, "name": some("text")},
    ),
    "Loss.__call__": Row(
        {"prediction": A_PREDICTION, "target": A_PREDICTION}, call=lm.MSE(), words=("MSE",)
    ),
    "init.Uniform": Row({"low": -2.0, "high": 2.0}, {"low": UNIT | some("-1", "1.5")}),
    **{
        f"init.{kind}.__call__": Row({}, FANS)
        for fan in ("Xavier", "Kaiming")
        for kind in (f"{fan}Uniform", f"{fan}Normal", "Orthogonal")
    },
    # There is one rate, or schedule, more than boundaries.
    "schedules.PiecewiseConstant": Row({}, {"boundaries": some("[1, 2]"), "rates": NOTHING}),
    "schedules.Chain": Row(
        {"boundaries": [3, 6], "schedules": [0.1, 0.2, 0.3]},
        {"boundaries": some("[1, 2]"), "schedules": NOTHING},
    ),
    "Rprop": Row({}, {"shortest": NOT_NEGATIVE - some("huge"), "longest": POSITIVE}),
    "ByPath": Row(
        {"patterns": {"*.bias": lm.SGD(0.1)}, "default": lm.SGD(0.1)},
        {"patterns": some("{}"), "default": NOTHING},
    ),
}
for kind in ("MaxPool", "AvgPool", "LPPool"):
    # A list of two numbers has one for each axis of an image alone.
    ROWS[f"{kind}1d"] = ROWS[f"{kind}3d"] = Row({}, {"stride": OPTIONAL | COUNT})


# Networks -----------------------------------------------------------------------------------------

# An activation may be a function, which then has to give one.
NO_TENSOR = ("a layer is applied to tensors",)
ROWS |= {
    **{
        f"networks.{name}": Row(
            {"widths": (3,), size: 2, "input": (4,)}, {"activation": OPTIONAL}, words=NO_TENSOR
        )
        for name, size in (
            *(("mlp", "classes"), ("autoencoder", "code"), ("variational_autoencoder", "code")),
        )
    },
    "networks.dcgan": Row({"latent": 3, "image": (1, 8, 8), "width": 2}),
    "networks.lenet": Row({"classes": 2, "input": (1, 16, 16)}),
    "networks.mobilenet_v2": Row({"classes": 2, "width": 0.1, "input": (1, 32, 32)}),
    "networks.lstm_classifier": Row(
        {"classes": 2, "length": 3, "inputs": 2, "features": 2},
        {"inputs": COUNT, "vocabulary": OPTIONAL},
    ),
    "networks.resnet": Row(
        {"depth": 18, "classes": 2, "stem": "cifar", "input": (1, 8, 8), "width": 2},
        {"depth": NOTHING},
    ),
    "networks.tabm": Row(
        {"features": 3, "outputs": 2, "members": 2, "width": 4}, {"outputs": COUNT}
    ),
    "networks.transformer_encoder": Row(
        {"vocabulary": 5, "length": 3, "features": 4, "heads": 2, "layers": 1, "hidden": 3},
        {"features": NOTHING},
    ),
    "networks.unet": Row({"classes": 2, "input": (1, 8, 8), "widths": (2, 3)}),
    "networks.vgg": Row(
        {"stages": ((2,),), "classes": 2, "input": (1, 8, 8), "hidden": (3,)}, {"stages": NOTHING}
    ),
    "Input": Row({"shape": 3}),
    "concat": Row({"tensors": [INPUT, lm.Input(2)]}, {"tensors": NOTHING}),
    "Recompute": Row(
        {"layers": lm.Linear(2)}, {"layers unknown": NOTHING}, lambda it: it(lm.Input(3))
    ),
    "Recompute.__call__": Row(
        {"operands": A_PREDICTION}, call=lm.Recompute(lm.Linear(2)), words=("Linear",)
    ),
    "Sequential": Row({"layers": INPUT}, {"layers": NOTHING}),
    "Network": Row({"inputs": INPUT, "outputs": OUTPUT}),
    "Layer.__call__": Row(
        {"operands": A_PREDICTION}, {"named": NOTHING}, call=lm.Linear(2), words=("Linear",)
    ),
}


STEP = {"loss": lm.MSE(), "optimizer": lm.SGD(0.1)}
ROWS |= {
    "Network.__call__": Row({"operands": INPUT}, call=NET),
    "Network.plan": Row({"batch_size": 2, **STEP}, {"data": OPTIONAL | some("lambda")}),
    # A few bytes are too few.
    "Network.max_batch_size": Row(
        {"memory": "1 KiB", **STEP}, {"memory": OPTIONAL, "data": OPTIONAL | some("lambda")}
    ),
    "Network.max_members": Row(
        {"batch_size": 2, "memory": "1 KiB", **STEP},
        {"memory": OPTIONAL, "data": OPTIONAL | some("lambda")},
    ),
}


# Models -------------------------------------------------------------------------------------------

X = np.linspace(-1, 1, 24, dtype="float32").reshape(8, 3)
Y = np.linspace(0, 1, 16, dtype="float32").reshape(8, 2)


@cache
def model():
    return lm.Model(net(), engine="interpreter")


@cache
def training():
    return model().training(**STEP, batch_size=4)


def fitted(**options):
    return model().fit(**{"train": (X, Y), **STEP, **options})


PARAMETERS = Made(lambda: model().parameters())
# There are two classes of 0 and 1 in targets of floats.
OF_CLASSES = {"class_weights": OPTIONAL | (NUMBERS - some("()", "(1.0,)"))}
DATA = {"train data": NOTHING, "validation": OPTIONAL}
BATCH = {"x": NOTHING, "y": some("matrix"), "weights": OPTIONAL | some("()")}
OF_A_BATCH = ("input 0", "target 0", "number of inputs", "number of targets", "in targets")
NO_BATCHES = ("the data has none", "number of targets", "the function does not return batches")
ROWS |= {
    "Model": Row({"network": NET, "engine": "interpreter"}, {"dtype precision": NOTHING}),
    "Model.__call__": Row(),
    "Model.predict": Row({"inputs": X}, {"others options": NOTHING}, words=NO_BATCHES),
    "Model.evaluate": Row({"data": (X, Y), "loss": lm.MSE()}, DATA, words=NO_BATCHES),
    "Model.training": Row(
        {**STEP, "batch_size": 2}, {"data": OPTIONAL, **OF_CLASSES}, lambda made: made.release()
    ),
    "Model.fit": Row(
        {"train": (X, Y), **STEP, "batch_size": 4},
        DATA
        | OF_CLASSES
        | {"checkpoint_steps": OPTIONAL, "callbacks": some("()"), "resume": NOTHING},
        call=fitted,
        words=NO_BATCHES,
    ),
    "Model.explain": Row({"batch_size": 2, **STEP}),
    "Model.tune": Row({"batch_size": 2, **STEP}, call=lambda **o: refused_tuning(**o)),
    "Model.profile": Row({"batch_size": 2, **STEP, "seconds": 1e-3}, {"data": OPTIONAL}),
    "Model.set_parameters": Row({"values": {}}, {"values": some("{}")}),
    "Model.load_parameters": Row(
        {"source": PARAMETERS},
        # There is no file named "a", and no parameter without a name.
        {"source": NOTHING},
        words=("parameter", "file"),
    ),
    "from_torch": Row(
        {"network": NET, "state_dict": PARAMETERS, "engine": "interpreter", "show": False},
        {"state_dict": NOTHING},
    ),
    "load": Row(
        {"path": "model.safetensors", "engine": "interpreter"},
        # There is no file named "a".
        {"path": NOTHING},
    ),
    "compile": Row({"inputs": INPUT, "outputs": SQUARE, "engine": "interpreter"}),
    "Function.__call__": Row(
        {"arrays": np.ones((2, 3), "float32")}, {"arrays": NOTHING}, words=("input 0",)
    ),
    "gradients": Row({"output": SQUARE, "with_respect_to": [INPUT]}),
    "verify": Row(
        {"network": lm.Sequential(lm.Input(2), lm.Linear(1, bias=False)), "loss": lm.MSE()},
        {"data": OPTIONAL},
    ),
    "Training.step": Row({"x": X[:2], "y": Y[:2]}, BATCH, words=OF_A_BATCH),
    "Training.run": Row({"dataset": (X, Y), "steps": 2}, {"dataset": NOTHING}, words=NO_BATCHES),
    "Training.profile": Row({"x": X[:2], "y": Y[:2], "seconds": 1e-3}, BATCH, words=OF_A_BATCH),
    "TrainingSteps.restore": Row({"state": Made(lambda: training().state())}, {"state": NOTHING}),
}


@cache
def population():
    return lm.Population(net(), 2, engine="interpreter")


@cache
def joint_training():
    return population().training(**STEP, batch_size=4)


def fitted_together(**options):
    return population().fit(**{"train": (X, Y), **STEP, **options})


SEEDS = OPTIONAL | WHOLE | some("[1, 2]")
# Two members, each with one of a data set's examples, are given as two rows of integers.
OF_MEMBERS = {"subsets validation_subsets": OPTIONAL, "seeds": SEEDS}
SAVED = Made(lambda: population().save("population.safetensors") or "population.safetensors")
ROWS |= {
    "Population": Row(
        {"network": NET, "members": 2, "engine": "interpreter"},
        {"dtype precision": NOTHING, "seeds": SEEDS, "members": COUNT, "lanes": FLAG},
    ),
    "Population.predict": Row({"inputs": X}, words=NO_BATCHES),
    "Population.evaluate": Row(
        {"data": (X, Y), "loss": lm.MSE()}, DATA | OF_MEMBERS, words=NO_BATCHES
    ),
    "Population.training": Row(
        {**STEP, "batch_size": 2}, {"data": OPTIONAL, **OF_MEMBERS}, lambda made: made.release()
    ),
    "Population.fit": Row(
        {"train": (X, Y), **STEP, "batch_size": 4},
        DATA | OF_MEMBERS | OF_CLASSES | {"callbacks": some("()"), "resume": NOTHING},
        call=fitted_together,
        words=NO_BATCHES,
    ),
    "Population.search": Row(
        {
            "make": lambda rate: (NET, lm.SGD(rate)),
            "space": [{"rate": 0.1}],
            "train": (X, Y),
            "loss": lm.MSE(),
            "batch_size": 4,
            "folds": 2,
            "engine": "interpreter",
        },
        DATA
        | OF_CLASSES
        | {"make space monitor": NOTHING, "trials best": OPTIONAL, "callbacks": some("()")},
        call=lm.Population.search,
        words=NO_BATCHES,
    ),
    "Population.set_parameters": Row({"values": {}}, {"values": some("{}")}),
    "Population.load": Row({"path": SAVED, "engine": "interpreter"}, {"path": NOTHING}),
    "PopulationTraining.step": Row(
        {"x": X[:2], "y": Y[:2]}, BATCH, words=(*OF_A_BATCH, "a batch cannot be converted")
    ),
    "PopulationTraining.run": Row(
        {"dataset": (X, Y), "steps": 2}, {"dataset": NOTHING, "seeds": SEEDS}, words=NO_BATCHES
    ),
    "PopulationTraining.member": Row({"number": 0}, {"number": FROM_ZERO}),
    "PopulationTraining.set_rates": Row({"values": {"rate": 0.1}}, {"values": some("{}")}),
}


@cache
def square():
    return lm.compile(INPUT, SQUARE, engine="interpreter")


@cache
def history():
    return fitted()


# Data and reports ---------------------------------------------------------------------------------

EIGHT = lm.data.Dataset(X, Y)
CODING = lm.data.from_frame({"a": [1.0]}).coding
# Rows of numbers are examples of one number each.
ROWS_OF_NUMBERS = some("[1, 2]", "vector", "matrix", "near")
ROWS |= {
    "data.Dataset": Row(
        {"inputs": np.ones(2)},
        {"inputs": ROWS_OF_NUMBERS, "targets weights": OPTIONAL | ROWS_OF_NUMBERS},
    ),
    "Dataset.from_arrays": Row(
        {"inputs": np.ones(2)},
        {"inputs": ROWS_OF_NUMBERS | some("(1.0,)"), "targets": OPTIONAL | ROWS_OF_NUMBERS},
    ),
    "Dataset.subset": Row({"start": 0, "stop": 4}, {"start": FROM_ZERO, "stop": OPTIONAL | COUNT}),
    "Dataset.split": Row({"fraction": 0.5}),
    "Dataset.order": Row({"seed": 0, "epoch": 0}),
    "Dataset.orders": Row({"seed": 0, "epochs": range(2)}),
    "Dataset.batches": Row({"batch_size": 2}, {"batch_size": COUNT}, lambda batches: list(batches)),
    "data.Stream": Row({"source": [(X, Y)]}),
    "data.as_dataset": Row(
        {"value": X}, {"value": some("vector", "matrix", "near")}, words=("the inputs",)
    ),
    # There are no such files.
    "data.mnist": Row({"folder": "x"}, {"folder": NOTHING}),
    "data.read_idx": Row({"path": "x"}, {"path": NOTHING}),
    # A text is the path of a file.
    "Coding.inputs": Row({"frame": {"a": [1.0]}}, {"frame": NOTHING}, words=("in a:",)),
    "Coding.dataset": Row({"frame": {"a": [1.0]}}, {"frame": NOTHING}, words=("in a:",)),
    "data.from_frame": Row({"frame": {"a": [1.0]}}, {"frame": NOTHING, "target": OPTIONAL}),
    "data.read_table": Row({"path": "x.csv"}, {"path": NOTHING}, words=("in a:",)),
    "data.in_chunks": Row(
        {"path": "x.npy"}, {"path": NOTHING, "targets": OPTIONAL}, words=("in a:",)
    ),
    "data.load": Row(
        {"path": "x.npy"},
        {"path gaps standardise": NOTHING, "targets delimiter": OPTIONAL},
        words=("in a:",),
    ),
    "History.add": Row(
        {"row": {"loss": 1.0}, "seconds": 1.0}, call=lambda **o: type(history())().add(**o)
    ),
    "Explanation.listing": Row({"step": 0}, {"step": OPTIONAL | some("0"), "language": NOTHING}),
}


# The scope of a user's layer ----------------------------------------------------------------------


OPERAND = object()


def in_a_layer(method):
    """Calls a method of the scope within the forward of a layer."""

    def call(*values, **options):
        @dataclass(frozen=True)
        class Own(lm.Layer):
            def forward(self, scope, x):
                if method == "update":
                    scope.state("own", (2,), lm.init.Zeros())
                if method == "update" and not scope.training:
                    return x
                arguments = {n: x if v is OPERAND else v for n, v in options.items()}
                positional = [x if v is OPERAND else v for v in values]
                getattr(scope, method)(*positional, **arguments)
                return x

        lm.Sequential(lm.Input(2), Own())

    return call


ROWS |= {
    "Scope.parameter": Row(
        {"name": "own", "shape": (2,), "init": lm.init.Zeros()},
        {"name": TEXT, "init": FUNCTION, "regularizer": OPTIONAL},
    ),
    "Scope.state": Row(
        {"name": "own", "shape": (2,), "init": lm.init.Zeros()}, {"name": TEXT, "init": FUNCTION}
    ),
    "Scope.uniform": Row({"shape": (2,)}),
    "Scope.normal": Row({"shape": (2,)}),
    "Scope.bernoulli": Row({"shape": (2,), "probability": 0.5}),
    "Scope.update": Row({"name": "own", "value": A_PREDICTION[0]}, {"name": NOTHING}),
    "Scope.shared": Row({"layer": lm.Linear(2), "name": "weight"}, {"name": NOTHING}),
    "Scope.layer": Row(
        {"name": "part", "layer": lm.Linear(2), "operands": OPERAND}, {"name": TEXT}
    ),
    "Scope.limit_indices": Row({"indices": lm.Input(2, dtype="int64"), "count": 3}),
}


# Public names -------------------------------------------------------------------------------------

# Methods that users write for their own records and Lamina calls with its own objects, and methods
# that only Lamina calls.
PROTOCOLS = """
    average check_target doubt elements example_targets for_parameters forward measured terms result
    slots statistics target update"""
INTERNAL = """
    BatchRunner.fed BatchRunner.in_order BatchRunner.uploaded BatchRunner.release
    Dataset.require_within Model.of_parameters Population.of_parameters Network.trace
    Network.variables Explanation.tuning Training.of_member TrainingSteps.memories
    TrainingSteps.pieces TrainingSteps.release Training.of Window.count PopulationTraining.batches
    PopulationTraining.pieces_of PopulationTraining.release"""
# Objects that users get but do not make.
MADE = {"Coding", "Layer", "Tensor", "Scope", "Autoencoder", "Schedule", "Callback", "RunningFit"}


def reached():
    """All that is exported, by name."""
    exports = {}
    modules = {"": lm, "data.": lm.data, "networks.": lm.networks}
    modules |= {"init.": lm.init, "schedules.": lm.schedules, "callbacks.": lm.callbacks}
    for prefix, module in modules.items():
        for name in dir(module):
            member = getattr(module, name)
            if name.startswith("_") or not isinstance(member, type | FunctionType):
                continue
            # Modules of initializers and schedules import what they need.
            at_home = prefix not in ("init.", "schedules.") or member.__module__ == module.__name__
            if member.__module__.startswith("lamina.") and at_home:
                exports[prefix + name] = member
    # All else in it are functions of tensors, which have tests of their own.
    exports["ops.Window"] = ops.Window
    return exports


def results():
    """One object of each class that public calls return."""
    made = [training(), joint_training(), history(), net().plan(2), model().explain(2), square()]
    return [*made, population()]


def names_to_test():
    """Every public call: functions, classes, and the methods of classes."""
    classes = {}
    for name, exported in reached().items():
        if isinstance(exported, type):
            classes[name] = exported
        if not (inspect.isabstract(exported) or exported.__name__ in MADE):
            yield name, exported
    classes |= {type(result).__name__: type(result) for result in results()}
    seen = set()
    for name, cls in classes.items():
        for full, method in methods_of(name, cls):
            if full not in seen:
                seen.add(full)
                yield full, method


def methods_of(name, cls):
    """The public methods of a class and its bases, with the name of the class that has them."""
    if cls is lm.Tensor:
        return  # its methods are ops
    for base in cls.__mro__:
        if not base.__module__.startswith("lamina.") or base.__name__.startswith("_"):
            continue
        if base.__module__.startswith("lamina.training.callbacks"):
            continue  # `fit` calls the hooks
        has_prefix = base is cls and name.startswith(("init.", "schedules."))
        prefix = name if has_prefix and not inspect.isabstract(base) else base.__name__
        for method, function in vars(base).items():
            public = method == "__call__" or not method.startswith("_")
            protocol = method in PROTOCOLS.split() and base is not lm.Scope
            plain = isinstance(function, FunctionType | classmethod)
            abstract = getattr(function, "__isabstractmethod__", False)
            if public and plain and not protocol and not abstract:
                full = f"{prefix}.{method}"
                if full not in INTERNAL.split():
                    yield full, function


PUBLIC = dict(names_to_test())


def refused_tuning(**options):
    """Tunes a model on an engine that does not tune; the error for that comes last."""
    with contextlib.suppress(EngineError):
        model().tune(**options)


def test_everything_public_has_a_valid_call():
    """A row, or an example in the docstring of its class; or it needs no further argument."""
    for name in PUBLIC:
        row, parameters = row_of(name), parameters_of(name)
        assert name in ROWS or row.valid or row.use or len(parameters) < 2, name
    assert sorted(ROWS.keys() - PUBLIC.keys()) == []


# The test -----------------------------------------------------------------------------------------


def parameters_of(name):
    one = PUBLIC[name]
    signature = inspect.signature(one.__func__ if isinstance(one, classmethod) else one)
    return {n: p for n, p in signature.parameters.items() if n not in ("self", "cls")}


# The objects of methods, by their classes.
OBJECTS = {
    "Coding": lambda: CODING,
    "Dataset": lambda: EIGHT,
    "Explanation": lambda: model().explain(2),
    "History": history,
    "MemoryBill": lambda: net().plan(2),
    "Model": model,
    "Function": square,
    "Network": lambda: NET,
    "Population": population,
    "PopulationTraining": joint_training,
    "Schedule": lambda: lm.schedules.Constant(0.1),
    "Training": training,
    "TrainingSteps": training,
}


def callable_of(name):
    owner, _, method = name.rpartition(".")
    if owner == "Scope":
        return in_a_layer(method)
    return getattr(OBJECTS[owner](), method) if owner in OBJECTS else PUBLIC[name]


def called(name, changed):
    row, parameters = row_of(name), parameters_of(name)
    values = {**row.valid, **changed}
    values = {n: v.make() if isinstance(v, Made) else v for n, v in values.items()}
    several = [n for n, p in parameters.items() if p.kind == p.VAR_POSITIONAL]
    positional = []
    if several and several[0] in values:
        for before in parameters:
            if before in values and parameters[before].kind != inspect.Parameter.KEYWORD_ONLY:
                positional.append(values.pop(before))
            if before == several[0]:
                break
    return (row.call or callable_of(name))(*positional, **values)


def problem_with(name, parameter, value_name):
    """The problem of a call with a value; empty if there is none."""
    row, value = row_of(name), VALUES[value_name]
    accepted = stated(name, parameter)
    if accepted is None:
        accepted = read_by(kinds_of(name)[parameter])
    case = f"{name}({parameter}={value_name})"
    expected = value_name in accepted
    if expected and parameter == "seconds":
        return ""  # it would take them
    changed = {parameter: value}
    if parameter == "dimensions":
        changed["shape"] = ()
    try:
        result = called(name, changed)
        if not expected:
            return f"{case} is accepted: {result!r}"[:300]
        if row.use is not None:
            used(row.use, result)
        same = EQUAL.get(value_name, "")
        if same in accepted and is_dataclass(result) and isinstance(PUBLIC[name], type):
            assert repr(result) == repr(called(name, {**changed, parameter: VALUES[same]}))
    except InternalError as error:
        return f"{case}: InternalError {error}"
    except LaminaError as error:
        text = str(error)
        words = [parameter, parameter.removesuffix("s"), *name.split("."), *row.words]
        words += ["input 0"] if parameter in ("data", "train") else []
        if expected:
            return f"{case} is refused: {text}"
        if not any(word in text for word in words if word):
            return f"{case} is not named: {text}"
    except Exception as error:
        return f"{case}: {type(error).__name__}: {error}"[:300]
    return ""


def used(use, result):
    """Uses a result; errors that need the use are raised here."""
    values = [getattr(result, f.name) for f in fields(result)] if is_dataclass(result) else []
    if any(value is VALUES["lambda"] for value in values):
        return  # results of a user's function are not checked
    with contextlib.suppress(lm.errors.ShapeError):
        assert use(result) is not False


def calls_to_test():
    return [name for name in PUBLIC if parameters_of(name) and name != "Model.__call__"]


# Parameters that have no kind: the call checks them, as they depend on other arguments, on the
# user's classes, or are tensors and arrays.
WITHOUT_KIND = """
    after arrays before callbacks ceil clip default dilation dtype factors frame frozen function
    inputs layers loss losses members metrics name named network optimizer options others outputs
    patterns precision prediction seeds size stride target targets unknown value values
    weights x y"""


def kinds_of(name):
    one = PUBLIC[name]
    if isinstance(one, type):
        return {n: kind.of_class(one) for n, kind in _kinds_of_class(one).items()}
    return _kinds_of(inspect.unwrap(one.__func__ if isinstance(one, classmethod) else one))


def reads(kind, value):
    try:
        kind.read(value)
    except (Misfit, LaminaError):
        return False
    return True


@cache
def read_by(kind):
    return frozenset(name for name, value in VALUES.items() if reads(kind, value))


def stated(name, parameter):
    """The values that a parameter takes by the table, or by its name; None: all of its kind."""
    accepts = row_of(name).accepts.items()
    return next((a for names, a in accepts if parameter in names.split()), USUAL.get(parameter))


# What kinds read: one of each class, and each range that many parameters have.
KINDS = [
    (Flag(), FLAG),
    *((Whole(1), COUNT), (Whole(0), FROM_ZERO), (Whole(), WHOLE)),
    *((Number("[0, inf)"), NOT_NEGATIVE), (Number("(0, inf)"), POSITIVE), (Number(), NUMBER)),
    *((Number("[0, 1)"), FRACTION), (Number("[0, 1]"), UNIT), (Number("(0, 1)"), some("half"))),
    *((Word(("b",)), NOTHING), (Word(("a",)), some("text")), (Text(), TEXT), (FilePath(), PATH)),
    *((Several(Number()), NUMBERS), (Several(Whole(1)), COUNTS), (Several(Text()), some("()"))),
    (Either(Whole(1), Several(Whole(1), least=1)), COUNT | some("[1, 2]")),
    *((AnyOf((Flag(), Text())), FLAG | TEXT), (OrNone(Flag()), OPTIONAL | FLAG)),
    *((Function(""), FUNCTION), (Instance(lm.Layer), NOTHING), (Instance(dict), some("{}"))),
    *((ElementType(), NOTHING), (ModelType(), NOTHING)),
]
# By a parameter: the kinds of folders beyond `checks`.
BATCHES = some("lambda", "matrix", "vector", "near")
PAIR = some("[1, 2]")
KINDS_OF = {
    parameter: accepted
    for accepted, parameters in {
        NOTHING: "networks.vgg.input Scope.layer.layer Network.max_batch_size.precision "
        "Dataset.orders.epochs",
        OPTIONAL: "data.Dataset.coding",
        OPTIONAL | some("text"): "Linear.name data.read_table.delimiter",
        OPTIONAL | some("{}"): "from_torch.names data.read_table.kinds",
        OPTIONAL | FUNCTION: "Linear.bias_init Linear.weight_regularizer",
        OPTIONAL | UNIT | some("1.5"): "Network.max_batch_size.memory Network.max_members.memory",
        OPTIONAL | NUMBERS - some("()"): "Model.fit.class_weights",
        COUNT: "Conv1d.stride Input.shape Model.fit.batch_size",
        COUNT | PAIR: "Conv2d.stride",
        COUNT | some("-1"): "Reshape.dimensions",
        FROM_ZERO: "Conv1d.padding",
        FROM_ZERO | PAIR: "Conv2d.padding Crop.widths",
        WHOLE | PAIR: "Pad.widths LayerNorm.axes",
        NOT_NEGATIVE - some("half"): "RandomRotation.degrees",
        COUNTS: "Reshape.shape",
        PAIR: "Dataset.take.indices",
        PAIR | some("vector", "near"): "RandomErasing.ratio",
        PAIR | some("lambda"): "data.Stream.source",
        some("{}"): "from_torch.state_dict",
        some("half"): "Dataset.split.fraction",
        some("text"): "callbacks.SaveModels.monitor",
        BATCHES: "Model.fit.train",
        OPTIONAL | BATCHES: "Network.plan.data",
        OPTIONAL | BATCHES - some("lambda"): "Model.profile.data",
        frozenset(VALUES) - PAIR - some("vector", "matrix", "{}"): "data.from_frame.target",
    }.items()
    for parameter in parameters.split()
}


def test_each_kind_reads_what_is_right():
    for kind, accepted in KINDS:
        assert read_by(kind) == accepted, kind
    for parameter, accepted in KINDS_OF.items():
        name, _, option = parameter.rpartition(".")
        assert read_by(kinds_of(name)[option]) == accepted, parameter


def test_every_parameter_has_a_kind():
    without = set()
    classes = {type(kind): repr(kind) for kind, _ in KINDS}
    for parameter in KINDS_OF:
        name, _, option = parameter.rpartition(".")
        classes[class_of(kinds_of(name)[option])] = parameter
    for name in calls_to_test():
        kinds = kinds_of(name)
        for parameter in parameters_of(name):
            accepted = stated(name, parameter)
            if parameter not in kinds:
                assert accepted is not None, f"nothing is said about {parameter} of {name}"
                without.add(parameter)
                continue
            kind = kinds[parameter]
            assert class_of(kind) in classes, f"KINDS_OF has no parameter of {kind}"
            assert accepted is None or accepted <= read_by(kind), f"{kind} of {parameter}"
    assert without == set(WITHOUT_KIND.split())


def class_of(kind):
    return class_of(kind.kind) if isinstance(kind, OrNone) else type(kind)


@pytest.mark.sampled
@pytest.mark.filterwarnings("ignore::lamina.errors.LaminaWarning")  # of arrays in float64
@pytest.mark.parametrize("name", calls_to_test())
def test_wrong_values_are_refused_clearly_and_right_ones_used(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model().save("model.safetensors")
    np.save("x.npy", X)
    Path("x.csv").write_text("a\n1\n")
    cases = ((parameter, value) for parameter in parameters_of(name) for value in VALUES)
    problems = list(filter(None, (problem_with(name, *case) for case in cases)))
    assert not problems, "\n".join(problems)


def test_callables_without_parameters_refuse_arguments():
    assert lm.devices()
    with pytest.raises(LaminaError):
        model()(X)
