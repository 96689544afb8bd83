"""Weights of PyTorch's modules: numbers in names are the order of layers."""

from typing import Any

import numpy as np
import pytest
from error_texts import error_text, refused

import lamina as lm
from lamina.base.records import frozen_dataclass
from lamina.errors import DefinitionError


@frozen_dataclass
class Projections(lm.Layer):
    """Two layers with names of their own, which `forward` applies in this order."""

    def forward(self, scope: lm.Scope, x: lm.Tensor) -> lm.Tensor:
        return scope.layer("query", lm.Linear(2), scope.layer("key", lm.Linear(2), x))


def numbered(*layers: lm.Layer, name: str | None = "trunk") -> lm.Network:
    """A network that applies a sequence with a name, and one layer more."""
    x = lm.Input(2)
    return lm.Network(x, lm.Linear(2)(lm.Sequential(lm.Input(2), *layers, name=name)(x)))


def linear(count: int) -> list[lm.Layer]:
    return [lm.Linear(2) for _ in range(count)]


# A network, the names of PyTorch's modules in their order, and in the order of the layers if that
# is another.
ORDERS: dict[str, tuple[lm.Network, str, str]] = {
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
    "an array before those of the name": (numbered(*linear(1)), "out trunk.0", "trunk.0 out"),
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


def modules(names: str, *, alphabetical: bool = False) -> dict[str, Any]:
    """Arrays of modules, whose values are the numbers of the modules."""
    arrays: dict[str, Any] = {}
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
    found = [int(value[0]) for name, value in model.parameters().items() if "bias" in name]
    assert [names.split()[number] for number in found] == (expected or names).split()


def test_pairs_that_cross_are_refused():
    first, second = lm.Linear(2, name="blocks.2.a"), lm.Linear(2, name="blocks.1.b")
    net = lm.Sequential(lm.Input(2), first, second, lm.Linear(2, name="blocks.0.c"))
    arrays = modules("blocks.0.a blocks.1.b blocks.2.d")
    assert error_text(DefinitionError, lambda: lm.from_torch(net, arrays)) == (
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
    with pytest.raises(DefinitionError) as caught:
        lm.from_torch(net, modules("hidden first", alphabetical=True))
    assert str(caught.value) == (
        "in from_torch: the arrays are in alphabetical order, which is not the order of the "
        "layers\n"
        "  layers   1, 2\n"
        "  modules  first, hidden\n"
        "  If these pairs are right, name them: names={'1': 'first', '2': 'hidden'}. Otherwise "
        "give module.state_dict(), in the order of PyTorch."
    )
    names = {"1": "hidden", "2": "first"}
    lm.from_torch(net, modules("hidden first", alphabetical=True), names=names, show=False)


def test_numbers_of_pytorch_are_no_names_for_load_parameters():
    model = lm.Model(lm.Sequential(lm.Input(2), *linear(3)), engine="interpreter")
    before, arrays = model.parameters(), modules("0 1 2")
    error = refused(DefinitionError, lambda: model.load_parameters(arrays))
    assert str(error).splitlines()[0] == (
        "in load_parameters: the arrays are numbered otherwise than layers are here"
    )
    assert error.advice.startswith("lm.from_torch pairs the arrays of PyTorch's modules")
    np.testing.assert_array_equal(model.parameters()["1.bias"], before["1.bias"])
    assert model.load_parameters(arrays, skip=["0.*"]).kept == ("3.weight", "3.bias")
