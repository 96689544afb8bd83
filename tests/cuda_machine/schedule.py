"""Runs the lanes of a program: those with the lowest block of instructions are run next.

Lanes that diverge wait in `_pending`, by the number of the block where they continue. As the lowest
number is run first, lanes that skip code wait for those that run it, and join them after it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cuda_machine.lanes import Integers, Lane, Lanes
from cuda_machine.program import Program, Registers


@dataclass(frozen=True)
class Waiting:
    """Lanes `idx` at a barrier that ends the block `number`.

    If it is aligned, all threads of a warp must execute this same instruction.
    """

    idx: Integers
    number: int
    line: int
    aligned: bool


class Schedule:
    """The state of a run: which lanes wait where."""

    def __init__(self, program: Program, lanes: Lanes) -> None:
        self.program, self.lanes = program, lanes
        self._pending: dict[int, list[Lane]] = {0: [None]}
        # Lanes that wait for others of their warp, by block of instructions.
        self._parked: dict[int, list[Integers]] = {}
        # Lanes that wait at a barrier: where they continue, its line, name, and count of threads.
        self._waiting: list[Waiting] = []
        self._retried = 0
        self.registers = Registers(program.registers, lanes.count)

    def run(self) -> None:
        """Runs all lanes to their end."""
        registers = self.registers
        pending, codes, blocks = self._pending, self.program.codes, self.program.blocks
        count = self.lanes.count
        while pending or self._waiting or self._parked:
            if not pending:
                self._resolve()
                continue
            number = min(pending)
            idx = self._merged(pending.pop(number))
            lowest = min(pending, default=len(blocks))
            while True:
                if blocks[number].together:
                    idx, some = self._together(number, idx)
                    if not some:
                        break
                n = count if idx is None else len(idx)
                try:
                    result = codes[number](self.lanes, registers, idx, n)
                except (TypeError, AttributeError):
                    self._check_written(number, registers)
                    raise
                block = blocks[number]
                if block.kind == "next" or (block.kind == "branch" and result is None):
                    number = block.successors[0]
                elif block.kind == "branch":
                    taken = int(np.count_nonzero(result))
                    if taken == n:
                        number = block.successors[0]
                    elif taken == 0:
                        number = block.successors[1]
                    else:
                        self._push(block.successors[0], result, idx)
                        self._push(block.successors[1], ~result, idx)
                        break
                else:
                    following = self._special(block.kind, number, result, idx)
                    if following is None:
                        break
                    number = following
                if number >= lowest:
                    pending.setdefault(number, []).append(idx)
                    break

    def _push(self, number: int, chosen: Any, idx: Lane) -> None:
        lanes = np.flatnonzero(chosen) if idx is None else idx[chosen]
        if len(lanes):
            self._pending.setdefault(number, []).append(lanes)

    def _merged(self, groups: list[Lane]) -> Lane:
        """The lanes of all groups in ascending order; None if these are all lanes."""
        if len(groups) == 1:
            return groups[0]
        lanes = np.sort(np.concatenate([one for one in groups if one is not None]))
        return None if len(lanes) == self.lanes.count else lanes

    def _check_written(self, number: int, registers: Registers) -> None:
        block = self.program.blocks[number]
        numbers = {name: n for n, name in enumerate(self.program.names)}
        for one in block.live_in:
            if registers[numbers[one.name]] is None:
                first = next(i for i in block.all())
                self.lanes.fault(f"a read of register {one.name}, which is not written", first.line)

    def _special(self, kind: str, number: int, result: Any, idx: Lane) -> int | None:
        """Ends a block that is no branch; gives the next block if all its lanes continue there."""
        lanes, block = self.lanes, self.program.blocks[number]
        assert block.last is not None or kind == "exit"
        if kind == "exit":
            # A kernel that has ended must imply that all earlier ones have.
            lanes.require_wait("the end of a thread", block.last.line if block.last else 0, idx)
            self._exit(idx)
            return None
        assert block.last is not None
        if kind == "trap":
            lanes.fault("a trap", block.last.line, 0 if idx is None else int(idx[0]))
        if kind == "switch":
            if int(result.max()) >= len(block.successors):
                bad = result >= len(block.successors)
                lanes.fault_where("a branch beyond the list of targets", block.last.line, bad, idx)
            for position, successor in enumerate(block.successors):
                self._push(successor, result == position, idx)
            return None
        if idx is None:
            # All threads of all blocks are here.
            lanes.pass_barrier(None)
            return block.successors[0]
        aligned = block.last.name == "bar" or "aligned" in block.last.modifiers
        self._waiting.append(Waiting(idx, number, block.last.line, aligned))
        return None

    def _exit(self, idx: Lane) -> None:
        lanes = self.lanes
        if idx is None:
            lanes.exited[:] = True
            lanes.live[:] = 0
        else:
            lanes.exited[idx] = True
            lanes.live -= np.bincount(lanes.block_of_lane[idx], minlength=len(lanes.live))
        lanes.exits += 1

    # Warps

    def _together(self, number: int, idx: Lane) -> tuple[Lane, bool]:
        """The lanes whose whole warps are here, and whether there are any; others are parked."""
        lanes = self.lanes
        parked = self._parked.pop(number, None)
        if parked is not None:
            idx = self._merged([idx, *parked])
        if idx is None and lanes.threads % 32 == 0:
            return None, True
        here = np.arange(lanes.count) if idx is None else idx
        warp = lanes.warp_of_lane[here]
        if (absent := lanes.in_warps(~lanes.exited)[warp] != 32).any():
            line = self.program.blocks[number].all()[0].line
            lanes.fault_where("an instruction of a whole warp without some threads, which have "
                              "exited or do not exist", line, absent, here)  # fmt: skip
        ready = lanes.in_warps(here)[warp] == 32
        if not ready.all():
            self._parked[number] = [here[~ready]]
        return here[ready], bool(ready.any())

    # Barriers

    def _resolve(self) -> None:
        """No lane can run on: lets those at complete barriers pass."""
        self._pass()
        if self._pending:
            return
        if self._parked and self._retried != self.lanes.exits:
            # Lanes for which they wait may have exited.
            self._retried = self.lanes.exits
            for number, groups in self._parked.items():
                self._pending.setdefault(number, []).extend(groups)
            self._parked.clear()
            return
        self._deadlock()

    def _deadlock(self) -> None:
        lanes = self.lanes
        told: list[str] = []
        stops = [(one.line, one.idx) for one in self._waiting]
        stops += [
            (self.program.blocks[number].all()[0].line, lane)
            for number, groups in self._parked.items()
            for lane in groups
        ]
        block = int(lanes.block_of_lane[stops[0][1][0]])
        for line, idx in stops:
            own = idx[lanes.block_of_lane[idx] == block]
            if len(own):
                told.append(f"{len(own)} wait in line {line}: {lanes.launch.lines[line]}")
        live = int(lanes.live[block])
        lanes.fault(
            f"a divergent barrier: of {live} threads that have not exited, " + ", ".join(told),
            stops[0][0],
            int(stops[0][1][0]),
        )

    def _pass(self) -> None:
        lanes, waiting = self.lanes, self._waiting
        count = len(lanes.blocks)
        arrived = np.zeros(count, np.int64)
        for one in waiting:
            arrived += np.bincount(lanes.block_of_lane[one.idx], minlength=count)
        complete = (arrived > 0) & (arrived == lanes.live)
        if not complete.any():
            return
        passing, left = [], []
        for one in waiting:
            goes = complete[lanes.block_of_lane[one.idx]]
            passing += [replace(one, idx=one.idx[goes])] if goes.any() else []
            left += [replace(one, idx=one.idx[~goes])] if not goes.all() else []
        self._waiting = left
        self._check_converged(passing)
        everyone = complete[lanes.live > 0].all()
        lanes.pass_barrier(None if everyone else np.flatnonzero(complete))
        for one in passing:
            successor = self.program.blocks[one.number].successors[0]
            idx = None if len(one.idx) == lanes.count else one.idx
            self._pending.setdefault(successor, []).append(idx)

    def _check_converged(self, passing: list[Waiting]) -> None:
        """PTX ISA, barrier: with .aligned, all threads of a warp execute the same instruction."""
        if len(passing) < 2:
            return
        lanes = self.lanes
        numbers = np.zeros(lanes.warps * len(lanes.blocks), np.int64)
        for one in passing:
            numbers[lanes.warp_of_lane[one.idx]] = one.number
        for one in passing:
            others = numbers[lanes.warp_of_lane[one.idx]]
            bad = others != one.number
            if one.aligned and bad.any():
                last = self.program.blocks[int(others[bad.argmax()])].last
                assert last is not None
                where = f"in line {last.line}: {last.text}"
                what = f"a divergent barrier: threads of one warp wait {where}"
                lanes.fault_where(what, one.line, bad, one.idx)
