"""Predict the course of diabetes with an honest uncertainty, by an ensemble of networks.

    pip install "lamina[sklearn]"
    python examples/calibrated_ensemble.py

Each network predicts a mean and a variance. How sure may one be of them? 442 patients are divided
into five parts, and ten networks for each part are trained on the other four: fifty networks, one
population. So for every patient there are ten networks that have not seen her.

The intervals that should contain 90 % of the patients are compared with what they contain: those of
one network, those of the ten together (Lakshminarayanan, Pritzel, Blundell: *Simple and scalable
predictive uncertainty estimation using deep ensembles*, 2017), and those of the ten after all
deviations were multiplied by one factor, found on the patients of the other parts (Levi et al.:
*Evaluating and calibrating uncertainty prediction in regression tasks*, 2022).
"""

import argparse

import numpy as np

import lamina as lm

PARTS = 5
# How many deviations to both sides contain so many percent of a normal distribution.
LEVELS = {50: 0.6745, 80: 1.2816, 90: 1.6449, 95: 1.9600}


def patients():
    """Ten features of each patient, and the course after a year; scaled."""
    from sklearn.datasets import load_diabetes

    features, course = load_diabetes(return_X_y=True)
    return [
        ((array - array.mean(0)) / array.std(0)).astype("float32")
        for array in (features, course[:, None])
    ]


def make_network(features):
    patient = lm.Input(features)
    hidden = lm.Dropout(0.1)(lm.SiLU()(lm.Linear(32)(patient)))
    return lm.Network(
        patient, {"mean": lm.Linear(1)(hidden), "variance": lm.Softplus()(lm.Linear(1)(hidden))}
    )


def together(means, variances):
    """Mean and variance of the mixture of the networks' distributions."""
    mean = means.mean(0)
    return mean, (variances + means**2).mean(0) - mean**2


def report(name, target, mean, deviation):
    """A line: the score, and for each level how many targets are within the interval."""
    distance = abs(target - mean) / deviation
    covered = [100 * (distance <= width).mean() for width in LEVELS.values()]
    score = (np.log(2 * np.pi) / 2 + np.log(deviation) + distance**2 / 2).mean()
    print(f"{name:24s} {score:10.3f}  " + "  ".join(f"{share:5.1f} %" for share in covered))
    return max(abs(share - level) for share, level in zip(covered, LEVELS, strict=True))


def main(argv=None):
    parser = argparse.ArgumentParser(description="An ensemble with calibrated uncertainty.")
    parser.add_argument("--epochs", type=int, default=150)
    parser.add_argument("--networks", type=int, default=10, help="for each part of the data")
    parser.add_argument("--engine", default="cpu")
    options = parser.parse_args(argv)

    features, course = patients()
    part = np.random.default_rng(0).permutation(len(course)) % PARTS
    members = [(number, seed) for number in range(PARTS) for seed in range(options.networks)]
    population = lm.Population(
        make_network(features.shape[1]),
        len(members),
        options.engine,
        seeds=[seed for _, seed in members],
    )
    histories = population.fit(
        (features, course),
        subsets=[np.flatnonzero(part != number) for number, _ in members],
        loss=lm.GaussianNLL(),
        optimizer=lm.Adam(3e-3),
        epochs=options.epochs,
        batch_size=32,
    )
    print(f"loss of the {len(members)} networks: {histories['loss'][:, -1].mean():.3f}\n")

    # (parts, networks, patients), of which each patient needs those of her part.
    means, variances = (
        outputs.reshape(PARTS, options.networks, -1)[part, :, np.arange(len(part))].T
        for outputs in population.predict(features)
    )
    target = course[:, 0]
    print(f"{'intervals of':24s} {'-log(p)':>10s}  " + "  ".join(f"{n:5d} %" for n in LEVELS))
    alone = report("one network", target, means[0], np.sqrt(variances[0]))
    mean, variance = together(means, variances)
    deviation = np.sqrt(variance)
    report("the ensemble", target, mean, deviation)
    squares = ((target - mean) / deviation) ** 2
    factors = [np.sqrt(squares[part != number].mean()) for number in range(PARTS)]
    scaled = report("the calibrated ensemble", target, mean, deviation * np.take(factors, part))
    print(f"\nthe factor is {np.mean(factors):.2f}")
    print(f"largest error of a share: {alone:.1f} % of one network, {scaled:.1f} % at last")


if __name__ == "__main__":
    main()
