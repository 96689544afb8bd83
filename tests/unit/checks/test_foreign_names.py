"""Names and calls of other frameworks: refused with their spelling in Lamina, or right."""

import copy
import dataclasses
import importlib
import inspect
import pickle
import re
from pathlib import Path

import foreign_names as data
import numpy as np
import pytest
from error_texts import error_text, refused
from foreign_names import TABLES

import lamina as lm
from lamina.errors import DefinitionError, LaminaError
from lamina.training.history import History
from lamina.training.training import Training

# The variables in the texts.
OBJECTS = {
    "dataset": lm.data.Dataset,
    "history": History,
    "lm": lm,
    "model": lm.Model,
    "net": lm.Sequential(lm.Input(3), lm.Linear(2)),
    "optimizer": lm.Adam,
    "training": Training,
    "x": lm.Tensor,
}


def has(owner, name):
    return hasattr(owner, name) or name in getattr(owner, "__dataclass_fields__", ())


def values_by_name():
    """Values for the arguments of the calls in the texts."""
    shares = "rate factor slope beta strength limit probability deviation value low scale offset"
    counts = "features channels window groups heads hidden size count classes every steps start k"
    x = lm.Input(3)
    values = dict.fromkeys(shares.split(), 0.5)
    values |= dict.fromkeys((*counts.split(), "widths", "inputs"), 2) | {"high": 1.0}
    values |= {"input": x, "x": x, "layers": (), "boundaries": [1], "then": 0.1}
    values |= {"rates": [0.1, 0.2], "schedules": [0.1, 0.2], "optimizer": lm.SGD(0.1)}
    return values | {"distance": lambda a, b: lm.ops.sum(abs(a - b), 1)}


MODEL = lm.Model(lm.Sequential(lm.Input(3), lm.Linear(2)), engine="interpreter")


@pytest.fixture(scope="module")
def instances():
    """An object of each class."""
    training = MODEL.training(loss=lm.MSE(), optimizer=lm.SGD(0.1), batch_size=2)
    return {
        "Dataset": lm.data.Dataset(np.zeros((2, 3), "f4")),
        "DeferredLoss": training.step(np.zeros((2, 3), "f4"), np.zeros((2, 2), "f4")),
        "History": History(),
        "Layer": lm.Linear(3),
        "Loss": lm.MSE(),
        "Metric": lm.Accuracy(),
        "Model": MODEL,
        "Network": MODEL.network,
        "Optimizer": lm.Adam(),
        "Schedule": lm.schedules.Constant(0.1),
        "Tensor": lm.Input(3),
        "Training": training,
    }


@pytest.mark.parametrize("owner", TABLES)
def test_replacements_exist_and_calls_in_the_texts_are_accepted(owner, instances):
    namespace = type(instances[owner]) if owner in instances else importlib.import_module(owner)
    assert [name for name in TABLES[owner] if has(namespace, name)] == []
    pattern = rf"\b(?:{'|'.join(OBJECTS)})(?:\.\w+)+"
    for text in TABLES[owner].values():
        for path in re.findall(pattern, text):
            first, *names = path.split(".")
            current = OBJECTS[first]
            for name in names:
                assert has(current, name), (path, text)
                current = getattr(current, name, None)
                current = lm.Network if isinstance(current, property) else current
        for call in re.findall(r"lm(?:\.schedules|\.init)?\.[A-Z]\w*\([\w=., \"]*\)", text):
            if not call.startswith(("lm.Model", "lm.Network", "lm.Input", "lm.Sequential")):
                eval(call, {"lm": lm, **values_by_name()})


@pytest.mark.parametrize("owner", TABLES)
def test_every_name_is_refused_with_its_text(owner, instances):
    one = instances[owner] if owner in instances else importlib.import_module(owner)
    for name, text in TABLES[owner].items():
        assert not hasattr(one, name)
        assert text in error_text(AttributeError, getattr, one, name), name


@pytest.mark.cases(
    ("owner", "name", "text"),
    (MODEL, "summary", "'Model' object has no attribute 'summary'. print(model.network) "),
    # Names that no table has: of the same name without underscores or capitals.
    (lm.ops, "logsigmoid", "Here it is lm.LogSigmoid."),
    (lm.ops, "rms_norm", "Here it is lm.RMSNorm."),
    (lm.ops, "huber_loss", "Here it is lm.Huber()."),
    # Functions of lm.ops, called on lm; but a layer of the same name comes first.
    (lm, "cat", "Here it is lm.ops.concat(tensors, axis)."),
    (lm, "isnan", "Here it is lm.ops.isnan."),
    (lm, "conv2d", "Did you mean 'Conv2d'?"),
    (lm, "Dataloader", "lm.data.Dataset(inputs, targets); fit takes the batch size"),
)
def test_a_name_of_another_framework_is_refused_with_the_name_here(owner, name, text):
    assert text in error_text(AttributeError, getattr, owner, name)


def test_the_order_of_widths_is_that_of_pytorch(torch):
    names = {"left": 1, "right": 2, "top": 3, "bottom": 4, "front": 5, "back": 6, "value": 7.0}
    for rank in (1, 2, 3):
        for kind in ("ConstantPad", "ReflectionPad", "ReplicationPad"):
            text = TABLES["lamina"][f"{kind}{rank}d"]
            pad = eval(text.partition(": ")[2].rstrip("."), {"lm": lm, **names})
            x = np.arange(2.0 * 8**rank, dtype="f4").reshape(1, 2, *(8,) * rank)
            more = (7.0,) if kind == "ConstantPad" else ()
            there = getattr(torch.nn, f"{kind}{rank}d")([*range(1, 2 * rank + 1)], *more)
            net = lm.Sequential(lm.Input(*x.shape[1:]), pad)
            here = lm.Model(net, engine="interpreter").predict(x)
            np.testing.assert_array_equal(here, there(torch.tensor(x)).numpy())


def test_a_user_s_layer_has_the_same_advice_and_its_own_errors():
    class Broken(lm.Linear):
        @property
        def size(self):
            raise AttributeError("no size yet")

    assert "A layer holds no numbers" in error_text(AttributeError, getattr, Broken(3), "weight")
    assert error_text(AttributeError, getattr, Broken(3), "size") == "no size yet"


def test_an_unknown_name_gets_no_advice_and_advice_names_nothing_private():
    text = error_text(AttributeError, getattr, lm.Linear(3), "xyzzy")
    assert text == "'Linear' object has no attribute 'xyzzy'"
    assert not hasattr(lm.init, "_private")
    for name in ("Dataloader", "Doc", "Builtins"):
        assert "'_" not in error_text(AttributeError, getattr, lm, name)


def test_records_can_be_copied_and_pickled():
    error = refused(AttributeError, getattr, MODEL, "summary")
    for one in (lm.Linear(3), lm.Adam(), lm.MSE(), MODEL.network, error):
        assert str(pickle.loads(pickle.dumps(copy.deepcopy(one)))) == str(one)


class Named:
    """An object of a class of another framework: the name of the class and its module decide."""

    def __new__(cls, module, name):
        def call(self, *_):
            raise AssertionError("it is refused before it is called")

        return type(name, (), {"__module__": module, "__call__": call})()


@pytest.mark.cases(
    ("one", "advice"),
    (Named("torch.nn.modules.linear", "Linear"), "Here it is lm.Linear."),
    (Named("torch.nn.modules.batchnorm", "BatchNorm2d"), "Here it is lm.BatchNorm()."),
    (Named("keras.src.layers.core.dense", "Dense"), "Here it is lm.Linear(features)."),
    (Named("torch.nn.modules.module", "Module"), "A layer of your own is a subclass of lm."),
)
def test_a_layer_of_another_framework_in_a_network(one, advice):
    lines = error_text(DefinitionError, lm.Sequential, lm.Input(3), lm.ReLU(), one).splitlines()
    assert lines[0].endswith(": the elements after the Input of a Sequential are layers of Lamina")
    assert lines[1] == "  position  2"
    assert lines[2] == f"  found     {type(one).__module__}.{type(one).__qualname__}"
    assert lines[3].startswith(f"  {advice}")


@pytest.mark.cases(
    ("argument", "one", "advice"),
    ("loss", Named("torch.nn.modules.loss", "CrossEntropyLoss"), "lm.CrossEntropy() takes raw"),
    ("loss", type(Named("torch.nn.modules.loss", "MSELoss")), "Here it is lm.MSE()."),
    ("optimizer", Named("torch.optim.adam", "Adam"), "Here it is lm.Adam."),
    ("metrics", [Named("keras.src.metrics", "Accuracy")], "Here it is lm.Accuracy."),
)
def test_an_argument_of_another_framework(argument, one, advice):
    how = {"loss": lm.MSE(), "optimizer": lm.SGD(0.1)} | {argument: one}
    error = refused(DefinitionError, MODEL.fit, (np.zeros((2, 3)), np.zeros((2, 2))), **how)
    assert error.advice.startswith(advice)
    assert error.facts[1][1].startswith(("torch.", "keras."))


def test_functions_and_modules_of_pytorch_do_not_take_tensors(torch):
    x = lm.Input(3)
    for call, advice in (
        (torch.relu, "Here it is lm.ops.relu."),
        (torch.nn.functional.gelu, "Here it is lm.ops.gelu."),
        (torch.nn.Linear(3, 2), "It is lm.ops.matmul(x, y) plus a bias; the layer is lm.Linear."),
        (lambda x: torch.cat([x, x]), "Here it is lm.ops.concat(tensors, axis)."),
        (lambda x: torch.add(torch.ones(3), x), "Here it is lm.ops.add."),
        (torch.fft.fftshift, "Calculate with tensors by the functions in lm.ops."),
    ):
        with pytest.raises(LaminaError, match="of PyTorch does not take a tensor") as caught:
            call(x)
        assert caught.value.advice == advice


def test_operators_of_pytorchs_arrays_make_tensors(torch):
    x, ones = lm.Input(3), torch.ones(3)
    for made in (ones + x, ones - x, ones * x, ones / x, x + ones, ones > x, ones**x):
        assert isinstance(made, lm.Tensor)
        assert made.shape == x.shape


# Calls --------------------------------------------------------------------------------------------


pytestmark = pytest.mark.each_case

LINES = Path(__file__).with_name("foreign_calls.txt").read_text().splitlines()
ROWS = [tuple(map(str.strip, line.split("|"))) for line in LINES if line[0] != "#"]
NAMES = {"lm": lm, "params": [], "optimizer": lm.SGD(0.1)}


def called(call):
    return eval(f"lm.{call}", NAMES)


@pytest.mark.parametrize(("framework", "call", "sign", "ours"), ROWS, ids=lambda v: v)
def test_a_foreign_call_is_right_or_refused_with_the_right_spelling(framework, call, sign, ours):
    assert framework in ("torch", "keras")
    if sign == "=":
        assert called(call) == called(ours)
        return
    if sign == "~":
        name = call.partition("(")[0]
        row = next(row for row in rows_of_the_page() if f"`lm.{name}(" in row[1] and ours in row[1])
        assert called(call) is not None, row
        return
    advice = refused(DefinitionError, called, call).advice
    # The whole call: after it a reason or the end of the sentence, or the other framework's.
    assert re.search(rf"(Write |, or |Here it is called ){re.escape(ours)}", advice)
    if ours.endswith(")"):
        name = call.split("(")[0].rpartition(".")[0]
        ours = ours.removesuffix(", ReLU()")
        called(f"{name}.{ours}" if name else ours)


def has_row(name, package="lamina"):
    """Whether a name has a row or an entry that says what it is called here."""
    prefix = {"lamina.layers.init": "init.", "lamina.learning.schedules": "schedules."}
    begins = prefix.get(package, "") + name + "("
    return any(row[1].startswith(begins) for row in ROWS) or name in TABLES[package]


# These names have one meaning everywhere.
SAME = {"Input", "Layer", "Sequential"}


@pytest.mark.cases(
    ("names", "package"),
    (data.TORCH_MODULES, "lamina"),
    (data.TORCH_OPTIMIZERS, "lamina"),
    (data.TORCH_SCHEDULERS, "lamina.learning.schedules"),
    (data.TORCH_INITIALISERS, "lamina.layers.init"),
    (data.KERAS_LAYERS, "lamina"),
    (data.KERAS_LOSSES, "lamina"),
    (data.KERAS_OPTIMIZERS, "lamina"),
    (data.KERAS_METRICS, "lamina"),
    (data.KERAS_SCHEDULES, "lamina.learning.schedules"),
    (data.KERAS_INITIALISERS, "lamina.layers.init"),
)
def test_every_name_of_the_frameworks_has_a_row(names, package):
    lacking = [n for n in names.split() if n not in SAME and not has_row(n, package)]
    assert lacking == []


def test_every_class_with_another_name_there_has_a_row():
    recorded = [names for key, names in vars(data).items() if key.startswith(("TORCH", "KERAS"))]
    there = {*" ".join(recorded).split()}
    pattern = r"lm\.((?:init\.|schedules\.)?\w+)\(.*\)"
    classes = {
        match[1]
        for names in TABLES.values()
        for name, text in names.items()
        if name in there and (match := re.fullmatch(pattern, text))
    }
    called_here = {row[1].split("(")[0] for row in ROWS}
    assert sorted(classes - called_here - SAME) == []


SOURCED = {
    f"{prefix}{name}": cls
    for prefix, package in (("", lm), ("init.", lm.init), ("schedules.", lm.schedules))
    for name in dir(package)
    if isinstance(cls := getattr(package, name), type)
    and issubclass(cls, lm.layers.layer.Sourced)
    and dataclasses.is_dataclass(cls)
}


@pytest.mark.cases(
    ("option", "value"),
    *(("betas", (0.9, 0.99)), ("etas", (0.5, 1.2)), ("normalized_shape", (2, 2))),
    *(("num_parameters", 2), ("return_sequences", True), ("size_average", False)),
    ("translate", (0.1, 0.1)),
)
def test_a_call_in_advice_is_one_that_lamina_takes(option, value):
    for name, call in SOURCED.items():
        parameters = inspect.signature(call).parameters.values()
        required = {p.name: 2 for p in parameters if p.default is p.empty}
        advice = refused(DefinitionError, call, **required, **{option: value}).advice
        match = re.search(r"Write (\w+)(\(.*?\))(\.|: |, or )", advice)
        if match and "..." not in match[2]:
            assert match[1] == name.rpartition(".")[2]
            eval(f"call{match[2]}", {"call": call})


def test_the_recorded_names_are_those_of_pytorch(torch):
    nn, scheduler = torch.nn, torch.optim.lr_scheduler

    def classes(package, base):
        found = {n: one for n, one in vars(package).items() if inspect.isclass(one) and n[0] != "_"}
        return sorted(n for n, one in found.items() if issubclass(one, base))

    assert data.TORCH_MODULES.split() == classes(nn, nn.Module)
    optimizers = classes(torch.optim, torch.optim.Optimizer)
    assert sorted(["Optimizer", *data.TORCH_OPTIMIZERS.split()]) == optimizers
    assert data.TORCH_SCHEDULERS.split() == classes(scheduler, scheduler.LRScheduler)
    initialisers = sorted(n for n in dir(nn.init) if n.endswith("_") and n[0] != "_")
    assert data.TORCH_INITIALISERS.split() == initialisers


def rows_of_the_page():
    page = Path(__file__).parents[3] / "docs" / "coming-from.md"
    found = re.findall(r"^\| (.+) \| (.+) \|$", page.read_text(), re.MULTILINE)
    return [row for row in found if row[1] not in ("Lamina", "in Lamina", "---")]


def test_the_page_shows_calls_that_are_accepted():
    names = {"a": lm.Input(3), "b": lm.Input(3), "net": lm.Sequential(lm.Input(3), lm.Linear(2))}
    calls = [call for row in rows_of_the_page() for call in re.findall(r"`(lm\.[^`]+)`", row[1])]
    assert len(calls) > 60
    for call in calls:
        if "engine" not in call:  # a machine may lack the engine
            assert eval(call, {"lm": lm, **names}) is not None


def test_names_on_the_page_are_refused_or_known():
    names = set(TABLES["lamina"]) | {row[1].split("(")[0] for row in ROWS}
    texts = " ".join(there for there, _ in rows_of_the_page())
    there = re.findall(r"`(?:nn|layers)\.([A-Z]\w+)", texts)
    assert len(there) > 30
    assert [name for name in there if name not in names | SAME] == []


def test_probabilities_of_a_network_trained_on_scores_are_those_of_the_page():
    ((_, call),) = [row for row in rows_of_the_page() if "predict_proba" in row[0]]
    net = lm.Sequential(lm.Input(4), lm.Linear(3))
    names = {"lm": lm, "net": net, "model": lm.Model(net), "X": np.ones((2, 4), np.float32)}
    np.testing.assert_allclose(eval(call.strip("`"), names).sum(1), 1.0, rtol=1e-6)


def test_calls_with_two_meanings_are_refused_for_both():
    error = refused(DefinitionError, lm.RandomRotation, 0.1)
    assert error.problem.startswith("degrees must be a number of degrees, 0 or")
    assert error.advice == (
        "Write RandomRotation(36.0) for a share of a circle, as Keras' factor is. "
        "RandomAffine(degrees=0.1) takes less than a degree."
    )
    for values in ((2,), (2, 2), (24,)):
        assert refused(DefinitionError, lm.MaxUnpool, *values).advice.startswith(
            "Write MaxUnpool(size=...): the extents before pooling, instead of the window."
        )
    assert refused(DefinitionError, lm.TransformerEncoderBlock, 64, 8).advice == (
        "Write TransformerEncoderBlock(8, hidden=2048): the input's features are inferred, leave "
        "them out; hidden is 2048 by default in PyTorch."
    )
