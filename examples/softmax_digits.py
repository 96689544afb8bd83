"""Softmax regression on handwritten digits: one linear layer.

    python examples/softmax_digits.py
    python examples/softmax_digits.py --curves curves.png
    python examples/softmax_digits.py --mnist FOLDER

The layer, 64-10, is trained with Adam on the 1,797 digits that come with Lamina; with `--mnist` it
is 784-10, for the files of MNIST (or Fashion-MNIST) in a folder. `--curves` plots loss and accuracy
of each epoch, on the training data and on held-out data.
"""

import argparse

import lamina as lm


def main(argv=None):
    parser = argparse.ArgumentParser(description="Softmax regression on handwritten digits.")
    parser.add_argument("--mnist", metavar="FOLDER", help="the four IDX files, plain or .gz")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--engine", default="cpu")
    parser.add_argument("--curves", metavar="PNG", help="where to write the curves")
    options = parser.parse_args(argv)

    if options.mnist:
        train, test = lm.data.mnist(options.mnist)
        brightest = 255
    else:
        train, test = lm.data.digits().split(0.8, seed=0)
        brightest = 16

    # The images stay bytes until the device has them; Rescale brings them to [0, 1] there.
    net = lm.Sequential(
        lm.Input(*train.input_shapes[0]),
        lm.Rescale(1 / brightest),
        lm.Flatten(),
        lm.Linear(train.classes),
    )
    print(net, end="\n\n")

    model = lm.Model(net, engine=options.engine, seed=0)
    history = model.fit(
        train,
        validation=test,
        epochs=options.epochs,
        batch_size=50,
        loss=lm.CrossEntropy(),
        optimizer=lm.Adam(1e-2),
        metrics=[lm.Accuracy()],
    )
    if options.curves:
        history.plot(options.curves)
        print(f"wrote {options.curves}")
    print(f"accuracy on {len(test)} held-out images: {history['validation_accuracy'][-1]:.1%}")


if __name__ == "__main__":
    main()
