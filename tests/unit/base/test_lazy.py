"""Packages whose names are loaded when they are first used."""

import ast
import importlib
import inspect
import traceback
from pathlib import Path
from types import ModuleType

import pytest
from error_texts import error_text, refused

import lamina as lm

FOLDER = Path(lm.__file__).parent
PACKAGES = sorted(
    ".".join(("lamina", *path.parent.relative_to(FOLDER).parts))
    for path in FOLDER.rglob("__init__.py")
    if "loaded_when_used(__name__)" in path.read_text()
)


def test_these_packages_load_their_names_when_they_are_used():
    names = "cli data layers learning.losses learning.metrics learning.optimizers networks ops "
    names += "reports training training.callbacks"
    assert ["lamina", *(f"lamina.{name}" for name in names.split())] == PACKAGES


@pytest.mark.parametrize("name", PACKAGES)
def test_names_are_those_of_the_import_statements(name):
    package = importlib.import_module(name)
    tree = ast.parse(inspect.getsource(package))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    homes = {}
    for statement in block.body:
        assert isinstance(statement, ast.ImportFrom)
        (alias,) = statement.names
        home = str(statement.module)
        if alias.name == "*":
            homes |= dict.fromkeys(importlib.import_module(home).__all__, home)
        else:
            assert alias.asname == alias.name
            homes[alias.name] = home
    assert list(package.__all__) == sorted(homes)
    for alias, home in homes.items():
        namespace = {}
        exec(f"from {home} import {alias}", namespace)
        assert getattr(package, alias) is namespace[alias], alias


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_lists_its_names_and_no_modules_of_others(name):
    package = importlib.import_module(name)
    shown = dir(package)
    assert shown == sorted(shown)
    assert set(package.__all__) <= set(shown)
    modules = {symbol for symbol in shown if isinstance(getattr(package, symbol), ModuleType)}
    assert modules <= set(package.__all__)
    assert not {"loaded_when_used", "_homes"} & set(shown)


def test_star_imports_bring_every_name_and_a_name_is_looked_up_once():
    namespace = {}
    exec("from lamina import *", namespace)
    assert set(lm.__all__) <= set(namespace)
    assert namespace["Linear"] is lm.Linear is vars(lm)["Linear"]


SKLEARN = (
    ". Here it is lm.data.Dataset(*sklearn.datasets.load_iris(return_X_y=True), dtype='float32')."
)


@pytest.mark.cases(
    ("package", "name", "hint"),
    (lm, "Lineer", ". Did you mean 'Linear'?"),
    (lm.ops, "rleu", ". Did you mean 'relu'?"),
    (lm, "Relu", ". Did you mean 'ReLU'?"),
    (lm.data, "load_iris", SKLEARN),
    (lm.data, "iris", ""),
    *((lm, name, "") for name in ("KFlod", "xyzzy", "_private", "__wrapped__")),
)
def test_an_unknown_name_is_refused_with_the_nearest_one(package, name, hint):
    assert not hasattr(package, name)
    error = refused(AttributeError, getattr, package, name)
    assert str(error) == f"module '{package.__name__}' has no attribute '{name}'{hint}"
    # Python has no hint of its own.
    shown = "".join(traceback.format_exception(error))
    assert shown.count("Did you mean") == hint.count("Did you mean")


NN = "module 'lamina' has no attribute 'nn'. Layers and losses are at the top level: lm.Linear,"


@pytest.mark.cases(
    ("statement", "text"),
    ("from lamina import Lineer", "module 'lamina' has no attribute 'Lineer'. Did you mean"),
    *(
        (f"{how} lamina{more}", NN)
        for how, more in (("from", " import Linear, nn"), ("import", ".nn"))
    ),
    *((f"from lamina.nn{more}", NN) for more in (" import Linear", ".functional import relu")),
)
def test_what_is_unknown_cannot_be_imported(statement, text):
    assert error_text(ImportError, exec, statement).startswith(text)
