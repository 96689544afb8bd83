"""A training shares the parameters of its model: there is one copy, and nothing to synchronise.

    python examples/shared_weights.py

A network 2-4-1 with given weights predicts 0.4352. Each training step changes the model's
predictions at once; nothing is copied. When the training is released, all memory that only training
needs is freed, and the model keeps the trained parameters.
"""

import argparse

import numpy as np

import lamina as lm


def main(argv=None):
    parser = argparse.ArgumentParser(description="A training shares the weights of its model.")
    parser.add_argument("--engine", default="cpu")
    options = parser.parse_args(argv)

    net = lm.Sequential(lm.Input(2), lm.Linear(4), lm.Tanh(), lm.Linear(1), lm.Sigmoid())
    model = lm.Model(net, engine=options.engine)
    model.set_parameters(
        {
            "1.weight": [[0.3, 0.6], [0.1, 2.0], [0.9, 3.7], [0.0, 1.0]],
            "1.bias": [-0.7, -0.2, -1.1, -2.0],
            "3.weight": [[0.75, 0.15, 0.22, 0.33]],
            "3.bias": [-0.3],
        }
    )
    x = np.array([[0.3, 0.9]], dtype="float32")
    print(f"given weights:              {model.predict(x).item():.4f}")

    # The bill counts each byte once. The parameters belong to the model, so they are not among the
    # bytes that a training adds.
    loss, optimizer = lm.MSE(), lm.SGD(0.5, momentum=0.5)
    alone = net.plan(batch_size=1)
    bill = net.plan(batch_size=1, loss=loss, optimizer=optimizer)
    print(f"parameters, shared:         {alone.parameter_bytes} bytes")
    print(f"added by a training:        {bill.peak_bytes - bill.parameter_bytes} bytes")

    training = model.training(loss=loss, optimizer=optimizer, batch_size=1)
    target = np.array([[0.9]], dtype="float32")
    training.step(x, target)
    print(f"after one training step:    {model.predict(x).item():.4f}")
    for _ in range(100):
        training.step(x, target)
    print(f"after a hundred more:       {model.predict(x).item():.4f}")

    # It works in the other direction too: the training continues from the model's new values.
    model.set_parameters({"3.bias": [-3.0]})
    print(f"bias set to -3:             {model.predict(x).item():.4f}")
    training.step(x, target)
    print(f"and one more training step: {model.predict(x).item():.4f}")

    training.release()
    print(f"released, still answers:    {model.predict(x).item():.4f}")
    try:
        training.step(x, target)
    except lm.errors.ReleasedError as error:
        print(f"ReleasedError {error}")


if __name__ == "__main__":
    main()
