"""Packages whose names are loaded when they are first used."""

import ast
import compileall
import importlib
import inspect
import traceback
from pathlib import Path
from types import ModuleType

import pytest
from error_texts import error_text, refused
from fresh_python import printed

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
    modules = {one for one in shown if isinstance(getattr(package, one), ModuleType)}
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


def test_modules_are_reached_through_packages_and_hide_no_functions():
    code = """
import lamina as lm
print(lm.training.losses.Loss.__name__, lm.base.shapes.float32)
import lamina.networks.resnet, lamina.ops.recurrence
import lamina.training.losses as losses
from lamina import networks, ops
print(*(callable(one) for one in (networks.resnet, ops.recurrence)))
print(losses is lm.training.losses)
"""
    assert printed(code).split() == ["Loss", "f32", *["True"] * 3]


@pytest.mark.sampled
def test_ops_and_tensors_are_unpickled_where_nothing_was_loaded():
    code = """
import pickle, sys
import lamina as lm
import lamina.ops
from lamina.graph import OPS
relu, layer = OPS["relu"], lm.Linear(2)(lm.Input(3))
pickled = ((relu, lm.Input(3)), layer, lm.Input(3))
print(*(pickle.dumps(one).hex() for one in pickled))
"""
    pair, layer, leaf = printed(code).split()
    load = f"import pickle; op, x = pickle.loads(bytes.fromhex('{pair}')); print(op, (x + 1).op)"
    assert printed(load) == "Op(relu) Op(add)\n"
    load = f"import pickle; print((pickle.loads(bytes.fromhex('{leaf}')) + 1).op)"
    assert printed(load) == "Op(add)\n"
    load = f"import pickle; print(pickle.loads(bytes.fromhex('{layer}')).op)"
    assert printed(load) == "Op(layer)\n"


@pytest.mark.sampled
def test_threads_may_ask_for_names_at_once():
    code = """
import threading
import lamina as lm
barrier, found = threading.Barrier(8), []
def ask(names):
    barrier.wait()
    found.append([getattr(lm, name) for name in names])
names = list(lm.__all__)
threads = [threading.Thread(target=ask, args=(names[n:] + names[:n],)) for n in range(0, 80, 10)]
[one.start() for one in threads], [one.join() for one in threads]
print(len(found), len({id(value) for values in found for value in values}) == len(names))
"""
    assert printed(code) == "8 True\n"


INIT = """
from lamina.base.lazy import loaded_when_used

if not loaded_when_used(__name__):
    from parcel.good import *
    from parcel.lacking import needs as needs

own = 5
"""


@pytest.fixture
def parcel(tmp_path):
    """A folder with a package."""
    package = tmp_path / "parcel"
    package.mkdir()
    (package / "__init__.py").write_text(INIT)
    (package / "good.py").write_text('__all__ = ["good"]\n\ndef good():\n    return 3\n')
    (package / "lacking.py").write_text("import sys\nneeds = 'parcel.good' in sys.modules\n")
    return tmp_path


def run(code, parcel):
    first = f"import sys\nsys.path[:0] = ['.', {str(FOLDER.parent)!r}]\n"
    return printed(first + code, folder=parcel)


def test_nothing_is_loaded_before_it_is_used(parcel):
    code = "import parcel; print(parcel.needs, parcel.good(), parcel.own, dir(parcel)[-3:])"
    assert run(code, parcel) == "False 3 5 ['good', 'needs', 'own']\n"


def test_all_names_are_loaded_at_once_without_source_text(parcel):
    compileall.compile_dir(parcel / "parcel", quiet=1, legacy=True)
    for path in (parcel / "parcel").glob("*.py"):
        path.unlink()
    code = "import parcel; print(parcel.needs, parcel.good(), parcel.own, type(parcel).__name__)"
    assert run(code, parcel) == "True 3 5 module\n"


def test_a_missing_import_of_a_module_is_not_taken_for_an_unknown_name(parcel):
    (parcel / "parcel" / "lacking.py").write_text("import no_such_package")
    code = """
import parcel
for name in ("lacking", "needs"):
    try:
        getattr(parcel, name)
    except ModuleNotFoundError as error:
        print(error.name)
"""
    assert run(code, parcel).split() == ["no_such_package"] * 2
