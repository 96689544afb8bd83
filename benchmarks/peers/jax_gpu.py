"""JAX's worker on a GPU: `python jax_gpu.py float32`, or `mixed` for products of bfloat16.

`mixed.cudnn` has attention of cuDNN, which a processor does not have.

jax_peer.py has the networks, optimizers and compiled functions. A training step copies its batch
from NumPy arrays, a forward pass its outputs to one. Products and convolutions of float32 are
computed in float32, or in TF32 if the harness allows it.

With the device `cpu` the same code runs on the processor. That measures nothing.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from gpu_device import CPU, device_number, takes_tf32, wanted_device

# Read when JAX is imported. Without it JAX would take three quarters of the GPU's memory.
os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"

import jax
import jax_networks
import numpy as np
from jax_peer import Jax
from jax_peer import versions as versions_of_jax
from worker import Data, Make, ResidentPeer, Workload, serve


class JaxOnDevice(Jax, ResidentPeer):
    """A workload on a GPU, with its data in the computer's memory and on the device."""

    def __init__(self, workload: Workload, data: Data, *, mixed: bool) -> None:
        super().__init__(workload, data, mixed=mixed)
        self._host = (data.x, data.y)
        self._resident = (self._x, self._y)
        if data.rows is not None:
            self._resident = (self._x[data.rows[0]], self._y[data.rows[0]])

    def run(self, steps: int) -> None:
        """Whole calls: each copies its batch, but a run has its data on the device."""
        if self._workload.timed == "run":
            super().run(steps)
            return
        for _ in range(steps):
            self._call(*jax.device_put(self._host))
            if self._workload.loss is None:
                np.asarray(self._outputs)
        self._wait()

    def _call(self, x: jax.Array, y: jax.Array | None) -> None:
        if y is None:
            self._outputs = self._forward(self._parameters, x)
        else:
            self._parameters, self._state, self._loss = self._step(
                self._parameters, self._state, x, y
            )

    def _wait(self) -> None:
        jax.block_until_ready((self._parameters, self._state))
        if self._workload.loss is None and hasattr(self, "_outputs"):
            self._outputs.block_until_ready()

    def release(self) -> None:
        """Gives the memory of the workload back to JAX."""
        self.__dict__.clear()


def use_device(device: str) -> str:
    """Makes the device JAX's default one; returns its description.

    Raises:
        SystemExit: with the reason, if JAX cannot use it.
    """
    if device == CPU:
        jax.config.update("jax_platforms", CPU)
        return "the processor, as a stand-in"
    try:
        gpus = jax.devices("cuda")
    except RuntimeError as error:
        why = str(error).partition("\n")[0]
        raise SystemExit(f"absent: JAX {jax.__version__} finds no GPU: {why}") from error
    number = device_number(device, [gpu.device_kind for gpu in gpus])
    jax.config.update("jax_default_device", gpus[number])
    return gpus[number].device_kind


def main() -> None:
    mixed = sys.argv[1].startswith("mixed")
    device = use_device(wanted_device())
    if sys.argv[1].endswith("cudnn") and wanted_device() != CPU:
        jax_networks.ATTENTION = "cudnn"
    # By default JAX rounds products of float32 to TF32.
    precision = "tensorfloat32" if takes_tf32() else "highest"
    jax.config.update("jax_default_matmul_precision", precision)

    def make(workload: Workload, data: Data) -> JaxOnDevice:
        return JaxOnDevice(workload, data, mixed=mixed)

    makes: Make = make
    versions: dict[str, Any] = versions_of_jax() | {"device": device, "products": precision}
    versions |= {"weights": "bfloat16" if mixed else "float32", "attention": jax_networks.ATTENTION}
    serve(makes, versions)


if __name__ == "__main__":
    main()
