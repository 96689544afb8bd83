"""Stands in for the machine until it is there: a few kernels by name, in Python."""

import itertools
import re
import struct
import sys
import types
from dataclasses import dataclass

pkg = "cuda_machine"


def module(name):
    m = types.ModuleType(f"{pkg}.{name}")
    sys.modules[m.__name__] = m
    return m


class Fault(Exception):
    pass


class OutOfMemory(Exception):
    pass


bases = itertools.count(0x7000_0000_0000, 0x10_0000_0000)


class Memory:
    def __init__(self, size):
        self.size = size
        self.base = next(bases)
        self.next = self.base
        self.blocks = {}

    @property
    def used(self):
        return sum(len(b) for b in self.blocks.values())

    def allocate(self, size):
        if self.used + size > self.size:
            raise OutOfMemory(size)
        a = self.next
        self.next += -(-size // 256) * 256
        self.blocks[a] = bytearray(size)
        return a

    def free(self, a):
        del self.blocks[a]

    def find(self, a, n):
        for b, d in self.blocks.items():
            if b <= a and a + n <= b + len(d):
                return d, a - b
        raise Fault(f"illegal address {a:#x}")

    def read(self, a, n):
        d, o = self.find(a, n)
        return bytes(d[o : o + n])

    def write(self, a, v):
        d, o = self.find(a, len(v))
        d[o : o + len(v)] = v


@dataclass
class Parameter:
    size: int


@dataclass
class Kernel:
    name: str
    parameters: tuple
    shared_bytes: int
    limits: object


@dataclass
class Module:
    target: str
    kernels: dict


SIZES = {"u64": 8, "u32": 4, "f32": 4, "b8": 8}


def parse(text):
    target = re.search(r"\.target (\w+)", text)[1]
    kernels = {}
    for m in re.finditer(r"\.entry (\w+)\((.*?)\)(.*?)\n\{(.*?)\n\}", text, re.S):
        ps = tuple(
            Parameter(SIZES[t])
            for t in re.findall(r"\.param .*?\.(u64|u32|f32|b8) (?:\w+)(?:\[8\])?", m[2])
        )
        dims = {
            k: tuple(map(int, d.split(", ")))
            for k, d in re.findall(r"\.(maxntid|reqntid) ([\d, ]+)", m[3])
        }
        sh = sum(int(s) for s in re.findall(r"\.shared .*?\[(\d+)\];", m[4]))
        kernels[m[1]] = Kernel(
            m[1],
            ps,
            sh,
            types.SimpleNamespace(maxntid=dims.get("maxntid"), reqntid=dims.get("reqntid")),
        )
    return Module(target, kernels)


@dataclass
class Counts:
    instructions: int


class Machine:
    def __init__(self, memory, *, multiprocessors=4):
        self.memory = memory

    def load(self, module):
        return module

    def launch(self, kernel, grid, block, p, *, shared_bytes=0):
        m = self.memory
        v = [int.from_bytes(x, "little") for x in p]
        if kernel.name == "set_value":
            m.write(v[0], p[1])
        elif kernel.name == "add_value":
            (o,) = struct.unpack("<i", m.read(v[0], 4))
            m.write(v[0], struct.pack("<i", o + v[1]))
        elif kernel.name == "set_pair":
            m.write(v[0], p[1])
        elif kernel.name in ("bounded", "shared"):
            pass
        elif kernel.name == "copy_value":
            m.write(v[0], m.read(v[1], 4))
        elif kernel.name == "race":
            raise Fault("race")
        else:
            raise NotImplementedError(kernel.name)
        return Counts(10)


module("faults").Fault = Fault
mm = module("memory")
mm.Memory = Memory
mm.OutOfMemory = OutOfMemory
pp = module("ptx")
pp.parse = parse
module("machine").Machine = Machine
