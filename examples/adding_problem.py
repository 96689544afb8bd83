"""The adding problem: an LSTM remembers two numbers of a long sequence and ignores the others.

    python examples/adding_problem.py
    python examples/adding_problem.py --curves curves.png

A sequence has 50 pairs of numbers. The first of each pair is random, from -1 to 1. The second is a
mark: 1 for two pairs, one in each half, and 0 for all others. The target is the sum of the two
marked numbers. Hochreiter and Schmidhuber (Long short-term memory, Neural Computation 9, 1997) made
this problem because their network learns it and simple recurrent networks do not. As there, the
target is scaled to 0.5 + sum / 4, and an answer is right if it is less than 0.04 off.
"""

import argparse

import numpy as np

import lamina as lm

TOLERANCE = 0.04


def sums(count, length, seed):
    """Sequences (count, length, 2), and the scaled sum of the marked numbers of each (count, 1)."""
    generator = np.random.default_rng(seed)
    values = generator.uniform(-1, 1, (count, length))
    marks = np.zeros((count, length))
    half = length // 2
    for start, stop in ((0, half), (half, length)):
        marks[np.arange(count), generator.integers(start, stop, count)] = 1
    total = (values * marks).sum(axis=1, keepdims=True)
    return np.stack([values, marks], 2).astype("float32"), (0.5 + total / 4).astype("float32")


def main(argv=None):
    parser = argparse.ArgumentParser(description="An LSTM learns the adding problem.")
    parser.add_argument("--length", type=int, default=50, help="of a sequence")
    parser.add_argument("--examples", type=int, default=20000, help="to learn from")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--engine", default="cpu")
    parser.add_argument("--curves", metavar="PNG", help="where to write the curves")
    options = parser.parse_args(argv)

    net = lm.Sequential(lm.Input(options.length, 2), lm.LSTM(32, returns="last"), lm.Linear(1))
    print(net, end="\n\n")

    model = lm.Model(net, engine=options.engine, seed=0)
    steps = options.epochs * (options.examples // 50)
    history = model.fit(
        sums(options.examples, options.length, seed=1),
        validation=sums(2000, options.length, seed=2),
        epochs=options.epochs,
        batch_size=50,
        loss=lm.MSE(),
        optimizer=lm.Adam(lm.schedules.Cosine(1e-2, steps=steps)),
    )
    if options.curves:
        history.plot(options.curves)
        print(f"wrote {options.curves}")

    x, y = sums(2000, options.length, seed=3)
    predicted = model.predict(x)
    for number in range(3):
        print(f"sum {4 * y[number, 0] - 2:.3f}, found {4 * predicted[number, 0] - 2:.3f}")
    print(f"right of 2000 other sums: {np.mean(np.abs(predicted - y) < TOLERANCE):.1%}")


if __name__ == "__main__":
    main()
