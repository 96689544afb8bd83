"""How to define a layer: Swish, x * sigmoid(beta * x), with a beta that is learned.

    python examples/own_layer.py

A layer is a frozen dataclass with a `forward` made of ops. It needs no backward: Lamina derives the
gradient, and `lamina.verify` checks it against finite differences. To load a model file that
contains the layer, pass its class to `lm.load`. Lamina checks the names of the options of your own
classes, not their values: check these in `__post_init__`.
"""

import argparse
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import lamina as lm


@dataclass(frozen=True)
class Swish(lm.Layer):
    """From Ramachandran, Zoph, Le: Searching for activation functions (2017)."""

    start: float = 1.0

    def forward(self, scope: lm.Scope, x: lm.Tensor) -> lm.Tensor:
        beta = scope.parameter("beta", shape=(), init=lm.init.Constant(self.start))
        return x * lm.ops.sigmoid(beta * x)


def main(argv=None):
    parser = argparse.ArgumentParser(description="Define a layer with a learned beta.")
    parser.add_argument("--engine", default="cpu")
    options = parser.parse_args(argv)

    net = lm.Sequential(lm.Input(1), lm.Linear(16), Swish(), lm.Linear(16), Swish(), lm.Linear(1))
    print(net, end="\n\n")
    print(lm.verify(net, loss=lm.MSE()), end="\n\n")

    # The data: one and a half periods of a wave.
    x = np.linspace(-1, 1, 256, dtype="float32")[:, None]
    y = np.sin(1.5 * np.pi * x)
    model = lm.Model(net, engine=options.engine, seed=0)
    history = model.fit((x, y), epochs=150, batch_size=32, loss=lm.MSE(), optimizer=lm.Adam(1e-2))

    betas = {name: value for name, value in model.parameters().items() if name.endswith("beta")}
    for name, beta in betas.items():
        print(f"{name}: from 1.0 to {beta:.3f}")
    print(
        f"mean squared error: {history['loss'][0]:.4f} at first, {history['loss'][-1]:.6f} at last"
    )

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "swish.safetensors"
        model.save(path)
        again = lm.load(path, engine=options.engine, layers=[Swish])
    same = np.array_equal(model.predict(x), again.predict(x))
    print(f"saved, loaded, and {'the same to the last bit' if same else 'DIFFERENT'}")


if __name__ == "__main__":
    main()
