"""Modules that are loaded by importing Lamina and by a first training.

Modules and compiled texts are counted, not seconds; `benchmarks/import_time.py` has those.
"""

import json
import sys
from functools import cache

import pytest
from fresh_python import printed, run_python

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
    found = ours(modules)
    # All files of ops are loaded, since each registers its records.
    assert len([name for name in found if not name.startswith("lamina.ops.")]) < 200
    unused = (
        "lamina.layers.convolution",
        "lamina.networks",
        "lamina.learning.schedules",
        "lamina.reports.figure",
        "lamina.engines.cpu.native_program",
        "lamina.cli",
    )
    assert not set(unused) & set(found)
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
