"""Blocks of well-known papers as functions of tensors; they need no new layer classes.

    python examples/blocks.py

A residual block adds its input to its output. An inception block has convolutions with windows of
several sizes next to each other. Squeeze-and-excitation computes a weight for each channel from the
means over the whole image. Each block is built into a small network that reads handwritten digits,
and trained for some epochs.
"""

import argparse

import lamina as lm


def convolution(x, channels, window=3):
    """A convolution that keeps the extents, normalised, with a ReLU."""
    x = lm.Conv2d(channels, window, padding="same", bias=False)(x)
    return lm.ReLU()(lm.BatchNorm()(x))


def plain(x):
    return convolution(convolution(x, 16), 16)


def residual(x):
    """He, Zhang, Ren, Sun: Deep residual learning for image recognition (2016), figure 2."""
    y = convolution(x, 16)
    y = lm.BatchNorm()(lm.Conv2d(16, 3, padding="same", bias=False)(y))
    return lm.ReLU()(x + y)


def inception(x):
    """Szegedy et al.: Going deeper with convolutions (2015), figure 2 b."""
    pooled = lm.MaxPool2d(3, stride=1, padding=1)(x)
    branches = (
        convolution(x, 4, window=1),
        convolution(convolution(x, 4, window=1), 6, window=3),
        convolution(convolution(x, 2, window=1), 3, window=5),
        convolution(pooled, 3, window=1),
    )
    return lm.concat(branches)


def squeeze_and_excitation(x):
    """Hu, Shen, Sun: Squeeze-and-excitation networks (2018), figure 2, after two convolutions."""
    y = plain(x)
    squeezed = lm.GlobalAvgPool()(y)
    weights = lm.Sigmoid()(lm.Linear(16)(lm.ReLU()(lm.Linear(4)(squeezed))))
    return y * lm.Reshape(16, 1, 1)(weights)


def make_network(block):
    """A convolution, a block, half the size, another such block, and a score for each digit."""
    image = lm.Input(1, 8, 8)
    x = convolution(lm.Rescale(1 / 16)(image), 16)
    x = lm.MaxPool2d(2)(block(x))
    x = lm.GlobalAvgPool()(block(x))
    return lm.Network(image, lm.Linear(10)(x))


def main(argv=None):
    parser = argparse.ArgumentParser(description="Residual, inception, squeeze-and-excitation.")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--engine", default="cpu")
    options = parser.parse_args(argv)

    train, test = lm.data.digits().split(0.8, seed=0)
    print(f"{'block':24}{'layers':>8}{'parameters':>12}{'accuracy':>11}")
    for block in (plain, residual, inception, squeeze_and_excitation):
        net = make_network(block)
        model = lm.Model(net, engine=options.engine, seed=0)
        history = model.fit(
            train,
            validation=test,
            epochs=options.epochs,
            batch_size=32,
            drop_last=True,
            loss=lm.CrossEntropy(),
            optimizer=lm.Adam(5e-3),
            metrics=[lm.Accuracy()],
        )
        accuracy = history["validation_accuracy"][-1]
        layers, parameters = len(net.nodes) - 1, net.parameter_count()
        print(f"{block.__name__:24}{layers:8}{parameters:12,}{accuracy:11.1%}", flush=True)


if __name__ == "__main__":
    main()
