"""Names of layers, inputs and networks, and loading parameters by them."""

import pickle
from dataclasses import dataclass

import numpy as np
import pytest
from error_texts import error_text
from random_arrays import normal
from training_cases import same

import lamina as lm
from lamina.errors import DefinitionError, FileFormatError, ShapeError


def names(network):
    return list(lm.Model(network, engine="interpreter").parameters())


def test_a_named_layer_keeps_its_name_when_another_is_inserted_or_it_is_applied_twice():
    layers = [lm.Linear(4, name="first"), lm.Tanh(), lm.Linear(2, name="block.head")]
    long = lm.Sequential(lm.Input(3), lm.LayerNorm(), *layers)
    named = ["first.weight", "first.bias", "block.head.weight", "block.head.bias"]
    assert names(lm.Sequential(lm.Input(3), *layers)) == named
    assert names(long) == ["1.weight", "1.bias", *named]
    assert long.path(long.outputs[0]) == "net/block.head:Linear"
    shared, x = lm.Linear(3, name="shared"), lm.Input(3)
    assert names(lm.Network(x, shared(shared(x)))) == ["shared.weight", "shared.bias"]


def test_the_layers_of_a_named_network_begin_with_its_name():
    inner = lm.Sequential(lm.Input(3), lm.Linear(4), lm.Linear(5, name="last"), name="encoder")
    middle = lm.Sequential(lm.Input(3), inner, name="outer")
    outer = lm.Sequential(lm.Input(3), lm.Tanh(), middle, lm.Linear(2))
    assert names(inner) == ["1.weight", "1.bias", "last.weight", "last.bias"]
    layers = [name.removesuffix(".weight") for name in names(outer) if name.endswith("weight")]
    assert layers == ["outer.encoder.1", "outer.encoder.last", "4"]
    # A part of the network has its own names.
    part = lm.Model(outer).part(inner)
    assert list(part.parameters()) == names(inner)


def test_the_summary_counts_the_parameters_of_named_layers():
    net = lm.Sequential(lm.Input(3, name="x"), lm.Linear(4, name="a.b"), lm.Linear(2, name="a"))
    assert str(net).splitlines()[2:5] == [
        "x:Input     f32[batch, 3]           0                  0",
        "a.b:Linear  f32[batch, 4]          16                 28",
        "a:Linear    f32[batch, 2]          10                 18",
    ]


def test_names_survive_files_and_copies(tmp_path):
    encoder = lm.Sequential(lm.Input(3), lm.Linear(4), name="encoder")
    net = lm.Sequential(lm.Input(3, name="x"), encoder, lm.Reshape(2, 2, name="square"))
    lm.Model(net).save(tmp_path / "model")
    loaded = lm.load(tmp_path / "model").network
    for copy in (loaded, pickle.loads(pickle.dumps(net))):
        assert str(copy) == str(net)
        assert names(copy) == ["encoder.1.weight", "encoder.1.bias"]
    lm.Model(encoder).save(tmp_path / "encoder")
    again = lm.load(tmp_path / "encoder").network
    assert names(lm.Sequential(lm.Input(3), again)) == ["encoder.1.weight", "encoder.1.bias"]


def test_layers_inside_a_layer_may_have_names():
    @dataclass(frozen=True)
    class Twice(lm.Layer):
        second: str = "b"

        def forward(self, scope, x):
            return lm.Linear(3, name=self.second)(lm.Linear(3, name="a")(x))

    net = lm.Sequential(lm.Input(3), Twice(name="twice"))
    assert names(net)[::2] == ["twice.a.weight", "twice.b.weight"]
    text = error_text(DefinitionError, lambda: names(lm.Sequential(lm.Input(3), Twice("a"))))
    assert "two layers in this layer are named 'a'" in text


def test_two_layers_of_one_name():
    def make():
        return lm.Sequential(lm.Input(3), lm.Linear(4, name="a"), lm.Linear(4, name="a"))

    text = error_text(DefinitionError, make)
    line = text.split("(")[1].split(")")[0]
    assert text == (
        f"in Network ({line}): two layers or inputs of the network are named 'a'\n"
        f"  first   net/a:Linear ({line})\n"
        f"  second  net/a:Linear ({line})\n"
        "  Give each its own name, or give the networks that contain them a name: "
        "lm.Sequential(..., name='left')."
    )
    x = lm.Input(3, name="a")
    text = error_text(DefinitionError, lm.Network, x, lm.Linear(2, name="a")(x))
    assert "two layers or inputs" in text


@pytest.mark.parametrize("name", ["", "3", "1st", "a b", "a..b", "a.", ".a", "a/b", "ä", 3, "-a"])
def test_a_name_that_is_none(name):
    for make in (lm.ReLU, lm.Input, lambda name: lm.Sequential(lm.Input(3), lm.ReLU(), name=name)):
        text = error_text(DefinitionError, make, name=name)
        assert "name must be a name of letters, digits, '_' and '-'" in text
        assert "It begins with a letter or '_'; words may be joined by dots." in text


def test_parameters_of_equal_names_are_loaded(tmp_path):
    backbone = [lm.Linear(4, name="first"), lm.BatchNorm(name="norm")]
    trained = lm.Model(lm.Sequential(lm.Input(3), *backbone, lm.Linear(9)), seed=1)
    trained.save(tmp_path / "trained")
    model = lm.Model(lm.Sequential(lm.Input(3), *backbone, lm.Tanh(), lm.Linear(2)))
    loaded = model.load_parameters(tmp_path / "trained")
    assert [pair.name for pair in loaded.pairs] == [
        *("first.weight", "first.bias", "norm.weight", "norm.bias"),
        *("norm.running_mean", "norm.running_variance"),
    ]
    assert loaded.kept == ("4.weight", "4.bias")
    assert loaded.unused == ("3.bias", "3.weight")
    for name in ("first.weight", "norm.bias"):
        np.testing.assert_array_equal(model.parameters()[name], trained.parameters()[name])
    assert [line.split(maxsplit=1) for line in str(loaded).splitlines()[-3:]] == [
        ["4.bias", "keeps its value"],
        ["not", "needed             3.bias"],
        ["not", "needed             3.weight"],
    ]


def test_parameters_are_loaded_from_any_safetensors_file(tmp_path):
    from safetensors.numpy import save_file

    weight = normal(2, 3).astype("float64")
    save_file({"1.weight": weight, "other": weight}, str(tmp_path / "file"))
    model = lm.Model(lm.Sequential(lm.Input(3), lm.Linear(2)))
    assert model.load_parameters(tmp_path / "file").unused == ("other",)
    np.testing.assert_array_equal(model.parameters()["1.weight"], weight.astype("float32"))


def test_arrays_that_do_not_fit_change_nothing_unless_they_are_skipped(tmp_path):
    model = lm.Model(lm.Sequential(lm.Input(3), lm.Linear(2)))
    before, arrays = model.parameters(), {"1.weight": normal(2, 3), "1.bias": normal(7)}
    text = error_text(ShapeError, model.load_parameters, arrays)
    assert "1.bias does not fit the parameter '1.bias'" in text
    assert "To keep their values: skip=['1.*']." in text
    assert error_text(DefinitionError, model.load_parameters, {"0.weight": 1}) == (
        "in load_parameters: no array has the name of a parameter\n"
        "  expected  1.weight, 1.bias\n"
        "  found     0.weight\n"
        "  lm.from_torch pairs the arrays of PyTorch's modules, also in order."
    )
    (tmp_path / "file").write_bytes(b"nothing")
    text = error_text(FileFormatError, model.load_parameters, tmp_path / "file")
    assert "the file is damaged or of another kind" in text
    assert same(model.parameters(), before)
    assert model.load_parameters(arrays, skip=["*.bias"]).kept == ("1.bias",)
    assert same(model.parameters(), before | {"1.weight": arrays["1.weight"]})
