"""A program for several members of a population: one more parallel axis.

Members are networks of one definition whose parameters and states differ. Each buffer that differs
between members gets a dimension for them, and each step that uses one gets an axis. No op has a
rule for it, and the sums of a member have the same terms as in its own program.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from lamina.compiler.memory import plan_memory
from lamina.program.check import verify
from lamina.program.index import Axis, Index, axis_index
from lamina.program.program import Buffer, Program
from lamina.program.rewrite import Rewrite
from lamina.program.scalar import Apply, Local, Scalar, loads
from lamina.program.steps import Loop, Reduce, Stage, Step, reads_of, writes_of
from lamina.program.target import Target

# The name of the axis. Names of axes are short texts that the compiler makes; none has a space.
MEMBER = "of members"


def with_members(
    program: Program,
    members: int,
    target: Target,
    own_inputs: Collection[str] = (),
    *,
    innermost: bool = False,
    padding: int = 1,
) -> Program:
    """The program of `members` members at once.

    Args:
        program: the program of one member.
        members: their number.
        target: the target for which the program was compiled.
        own_inputs: the inputs that differ between members; the others are shared.
        innermost: whether members are the last dimension of buffers, so that those of one element
            are neighbours. They are the first dimension otherwise; that of inputs is the batch.
        padding: the bytes of which the distance between two members is a multiple, in memory
            outside of the program, if they are not the last dimension.
    """
    axis = Axis(MEMBER, members)
    own = differing(program, own_inputs)
    sizes = {name: program.buffers[name].size for name in own}
    for kind in ("parameter", "state"):
        for buffer in program.of_kind(kind):
            multiple = 1 if innermost else max(padding // buffer.dtype.itemsize, 1)
            sizes[buffer.name] = -(-buffer.size // multiple) * multiple

    def place(buffer: str, index: Index) -> Index:
        if buffer not in own:
            return index
        if innermost:
            return index * members + axis_index(axis)
        return index + axis_index(axis) * sizes[buffer]

    rewrite = Rewrite(place=place)

    def extended(step: Step) -> Step:
        if writes_of(step).isdisjoint(own):
            return step
        new = rewrite.record(step)
        if innermost and isinstance(new, Loop):
            new = _in_parts(new)
        name = "axes" if isinstance(new, Loop) else "batch"
        axes: tuple[Axis, ...] = getattr(new, name)
        if innermost and not isinstance(new, Loop):
            # Their strides are those of one member.
            new = replace(new, left_windows=(), right_windows=())
        return replace(new, **{name: (*axes, axis) if innermost else (axis, *axes)})

    def of_members(buffer: Buffer) -> Buffer:
        if buffer.name not in own:
            return buffer
        first, *rest = buffer.shape or (1,)
        if innermost:
            shape = (*buffer.shape, members)
        elif buffer.kind == "input":
            shape = (members * first, *rest)
        elif sizes[buffer.name] != buffer.size:
            shape = (members, sizes[buffer.name])
        else:
            shape = (members, *buffer.shape)
        return replace(buffer, shape=shape)

    buffers = {name: of_members(buffer) for name, buffer in program.buffers.items()}
    steps = tuple(map(extended, program.steps))
    copies = {name for step in steps[: program.prepared] for name in writes_of(step)}
    plan = plan_memory(
        *(buffers, steps, [*(buffer for _, buffer in program.outputs), *copies], program.repeats),
        alignment=target.alignment_bytes,
        largest_block=target.largest_block_bytes,
    )
    extended_program = replace(program, buffers=buffers, steps=steps, plan=plan)
    verify(extended_program)
    return extended_program


# The numbers of parts of a sum in lanes.
_PARTS = range(2, 9)


def _in_parts(loop: Loop) -> Loop:
    """The loop with each sum in several parts, which do not wait for each other's additions."""
    stages: list[Stage] = []
    totals: dict[str, Scalar] = {}
    written = writes_of(loop)
    for stage in loop.stages:
        new = Rewrite(locals=totals).record(stage) if totals else stage
        # Of a loop in place, it would not be seen that a point reads its own elements only.
        if (
            not isinstance(new, Reduce)
            or new.combine != "sum"
            or not new.dtype.is_float
            or any(load.buffer in written for load in loads(new.value))
        ):
            stages.append(new)
            continue
        divided = [
            (count, axis) for axis in new.axes for count in _PARTS if axis.extent % count == 0
        ]
        count, divided_axis = max(divided, key=lambda pair: pair[0], default=(1, None))
        if divided_axis is None:
            stages.append(new)
            continue
        axis = Axis(divided_axis.name, divided_axis.extent // count)
        parts = [
            replace(
                new,
                local=f"{new.local}_part{number}",
                axes=tuple(axis if one == divided_axis else one for one in new.axes),
                value=Rewrite({divided_axis: axis_index(axis) * count + number}).scalar(new.value),
            )
            for number in range(count)
        ]
        stages += parts
        sums: list[Scalar] = [Local(part.local, part.dtype) for part in parts]
        while len(sums) > 1:
            pairs = zip(sums[::2], sums[1::2], strict=False)
            added = [Apply("add", pair, new.dtype) for pair in pairs]
            sums = [*added, *sums[2 * len(added) :]]
        (totals[new.local],) = sums
    return replace(loop, stages=tuple(stages))


def differing(program: Program, own_inputs: Collection[str]) -> frozenset[str]:
    """The buffers that differ between members: those that depend on parameters or states."""
    outside = (buffer.name for kind in ("parameter", "state") for buffer in program.of_kind(kind))
    own = {*own_inputs, *outside}
    before = -1
    # A repeat may read in a step what a later step writes.
    while before != len(own):
        before = len(own)
        for step in program.steps:
            written = writes_of(step)
            if not own.isdisjoint(reads_of(step) | written):
                own |= written
    return frozenset(own)
