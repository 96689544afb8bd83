"""Names of layers, inputs and networks, and loading parameters by them."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from random_arrays import normal

import lamina as lm
from lamina.errors import DefinitionError, FileFormatError, ShapeError


def names(network: lm.Network) -> list[str]:
    return list(lm.Model(network, engine="interpreter").parameters())


def test_a_named_layer_keeps_its_name_when_another_is_inserted() -> None:
    layers = [lm.Linear(4, name="first"), lm.Tanh(), lm.Linear(2, name="block.head")]
    short = lm.Sequential(lm.Input(3), *layers)
    long = lm.Sequential(lm.Input(3), lm.LayerNorm(), *layers)
    named = ["first.weight", "first.bias", "block.head.weight", "block.head.bias"]
    assert names(short) == named
    assert names(long) == ["1.weight", "1.bias", *named]
    assert long.path(long.outputs[0]) == "net/block.head:Linear"


def test_the_layers_of_a_named_network_begin_with_its_name() -> None:
    inner = lm.Sequential(lm.Input(3), lm.Linear(4), lm.Linear(5, name="last"), name="encoder")
    middle = lm.Sequential(lm.Input(3), inner, name="outer")
    whole = lm.Sequential(lm.Input(3), lm.Tanh(), middle, lm.Linear(2))
    assert names(inner) == ["1.weight", "1.bias", "last.weight", "last.bias"]
    assert [name for name in names(whole) if name.endswith("weight")] == [
        "outer.encoder.1.weight",
        "outer.encoder.last.weight",
        "4.weight",
    ]
    # A part of the network has its own names.
    part = lm.Model(whole).part(inner)
    assert list(part.parameters()) == names(inner)


def test_the_summary_counts_the_parameters_of_named_layers() -> None:
    net = lm.Sequential(lm.Input(3, name="x"), lm.Linear(4, name="a.b"), lm.Linear(2, name="a"))
    assert str(net).splitlines()[2:5] == [
        "x:Input     f32[batch, 3]           0                  0",
        "a.b:Linear  f32[batch, 4]          16                 28",
        "a:Linear    f32[batch, 2]          10                 18",
    ]


def test_a_layer_that_is_applied_twice_has_one_name() -> None:
    shared, x = lm.Linear(3, name="shared"), lm.Input(3)
    assert names(lm.Network(x, shared(shared(x)))) == ["shared.weight", "shared.bias"]


def test_names_survive_files_and_copies(tmp_path: Path) -> None:
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


def test_layers_inside_a_layer_may_have_names() -> None:
    @dataclass(frozen=True)
    class Twice(lm.Layer):
        second: str = "b"

        def forward(self, scope: lm.Scope, x: lm.Tensor) -> lm.Tensor:
            return lm.Linear(3, name=self.second)(lm.Linear(3, name="a")(x))

    net = lm.Sequential(lm.Input(3), Twice(name="twice"))
    assert names(net)[::2] == ["twice.a.weight", "twice.b.weight"]
    with pytest.raises(DefinitionError) as caught:
        names(lm.Sequential(lm.Input(3), Twice(second="a")))
    assert "two layers in this layer are named 'a'" in str(caught.value)


def test_two_layers_of_one_name() -> None:
    with pytest.raises(DefinitionError) as caught:
        lm.Sequential(lm.Input(3), lm.Linear(4, name="a"), lm.Linear(4, name="a"))
    line = str(caught.value).split("(")[1].split(")")[0]
    assert str(caught.value) == (
        f"in Network ({line}): two layers or inputs of the network are named 'a'\n"
        f"  first   net/a:Linear ({line})\n"
        f"  second  net/a:Linear ({line})\n"
        "  Give each its own name, or give the networks that contain them a name: "
        "lm.Sequential(..., name='left')."
    )
    x = lm.Input(3, name="a")
    y = lm.Linear(2, name="a")(x)
    with pytest.raises(DefinitionError, match="two layers or inputs"):
        lm.Network(x, y)


@pytest.mark.parametrize("name", ["", "3", "1st", "a b", "a..b", "a.", ".a", "a/b", "ä", 3, "-a"])
def test_a_name_that_is_none(name: Any) -> None:
    for make in (lm.ReLU, lm.Input, lambda name: lm.Sequential(lm.Input(3), lm.ReLU(), name=name)):
        with pytest.raises(DefinitionError) as caught:
            make(name=name)
        assert "name must be a name of letters, digits, '_' and '-'" in str(caught.value)
        assert "It begins with a letter or '_'; words may be joined by dots." in str(caught.value)


# Loading by name ----------------------------------------------------------------------------------


def test_parameters_of_equal_names_are_loaded(tmp_path: Path) -> None:
    backbone = [lm.Linear(4, name="first"), lm.BatchNorm(name="norm")]
    trained = lm.Model(lm.Sequential(lm.Input(3), *backbone, lm.Linear(9)), seed=1)
    trained.save(tmp_path / "trained")
    model = lm.Model(lm.Sequential(lm.Input(3), *backbone, lm.Tanh(), lm.Linear(2)))
    found = model.load_parameters(tmp_path / "trained")
    assert [pair.name for pair in found.pairs] == [
        *("first.weight", "first.bias", "norm.weight", "norm.bias"),
        *("norm.running_mean", "norm.running_variance"),
    ]
    assert found.kept == ("4.weight", "4.bias")
    assert found.unused == ("3.bias", "3.weight")
    for name in ("first.weight", "norm.bias"):
        np.testing.assert_array_equal(model.parameters()[name], trained.parameters()[name])
    assert [line.split(maxsplit=1) for line in str(found).splitlines()[-3:]] == [
        ["4.bias", "keeps its value"],
        ["not", "needed             3.bias"],
        ["not", "needed             3.weight"],
    ]


def test_parameters_are_loaded_from_any_safetensors_file(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    weight = normal(2, 3).astype("float64")
    save_file({"1.weight": weight, "other": weight}, str(tmp_path / "file"))
    model = lm.Model(lm.Sequential(lm.Input(3), lm.Linear(2)))
    assert model.load_parameters(tmp_path / "file").unused == ("other",)
    np.testing.assert_array_equal(model.parameters()["1.weight"], weight.astype("float32"))


def test_skipped_parameters_keep_their_values() -> None:
    model = lm.Model(lm.Sequential(lm.Input(3), lm.Linear(2)))
    before = model.parameters()
    found = model.load_parameters({"1.weight": normal(2, 3), "1.bias": normal(7)}, skip=["*.bias"])
    assert found.kept == ("1.bias",)
    np.testing.assert_array_equal(model.parameters()["1.bias"], before["1.bias"])


def test_a_parameter_of_another_shape_changes_nothing() -> None:
    model = lm.Model(lm.Sequential(lm.Input(3), lm.Linear(2)))
    before = model.parameters()
    with pytest.raises(ShapeError) as caught:
        model.load_parameters({"1.weight": normal(2, 3), "1.bias": normal(7)})
    assert "1.bias does not fit the parameter '1.bias'" in str(caught.value)
    assert "To keep their values: skip=['1.*']." in str(caught.value)
    np.testing.assert_array_equal(model.parameters()["1.weight"], before["1.weight"])


def test_no_equal_name() -> None:
    with pytest.raises(DefinitionError) as caught:
        lm.Model(lm.Sequential(lm.Input(3), lm.Linear(2))).load_parameters({"0.weight": 1})
    assert str(caught.value) == (
        "in load_parameters: no array has the name of a parameter\n"
        "  expected  1.weight, 1.bias\n"
        "  found     0.weight\n"
        "  lm.from_torch pairs the arrays of PyTorch's modules, also in order."
    )


def test_a_file_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"nothing")
    with pytest.raises(FileFormatError, match="the file is damaged or of another kind"):
        lm.Model(lm.Sequential(lm.Input(3), lm.Linear(2))).load_parameters(tmp_path / "file")
