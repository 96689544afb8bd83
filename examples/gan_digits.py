"""A generator writes digits, and a discriminator tells them from real ones: two opposed networks.

    python examples/gan_digits.py
    python examples/gan_digits.py --samples samples.png --curves curves.png

Both are smaller versions of `lm.networks.dcgan`, for the digits that come with Lamina. A third
network contains both, one after the other; its model has all parameters. `model.part(network)` is a
model of another network on the same layers, and shares their parameters. Two trainings alternate.
The training of the discriminator freezes the generator. The training of the generator includes the
discriminator, and freezes it.
"""

import argparse

import numpy as np

import lamina as lm
from lamina.reports import map_text, plot_curves, plot_images

LATENT, BATCH = 32, 64
ACROSS = 12


def make_networks(width=32):
    """From noise to images in [-1, 1], and from images to a score."""
    start = lm.init.Normal(deviation=0.02)
    generator = lm.Sequential(
        lm.Input(LATENT),
        lm.Reshape(LATENT, 1, 1),
        lm.ConvTranspose2d(2 * width, 4, bias=False, weight_init=start),
        lm.BatchNorm(),
        lm.ReLU(),
        lm.Conv2d(2 * width, 3, padding="same", bias=False, weight_init=start),
        lm.BatchNorm(),
        lm.ReLU(),
        lm.ConvTranspose2d(1, 4, stride=2, padding=1, weight_init=start),
        lm.Tanh(),
    )
    discriminator = lm.Sequential(
        lm.Input(1, 8, 8),
        lm.Conv2d(width, 4, stride=2, padding=1, weight_init=start),
        lm.LeakyReLU(slope=0.2),
        lm.Conv2d(2 * width, 3, padding="same", bias=False, weight_init=start),
        lm.BatchNorm(),
        lm.LeakyReLU(slope=0.2),
        lm.Conv2d(1, 4, weight_init=start),
        lm.Flatten(),
    )
    return generator, discriminator


def tells_apart(scores, _):
    """The discriminator's loss: scores of real digits should be positive, of made ones negative."""
    made, real = scores
    return lm.ops.mean(lm.ops.softplus(made)) + lm.ops.mean(lm.ops.softplus(-real))


def fools(score, _):
    """The generator's loss: scores of made digits should be positive."""
    return lm.ops.mean(lm.ops.softplus(-score))


def main(argv=None):
    parser = argparse.ArgumentParser(description="Learn to write digits against a critic.")
    parser.add_argument("--epochs", type=int, default=80)
    parser.add_argument("--engine", default="cpu")
    parser.add_argument("--samples", metavar="PNG", help="where to write a sheet of digits")
    parser.add_argument("--curves", metavar="PNG", help="where to write the curves")
    options = parser.parse_args(argv)

    digits = lm.data.digits()
    batches = len(digits) // BATCH
    generator, discriminator = make_networks()
    noise, image = lm.Input(LATENT), lm.Input(1, 8, 8)
    made = discriminator(generator(noise))
    real = discriminator(lm.Rescale(1 / 8, offset=-1)(image))
    both = lm.Network([noise, image], [made, real])
    fooling = lm.Network(noise, made)

    model = lm.Model(both, engine=options.engine, seed=0)
    forger, writer = model.part(fooling), model.part(generator)
    draw = np.random.default_rng(0)

    def new_noise(count):
        return draw.normal(size=(count, LATENT)).astype("float32")

    def adam(rate):
        return lm.Adam(lm.schedules.Cosine(rate, steps=options.epochs * batches), beta1=0.5)

    telling = model.training(
        loss=tells_apart,
        optimizer=adam(2e-3),
        batch_size=BATCH,
        frozen=both.names_of(generator),
        data=lm.data.Dataset((new_noise(1), digits.inputs[:1])),
    )
    forging = forger.training(
        loss=fools,
        optimizer=adam(1e-3),
        batch_size=BATCH,
        frozen=fooling.names_of(discriminator),
        data=lm.data.Dataset(new_noise(1)),
    )
    losses = {"discriminator": [], "generator": []}
    with telling, forging:
        for epoch in range(options.epochs):
            sums = np.zeros(2)
            for images, _ in digits.batches(BATCH, seed=0, epoch=epoch, drop_last=True):
                told = telling.step((new_noise(BATCH), images))
                forged = forging.step(new_noise(BATCH))
                sums += float(told), float(forged)
            for values, mean in zip(losses.values(), sums / batches, strict=True):
                values.append(mean)

    written = (writer.predict(new_noise(8 * ACROSS)) + 1) / 2
    for number in range(2):
        print(map_text(written[number, 0, ::-1].repeat(2, axis=1)), end="\n\n")
    if options.samples:
        plot_images(written, options.samples, columns=ACROSS)
        print(f"wrote {options.samples}")
    if options.curves:
        plot_curves(losses, options.curves)
        print(f"wrote {options.curves}")
    first, last = (f"{losses['discriminator'][n]:.2f}" for n in (0, -1))
    print(f"loss of the discriminator: {first} in the first epoch, {last} in the last")
    print("(1.39 is the loss of a discriminator that cannot tell them apart)")


if __name__ == "__main__":
    main()
