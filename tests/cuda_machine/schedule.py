"""Runs the lanes of a program: those with the lowest block of instructions are run next.

Lanes that diverge wait in `_pending`, by the number of the block where they continue. As the lowest
number is run first, lanes that skip code wait for those that run it, and join them after it.
"""

from collections import defaultdict

import numpy as np

from cuda_machine.program import Registers


class Schedule:
    """The state of a run: which lanes wait where."""

    def __init__(self, lanes):
        self.program, self.lanes = lanes.launch.program, lanes
        self._pending = defaultdict(list, {0: [None]})
        # Lanes that wait for others of their warp, by block of instructions.
        self._parked = {}
        # Lanes that wait at a barrier, with the block that it ends.
        self._waiting = []
        self._retried = 0
        self.registers = Registers(self.program.registers, lanes.count)

    def run(self):
        """Runs all lanes to their end."""
        registers = self.registers
        pending, codes, blocks = self._pending, self.program.codes, self.program.blocks
        while pending or self._waiting or self._parked:
            if not pending:
                self._resolve()
                continue
            following = min(pending)
            idx = self._merged(pending.pop(following))
            lowest = min(pending, default=len(blocks))
            while following is not None:
                number = following
                if blocks[number].together:
                    idx, some = self._together(number, idx)
                    if not some:
                        break
                n = self.lanes.count if idx is None else len(idx)
                try:
                    result = codes[number](self.lanes, registers, idx, n)
                except (TypeError, AttributeError):
                    for register in blocks[number].live_in:
                        if registers[self.program.names.index(register.name)] is None:
                            self.lanes.line = blocks[number].all()[0].line
                            what = f"a read of register {register.name}, which is not written"
                            self.lanes.fault(what)
                    raise
                following = self._following(number, result, idx, n)
                if following is not None and following >= lowest:
                    pending[following].append(idx)
                    break

    def _merged(self, groups):
        """The lanes of all groups in ascending order; None if these are all lanes."""
        if len(groups) == 1:
            return groups[0]
        lanes = np.sort(np.concatenate([group for group in groups if group is not None]))
        return None if len(lanes) == self.lanes.count else lanes

    def _following(self, number, result, idx, n):
        """Ends a block; gives the next one if all its lanes continue there."""
        lanes, block = self.lanes, self.program.blocks[number]
        if block.kind == "exit":
            # A kernel that has ended must imply that all earlier ones have.
            lanes.line = block.last.line if block.last else 0
            lanes.require_wait("the end of a thread", idx)
            ended = slice(None) if idx is None else idx
            lanes.exited[ended] = True
            lanes.live -= np.bincount(lanes.block_of_lane[ended], minlength=len(lanes.live))
            lanes.exits += 1
            return None
        if block.kind == "barrier" and idx is not None:
            self._waiting.append((number, idx))
            return None
        if block.kind == "barrier":
            # All threads of all blocks are here.
            lanes.pass_barrier(None)
        if result is None:
            return block.successors[0]
        taken = int(np.count_nonzero(result))
        if taken in (0, n):
            return block.successors[0 if taken else 1]
        for successor, chosen in zip(block.successors, (result, ~result), strict=True):
            some = np.flatnonzero(chosen) if idx is None else idx[chosen]
            self._pending[successor].append(some)
        return None

    def _together(self, number, idx):
        """The lanes whose whole warps are here, and whether there are any; others are parked."""
        lanes = self.lanes
        parked = self._parked.pop(number, None)
        if parked is not None:
            idx = self._merged([idx, parked])
        if idx is None and lanes.threads % 32 == 0:
            return None, True
        here = np.arange(lanes.count) if idx is None else idx
        warp = lanes.warp_of_lane[here]
        if (absent := lanes.in_warps(~lanes.exited)[warp] != 32).any():
            lanes.line = self.program.blocks[number].all()[0].line
            lanes.fault_where("an instruction of a whole warp without some threads, which have "
                              "exited or do not exist", absent, here)  # fmt: skip
        ready = lanes.in_warps(here)[warp] == 32
        if not ready.all():
            self._parked[number] = here[~ready]
        return here[ready], bool(ready.any())

    def _resolve(self):
        """No lane can run on: lets those at complete barriers pass."""
        self._pass()
        if not self._pending and self._parked and self._retried != self.lanes.exits:
            # Lanes for which they wait may have exited.
            self._retried = self.lanes.exits
            for number, idx in self._parked.items():
                self._pending[number].append(idx)
            self._parked.clear()
        if not self._pending:
            self._deadlock()

    def _deadlock(self):
        lanes, blocks = self.lanes, self.program.blocks
        stops = [(blocks[number].all()[-1].line, idx) for number, idx in self._waiting]
        stops += [(blocks[number].all()[0].line, idx) for number, idx in self._parked.items()]
        lanes.line, (lane, *_) = stops[0]
        block = int(lanes.block_of_lane[lane])
        told = []
        for at, idx in stops:
            waiting = idx[lanes.block_of_lane[idx] == block]
            if len(waiting):
                told.append(f"{len(waiting)} wait in line {at}: {lanes.launch.program.lines[at]}")
        what = f"a divergent barrier: of {int(lanes.live[block])} threads that have not exited, "
        lanes.fault(what + ", ".join(told), int(lane))

    def _pass(self):
        lanes, count = self.lanes, len(self.lanes.blocks)
        arrived = np.zeros(count, np.int64)
        for _, idx in self._waiting:
            arrived += np.bincount(lanes.block_of_lane[idx], minlength=count)
        complete = (arrived > 0) & (arrived == lanes.live)
        if not complete.any():
            return
        passing = []
        left = []
        for number, idx in self._waiting:
            goes = complete[lanes.block_of_lane[idx]]
            passing += [(number, idx[goes])] if goes.any() else []
            left += [(number, idx[~goes])] if not goes.all() else []
        self._waiting = left
        self._check_converged(passing)
        everyone = complete[lanes.live > 0].all()
        lanes.pass_barrier(None if everyone else np.flatnonzero(complete))
        for number, idx in passing:
            (successor,) = self.program.blocks[number].successors
            self._pending[successor].append(None if len(idx) == lanes.count else idx)

    def _check_converged(self, passing):
        """PTX ISA, barrier: with .aligned, all threads of a warp execute the same instruction."""
        lanes, blocks = self.lanes, self.program.blocks
        numbers = np.zeros(lanes.warps * len(lanes.blocks), np.int64)
        for number, idx in passing:
            numbers[lanes.warp_of_lane[idx]] = number
        for number, idx in passing:
            others = numbers[lanes.warp_of_lane[idx]]
            bad, barrier = others != number, blocks[number].all()[-1]
            if bad.any() and (barrier.name == "bar" or "aligned" in barrier.modifiers):
                other = blocks[int(others[bad.argmax()])].all()[-1]
                what = f"threads of one warp wait in line {other.line}: {other.text}"
                lanes.line = barrier.line
                lanes.fault_where(f"a divergent barrier: {what}", bad, idx)
