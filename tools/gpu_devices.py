"""Peak rates of GPUs, as their makers publish them, for the roofline of `gpu_kernels.py`.

Floats of 32 bits without matrix units; memory as its interface delivers it.
"""

from __future__ import annotations

from lamina.records import frozen_dataclass


@frozen_dataclass
class Gpu:
    """A GPU.

    Attributes:
        name: of the product.
        flops: operations on floats of 32 bits in a second; a multiplication and an addition are
            two.
        bytes: that its memory moves in a second.
        source: where its maker states the rates.
    """

    name: str
    flops: float
    bytes: float
    source: str

    def seconds(self, operations: int, moved: int) -> float:
        """The least time for some operations and bytes."""
        return max(operations / self.flops, moved / self.bytes)


GPUS = (
    Gpu("AMD MI210", 22.6e12, 1.6e12, "AMD Instinct MI210 data sheet (vector FP32, HBM2e)"),
    Gpu("AMD RX 6800", 16.17e12, 512e9, "AMD Radeon RX 6800 product page"),
    Gpu("AMD RX 7900 XTX", 61e12, 960e9, "AMD Radeon RX 7900 XTX product page"),
    Gpu("Nvidia A100", 19.5e12, 1.555e12, "Nvidia A100 data sheet (FP32, 40 GB)"),
    Gpu("Nvidia RTX 4090", 82.6e12, 1.008e12, "Nvidia Ada GPU architecture white paper"),
    Gpu("Intel Arc A770", 19.66e12, 560e9, "Intel Arc A770 specification (4096 lanes, 2.4 GHz)"),
)
