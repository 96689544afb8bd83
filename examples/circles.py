"""Two circles in the plane: a small network learns which points lie on the inner one.

    python examples/circles.py
    python examples/circles.py --epochs 300 --picture circles.png

No straight line separates the two classes. A network 2-40-10-1 with an L2 penalty on its weights
learns a round boundary. It is printed as characters: the darker a character, the more probable the
inner circle. `--picture` writes the same map as a PNG file.
"""

import argparse

import numpy as np

import lamina as lm
from lamina.reports import map_text, plot_map

EXTENT = 1.3


def two_circles(count, seed=0):
    """Points on circles of radius 1 (label 0) and 0.5 (label 1), with some noise."""
    generator = np.random.default_rng(seed)
    labels = np.arange(count) % 2
    angles = generator.uniform(0, 2 * np.pi, count)
    radii = np.where(labels == 1, 0.5, 1.0) + generator.normal(0, 0.08, count)
    points = np.stack([radii * np.cos(angles), radii * np.sin(angles)], axis=1)
    return points.astype("float32"), labels.astype("float32")[:, None]


def make_network():
    penalty = lm.L2(5e-4)
    return lm.Sequential(
        lm.Input(2),
        lm.Linear(40, weight_regularizer=penalty),
        lm.Tanh(),
        lm.Linear(10, weight_regularizer=penalty),
        lm.ReLU(),
        lm.Linear(1, weight_regularizer=penalty),
    )


def learned_map(model, columns, rows):
    """The probability of the inner circle on a grid, shape (rows, columns), row 0 the lowest."""
    x, y = np.meshgrid(np.linspace(-EXTENT, EXTENT, columns), np.linspace(-EXTENT, EXTENT, rows))
    grid = np.stack([x.ravel(), y.ravel()], axis=1).astype("float32")
    logits = model.predict(grid)
    return 1 / (1 + np.exp(-logits.reshape(rows, columns)))


def main(argv=None):
    parser = argparse.ArgumentParser(description="Learn to tell two circles apart.")
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--engine", default="cpu")
    parser.add_argument("--picture", help="where to write the learned map, such as circles.png")
    options = parser.parse_args(argv)

    points, labels = two_circles(400)
    train = lm.data.Dataset(points[:300], labels[:300])
    test = lm.data.Dataset(points[300:], labels[300:])
    model = lm.Model(make_network(), engine=options.engine)
    loss = lm.BCEWithLogits()
    model.fit(
        train, epochs=options.epochs, batch_size=20, loss=loss, optimizer=lm.SGD(0.01, momentum=0.9)
    )

    print(map_text(learned_map(model, columns=64, rows=32)))
    if options.picture:
        plot_map(
            learned_map(model, columns=200, rows=200),
            options.picture,
            extent=(-EXTENT, EXTENT, -EXTENT, EXTENT),
            points=test.inputs,
            labels=test.targets,
            names=("outer", "inner"),
            title="What the network learned, and the held-out points",
        )
        print(f"wrote {options.picture}")
    accuracy = model.evaluate(test, loss=loss, metrics=[lm.BinaryAccuracy(threshold=0.0)])
    print(f"accuracy on {len(test)} held-out points: {accuracy['binary_accuracy']:.1%}")


if __name__ == "__main__":
    main()
