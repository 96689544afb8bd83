"""Modules that are loaded by importing Lamina and by a first training.

Modules and compiled texts are counted, not seconds; `benchmarks/import_time.py` has those.
"""

import compileall
import json
import pickle
import sys
from functools import cache
from pathlib import Path

import pytest
from fresh_python import printed, run_python

import lamina as lm

pytestmark = pytest.mark.each_case

HEAVY = frozenset(
    (
        *("llvmlite", "matplotlib", "rich", "click", "safetensors", "h5py", "PIL"),
        *("pyopencl", "cuda", "onnx", "torch"),
    )
)

EVERY_NAME = """
from lamina import *
from lamina import layers
for package in (data, layers, networks, ops, training.optimizers):
    exec(f"from {package.__name__} import *")
"""
FIRST_TRAINING = """
import numpy as np
import lamina as lm
net = lm.Sequential(lm.Input(4), lm.Linear(8), lm.ReLU(), lm.Linear(3))
model = lm.Model(net, engine=ENGINE)
x, y = np.zeros((8, 4), np.float32), np.zeros(8, np.int64)
model.fit((x, y), epochs=1, loss=lm.CrossEntropy(), optimizer=lm.Adam(1e-3))
model.predict(x)
"""

# Counts after NumPy, which compiles texts of its own. Modules are compiled where Python keeps no
# compiled ones: these do not count.
COUNTING = """
import json, sys
import numpy
counts = {"compile": 0}
def count(event, arguments):
    if event in counts and str(arguments[1]).startswith("<"):
        counts[event] += 1
before = set(sys.modules)
sys.addaudithook(count)
exec(sys.argv[1])
print(json.dumps([sorted(set(sys.modules) - before), counts["compile"]]))
"""


@cache
def loaded(code, folder=None):
    """Modules that a fresh interpreter loads for some code, except NumPy's; compiled texts."""
    cache = str(folder) if folder else "off"
    done = run_python("-W", "error", "-c", COUNTING, code, LAMINA_CACHE=cache)
    assert done.returncode == 0, done.stderr
    modules, compiled = json.loads(done.stdout)
    return set(modules), compiled


def ours(modules):
    return sorted(name for name in modules if name.partition(".")[0] == "lamina")


def test_importing_lamina_loads_only_lamina_lazy():
    modules, _ = loaded("import lamina")
    assert ours(modules) == ["lamina", "lamina.base", "lamina.base.lazy"]
    assert len(modules) <= 5


def test_importing_lamina_prints_nothing_and_does_not_import_numpy():
    assert printed("import lamina, sys; print('numpy' in sys.modules)") == "False\n"
    assert printed(EVERY_NAME, "-W", "error") == ""


def test_using_every_name_imports_no_optional_package():
    modules, _ = loaded(EVERY_NAME)
    assert len(ours(modules)) > 100
    assert not {name.partition(".")[0] for name in modules} & HEAVY


def test_constructors_of_records_are_compiled_when_they_are_used():
    # dataclass(frozen=True) would compile six for each of 350 classes. From Python 3.13 on it
    # compiles a text for each class, even if that is empty.
    _, compiled = loaded(EVERY_NAME)
    assert compiled < (120 if sys.version_info < (3, 13) else 600)


def test_a_first_training_loads_no_unused_modules(tmp_path):
    code = FIRST_TRAINING.replace("ENGINE", repr("cpu"))
    loaded(code, tmp_path)
    loaded.cache_clear()  # the second time all is compiled already
    modules, _ = loaded(code, tmp_path)
    imported = ours(modules)
    # All files of ops are loaded, since each registers its records.
    assert len([name for name in imported if not name.startswith("lamina.ops.")]) < 200
    unused = (
        "lamina.layers.convolution",
        "lamina.networks",
        "lamina.learning.schedules",
        "lamina.reports.figure",
        "lamina.engines.cpu.native_program",
        "lamina.cli",
    )
    assert not set(unused) & set(imported)
    assert not {"numpy.ma", "concurrent.futures"} & modules
    others = {name.partition(".")[0] for name in modules}
    assert not others & (HEAVY - {"llvmlite"})


@pytest.mark.parametrize("arguments", ["--version", "--help", "train --help"])
def test_the_command_line_answers_before_numpy_is_loaded(arguments):
    code = f"""
import sys
from lamina.cli import main
try:
    main({arguments.split()!r})
except SystemExit as ended:
    print(ended.code, sorted({{"numpy", "llvmlite", "rich", "lamina.model"}} & set(sys.modules)))
"""
    assert printed(code).splitlines()[-1] == "0 []"


@pytest.mark.sampled
def test_the_target_of_the_default_engine_is_known_without_its_code_generator():
    script = """
import sys
import lamina as lm
lm.Sequential(lm.Input(4), lm.Linear(2)).plan(8)
assert "llvmlite" not in sys.modules
"""
    assert printed(script) == ""


def test_the_names_are_read_by_errors_only():
    code = """
from lamina import *
from lamina.foreign import spellings_by_owner
Model(Sequential(Input(3), Linear(2)), engine="interpreter").fit
print(spellings_by_owner.cache_info().currsize)
try:
    Linear(3).weight
except AttributeError as error:
    print(spellings_by_owner.cache_info().currsize, str(error) != "")
print(spellings_by_owner.cache_info().currsize)
"""
    assert printed(code).split() == ["0", "0", "True", "1"]


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


def test_a_package_is_pickled_by_its_name():
    """Functions that use it are then sent to processes by value, as joblib does."""
    assert all(pickle.loads(pickle.dumps(one)) is one for one in (lm, lm.data, lm.callbacks))


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
    first = f"import sys\nsys.path[:0] = ['.', {str(Path(lm.__file__).parents[1])!r}]\n"
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
