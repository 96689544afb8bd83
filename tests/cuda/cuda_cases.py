"""Kernels in CUDA C++, and a small model, for the tests of the cuda engine on doubles."""

import re

import numpy as np

import lamina as lm
from lamina.engines.cuda import engine as cuda_engine


def opened(name="cuda"):
    """The driver of a device of doubles."""
    return cuda_engine.open_device(name)


def kernel(driver, text, buffers, items=1, **how):
    """The kernel of a text in CUDA C++, with its arguments."""
    (name,) = re.findall(r"__global__ .*?(\w+)\(\w+ \*", text)
    return driver.kernel(driver.build(text), name, buffers, items, **{"numbered": False, **how})


def read(driver, buffer, count=4):
    numbers = np.zeros(count, np.int32)
    driver.queue.read(numbers, buffer)
    return numbers.tolist()


def network(*more):
    return lm.Sequential(lm.Input(12), lm.Linear(16), lm.ReLU(), *more, lm.Linear(4))


def data(count=40):
    generator = np.random.default_rng(0)
    return generator.standard_normal((count, 12), "float32"), generator.integers(0, 4, count)
