"""The device on which the peers of `gpu.py` run: the GPU that Lamina uses."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

# The environment variable with the device: `cpu`, for tests of the peers' code without a GPU;
# `cuda:1`; or a text that contains the name of a GPU.
DEVICE = "BENCHMARK_DEVICE"
# The environment variable with the precision of products of float32: "float32" or "tf32".
PRODUCTS_VARIABLE = "BENCHMARK_PRODUCTS"
CPU = "cpu"


def wanted_device() -> str:
    """The device that the harness names."""
    return os.environ.get(DEVICE, CPU)


def takes_tf32() -> bool:
    """Whether products of float32 may be rounded to TF32."""
    return os.environ.get(PRODUCTS_VARIABLE) == "tf32"


def device_number(device: str, names: Sequence[str]) -> int:
    """The number of the GPU among those that a framework finds.

    Args:
        device: `cuda:1`, or a text that contains the name of a GPU, such as Lamina's description
            of an OpenCL device.
        names: of all GPUs that the framework finds, in its order.

    Raises:
        SystemExit: with the reason, if the framework does not find it.
    """
    numbered = re.fullmatch(r"cuda:(\d+)", device)
    if numbered and int(numbered[1]) < len(names):
        return int(numbered[1])
    numbers = [number for number, name in enumerate(names) if name in device]
    if numbered or not numbers:
        listed = ", ".join(names) or "none"
        raise SystemExit(f"absent: it does not find the GPU {device} (it finds {listed})")
    return numbers[0]
