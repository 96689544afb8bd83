"""Weights of PyTorch's modules in models of Lamina: names, shapes, and the order of layers."""

import json
import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from error_texts import error_text, refused
from training_cases import same

import lamina as lm
from lamina.base.records import frozen_dataclass
from lamina.errors import DataError, DefinitionError, DTypeError, ShapeError

NAMES = json.loads((Path(__file__).parent / "torchvision_names.json").read_text())
# The ready networks that torchvision has too.
TORCHVISION = {
    "resnet18": lambda: lm.networks.resnet(18),
    "resnet34": lambda: lm.networks.resnet(34),
    "resnet50": lambda: lm.networks.resnet(50),
    "mobilenet_v2": lm.networks.mobilenet_v2,
    "vgg11": lambda: lm.networks.vgg(11),
    "vgg16_bn": lambda: lm.networks.vgg(16, batch_norm=True),
}
# The names of the layers of other networks, as in their papers or in usual modules.
OTHERS = {
    "lenet": (lm.networks.lenet, "conv1 conv2 ip1 ip2"),
    "mlp": (lm.networks.mlp, "1 3 5"),
    "tabm": (lambda: lm.networks.tabm(3, 2, members=4, width=5), "1 4 7 10"),
    "unet": (
        lambda: lm.networks.unet(input=(1, 8, 8), widths=(2, 4), batch_norm=True),
        (
            "encoder1.conv1 encoder1.norm1 encoder1.conv2 encoder1.norm2 "
            "bottleneck.conv1 bottleneck.norm1 bottleneck.conv2 bottleneck.norm2 "
            "decoder1.up decoder1.conv1 decoder1.norm1 decoder1.conv2 decoder1.norm2 head"
        ),
    ),
    "transformer_encoder": (
        lambda: lm.networks.transformer_encoder(9, 4, features=4, heads=2, layers=2, hidden=8),
        "embedding positions encoder.layers.0 encoder.layers.1 encoder.norm head",
    ),
    "lstm_classifier": (
        lambda: lm.networks.lstm_classifier(3, 4, vocabulary=9, features=2),
        "embedding lstm head",
    ),
    "autoencoder": (
        lambda: lm.networks.autoencoder((8, 4), code=2).network,
        "encoder.0 encoder.2 encoder.4 decoder.0 decoder.2 decoder.4",
    ),
    "variational_autoencoder": (
        lambda: lm.networks.variational_autoencoder((8,), code=2).network,
        "encoder.0 mean log_variance decoder.0 decoder.2",
    ),
    "dcgan, generator": (lambda: lm.networks.dcgan(4, (1, 8, 8), 4)[0], "main.0 main.1 main.3"),
    "dcgan, discriminator": (lambda: lm.networks.dcgan(4, (1, 8, 8), 4)[1], "main.0 main.2"),
}


@pytest.mark.parametrize("name", TORCHVISION)
def test_ready_networks_have_the_names_and_shapes_of_torchvision(name):
    record = TORCHVISION[name]().variables(lm.base.shapes.float32)
    shapes = {
        variable.name.replace("running_variance", "running_var"): list(variable.tensor.shape)
        for variable in (*record.parameters.values(), *record.states.values())
    }
    expected = {key: shape for key, shape in NAMES[name] if "num_batches" not in key}
    assert shapes == expected


@pytest.mark.cases("make, expected", OTHERS)
def test_ready_networks_have_stated_names(make, expected):
    record = make().variables(lm.base.shapes.float32)
    assert [
        key
        for key in record.layers
        if any(name.startswith(f"{key}.") for name in record.parameters)
        and not any(key.startswith(f"{other}.") for other in expected.split())
    ] == expected.split()


def test_every_ready_network_has_its_row():
    known = {*TORCHVISION, *OTHERS}
    functions = [name for name in dir(lm.networks) if name.islower() and name[0] != "_"]
    missing = [name for name in functions if not any(key.startswith(name) for key in known)]
    assert missing == []


def weights(*shapes):
    generator = np.random.default_rng(0)
    return {name: generator.standard_normal(shape) for name, shape in shapes}


TWO_LINEAR = weights(("0.weight", (5, 4)), ("0.bias", (5,)), ("2.weight", (3, 5)), ("2.bias", (3,)))


def two_linear(features=3, **options):
    return lm.Sequential(lm.Input(4), lm.Linear(5), lm.Tanh(), lm.Linear(features, **options))


PAIRS = """\
parameter  from      shape
---------  --------  ------
1.weight   0.weight  [5, 4]
1.bias     0.bias    [5]
3.weight   2.weight  [3, 5]
3.bias     2.bias    [3]
"""


def test_layers_without_names_are_paired_in_order(capsys):
    expected = [TWO_LINEAR[name].astype("float32") for name in TWO_LINEAR]
    for how, text in (({}, PAIRS), ({"show": False}, "")):
        model = lm.from_torch(two_linear(), TWO_LINEAR, **how)
        assert same(model.parameters(), dict(zip(model.parameters(), expected, strict=True)))
        assert capsys.readouterr().out == text


def with_positions(name="pos"):
    return lm.Sequential(lm.Input(3, 4), lm.LearnedPositions(name=name), lm.Linear(2, name="head"))


POSITIONS = weights(("head.weight", (2, 4)), ("head.bias", (2,)), ("pos", (3, 4)))
ONE_NAMED = {"w" if name == "0.weight" else name: value for name, value in TWO_LINEAR.items()}
HEAD = {key.replace("2.", "head."): value for key, value in TWO_LINEAR.items()}


def backwards(arrays):
    return dict(reversed(arrays.items()))


@pytest.mark.cases(
    ("net", "arrays", "how", "pairs"),
    (two_linear(), backwards(TWO_LINEAR), {"names": {"3": "2"}}, {"1.bias": "0.bias"}),
    # A layer takes the module of its own name.
    (two_linear(name="head"), backwards(HEAD), {}, {"1.bias": "0.bias"}),
    # An array that belongs to no module.
    *(
        (with_positions(), POSITIONS, {"names": names}, {"pos.weight": "pos"})
        for names in ({}, {"pos": "pos"}, {"pos.weight": "pos"})
    ),
    *(
        (with_positions(None), POSITIONS, {"names": {name: "pos"}}, {"1.weight": "pos"})
        for name in ("1", "1.weight")
    ),
    # The others follow in their order.
    (
        *(two_linear(), ONE_NAMED, {"names": {"1.weight": "w"}}),
        {"1.weight": "w", "3.bias": "2.bias"},
    ),
    # Skipped parameters keep their first values.
    (with_positions(), POSITIONS, {"skip": ["pos", "pos.*"]}, {"pos.weight": None}),
    (two_linear(features=7), TWO_LINEAR, {"skip": ["3.*", "2.*"]}, {"3.weight": None}),
)
def test_parameters_take_the_arrays_of_their_names(net, arrays, how, pairs):
    found, first = lm.from_torch(net, arrays, show=False, **how), lm.Model(net).parameters()
    for name, key in pairs.items():
        expected = first[name] if key is None else arrays[key]
        np.testing.assert_allclose(found.parameters()[name], expected, rtol=1e-6)


def test_running_statistics_are_states_and_counters_are_skipped(capsys):
    net = lm.Sequential(lm.Input(3), lm.BatchNorm())
    arrays = weights(*((f"0.{name}", (3,)) for name in ("weight", "bias")))
    arrays |= {"0.running_mean": np.arange(3.0), "0.running_var": np.arange(3.0) + 1}
    arrays |= {"0.num_batches_tracked": np.array(7)}
    model = lm.from_torch(net, arrays)
    np.testing.assert_array_equal(model.states()["1.running_variance"], [1, 2, 3])
    assert capsys.readouterr().out.splitlines()[-1] == "not needed          0.num_batches_tracked"


def test_an_array_of_another_shape():
    net = two_linear(features=4)
    lines = error_text(ShapeError, lm.from_torch, net, TWO_LINEAR).splitlines()
    assert lines[0] == "2.weight does not fit the parameter '3.weight'"
    assert lines[1].startswith("  expected  [4, 5]   for net/3:Linear (test_from_torch.py:")
    assert lines[2] == "  found     [3, 5]"
    assert lines[3] == "  To keep the first values of the layer: skip=['3.*', '2.*']."
    lm.from_torch(net, TWO_LINEAR, skip=["3.*", "2.*"], show=False)
    # A module that would fit is advised.
    swapped = {f"a{key}" if key[0] == "2" else key: array for key, array in TWO_LINEAR.items()}
    arrays = backwards(swapped)
    error = refused(ShapeError, lm.from_torch, two_linear(), arrays)
    assert error.advice == "If it is module 0, name it: names={'1': '0'}."
    lm.from_torch(two_linear(), arrays, names={"1": "0"}, show=False)


def test_an_array_of_another_shape_in_load_parameters():
    model = lm.Model(two_linear())
    arrays = weights(("1.weight", (5, 4)), ("3.weight", (2, 5)), ("3.bias", (2,)))
    error = refused(ShapeError, model.load_parameters, arrays)
    assert error.advice == "To keep their values: skip=['3.*']."
    assert model.load_parameters(arrays, skip=["3.*"]).kept == ("1.bias", "3.weight", "3.bias")
    advice = refused(ShapeError, model.load_parameters, weights(("1.weight", (4, 5)))).advice
    assert re.search(r"are \(outputs, inputs\): give .*\['1.weight'\]\.T\. To", advice)


def test_arrays_that_are_left_over_or_missing():
    def fault(net, arrays=TWO_LINEAR, **how):
        return error_text(DefinitionError, lm.from_torch, net, arrays, **how)

    assert fault(lm.Sequential(lm.Input(4), lm.Linear(5))) == (
        "in from_torch: some arrays belong to no layer of the network\n"
        "  paired     2 parameters and states\n"
        "  left over  2.weight, 2.bias\n"
        "  print(network) shows its layers. If it needs no more arrays, leave these out: "
        "skip=['2.*']."
    )
    net = lm.Sequential(lm.Input(4), lm.Linear(5), lm.Linear(3), lm.Linear(2))
    assert fault(net).startswith(
        "in from_torch: the arrays do not fit layer 3 of the network\n"
        "  expected       weight [2, 3], bias [2]\n"
        "  found next     no more arrays\n"
        "  paired before  4 parameters and states"
    )
    first = {key: TWO_LINEAR[key] for key in list(TWO_LINEAR)[:3]}
    assert fault(two_linear(), first).startswith(
        "in from_torch: there is no array for '3.bias'\n  expected  2.bias\n  found     2.weight"
    )
    assert fault(two_linear(), names={"2": "0"}) == (
        "in names: the network has no layer '2' with parameters, and no such parameter\n"
        "  layers      1, 3\n"
        "  parameters  1.weight, 1.bias, 3.weight, 3.bias\n"
        "  found       names={'2': '0'}\n"
        "  Names in the network come first, for example names={'1': '0'}; print(network) shows "
        "them."
    )
    assert fault(with_positions(), POSITIONS, names={"pos.weight": "position"}) == (
        "in from_torch: there is no array for 'pos.weight'\n"
        "  expected  position\n"
        "  found     head.weight, head.bias, pos\n"
        "  To keep the first values of the layer: skip=['pos.*']."
    )
    # The array alone is skipped: the parameter still wants one.
    text = fault(with_positions(), POSITIONS, skip=["pos"])
    assert "first values of the layer: skip=['pos', 'pos.*']" in text


def test_an_array_with_axes_of_length_one_more():
    arrays = POSITIONS | {"pos": POSITIONS["pos"][None]}
    error = refused(ShapeError, lm.from_torch, with_positions(), arrays)
    assert error.problem == "pos does not fit the parameter 'pos.weight'"
    assert error.advice == "Give it in this shape: state_dict['pos'].reshape(3, 4)."


def loader(name, model):
    return partial(lm.from_torch, model.network) if name == "from_torch" else getattr(model, name)


@pytest.mark.parametrize("name", ["from_torch", "load_parameters"])
def test_patterns_that_fit_nothing_and_names_that_are_no_text_are_refused(name):
    load = loader(name, lm.Model(two_linear()))
    assert error_text(DefinitionError, load, TWO_LINEAR, skip=["2.*", "fc.*"]) == (
        f"in {name}, skip: a pattern fits no parameter and no array\n"
        "  pattern     'fc.*'\n"
        "  parameters  1.weight, 1.bias, 3.weight, 3.bias\n"
        "  arrays      0.weight, 0.bias, 2.weight, 2.bias\n"
        "  A star stands for any text: '1.*' is all of a layer."
    )
    text = error_text(DefinitionError, load, {0: np.zeros((5, 4))})
    assert "arrays by name" in text
    assert re.search(r"found +the key 0\n +Make keys text", text)


class Module:
    def state_dict(self):
        return TWO_LINEAR


@pytest.mark.cases(
    ("given", "advice"),
    (Module(), "Give its weights: module.state_dict()."),
    ("weights.pt", "Read it first: torch.load(path, weights_only=True)."),
    (
        {"epoch": 3, "state_dict": TWO_LINEAR, "optimizer": {"state": {}}},
        "The arrays are one of its entries: give state_dict['state_dict'].",
    ),
    ({"model": TWO_LINEAR}, "The arrays are one of its entries: give state_dict['model']."),
    (
        {"dense": {"kernel": np.zeros(2)}, "head": {"kernel": np.zeros(2)}},
        "Join the names of nested tables: {'dense.kernel': array}.",
    ),
)
def test_what_is_not_a_state_dict(given, advice):
    text = error_text(DefinitionError, lm.from_torch, two_linear(), given)
    assert "state_dict must be arrays by name" in text
    assert text.splitlines()[-1] == f"  {advice}"


# Arrays that are none ----------------------------------------------------------------------------


def of_torch(make):
    return pytest.param(make, marks=pytest.mark.torch)


def test_a_state_of_an_optimizer_that_is_no_array_of_numbers():
    model = lm.Model(two_linear(), engine="interpreter")
    with model.training(lm.MSE(), lm.SGD(0.1, momentum=0.9), 2) as training:
        state = training.state()
        name = next(name for name in state if "1.bias" in name)
        for dtype in ("complex64", "datetime64[s]", "S1", "object"):
            wrong = state | {name: np.zeros(5, dtype)}
            assert name in error_text(DTypeError, training.restore, wrong)
        training.restore(state)


@pytest.mark.parametrize("name", ["from_torch", "load_parameters", "set_parameters"])
@pytest.mark.cases(
    "value",
    np.ones((2, 2), "complex64"),
    np.zeros((2, 2), "datetime64[s]"),
    np.full((2, 2), "1"),
    np.full((2, 2), 1.0, object),
    object(),
    "weights",
    of_torch(lambda torch: torch.zeros(2, 2, device="meta")),
    of_torch(lambda torch: torch.ones(2, 2, dtype=torch.complex64)),
    of_torch(lambda torch: torch.ones(2, 2, dtype=torch.complex64).conj()),
    of_torch(lambda torch: torch.ones(2, 2).to_sparse()),
)
def test_values_that_are_no_array_of_numbers(value, name):
    value = value(pytest.importorskip("torch")) if callable(value) else value
    model = lm.Model(lm.Sequential(lm.Input(2), lm.Linear(2, bias=False)), engine="interpreter")
    before, key = model.parameters()["1.weight"], f"{int(name != 'from_torch')}.weight"
    assert key in error_text((DTypeError, DataError), loader(name, model), {key: value})
    np.testing.assert_array_equal(model.parameters()["1.weight"], before)


# With PyTorch -------------------------------------------------------------------------------------


BLOCK = {"dropout": 0.0, "activation": "gelu", "norm_first": True}
# PyTorch's module, the network, and the shape of an example.
MODULES = {
    "normalised": (
        lambda nn: nn.Sequential(
            *(nn.Conv2d(2, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ConvTranspose2d(4, 6, 2)),
            *(nn.GroupNorm(3, 6), nn.Flatten(), nn.LayerNorm(294), nn.Linear(294, 3)),
        ),
        lambda: lm.Sequential(
            *(lm.Input(2, 8, 8), lm.Conv2d(4, 3, bias=False), lm.BatchNorm()),
            *(lm.ConvTranspose2d(6, 2), lm.GroupNorm(3)),
            *(lm.Flatten(), lm.LayerNorm(), lm.Linear(3)),
        ),
        (2, 8, 8),
    ),
    "transformer": (
        lambda nn: nn.TransformerEncoder(
            nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, **BLOCK),
            *(2, nn.LayerNorm(8)),
            enable_nested_tensor=False,
        ),
        lambda: lm.Sequential(
            lm.Input(5, 8),
            *(lm.TransformerEncoderBlock(2, hidden=16, **BLOCK) for _ in range(2)),
            lm.LayerNorm(),
        ),
        (5, 8),
    ),
}


@pytest.mark.cases("make, network, shape", MODULES)
def test_predictions_are_those_of_the_module(make, network, shape, torch):
    torch.manual_seed(0)
    module = make(torch.nn)
    # Running statistics get values of their own.
    for _ in range(2):
        module(torch.randn(4, *shape))
    module.eval()
    x = torch.randn(3, *shape)
    with torch.no_grad():
        expected = module(x).numpy()
    model = lm.from_torch(network(), module.state_dict(), show=False)
    np.testing.assert_allclose(model.predict(x.numpy()), expected, rtol=1e-4, atol=1e-5)


def test_the_keys_and_values_of_another_size(torch):
    module = torch.nn.MultiheadAttention(8, 2, kdim=6, vdim=4, batch_first=True)
    q, k, v = torch.randn(2, 5, 8), torch.randn(2, 3, 6), torch.randn(2, 3, 4)
    inputs = [lm.Input(5, 8), lm.Input(3, 6), lm.Input(3, 4)]
    net = lm.Network(inputs, lm.MultiHeadAttention(2)(*inputs))
    model = lm.from_torch(net, module.state_dict(), show=False)
    predictions = model.predict((q.numpy(), k.numpy(), v.numpy()))
    expected = module(q, k, v)[0].detach().numpy()
    np.testing.assert_allclose(predictions, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("affine", [True, False])
def test_a_norm_without_momentum_takes_the_counter(affine):
    names = ("weight", "bias") * affine
    arrays = weights(*((f"0.{name}", (3,)) for name in (*names, "running_mean", "running_var")))
    arrays = {name: abs(value) for name, value in arrays.items()}
    net = lm.Sequential(lm.Input(3), lm.BatchNorm(momentum=None, affine=affine))
    model = lm.from_torch(net, arrays | {"0.num_batches_tracked": np.array(7)})
    assert model.states()["1.batches"] == 7
    assert (model.states()["1.running_mean"] == arrays["0.running_mean"].astype("f4")).all()


# Numbers in names are the order of layers ---------------------------------------------------------


@frozen_dataclass
class Projections(lm.Layer):
    """Two layers with names of their own, which `forward` applies in this order."""

    def forward(self, scope, x):
        return scope.layer("query", lm.Linear(2), scope.layer("key", lm.Linear(2), x))


def numbered(*layers, name="trunk"):
    """A network that applies a sequence with a name, and one layer more."""
    x = lm.Input(2)
    return lm.Network(x, lm.Linear(2)(lm.Sequential(lm.Input(2), *layers, name=name)(x)))


def linear(count):
    return [lm.Linear(2) for _ in range(count)]


# A network, the names of PyTorch's modules in their order, and in the order of the layers if that
# is another.
ORDERS = {
    "a sequence": (numbered(*linear(3)), "trunk.0 trunk.1 trunk.2 head", ""),
    "activations elsewhere": (
        numbered(lm.Linear(2), lm.ReLU(), *linear(2)),
        *("trunk.1 trunk.2 trunk.4 head", ""),
    ),
    "sequences in the sequence": (numbered(*linear(3)), "trunk.0.0 trunk.0.2 trunk.1 head", ""),
    "a name that PyTorch does not have": (
        numbered(*linear(2)),
        *("features.1 classifier.0 head", ""),
    ),
    "the same numbers": (numbered(*linear(2)), "trunk.1 trunk.2 out", ""),
    "an array before the arrays of the name": (numbered(*linear(1)), "out trunk.0", "trunk.0 out"),
    "a module around all": (
        lm.Sequential(lm.Input(2), lm.Linear(2, name="hidden"), lm.Linear(2, name="out")),
        *("model.net.out model.net.hidden", "model.net.hidden model.net.out"),
    ),
    "a module around a sequence": (
        lm.Sequential(lm.Input(2), lm.Linear(2), lm.Sequential(lm.Input(2), *linear(2), name="b")),
        *("net.b.0 net.b.1 net.a", "net.a net.b.0 net.b.1"),
    ),
    "names within layers without one": (
        lm.Sequential(lm.Input(2), Projections(), Projections()),
        "blocks.0.query blocks.0.key blocks.1.query blocks.1.key",
        "blocks.0.key blocks.0.query blocks.1.key blocks.1.query",
    ),
    "files that sort names": (
        numbered(*linear(11), name=None),
        *("0 1 10 11 2 3 4 5 6 7 8 9", "0 1 2 3 4 5 6 7 8 9 10 11"),
    ),
}


def modules(names, *, alphabetical=False):
    """Arrays of modules, whose values are the numbers of the modules."""
    arrays = {}
    for number, name in enumerate(names.split()):
        arrays |= {f"{name}.weight": np.full((2, 2), number), f"{name}.bias": np.full(2, number)}
    return dict(sorted(arrays.items())) if alphabetical else arrays


@pytest.mark.parametrize("name", ORDERS)
@pytest.mark.parametrize("reloaded", [False, True])
def test_numbers_are_the_order_of_layers(name, reloaded, tmp_path):
    network, names, expected = ORDERS[name]
    if reloaded and name != "names within layers without one":
        lm.Model(network, engine="interpreter").save(tmp_path / "model")
        network = lm.load(tmp_path / "model", engine="interpreter").network
    model = lm.from_torch(network, modules(names), engine="interpreter", show=False)
    numbers = [int(value[0]) for name, value in model.parameters().items() if "bias" in name]
    assert [names.split()[number] for number in numbers] == (expected or names).split()


def test_pairs_that_cross_are_refused():
    first, second = lm.Linear(2, name="blocks.2.a"), lm.Linear(2, name="blocks.1.b")
    net = lm.Sequential(lm.Input(2), first, second, lm.Linear(2, name="blocks.0.c"))
    arrays = modules("blocks.0.a blocks.1.b blocks.2.d")
    assert error_text(DefinitionError, lm.from_torch, net, arrays) == (
        "in from_torch: two layers are in another order than their modules\n"
        "  layers   blocks.2.a, blocks.1.b\n"
        "  modules  blocks.0.a, blocks.1.b\n"
        "  If these pairs are right, name them: names={'blocks.2.a': 'blocks.0.a', 'blocks.1.b': "
        "'blocks.1.b'}. Otherwise put the layers in the order of the modules."
    )
    names = {"blocks.2.a": "blocks.0.a", "blocks.1.b": "blocks.1.b"}
    lm.from_torch(net, arrays, names=names, show=False)


def test_equal_modules_in_alphabetical_order_are_refused():
    net = lm.Sequential(lm.Input(2), *linear(2))
    lm.from_torch(net, modules("first output"), show=False)
    arrays = modules("hidden first", alphabetical=True)
    assert error_text(DefinitionError, lm.from_torch, net, arrays) == (
        "in from_torch: the arrays are in alphabetical order, which is not the order of the "
        "layers\n"
        "  layers   1, 2\n"
        "  modules  first, hidden\n"
        "  If these pairs are right, name them: names={'1': 'first', '2': 'hidden'}. Otherwise "
        "give module.state_dict(), in the order of PyTorch."
    )
    names = {"1": "hidden", "2": "first"}
    lm.from_torch(net, arrays, names=names, show=False)


def test_numbers_of_pytorch_are_no_names_for_load_parameters():
    model = lm.Model(lm.Sequential(lm.Input(2), *linear(3)), engine="interpreter")
    before, arrays = model.parameters(), modules("0 1 2")
    error = refused(DefinitionError, model.load_parameters, arrays)
    assert error.problem == "the arrays are numbered otherwise than layers are here"
    assert error.advice.startswith("lm.from_torch pairs the arrays of PyTorch's modules")
    np.testing.assert_array_equal(model.parameters()["1.bias"], before["1.bias"])
    assert model.load_parameters(arrays, skip=["0.*"]).kept == ("3.weight", "3.bias")
