"""A transformer that sorts: twelve digits go in, the same digits come out in order.

    python examples/sort_transformer.py
    python examples/sort_transformer.py --length 20 --epochs 8

The training data are sequences of digits and the same sequences sorted. The network learns the
digit at each position: attention counts the others. After some seconds of training on two cores it
makes almost no mistakes on new sequences.
"""

import argparse

import numpy as np

import lamina as lm


def make_sequences(count, length, seed):
    """Random digits (count, length), and the same in order."""
    digits = np.random.default_rng(seed).integers(0, 10, (count, length))
    return digits, np.sort(digits, axis=1)


def make_network(length):
    """Each digit becomes 64 numbers; two blocks of four attention heads each follow."""
    return lm.networks.transformer_encoder(
        vocabulary=10, length=length, features=64, heads=4, layers=2, hidden=128, dropout=0.0
    )


def main(argv=None):
    parser = argparse.ArgumentParser(description="A transformer that sorts digits.")
    parser.add_argument("--length", type=int, default=12, help="digits of a sequence")
    parser.add_argument("--sequences", type=int, default=20000, help="to learn from")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--engine", default="cpu")
    options = parser.parse_args(argv)

    net = make_network(options.length)
    print(net, end="\n\n")

    train = make_sequences(options.sequences, options.length, seed=0)
    unseen, expected = make_sequences(1000, options.length, seed=1)
    model = lm.Model(net, engine=options.engine, seed=0)
    history = model.fit(
        train,
        epochs=options.epochs,
        batch_size=100,
        loss=lm.CrossEntropy(),
        optimizer=lm.Adam(1e-3),
    )
    print(f"loss: {history['loss'][0]:.4f} at first, {history['loss'][-1]:.4f} at last")

    # The network gives a score for each digit at each position: (count, 10, length).
    answers = model.predict(unseen).argmax(axis=1)
    for digits, answer in zip(unseen[:3], answers, strict=False):
        print(*digits, "->", *answer)
    right = answers == expected
    print(f"positions right in 1000 unseen sequences: {right.mean():.2%}")
    print(f"sequences without a mistake: {right.all(axis=1).mean():.1%}")


if __name__ == "__main__":
    main()
