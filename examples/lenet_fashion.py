"""LeNet on Fashion-MNIST (or MNIST), from the usual four files in a folder.

    python examples/lenet_fashion.py FOLDER
    python examples/lenet_fashion.py FOLDER --curves curves.png --confusion confusion.png

The files are train-images-idx3-ubyte, train-labels-idx1-ubyte and the two that begin with t10k,
plain or .gz: https://github.com/zalandoresearch/fashion-mnist. After five epochs the accuracy
on the test images is above 88.5%. The confusion matrix shows that most errors are between shirts
and other tops.
"""

import argparse

import lamina as lm
from lamina.reports import plot_confusion

NAMES = ("T-shirt", "trousers", "pullover", "dress", "coat")
NAMES += ("sandal", "shirt", "sneaker", "bag", "boot")


def main(argv=None):
    parser = argparse.ArgumentParser(description="LeNet on Fashion-MNIST or MNIST.")
    parser.add_argument("folder", nargs="?", help="the four IDX files, plain or .gz")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--engine", default="cpu")
    parser.add_argument("--limit", type=int, help="train on this many images, the first ones")
    parser.add_argument("--digits", action="store_true", help="the files hold MNIST")
    parser.add_argument("--curves", metavar="PNG", help="where to write the curves")
    parser.add_argument("--confusion", metavar="PNG", help="where to write the confusion matrix")
    options = parser.parse_args(argv)
    if options.folder is None:
        print("Nothing to learn from: give the folder with the files of Fashion-MNIST.")
        return

    train, test = lm.data.mnist(options.folder)
    if options.limit:
        train = train.subset(0, min(options.limit, len(train)))
    shape = train.input_shapes[0]
    net = lm.Sequential(
        lm.Input(*shape), lm.Rescale(1 / 255), lm.networks.lenet(classes=10, input=shape)
    )
    print(net, end="\n\n")

    loss, accuracy = lm.CrossEntropy(), lm.Accuracy()
    model = lm.Model(net, engine=options.engine, seed=0)
    history = model.fit(
        train,
        validation=test,
        epochs=options.epochs,
        batch_size=100,
        loss=loss,
        optimizer=lm.Adam(1e-3),
        metrics=[accuracy],
    )
    print(history, end="\n\n")
    if options.curves:
        history.plot(options.curves)
        print(f"wrote {options.curves}")
    results = model.evaluate(test, loss, metrics=[accuracy, lm.ConfusionMatrix()])
    if options.confusion:
        names = () if options.digits else NAMES
        plot_confusion(results["confusion_matrix"], options.confusion, names=names)
        print(f"wrote {options.confusion}")
    print(f"accuracy on {len(test)} test images: {results['accuracy']:.1%}")


if __name__ == "__main__":
    main()
