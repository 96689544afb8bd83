"""A program as kernels in a language like C.

A work item computes a point of a loop, or a register tile of a contraction. Steps of equal
signature share their kernels, which are written for a step with numbers for buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, final

from lamina.base.shapes import uint8
from lamina.codegen.c import Function, Module
from lamina.codegen.signatures import Signatures
from lamina.codegen.words import Words
from lamina.engines.gpu.chain_tiles import chain_kernel
from lamina.engines.gpu.contractions import contraction_kernel
from lamina.engines.gpu.gather import rounding_steps, write_gather, write_recorder
from lamina.engines.gpu.launches import Launch, Launches, RepeatedLaunches, Traits, Workspace
from lamina.engines.gpu.loops import loop_kernel, row_kernel
from lamina.engines.gpu.matrix_tiles import matrix_kernel
from lamina.engines.gpu.passes import passes_of, without_epilogue
from lamina.engines.gpu.phases import Joined, Phase, extra_clocks, joined_launches, write_phases
from lamina.engines.gpu.plain_products import plain_product
from lamina.engines.gpu.scans import scan_kernel
from lamina.engines.gpu.schedule import (
    ChainSchedule,
    ContractionSchedule,
    KernelSchedule,
    LibrarySchedule,
    LoopSchedule,
    MatrixSchedule,
    ProgramSchedule,
    RowSchedule,
    ScanSchedule,
    SortSchedule,
    StepSchedule,
    TiledSchedule,
    TreeSchedule,
)
from lamina.engines.gpu.sort import sort_kernel
from lamina.engines.gpu.tiles import tiled_kernel
from lamina.engines.gpu.trees import tree_kernel
from lamina.engines.gpu.work_item import Body, StepSignature, write_kernel
from lamina.engines.gpu.workspaces import StepWorkspaces
from lamina.program.cost import cost_of
from lamina.program.index import Axis
from lamina.program.program import Buffer, Program
from lamina.program.steps import Contraction, Step

_KERNELS: dict[type, Callable[[Any], Body]] = {
    LoopSchedule: loop_kernel,
    RowSchedule: row_kernel,
    SortSchedule: sort_kernel,
    ScanSchedule: scan_kernel,
    ContractionSchedule: contraction_kernel,
    TiledSchedule: tiled_kernel,
    TreeSchedule: tree_kernel,
    MatrixSchedule: matrix_kernel,
    ChainSchedule: chain_kernel,
}


def write_kernels(
    program: Program,
    schedule: ProgramSchedule,
    traits: Traits,
    words: Words,
    *,
    separate: bool = False,
) -> Launches:
    """Writes the kernels of a program; if `separate`, none runs several steps."""
    writer = _Writer(program, module_for(traits, words), traits)
    # The launches of the steps that a run may omit, and of all others.
    load: list[Launch] = []
    launches: list[Launch] = []
    repeats: list[RepeatedLaunches] = []
    first = 0
    for number, step in enumerate(program.steps):
        repeat = program.repeated(number)
        if repeat is not None and repeat.first == number:
            first = len(launches)
        iteration = repeat.axis if repeat is not None else None
        step_launches = writer.launches(number, step, schedule.steps[number], iteration)
        (load if number < program.prepared else launches).extend(step_launches)
        if repeat is not None and repeat.last == number + 1 and first < len(launches):
            repeats.append(RepeatedLaunches(first, len(launches), repeat.axis.extent))
    # Steps that only round an input are done while it is gathered, unless they are timed.
    rounding = rounding_steps(program) if traits.counts_runs and not separate else {}
    alone = {
        number: [launch for launch in launches if launch.step == number]
        for number in rounding.values()
    }
    if words.groups is not None and words.groups.phase and not separate:
        launches, repeats = writer.joined(program, launches, repeats)
        writer.module.keep_kernels({launch.kernel for launch in (*load, *launches)})
    rounding = {
        name: number
        for name, number in rounding.items()
        if [launch for launch in launches if launch.step == number] == alone[number]
    }
    gather = write_gather(writer.module, program, rounding, counted=traits.counts_runs)
    recorder = write_recorder(writer.module, program) if traits.counts_runs else None
    return Launches(
        *(writer.module.text(), tuple(launches), tuple(repeats), gather, writer.workspaces),
        load=tuple(load),
        recorder=recorder,
    )


def module_for(traits: Traits, words: Words) -> Module:
    """An empty text of kernels for a device, in the words of its language."""
    return Module(
        words,
        fused=traits.fused,
        doubles=traits.has_float64,
        exact_division=traits.exact_division,
        rounds_to_bfloat16=traits.rounds_to_bfloat16,
        most_iterations=traits.most_iterations,
    )


@final
class _Writer:
    """Writes the steps of a program, each signature once."""

    def __init__(self, program: Program, module: Module, traits: Traits) -> None:
        self.module = module
        self.workspaces: dict[str, Workspace] = {}
        self._signatures = Signatures(program)
        self._traits = traits
        # The name of each kernel, and the number of its work items; and the other way round.
        self._written: dict[StepSignature, tuple[str, int]] = {}
        self._signature_of: dict[str, StepSignature] = {}
        self._phases: dict[str, Function] = {}

    def launches(
        self, number: int, step: Step, decided: StepSchedule, iteration: Axis | None
    ) -> list[Launch]:
        """The launches that run a step."""
        if isinstance(decided, LibrarySchedule):
            return self._library(number, step, decided, iteration)
        workspaces, name = StepWorkspaces(step.name), f"step{number}"
        passes = passes_of(step, decided, workspaces)
        self.workspaces |= workspaces_in_blocks(workspaces.made, self._traits)
        launches: list[Launch] = []
        for share, (steps, schedule) in enumerate(passes):
            kernel = name if schedule is decided else f"{name}_{share}"
            launches += self._launches(number, kernel, steps, schedule, iteration, workspaces.made)
        return launches

    def _library(
        self, number: int, step: Step, decided: LibrarySchedule, iteration: Axis | None
    ) -> list[Launch]:
        """The call of a library that runs a contraction, and the kernel for its epilogue."""
        assert isinstance(step, Contraction)
        workspaces = StepWorkspaces(step.name)
        sums, epilogue = step, None
        if decided.epilogue is not None:
            sums, epilogue = without_epilogue(step, workspaces)
        algorithm = decided.algorithm
        size = algorithm.workspace_bytes
        workspace = workspaces.add(size, uint8) if size else ""
        self.workspaces |= workspaces_in_blocks(workspaces.made, self._traits)
        plain = plain_product(sums)
        assert plain is not None
        assert plain.product == decided.product
        results = plain.product.batch * plain.product.result.rows * plain.product.result.columns
        name, buffers = f"step{number}_product", (*plain.buffers, workspace)
        launches = [
            Launch(name, buffers, results, number, product=plain.product, algorithm=algorithm)
        ]
        if epilogue is not None and decided.epilogue is not None:
            launches += self._launches(
                *(number, f"step{number}", [epilogue], decided.epilogue, iteration), workspaces.made
            )
        return launches

    def _launches(
        self,
        number: int,
        name: str,
        steps: Sequence[Step],
        decided: KernelSchedule,
        iteration: Axis | None,
        workspaces: Sequence[Buffer],
    ) -> list[Launch]:
        signature, used = self._signatures.of(steps, decided, iteration, workspaces)
        if signature not in self._written:
            body = _KERNELS[type(decided)](signature)
            self._written[signature] = name, write_kernel(self.module, name, signature, body)
            self._signature_of[name] = signature
        name, items = self._written[signature]
        local = decided.launched_bytes
        return (
            [Launch(name, used, items, number, decided.group, local_bytes=local)] if items else []
        )

    def joined(
        self, program: Program, launches: Sequence[Launch], repeats: Sequence[RepeatedLaunches]
    ) -> tuple[list[Launch], list[RepeatedLaunches]]:
        """The launches of a program, small ones as the phases of a kernel, and its repeats."""
        extra = [self._extra_clocks(program, launch) for launch in launches]
        new_launches: list[Launch] = []
        # Where each launch is now.
        now: list[int] = []
        begins = {merged.first: merged for merged in joined_launches(launches, extra, repeats)}
        within = set[RepeatedLaunches]()
        while len(now) < len(launches):
            joined = begins.get(len(now))
            first, last = len(now), len(now) + 1
            if joined is None:
                new_launches.append(launches[first])
            else:
                last = joined.last
                within.update(joined.loops)
                new_launches.append(self._phases_of(launches[first:last], joined, repeats))
            now += [len(new_launches) - 1] * (last - first)
        kept = [
            RepeatedLaunches(now[repeat.first], now[repeat.last - 1] + 1, repeat.count)
            for repeat in repeats
            if repeat not in within
        ]
        return new_launches, kept

    def _extra_clocks(self, program: Program, launch: Launch) -> float | None:
        if launch.product is not None:
            return None
        cost = cost_of(program.steps[launch.step], program.buffers)
        decided = self._signature_of[launch.kernel].decided
        return extra_clocks(launch, decided, cost, self._traits.rates)

    def _phases_of(
        self, launches: Sequence[Launch], joined: Joined, repeats: Sequence[RepeatedLaunches]
    ) -> Launch:
        """Launches as the phases of one kernel, which is written."""
        loops = [
            RepeatedLaunches(loop.first - joined.first, loop.last - joined.first, loop.count)
            for loop in joined.loops
        ]
        around = (repeat for repeat in repeats if repeat.first <= joined.first < repeat.last)
        return write_phases(
            *(self.module, f"{launches[0].kernel}_joined_{joined.first}"),
            [self._phase(launch) for launch in launches],
            *(loops, self._traits.launched_local_bytes),
            is_repeated=any(repeat not in joined.loops for repeat in around),
        )

    def _phase(self, launch: Launch) -> Phase:
        name, signature = launch.kernel, self._signature_of[launch.kernel]
        if name not in self._phases:
            body, phase = _KERNELS[type(signature.decided)](signature), f"{name}_phase"
            write_kernel(self.module, phase, replace(signature, is_phase=True), body)
            self._phases[name] = self.module.functions[-1]
        return Phase(launch, self._phases[name], signature.iteration is not None)


def workspaces_in_blocks(buffers: Sequence[Buffer], traits: Traits) -> dict[str, Workspace]:
    """The workspaces of a step, one after the other in blocks.

    Steps run one after the other, so each step's workspaces begin at the first block.
    """
    workspaces: dict[str, Workspace] = {}
    block = start = 0
    for buffer in buffers:
        size = max(buffer.bytes, 1)
        if start and start + size > traits.block_bytes:
            block, start = block + 1, 0
        workspaces[buffer.name] = Workspace(start, size, block)
        start += -(-size // traits.alignment_bytes) * traits.alignment_bytes
    return workspaces
