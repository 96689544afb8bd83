"""Kernels in CUDA C++, and a small model, for the tests of the cuda engine on doubles."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

import lamina as lm
from lamina.engines.cuda import engine as cuda_engine
from lamina.engines.cuda.driver import CudaDriver


def opened(name: str = "cuda") -> CudaDriver:
    """The driver of a device of doubles."""
    return cuda_engine.open_device(name)


def kernel(
    driver: CudaDriver, text: str, buffers: Sequence[Any], items: int = 1, **how: Any
) -> Any:
    """The kernel of a text in CUDA C++, with its arguments."""
    (name,) = re.findall(r"__global__ .*?(\w+)\(\w+ \*", text)
    return driver.kernel(driver.build(text), name, buffers, items, **{"numbered": False, **how})


def read(driver: CudaDriver, buffer: Any, count: int = 4) -> list[int]:
    found = np.zeros(count, np.int32)
    driver.queue.read(found, buffer)
    return found.tolist()


def network(*more: Any) -> lm.Network:
    return lm.Sequential(lm.Input(12), lm.Linear(16), lm.ReLU(), *more, lm.Linear(4))


def data(count: int = 40) -> tuple[Any, Any]:
    generator = np.random.default_rng(0)
    return generator.standard_normal((count, 12), "float32"), generator.integers(0, 4, count)
