"""Programs as bytes: decoding returns an equal program, and refuses damaged bytes."""

import json
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from program_cases import program_of

import lamina as lm
from lamina.base.shapes import float32, float64
from lamina.engines import DEFAULT_TARGET
from lamina.errors import FileFormatError, InternalError
from lamina.graph import leaf
from lamina.program.encoding import checksum, decode, encode
from lamina.program.scalar import Literal
from lamina.program.steps import Loop, Write

LENGTH_BYTES = 8


def training(net):
    return net.plan(4, lm.CrossEntropy(), lm.Adam(1e-3)).program


def with_constants():
    x = lm.Input(3)
    table = np.arange(6, dtype="float32").reshape(3, 2)
    flags = np.array([True, False, True])
    y = lm.ops.matmul(x, lm.ops.constant(table))
    return program_of([y, lm.ops.where(lm.ops.constant(flags), x, -0.0)])


def in_blocks():
    """Its temporaries are in several blocks."""
    y = lm.ops.cumsum(leaf("x", "input", (1000,), float64), 0)
    target = replace(DEFAULT_TARGET, largest_block_bytes=8192)
    return program_of([y, lm.ops.cumsum(y * y, 0)], target=target)


PROGRAMS = {
    "layers": lambda: training(
        lm.Sequential(lm.Input(9), lm.Linear(20), lm.BatchNorm(), lm.Dropout(0.5), lm.Linear(4))
    ),
    "windows": lambda: training(
        lm.Sequential(
            *(lm.Input(2, 9, 9), lm.Conv2d(5, 3, stride=2, padding=1), lm.MaxPool2d(2)),
            *(lm.Flatten(), lm.Linear(4)),
        )
    ),
    "recurrent": lambda: training(lm.networks.lstm_classifier(3, 7, inputs=2, features=8)),
    "indices": lambda: training(
        lm.networks.transformer_encoder(11, 6, 8, heads=2, layers=1, hidden=16, classes=3)
    ),
    "constants": with_constants,
    "blocks": in_blocks,
}


@pytest.fixture(params=PROGRAMS)
def program(request):
    return PROGRAMS[request.param]()


def test_decoding_returns_the_same_program(program):
    decoded = decode(encode(program))
    assert str(decoded) == str(program)
    assert replace(decoded, constants={}) == replace(program, constants={})
    assert list(decoded.buffers) == list(program.buffers)
    assert decoded.constants.keys() == program.constants.keys()
    for name, value in program.constants.items():
        assert decoded.constants[name].dtype == value.dtype
        np.testing.assert_array_equal(decoded.constants[name], value)


def test_equal_programs_have_equal_bytes_after_decoding_too(program):
    data = encode(program)
    assert encode(decode(data)) == data
    assert checksum(decode(data)) == checksum(program) != checksum(replace(program, name="other"))


@pytest.mark.parametrize("value", [0.0, -0.0, 1, 1.0, True, float("nan"), float("inf"), 1e-45])
def test_literals_are_decoded_exactly(value):
    program = with_constants()
    loop = next(step for step in program.steps if isinstance(step, Loop))
    write = next(stage for stage in loop.stages if isinstance(stage, Write))
    store = replace(write.stores[0], value=Literal(value, float32))
    changed = replace(loop, stages=(replace(write, stores=(store,)),))
    decoded = decode(encode(replace(program, steps=(*program.steps[:-1], changed))))
    (step,) = decoded.steps[-1:]
    assert step == changed


def test_values_of_other_types_are_refused(program):
    with pytest.raises(InternalError, match="a program has no object in it"):
        encode(replace(program, outputs=((object(), "y"),)))


def rows_of(program):
    data = encode(program)
    return json.loads(data[LENGTH_BYTES : LENGTH_BYTES + int.from_bytes(data[:8], "little")])


def with_rows(rows):
    text = json.dumps(rows).encode()
    return len(text).to_bytes(LENGTH_BYTES, "little") + text


def test_bytes_of_another_length_are_refused():
    for make in (PROGRAMS["layers"], with_constants):
        data = encode(make())
        lengths = [*range(0, len(data), 97), len(data) - 1]
        for damaged in (*(data[:length] for length in lengths), data + b"x"):
            with pytest.raises(FileFormatError, match="this is not a program"):
                decode(damaged)


def test_rows_of_unknown_kinds_are_refused():
    rows = rows_of(PROGRAMS["layers"]())
    assert with_rows(rows) == with_rows(json.loads(json.dumps(rows)))
    decode(with_rows(rows))
    wrong = [
        *([], {}, 3, "program", [[0, 0]], [[0, -1]], [[10**9]], [["os.system", 0]], [[0] * 99]),
        [*rows, [0, -1]],
        [*rows, [0, len(rows) + 1]],
        [*rows, [10**6]],
        [*rows, "text"],
        [{"__class__": "os.system"}, *rows],
        [*rows[:-1], rows[-1][:-1]],
    ]
    for damaged in wrong:
        with pytest.raises(FileFormatError, match="this is not a program"):
            decode(with_rows(damaged))


def test_constants_that_do_not_fill_their_buffers_are_refused():
    program = with_constants()
    name = next(iter(program.constants))
    short = {**program.constants, name: program.constants[name][:1]}
    with pytest.raises(FileFormatError, match="another shape than its buffer"):
        decode(encode(replace(program, constants=short)))


def test_programs_that_reach_outside_their_buffers_are_refused():
    rows = rows_of(PROGRAMS["layers"]())
    refused = 0
    for number, row in enumerate(rows):
        if isinstance(row, int) and not isinstance(row, bool) and row > 1:
            try:
                decode(with_rows([*rows[:number], 1000 * row, *rows[number + 1 :]]))
            except FileFormatError:
                refused += 1
    assert refused > 5


@pytest.mark.parametrize("faults", [1, 3])
@pytest.mark.parametrize("name", ["windows", "blocks"])
def test_damaged_records_are_refused_or_decode_to_a_program_within_its_memory(name, faults):
    rows = rows_of(PROGRAMS[name]())
    generator = np.random.default_rng(0)
    for _ in range(300):
        damaged = [list(row) if isinstance(row, list) else row for row in rows]
        for number in generator.integers(0, len(rows), faults):
            row = damaged[number]
            if isinstance(row, list):
                row[int(generator.integers(len(row)))] = int(generator.integers(len(rows)))
            else:
                others = ["x", -1, 3, 8191, 1.5, True, None, 10**12, 10**30]
                damaged[number] = others[int(generator.integers(len(others)))]
        with suppress(FileFormatError):
            plan = decode(with_rows(damaged)).plan
            for part in plan.allocations:
                assert 0 <= part.offset <= part.offset + part.bytes <= plan.blocks[part.block]
