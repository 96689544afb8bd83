"""Programs of several members equal the oracle of each member, on the engine under test."""

import numpy as np
import pytest
from harness import compare, run_program
from random_graphs import random_graph
from tolerances import expected_of

from lamina.compiler.members import with_members
from lamina.compiler.pipeline import compile_graph

MEMBERS = 3
SEEDS = [pytest.param(n, marks=pytest.mark.sampled if n >= 12 else ()) for n in range(120)]


def of_member(array, member):
    """The values of a leaf that differ between members; they stay where functions are defined."""
    return array * (1 - 0.01 * member) if array.dtype.kind == "f" else array


@pytest.mark.parametrize("innermost", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_members_equal_their_evaluation(seed, innermost, engine):
    made = random_graph(seed)
    runs = 2 if made.graph.updates else 1
    program = compile_graph(made.graph, batch=1, name="test", target=engine.target)
    inputs = [buffer.name for buffer in program.of_kind("input")]
    shared = {*inputs[::2]}
    extended = with_members(
        *(program, MEMBERS, engine.target, {*inputs} - shared), innermost=innermost
    )
    feeds = [
        {
            name: array if name in shared else of_member(array, member).astype(array.dtype)
            for name, array in made.feeds.items()
        }
        for member in range(MEMBERS)
    ]
    axis = -1 if innermost else 0
    stacked = {
        name: array
        if name in shared
        else np.stack([feed[name] for feed in feeds], axis).reshape(extended.buffers[name].shape)
        for name, array in made.feeds.items()
    }
    outputs, after = run_program(extended, engine, stacked, runs)
    own = extended.buffers
    for member, feed in enumerate(feeds):
        expected = expected_of(made.graph, feed, runs)
        for name, buffer in program.outputs:
            differs = own[buffer].shape != program.buffers[buffer].shape
            got = np.take(outputs[name], member, axis) if differs else outputs[name]
            compare(f"output {name} of member {member}", got, *expected.outputs[name])
        for name, value in after.items():
            compare(
                f"leaf {name} of member {member}",
                np.take(value, member, axis),
                *expected.leaves[name],
            )
