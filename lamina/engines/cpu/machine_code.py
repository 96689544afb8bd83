"""From a module's text to machine code that can be called."""

from __future__ import annotations

from typing import final

from lamina.base.cache import cached, key_of
from lamina.engines.cpu import llvm
from lamina.engines.cpu.llvm import VERSIONS as VERSIONS
from lamina.engines.cpu.processor import HostProcessor


def assemble(text: str, processor: HostProcessor) -> bytes:
    """The object code of a module in LLVM's assembly language."""
    return llvm.assemble(text, _target(processor))


def compiled(text: str, processor: HostProcessor) -> bytes:
    """The object code of a module, from the cache on disk if it was assembled before.

    The text holds all decisions of Lamina, so LLVM's version is the only one in the key.
    """
    target = (processor.triple, processor.name, processor.features)
    return cached(key_of((*VERSIONS, *target, text)), lambda: assemble(text, processor))


def listing(text: str, processor: HostProcessor) -> str:
    """The machine code of a module as text in the processor's assembly language."""
    return llvm.listing(text, _target(processor))


def _target(processor: HostProcessor) -> llvm.Target:
    return llvm.Target(processor.name, processor.triple, processor.features)


@final
class Library:
    """Machine code in memory, until it is released or collected.

    Its code is object code that `assemble` made; no other code must be loaded.
    """

    def __init__(self, code: bytes, exported: tuple[str, ...] = ("program",)) -> None:
        self._code = llvm.load(code, exported)

    def address(self, name: str) -> int:
        """The address of an exported function."""
        return self._code.addresses[name]

    def release(self) -> None:
        """Frees the code; none of its functions may be running."""
        llvm.unload(self._code)
