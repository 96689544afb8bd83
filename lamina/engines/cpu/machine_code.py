"""LLVM: from the text of a module to machine code that can be called."""

from __future__ import annotations

import os
from functools import cache
from typing import Any, final

import llvmlite
from llvmlite import binding as _binding

from lamina.cache import cached, key_of
from lamina.engines.cpu.processor import Processor

# llvmlite has no types.
binding: Any = _binding

# The IR is written with explicit vectors and registers, so that no passes over it pay; the code
# generator selects, schedules and allocates at its default level.
_CODE_GENERATION = 2
# What code depends on beside the text and the processor.
VERSIONS = (llvmlite.__version__, str(binding.llvm_version_info), str(_CODE_GENERATION))


@cache
def _initialize() -> None:
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()


@cache
def _machine(name: str, triple: str, features: str) -> Any:
    _initialize()
    target = binding.Target.from_triple(triple)
    return target.create_target_machine(
        cpu=name, features=features, opt=_CODE_GENERATION, reloc="pic", codemodel="small"
    )


def _module(text: str, processor: Processor) -> tuple[Any, Any]:
    machine = _machine(processor.name, processor.triple, processor.features)
    module = binding.parse_assembly(text)
    module.triple = processor.triple
    module.data_layout = str(machine.target_data)
    module.verify()
    return module, machine


def assemble(text: str, processor: Processor) -> bytes:
    """The object code of a module in LLVM's assembly language."""
    module, machine = _module(text, processor)
    return machine.emit_object(module)


def compiled(text: str, processor: Processor) -> bytes:
    """The same, from the cache on disk if it was assembled before.

    The text holds all that Lamina decides, so of versions only those of LLVM matter.
    """
    target = (processor.triple, processor.name, processor.features)
    return cached(key_of((*VERSIONS, *target, text)), lambda: assemble(text, processor))


def listing(text: str, processor: Processor) -> str:
    """The machine code of a module in the processor's assembly language, for people."""
    module, machine = _module(text, processor)
    return machine.emit_assembly(module)


@final
class Library:
    """Machine code in memory, until it is released.

    Args:
        code: object code that `assemble` made; it must not come from anyone else.
        exported: the functions whose addresses are wanted.
    """

    def __init__(self, code: bytes, exported: tuple[str, ...] = ("program",)) -> None:
        _initialize()
        builder = binding.JITLibraryBuilder().add_object_img(code)
        for name in exported:
            builder.export_symbol(name)
        # One for each library: what it keeps of a library it keeps as long as it lives.
        self._linker: Any = binding.create_lljit_compiler()
        self._tracker: Any = builder.link(self._linker, "lamina")

    def address(self, name: str) -> int:
        """Where an exported function begins."""
        return int(self._tracker[name])

    def release(self) -> None:
        """Frees the code; none of its functions may be running."""
        self._tracker = None
        self._linker.close()


def _hold_during_forks() -> None:
    """Has nobody use LLVM while the process forks: in the child it would stay locked forever.

    llvmlite has a lock for all its functions, but no public way to take it.
    """
    lock = getattr(binding.ffi.lib, "_lock", None)
    if lock is not None and hasattr(os, "register_at_fork"):

        def give_back() -> None:
            lock.__exit__(None, None, None)

        os.register_at_fork(
            before=lock.__enter__, after_in_parent=give_back, after_in_child=give_back
        )


_hold_during_forks()
