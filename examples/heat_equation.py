"""Solve the heat equation with a network, whose derivatives are outputs (a PINN).

    python examples/heat_equation.py

Temperatures u(x, t) of a rod are wanted: u_t = DIFFUSIVITY * u_xx, u = sin(pi x) at t = 0, and
u = 0 at both ends. The network gives u. `lm.gradients` adds u_t and u_xx to its outputs, and the
loss asks for the equation at random points. Start and ends need no loss: they follow from
u = sin(pi x) + t x (1 - x) network(x, t). The network is shown no solution. At last it is compared
with the exact one, exp(-DIFFUSIVITY pi^2 t) sin(pi x). After Raissi, Perdikaris, Karniadakis:
Physics-informed neural networks (2019).
"""

import argparse

import numpy as np

import lamina as lm

DIFFUSIVITY = 0.1


def make_network():
    """The temperature at points (x, t), and the difference between both sides of the equation."""
    point = lm.Input(2)
    x, t = point[:, :1], point[:, 1:]
    body = lm.Sequential(
        lm.Input(2), lm.Linear(32), lm.Tanh(), lm.Linear(32), lm.Tanh(), lm.Linear(1)
    )
    u = lm.ops.sin(np.pi * x) + t * x * (1.0 - x) * body(point)
    (slope,) = lm.gradients(u, [point])
    (curve,) = lm.gradients(slope[:, :1], [point])
    residual = slope[:, 1:] - DIFFUSIVITY * curve[:, :1]
    return lm.Network(point, {"temperature": u, "residual": residual})


def exact(points):
    return np.exp(-DIFFUSIVITY * np.pi**2 * points[:, 1:]) * np.sin(np.pi * points[:, :1])


def main(argv=None):
    parser = argparse.ArgumentParser(description="Solve the heat equation with a network.")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--engine", default="cpu")
    options = parser.parse_args(argv)

    points = np.random.default_rng(0).uniform(size=(5000, 2)).astype("float32")
    zeros = np.zeros((len(points), 1), "float32")
    model = lm.Model(make_network(), engine=options.engine, seed=0)
    batches = len(points) // 100
    history = model.fit(
        (points, zeros),
        epochs=options.epochs,
        batch_size=100,
        loss={"residual": lm.MSE()},
        optimizer=lm.Adam(lm.schedules.Cosine(5e-3, steps=options.epochs * batches)),
    )

    first, last = history["loss"][0], history["loss"][-1]
    print(f"mean squared residual: {first:.6f} in the first epoch, {last:.8f} in the last")
    axis = np.linspace(0, 1, 51, dtype="float32")
    grid = np.stack(np.meshgrid(axis, axis), -1).reshape(-1, 2)
    predicted, _ = model.predict(grid)
    print(f"largest error of the temperature: {abs(predicted - exact(grid)).max():.6f}")
    print("temperatures in the middle of the rod:")
    for time in (0.0, 0.5, 1.0):
        point = np.array([[0.5, time]], "float32")
        value, expected = model.predict(point)[0].item(), exact(point).item()
        print(f"  t = {time}: {value:.4f}, exact {expected:.4f}")


if __name__ == "__main__":
    main()
