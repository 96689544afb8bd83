"""The folders of the package: their order, without hidden imports and without circles.

`import-linter` checks the imports that it sees. These tests also read the imports in functions and
for the type checker, calls of `import_module`, and modules in `sys.modules`.

They cannot read a module's name that is computed: `WITH_COMPUTED_NAMES` lists the files with such
names. `UPWARDS` and `CIRCLES` list all exceptions, with their reasons.
"""

import ast
import tomllib
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[2]
LOOSE = {
    "__init__.py",
    "__main__.py",
    "errors.py",
    "model.py",
    "network.py",
    "population.py",
    "py.typed",
}

# Files that import modules by a computed name, or read them in `sys.modules`.
WITH_COMPUTED_NAMES = {
    "lamina.base.lazy",  # the files and names of the package that is asked for them
    "lamina.base.records",  # the module of the class that it compiles `__init__` for
    "lamina.checks.calls",  # the module of a class, for its annotations
    "lamina.errors",  # optional packages; the module whose attribute is unknown
    "lamina.graph.tensor",  # an unpickled op: the module of `lamina.ops` that registers it
    "lamina.ops",  # all its own files, so that every op is registered
    "lamina.training.losses",  # another name of `lamina.learning.losses`
}

# Advice in errors names what Lamina has: the lowest room reads the package, which is loaded then.
UPWARDS = {("lamina.foreign", "lamina")}

# For the type checker, the first names a type of the second, which imports it.
CIRCLES = {
    ("lamina.checks.foreign_calls", "lamina.checks.calls"),
    ("lamina.codegen.values", "lamina.codegen.builder"),
    ("lamina.graph.methods", "lamina.graph.tensor"),
    ("lamina.program.index", "lamina.program.scalar"),
    ("lamina.training.epochs", "lamina.training.batches"),
}


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


FILES = {name_of(path): path for path in sorted((ROOT / "lamina").rglob("*.py"))}


def is_call(node: ast.AST, *functions: str) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func).endswith(functions)


def names_at_run_time(tree: ast.AST) -> list[ast.expr]:
    """The expressions of the modules that are imported or read while functions run."""
    nodes = list(ast.walk(tree))
    subscripts = (node for node in nodes if isinstance(node, ast.Subscript))
    return [
        *(node.args[0] for node in nodes if is_call(node, "import_module", "sys.modules.get")),
        *(node.slice for node in subscripts if ast.unparse(node.value) == "sys.modules"),
    ]


def modules_in(text: str) -> Iterator[tuple[str, bool]]:
    """The modules of Lamina that a text imports, and whether for the type checker only."""
    typing = set[ast.AST]()
    tree = ast.parse(text)
    named = set(names_at_run_time(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            typing.update(inner for statement in node.body for inner in ast.walk(statement))
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif node in named:
            # Of a text with parts that are not known, the folder before them is imported.
            names = [ast.unparse(node).strip("f\"'").partition("{")[0].rstrip(".")]
        for name in names:
            module = name if name in FILES else name.rpartition(".")[0]
            if module in FILES:
                yield module, node in typing


@cache
def imports():
    """The imports of each module, as `modules_in` gives them."""
    return {name: list(modules_in(path.read_text())) for name, path in FILES.items()}


def layers() -> dict[str, float]:
    """The rank of each folder or file directly in the package; the lowest imports no other."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (contract,) = (c for c in settings["contracts"] if c["name"] == "Imports run one way")
    ranks = {
        name.strip(): rank
        for rank, row in enumerate(reversed(contract["layers"]))
        for name in row.split("|")
    }
    # The command line imports the package as users do.
    return ranks | {"lamina": ranks["lamina.cli"] - 0.5, "lamina.__main__": ranks["lamina.cli"] + 1}


def room_of(module: str) -> str:
    return ".".join(module.split(".")[:2])


def test_imports_of_all_kinds_are_found():
    text = """
from lamina import ops
if TYPE_CHECKING:
    from lamina.graph.tensor import Tensor
def f():
    import lamina.data.stream
    importlib.import_module("lamina.model")
    import_module(f"lamina.ops.{name}")
    sys.modules["lamina"], sys.modules.get("lamina.errors")
"""
    assert set(modules_in(text)) == {
        ("lamina.ops", False),
        ("lamina.graph.tensor", True),
        ("lamina.data.stream", False),
        ("lamina.model", False),
        ("lamina", False),
        ("lamina.errors", False),
    }


def test_only_the_files_that_every_reader_knows_are_loose():
    assert {path.name for path in (ROOT / "lamina").iterdir() if path.is_file()} == LOOSE


def test_modules_are_imported_by_computed_names_in_few_files():
    computed = {
        name
        for name, path in FILES.items()
        for module in names_at_run_time(ast.parse(path.read_text()))
        if not isinstance(module, ast.Constant | ast.JoinedStr)
    }
    assert computed == WITH_COMPUTED_NAMES


def test_no_import_goes_upwards():
    ranks = layers()
    upwards = {
        (name, module)
        for name, modules in imports().items()
        for module, _ in modules
        if name != "lamina" and room_of(name) != room_of(module)
        if ranks[room_of(name)] <= ranks[room_of(module)]
    }
    assert upwards == UPWARDS


def test_files_with_public_names_are_imported_by_their_packages():
    """`from ... import *` of losses, metrics and optimizers is also in `lamina/__init__.py`."""
    missing = [
        f"{package} -> {name}"
        for name, path in FILES.items()
        if "\n__all__ = [" in path.read_text()
        for package in {name.rpartition(".")[0], "lamina" * name.startswith("lamina.learning")}
        if package and name not in (module for module, _ in imports()[package])
    ]
    assert missing == []


def test_no_modules_import_each_other():
    graph = {
        name: {module for module, _ in modules if module != name}
        for name, modules in imports().items()
    }
    for name, module in CIRCLES | UPWARDS:
        graph[name].remove(module)
    TopologicalSorter(graph).prepare()  # raises CycleError


def test_circles_are_of_types_that_two_files_of_a_folder_share():
    for name, module in CIRCLES:
        assert (module, True) in imports()[name]
        assert (module, False) not in imports()[name]
        assert (name, False) in imports()[module]
        assert room_of(name) == room_of(module)


def test_tests_that_start_processes_or_raise_signals_stand_in_their_own_folder():
    for path in (ROOT / "tests" / "unit").rglob("*.py"):
        tree = ast.parse(path.read_text())
        names = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
        assert not names & {"subprocess", "signal", "cli_cases", "fresh_python"}, path
        assert not any(
            is_call(node, "fork", "kill", "raise_signal", "interrupt_main")
            for node in ast.walk(tree)
        ), path
