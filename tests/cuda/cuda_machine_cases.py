"""Runs snippets of PTX on the machine in tests/cuda_machine."""

import numpy as np

from cuda_machine.machine import Machine
from cuda_machine.memory import Memory
from cuda_machine.ptx import parse

HEADER = ".version 8.5\n.target {target}\n.address_size 64\n"


class Bench:
    """A machine with the arrays of a kernel."""

    def __init__(self, text):
        self.memory = Memory(1 << 26)
        self.machine = Machine(self.memory)
        self.loaded = self.machine.load(parse(text))

    def array(self, values):
        """The address of a copy of an array."""
        address = self.memory.allocate(values.nbytes)
        self.memory.write(address, values.tobytes())
        return address

    def read(self, address, like):
        """An array of the device."""
        data = self.memory.read(address, like.nbytes)
        return np.frombuffer(data, like.dtype).reshape(like.shape).copy()

    def launch(self, name, blocks, threads, *parameters, is_early=False):
        """Launches a kernel; an int is a 64-bit address, others are arrays."""
        data = [
            parameter.to_bytes(8, "little") if isinstance(parameter, int) else parameter.tobytes()
            for parameter in parameters
        ]
        launched = self.loaded.kernels[name], (blocks, 1, 1), (threads, 1, 1), data
        self.machine.launch(*launched, is_early=is_early)


def kernel(body, parameters=(), *, target="sm_80", before=""):
    """The PTX text of a kernel `k`, with each statement in its own line."""
    body = body.replace("; ", ";\n").replace(": ", ":\n")
    listed = ", ".join(f".param .{type} p{number}" for number, type in enumerate(parameters))
    return f"{HEADER.format(target=target)}{before}\n.visible .entry k({listed})\n{{\n{body}\n}}\n"


def calculate(code, values, *, target="sm_80", threads=128):
    """What instructions make of integers: the code reads a and writes d, of 32 bits.

    It may use predicates p and q, and x and y of 32, h and l of 16 bits.
    """
    body = f""".reg .pred p, q; .reg .b32 a, d, i, x, y; .reg .b16 h, l; .reg .b64 at, to;
        mov.u32 i, %tid.x; setp.ge.u32 p, i, {len(values)}; @p exit; ld.param.u64 to, [p0];
        mad.wide.u32 at, i, 4, to; ld.global.u32 a, [at]; {code}
        ld.param.u64 to, [p1]; mad.wide.u32 at, i, 4, to; st.global.u32 [at], d;"""
    bench = Bench(kernel(body, ["u64", "u64"], target=target))
    addresses = [bench.array(array) for array in (values, np.zeros_like(values))]
    bench.launch("k", 1, threads, *addresses)
    return bench.read(addresses[1], values)
