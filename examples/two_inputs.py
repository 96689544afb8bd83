"""Two inputs, two branches, one answer: a network in the functional style.

    python examples/two_inputs.py

An example is a noisy wave of 24 samples, and the time between two samples. The target is the
frequency of the wave: its periods per second. The samples determine the periods, and the time
between them the seconds, so neither input is enough alone. Each input has a branch, the first with
a residual connection, and `lm.concat` joins the branches.
"""

import argparse

import numpy as np

import lamina as lm

SAMPLES = 24


def waves(count, seed):
    """Waves (count, 24), the time between samples (count, 1), and the frequency (count, 1)."""
    generator = np.random.default_rng(seed)
    periods = generator.uniform(0.5, 3.0, (count, 1))
    spacing = generator.uniform(0.5, 1.5, (count, 1))
    phase = generator.uniform(0, 2 * np.pi, (count, 1))
    time = np.arange(SAMPLES) / SAMPLES
    wave = np.sin(2 * np.pi * periods * time + phase) + generator.normal(0, 0.05, (count, SAMPLES))
    arrays = wave, spacing, periods / spacing
    return tuple(array.astype("float32") for array in arrays)


def make_network():
    wave, spacing = lm.Input(SAMPLES), lm.Input(1)
    h = lm.ReLU()(lm.Linear(64)(wave))
    h = h + lm.ReLU()(lm.Linear(64)(h))  # a residual connection
    s = lm.Tanh()(lm.Linear(8)(spacing))
    joined = lm.concat([h, s])
    joined = lm.ReLU()(lm.Linear(64)(joined))
    return lm.Network(inputs=[wave, spacing], outputs=lm.Linear(1)(joined))


def main(argv=None):
    parser = argparse.ArgumentParser(description="Two inputs, two branches, one answer.")
    parser.add_argument("--engine", default="cpu")
    options = parser.parse_args(argv)

    net = make_network()
    print(net, end="\n\n")

    wave, spacing, frequency = waves(2000, seed=1)
    test_wave, test_spacing, test_frequency = waves(500, seed=2)
    model = lm.Model(net, engine=options.engine, seed=0)
    model.fit(
        ((wave, spacing), frequency),
        epochs=30,
        batch_size=50,
        loss=lm.MSE(),
        optimizer=lm.Adam(3e-3),
    )
    predicted = model.predict((test_wave, test_spacing))

    for number in range(3):
        print(f"frequency {test_frequency[number, 0]:.2f}, found {predicted[number, 0]:.2f}")
    explained = 1 - np.mean((predicted - test_frequency) ** 2) / np.var(test_frequency)
    print(f"explained of the variance: {explained:.1%}")


if __name__ == "__main__":
    main()
