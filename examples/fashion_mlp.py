"""A network 784-256-128-10 on Fashion-MNIST (or MNIST), from the usual four files in a folder.

    python examples/fashion_mlp.py FOLDER
    python examples/fashion_mlp.py FOLDER --epochs 5 --curves curves.png

The files are train-images-idx3-ubyte, train-labels-idx1-ubyte and the two that begin with t10k,
plain or .gz: https://github.com/zalandoresearch/fashion-mnist. After two epochs the accuracy
on the test images is above 84%. The images stay bytes in memory and on the device; floats would
take four times the memory.
"""

import argparse

import lamina as lm


def main(argv=None):
    parser = argparse.ArgumentParser(description="Learn Fashion-MNIST or MNIST from a folder.")
    parser.add_argument("folder", nargs="?", help="the four IDX files, plain or .gz")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--engine", default="cpu")
    parser.add_argument("--limit", type=int, help="train on this many images, the first ones")
    parser.add_argument("--curves", metavar="PNG", help="where to write the curves")
    options = parser.parse_args(argv)
    if options.folder is None:
        print("Nothing to learn from: give the folder with the files of Fashion-MNIST.")
        return

    train, test = lm.data.mnist(options.folder)
    if options.limit:
        train = train.subset(0, min(options.limit, len(train)))
    net = lm.Sequential(
        lm.Input(*train.input_shapes[0]),
        lm.Rescale(1 / 255),
        lm.Flatten(),
        lm.Linear(256),
        lm.ReLU(),
        lm.Linear(128),
        lm.ReLU(),
        lm.Linear(10),
    )
    loss, optimizer = lm.CrossEntropy(), lm.Adam(1e-3)
    print(net, end="\n\n")
    print(net.plan(batch_size=100, loss=loss, optimizer=optimizer), end="\n\n")

    model = lm.Model(net, engine=options.engine, seed=0)
    history = model.fit(
        train,
        validation=test,
        epochs=options.epochs,
        batch_size=100,
        loss=loss,
        optimizer=optimizer,
        metrics=[lm.Accuracy()],
    )
    if options.curves:
        history.plot(options.curves)
        print(f"wrote {options.curves}")
    print(f"accuracy on {len(test)} test images: {history['validation_accuracy'][-1]:.1%}")


if __name__ == "__main__":
    main()
