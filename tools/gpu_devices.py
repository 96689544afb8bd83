"""Peak rates of GPUs, as their makers publish them, for rooflines.

Memory as its interface delivers it. `gpu_kernels.py` uses the rates without matrix units.
"""

from __future__ import annotations

from lamina.base.records import frozen_dataclass


@frozen_dataclass
class Gpu:
    """A GPU.

    Attributes:
        name: of the product.
        flops: operations on floats of 32 bits in a second; a multiplication and an addition are
            two.
        bytes: that its memory moves in a second.
        source: where its maker states the rates.
        tf32_flops: operations of tensor cores on float32 in a second, which they round to TF32,
            without sparsity; None if they have none, or if no kernel could use them.
        half_flops: operations of tensor cores on floats of 16 bits in a second, with sums in
            float32, without sparsity; None as above.
    """

    name: str
    flops: float
    bytes: float
    source: str
    tf32_flops: float | None = None
    half_flops: float | None = None

    def seconds(self, operations: int, moved: int, flops: float | None = None) -> float:
        """The least time for some operations and bytes.

        Args:
            operations: to compute.
            moved: bytes of memory.
            flops: operations in a second; by default those on floats of 32 bits.
        """
        return max(operations / (flops or self.flops), moved / self.bytes)


NVIDIA = (
    Gpu("Nvidia T4", 8.1e12, 320e9, "Nvidia T4 data sheet", None, 65e12),
    Gpu("Nvidia A100", 19.5e12, 1.555e12, "Nvidia A100 data sheet (40 GB)", 156e12, 312e12),
    Gpu(
        *("Nvidia H100", 66.9e12, 3.35e12),
        "Nvidia H100 architecture white paper (SXM5); its data sheet for the memory",
        *(494.7e12, 989.4e12),
    ),
    Gpu(
        *("Nvidia RTX 4090", 82.6e12, 1.008e12),
        "Nvidia Ada GPU architecture white paper, appendix A",
        *(82.6e12, 165.2e12),
    ),
)
GPUS = (
    Gpu("AMD MI210", 22.6e12, 1.6e12, "AMD Instinct MI210 data sheet (vector FP32, HBM2e)"),
    Gpu("AMD RX 6800", 16.17e12, 512e9, "AMD Radeon RX 6800 product page"),
    Gpu("AMD RX 7900 XTX", 61e12, 960e9, "AMD Radeon RX 7900 XTX product page"),
    *NVIDIA,
    Gpu("Intel Arc A770", 19.66e12, 560e9, "Intel Arc A770 specification (4096 lanes, 2.4 GHz)"),
)
