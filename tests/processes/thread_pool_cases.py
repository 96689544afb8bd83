"""Helpers of the tests of the thread pool."""

import ctypes
from contextlib import contextmanager

import numpy as np
from fresh_python import printed

from lamina.codegen.llvm import Module
from lamina.codegen.values import I64, POINTER, constant
from lamina.engines.cpu.compilation import compiled
from lamina.engines.cpu.llvm import load
from lamina.engines.cpu.native.jobs import KERNEL_PARAMETERS, Entry, Kernel, Phase
from lamina.engines.cpu.processor import host
from lamina.engines.cpu.run.thread_pool import Job

ITEMS, ROUNDS = 8, 2000


@contextmanager
def each_item(module, name):
    """A kernel's loop over its items: the function, the table of addresses, and the item."""
    code = module.function(name, KERNEL_PARAMETERS)
    table, _, first, last = code.parameters
    with code.loop(first, last) as loop:
        yield code, table, loop.index


def cell(code, table, buffer, item):
    """The address of an item's cell of a buffer; cells are 8 words apart."""
    start = code.load(code.offset(table, buffer, "ptr"), POINTER)
    return code.offset(start, code.multiply(item, 8), "i64")


def made_job(module, names, kernels, phases, threads, *buffers):
    """The machine code of kernels, and a job that runs them with the buffers in its table."""
    module.export_functions("kernels", list(names))
    library = load(compiled(module.text(), host()), ("kernels",))
    functions = (ctypes.c_uint64 * len(names)).from_address(library.addresses["kernels"])
    table = np.array([buffer.ctypes.data for buffer in buffers], np.uint64)
    entry = Entry(threads, len(functions), tuple(kernels), tuple(phases))
    return library, Job([*functions], entry, table, np.zeros(1, np.int64))


class Counting:
    """A job of two kernels, again and again in two phases.

    `count` adds one to each item's cell, `sum` adds all cells to each item's sum.
    """

    def __init__(self, threads, rounds=ROUNDS, *, shared=True):
        self.cells, self.sums = (np.zeros((ITEMS, 8), np.int64) for _ in range(2))
        self.threads, self.rounds = threads, rounds
        module = Module(fused=False)
        with each_item(module, "count") as (code, table, item):
            address = cell(code, table, 0, item)
            code.store(code.add(code.load(address, I64), 1), address)
        with each_item(module, "sum") as (code, table, item):
            each = code.begin_loop(0, ITEMS, 1, [constant(0, I64)])
            value = code.load(cell(code, table, 0, each.index), I64)
            (total,) = code.end_loop(each, [code.add(each.carried[0], value)])
            address = cell(code, table, 1, item)
            code.store(code.add(code.load(address, I64), total), address)
        count = min(threads, ITEMS)
        kernels = [Kernel(number, 0, ITEMS, -(-ITEMS // count), count, 0) for number in (0, 1)]
        phases = [Phase(0, 1, shared), Phase(1, 2, shared, back=0, iterations=rounds)]
        buffers = (self.cells, self.sums)
        self.library, self.job = made_job(
            module, ("count", "sum"), kernels, phases, threads, *buffers
        )

    def run(self, pool):
        assert pool.run(self.job)

    def check(self, runs=1):
        count = runs * self.rounds
        assert (self.cells[:, 0] == count).all()
        assert (self.sums[:, 0] == ITEMS * count * (count + 1) // 2).all()


COMMON = """
import os, sys, threading, time
import numpy as np
import lamina as lm
net = lm.Sequential(lm.Input(300), lm.Linear(200), lm.ReLU(), lm.Linear(5))
model = lm.Model(net, engine="cpu", seed=0)
x = np.random.default_rng(0).normal(size=(400, 300)).astype("float32")
y = np.random.default_rng(1).integers(0, 5, 400)
def training():
    return model.training(loss=lm.CrossEntropy(), optimizer=lm.SGD(0.1), batch_size=100)
"""


def run_script(script, **environment):
    """What the script prints after `COMMON`."""
    return printed(COMMON + script, **environment)
