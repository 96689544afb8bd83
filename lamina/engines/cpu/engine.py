"""The CPU engine: programs as native code for this processor, run by all of its cores together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, final

from lamina.base.shapes import Array, DType
from lamina.engines import machine_memory
from lamina.engines.cpu import llvm
from lamina.engines.cpu.compilation import writer
from lamina.engines.cpu.processor import host
from lamina.engines.cpu.run.executable import CpuProgram
from lamina.engines.cpu.target import CPU
from lamina.engines.engine import Arena, Changes, Device, Grouping, Members, Memory, Peaks
from lamina.engines.host import HostEngine, host_arena
from lamina.program.program import Program
from lamina.program.target import Target

if TYPE_CHECKING:
    from lamina.engines.cpu.run.members import CpuMembers
    from lamina.engines.simd.decide.schedule import ProgramSchedule


# The first orders of a process, up to so many examples together, are made in NumPy.
_MANY_EXAMPLES = 1 << 14


@final
class CpuEngine(HostEngine):
    """Compiles programs for the processor on which it runs."""

    # The examples of all orders that were asked for.
    _ordered: ClassVar[int] = 0

    def __init__(self) -> None:
        self.processor = host()
        self.changes = Changes()

    def __reduce__(self) -> tuple[type[CpuEngine], tuple[()]]:
        # The machine that unpickles it may have another processor.
        return CpuEngine, ()

    @property
    def device(self) -> Device:
        processor = self.processor
        text = f"{processor.description}, {processor.threads} threads, {processor.vectors}"
        if processor.refusal:
            text += f" (the system refuses the tile registers of AMX: {processor.refusal})"
        return Device(
            "cpu",
            text,
            machine_memory.physical_bytes(),
            name=processor.description,
            compute_units=processor.threads,
            has_bfloat16=processor.bfloat16_pairs,
            has_float16=False,
            has_float64=True,
            shares_memory=True,
        )

    @property
    def target(self) -> Target:
        return CPU

    def compile(
        self,
        program: Program,
        memories: Mapping[str, Memory],
        arena: Arena | None = None,
        *,
        timed: bool = False,
        schedule: ProgramSchedule | None = None,
        members: Members | None = None,
    ) -> CpuProgram | CpuMembers:
        arena, processor = host_arena(arena), self.processor
        if members is None:
            return CpuProgram(program, memories, arena, processor, schedule, timed=timed)
        # Imported only here: few programs have members.
        from lamina.engines.cpu.run.members import CpuMembers

        return CpuMembers(program, memories, arena, processor, members, schedule, timed=timed)

    def grouping(self, program: Program, members: Members) -> Grouping:
        from lamina.engines.cpu.run.members import grouping_of  # few programs have members

        return grouping_of(program, members, self.processor)

    @property
    def languages(self) -> tuple[str, ...]:
        return ("program", "schedule", "llvm", "assembly")

    def listing(self, program: Program, step: int | None, language: str) -> str:
        if language == "program":
            return str(program) if step is None else str(program.steps[step])
        # Imported only here, as in compilation.py.
        from lamina.engines.cpu.native_program import write_llvm
        from lamina.engines.simd.decide.program import decide

        if language == "schedule":
            schedule = decide(program, self.processor)
            return str(schedule) if step is None else schedule.text(step)
        text = write_llvm(program, self.processor, only=step).module.text()
        return text if language == "llvm" else llvm.listing(text, self.processor)

    def permutations(self, count: int, seeds: Array, numbers: Array, stream: int) -> Array:
        CpuEngine._ordered += count * len(seeds)
        if CpuEngine._ordered < _MANY_EXAMPLES:
            return super().permutations(count, seeds, numbers, stream)
        # Imported only here: it takes as long as making so many orders in NumPy.
        from lamina.engines.cpu.run.orders import permutations

        return permutations(count, seeds, numbers, stream, self.processor.threads)

    def workspace_bytes(self, program: Program) -> int:
        return writer()(program, self.processor).layout.total_bytes

    def peaks(self, dtype: DType, *, tf32: bool = False) -> Peaks:
        # Imported only here: only measurements need it.
        from lamina.engines.cpu.run.peaks import measured_peaks

        return measured_peaks(self.processor, dtype)
