"""A variational autoencoder on handwritten digits: its decoder makes new digits from noise.

    python examples/vae_digits.py
    python examples/vae_digits.py --samples samples.png --curves curves.png

The whole network is trained. Its encoder and decoder are made of the same layers, and are used
alone with the same parameters: `model.part(decoder)` turns noise into digits. In the picture the
first row shows held-out digits, the second row their reconstructions, and all others new digits.

The loss is the sum of the reconstruction error and the divergence of the codes from standard normal
noise. With a smaller `--divergence` digits are sharper, and more of the new ones are unreadable.
"""

import argparse

import numpy as np

import lamina as lm
from lamina.reports import map_text, plot_images

SHAPE = (1, 8, 8)
ACROSS = 12


def digits():
    """The embedded digits in [0, 1], for training and held out; the targets are the inputs."""
    sets = lm.data.digits().split(0.9, seed=0)
    images = [np.asarray(one.inputs, "float32") / 16 for one in sets]
    return [lm.data.Dataset(image, image) for image in images]


def main(argv=None):
    parser = argparse.ArgumentParser(description="Learn to write digits.")
    parser.add_argument("--epochs", type=int, default=150)
    parser.add_argument("--code", type=int, default=8, help="length of the code of a digit")
    parser.add_argument("--divergence", type=float, default=0.3, help="weight of the divergence")
    parser.add_argument("--engine", default="cpu")
    parser.add_argument("--samples", metavar="PNG", help="where to write a sheet of digits")
    parser.add_argument("--curves", metavar="PNG", help="where to write the curves")
    options = parser.parse_args(argv)

    train, test = digits()
    coder = lm.networks.variational_autoencoder((256, 128), code=options.code, input=SHAPE)
    model = lm.Model(coder.network, engine=options.engine, seed=0)
    history = model.fit(
        train,
        validation=test,
        epochs=options.epochs,
        batch_size=50,
        loss=lm.EvidenceLowerBound(divergence=options.divergence),
        optimizer=lm.Adam(lm.schedules.Cosine(2e-3, steps=options.epochs * len(train) // 50)),
    )
    decoder = model.part(coder.decoder)

    noise = np.random.default_rng(0).normal(size=(6 * ACROSS, options.code))
    made = decoder.predict(noise.astype("float32"))
    for number in range(2):
        print(map_text(made[number, 0, ::-1].repeat(2, axis=1)), end="\n\n")

    shown = test.inputs[:ACROSS]
    means, _ = model.part(coder.encoder).predict(shown)
    again = decoder.predict(means)
    if options.samples:
        plot_images(np.concatenate([shown, again, made]), options.samples, columns=ACROSS)
        print(f"wrote {options.samples}")
    if options.curves:
        history.plot(options.curves)
        print(f"wrote {options.curves}")
    losses = history["validation_loss"]
    print(f"loss of held-out digits: {losses[0]:.1f} after one epoch, {losses[-1]:.1f} at last")


if __name__ == "__main__":
    main()
