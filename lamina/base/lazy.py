"""Packages whose names are loaded when they are first used.

A package puts its imports under a condition, so that people and tools still read them:

    if not loaded_when_used(__name__):
        from lamina.layers.linear import *
        from lamina.networks.resnet import resnet as resnet

`loaded_when_used` reads these lines as text and returns True: none of them is run, and each name is
loaded when it is first read. A file that is imported by `*` lists its public names in `__all__`,
which is read as text too. Without the text it returns False, and all are run at once.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Iterable
from functools import cached_property
from importlib import import_module
from importlib.machinery import PathFinder
from types import ModuleType
from typing import Any, final

# A name imported under its own name, or all names of a file, as ruff formats such lines.
_IMPORT = re.compile(r"^    from ([\w.]+) import (?:(\w+) as \2|\*)$", re.MULTILINE)
_PUBLIC = re.compile(r"^__all__ \+?= \[(.*?)\]", re.MULTILINE | re.DOTALL)


def loaded_when_used(package: str) -> bool:
    """Whether the imports after this call are delayed to the first use of each name."""
    imports = _IMPORT.findall(_text(package))
    if imports:
        module = sys.modules[package]
        vars(module)["_imports"] = imports
        module.__class__ = _Lazy
    return bool(imports)


def imported_files(package: str) -> list[str]:
    """The modules from which a package imports its names; none if all are imported already."""
    return list(dict.fromkeys(home for home, _ in vars(sys.modules[package]).get("_imports", ())))


def _text(name: str) -> str:
    """The text of a module, loaded or not; "" where only compiled modules are installed."""
    package, *words = name.split(".")
    root = sys.modules[package]
    path = os.path.join(os.path.dirname(root.__file__ or ""), *words)
    loader: Any = root.__loader__
    for file in (f"{path}.py", os.path.join(path, "__init__.py")):
        try:
            return loader.get_data(file).decode()
        except (AttributeError, OSError, UnicodeDecodeError):
            continue
    return ""


def _homes_of(imports: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The module of each name that these imports bring."""
    homes: dict[str, str] = {}
    for home, name in imports:
        if name:
            homes[name] = home
            continue
        text = _text(home)
        listed = " ".join(_PUBLIC.findall(text))
        homes |= dict.fromkeys(re.findall(r"\w+", listed), home)
        homes |= _homes_of(_IMPORT.findall(text))
    return homes


# How long a fork waits for modules that other threads are loading.
_PATIENCE_SECONDS = 10.0


@final
class _Loading:
    """A context in which modules are loaded: forks in other threads wait until it ends.

    Otherwise the child would have half-loaded modules, locked by a thread that it lacks.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        # The number of nested loads in each thread.
        self._depths: dict[int, int] = {}
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(
                before=self._wait, after_in_parent=self._changed.release, after_in_child=self._reset
            )

    def __enter__(self) -> None:
        me = threading.get_ident()
        with self._changed:
            self._depths[me] = self._depths.get(me, 0) + 1

    def __exit__(self, *_: object) -> None:
        me = threading.get_ident()
        with self._changed:
            self._depths[me] -= 1
            if not self._depths[me]:
                del self._depths[me]
                self._changed.notify_all()

    def _wait(self) -> None:
        self._changed.acquire()
        me = threading.get_ident()
        # The wait has a limit: if this thread loads modules too, other threads may wait for it.
        self._changed.wait_for(lambda: self._depths.keys() <= {me}, _PATIENCE_SECONDS)

    def _reset(self) -> None:
        me = threading.get_ident()
        self._depths = {me: self._depths[me]} if me in self._depths else {}
        self._changed.release()


loading = _Loading()


class _Lazy(ModuleType):
    """A package that loads its names one by one."""

    _imports: list[tuple[str, str]]

    @cached_property
    def _homes(self) -> dict[str, str]:
        return _homes_of(self._imports)

    def __getattr__(self, name: str) -> Any:
        if name == "__all__":
            return sorted(self._homes)
        with loading:
            home = self._homes.get(name)
            if home is None or home == self.__name__:
                value = self._submodule(name)
            else:
                # As in `from home import name`, where the name may be a module's.
                value = getattr(__import__(home, fromlist=(name,)), name)
            setattr(self, name, value)
        return value

    def __setattr__(self, name: str, value: object) -> None:
        # Python sets each loaded module as an attribute of its package. A module that has the name
        # of its function, such as networks/resnet.py, must not hide the function.
        if isinstance(value, ModuleType) and (function := vars(value).get(name)) is not None:
            value = function if self._homes.get(name) == value.__name__ else value
        super().__setattr__(name, value)

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        # Pickled by its name, as other modules are by cloudpickle.
        return import_module, (self.__name__,)

    def __dir__(self) -> list[str]:
        """The public names, without modules that are already loaded."""
        hidden = {"_homes", "_imports", loaded_when_used.__name__}
        modules = {name for name, value in vars(self).items() if isinstance(value, ModuleType)}
        return sorted({*vars(self).keys() - hidden - modules, *self._homes})

    def _submodule(self, name: str) -> ModuleType:
        full_name = f"{self.__name__}.{name}"
        if not name.startswith("_") and PathFinder.find_spec(full_name, self.__path__):
            return import_module(full_name)
        from lamina.errors import UnknownAttribute  # only errors need it

        raise UnknownAttribute(self, name)


class _Advice:
    """Advice on a module that a package lacks: `import lamina.nn`, `from lamina import nn`."""

    @staticmethod
    def find_spec(name: str, *_: object) -> None:
        """Python asks it last, for modules that nothing else finds."""
        package, lacking = name.rpartition(".")[::2]
        if isinstance(sys.modules.get(package), _Lazy):
            from lamina.foreign import unknown_attribute

            raise ModuleNotFoundError(unknown_attribute(sys.modules[package], lacking))


sys.meta_path.append(_Advice)
