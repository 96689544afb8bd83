"""The folders of the package: their order, without hidden imports and without circles.

`import-linter` checks the imports that it sees. These tests also read the imports in functions and
for the type checker, and calls of `import_module`.
"""

import ast
import tomllib
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[2]
LOOSE = {"__init__.py", "__main__.py", "errors.py", "model.py", "network.py", "py.typed"}


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


FILES = {name_of(path): path for path in sorted((ROOT / "lamina").rglob("*.py"))}


def modules_in(text: str) -> Iterator[tuple[str, bool]]:
    """The modules of Lamina that a text imports, and whether for the type checker only."""
    typing = set[ast.AST]()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            typing.update(inner for statement in node.body for inner in ast.walk(statement))
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            # Of a text with parts that are not known, the folder before them is imported.
            names = [ast.unparse(node.args[0]).strip("f\"'").partition("{")[0].rstrip(".")]
        for name in names:
            module = name if name in FILES else name.rpartition(".")[0]
            if module in FILES:
                yield module, node in typing


IMPORTS = {name: list(modules_in(path.read_text())) for name, path in FILES.items()}


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
"""
    assert set(modules_in(text)) == {
        ("lamina.ops", False),
        ("lamina.graph.tensor", True),
        ("lamina.data.stream", False),
        ("lamina.model", False),
    }


def test_only_the_files_that_every_reader_knows_are_loose():
    assert {path.name for path in (ROOT / "lamina").iterdir() if path.is_file()} == LOOSE


def test_no_import_goes_upwards():
    ranks = layers()
    upwards = [
        f"{name} -> {module}"
        for name, modules in IMPORTS.items()
        for module, _ in modules
        if name != "lamina" and room_of(name) != room_of(module)
        if ranks[room_of(name)] <= ranks[room_of(module)]
    ]
    assert upwards == []


def test_files_with_public_names_are_imported_by_their_packages():
    """`from ... import *` of losses, metrics and optimizers is also in `lamina/__init__.py`."""
    missing = [
        f"{package} -> {name}"
        for name, path in FILES.items()
        if "\n__all__ = [" in path.read_text()
        for package in {name.rpartition(".")[0], "lamina" * name.startswith("lamina.learning")}
        if package and name not in (module for module, _ in IMPORTS[package])
    ]
    assert missing == []


def test_no_modules_import_each_other():
    """A folder's own modules may name each other's types."""
    graph = {
        name: {
            module
            for module, is_type in modules
            if module != name and not (is_type and room_of(module) == room_of(name))
        }
        for name, modules in IMPORTS.items()
    }
    TopologicalSorter(graph).prepare()  # raises CycleError
