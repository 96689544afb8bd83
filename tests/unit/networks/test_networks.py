"""Ready networks: published numbers of parameters, shapes, a few training steps."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from error_texts import check_refusal

import lamina as lm
from lamina.errors import DefinitionError
from lamina.files.encode import encode
from lamina.networks import (
    autoencoder,
    dcgan,
    lenet,
    mlp,
    mobilenet_v2,
    resnet,
    unet,
    variational_autoencoder,
    vgg,
)

Array = np.ndarray


# Parameters ---------------------------------------------------------------------------------------

# The figures of the papers' authors, of torchvision 0.21, and of PyTorch's tutorial on DCGAN. Those
# whose parameters `test_from_torch` compares with torchvision's one by one are left out.
PARAMETERS: list[tuple[str, Callable[[], lm.Network], int]] = [
    ("784-256-128-10", mlp, 235_146),
    ("LeNet", lenet, 431_080),
    ("VGG-13", lambda: vgg(13), 133_047_848),
    ("VGG-16", vgg, 138_357_544),
    ("VGG-19", lambda: vgg(19), 143_667_240),
    ("ResNet-101", lambda: resnet(101), 44_549_160),
    ("ResNet-152", lambda: resnet(152), 60_192_808),
    ("ResNet-18 for CIFAR", lambda: resnet(18, 10, "cifar"), 11_173_962),
    ("MobileNetV2 of half the width", lambda: mobilenet_v2(width=0.5), 1_968_680),
    ("MobileNetV2 of more width", lambda: mobilenet_v2(width=1.4), 6_108_776),
    ("U-Net", unet, 31_030_658),
    ("U-Net, normalised, for colours", lambda: unet(2, (3, 64, 64), batch_norm=True), 31_037_698),
    ("784-1000-500-250-30 and back", lambda: autoencoder().network, 2_837_314),
    ("DCGAN's generator", lambda: dcgan()[0], 3_576_704),
    ("DCGAN's discriminator", lambda: dcgan()[1], 2_765_568),
]


@pytest.mark.parametrize(("name", "make", "count"), PARAMETERS, ids=[row[0] for row in PARAMETERS])
def test_a_network_has_the_published_number_of_parameters(name, make, count):
    assert make().parameter_count() == count


# Shapes -------------------------------------------------------------------------------------------


def outputs(network: lm.Network) -> list[tuple[Any, ...]]:
    """The shapes of the outputs of one example."""
    return [tensor.shape[1:] for tensor in network.outputs]


@pytest.mark.cases(
    ("make", "shape"),
    (lambda: mlp((), classes=3, input=(5,)), (3,)),
    (lambda: mlp((8,), classes=3, input=(2, 4, 4)), (3,)),
    (lambda: lenet(26, (3, 32, 48)), (26,)),
    (lambda: vgg(11, 10, (3, 32, 32), hidden=()), (10,)),
    (lambda: resnet(50, 7), (7,)),
    (lambda: resnet(18, 7, "cifar", (1, 28, 28)), (7,)),
    (lambda: resnet(50, 7, "cifar", (1, 28, 28), width=2), (7,)),
    (lambda: resnet(34, 7, input=(3, 96, 64)), (7,)),
    (lambda: mobilenet_v2(7, 0.35, (1, 40, 48)), (7,)),
    (lambda: unet(5, (3, 48, 32), (8, 16, 32)), (5, 48, 32)),
    (lambda: unet(2, (1, 572, 572), padding="valid"), (2, 388, 388)),
    (lambda: autoencoder((16,), 3, (1, 8, 8)).network, (1, 8, 8)),
    (lambda: autoencoder((16,), 3, (1, 8, 8)).encoder, (3,)),
    (lambda: autoencoder((16,), 3, (1, 8, 8)).decoder, (1, 8, 8)),
    (lambda: variational_autoencoder((16,), 3, (1, 8, 8)).decoder, (1, 8, 8)),
    (lambda: dcgan(10, (3, 32, 32), 4)[0], (3, 32, 32)),
    (lambda: dcgan(10, (3, 32, 32), 4)[1], (1,)),
    (lambda: lm.networks.transformer_encoder(11, 7, 8, 2, 2, 16), (11, 7)),
    (lambda: lm.networks.transformer_encoder(11, 7, 8, 2, 2, 16, classes=3), (3,)),
)
def test_a_network_has_the_documented_output_shape(make, shape):
    assert outputs(make()) == [shape]


def test_a_variational_autoencoder_has_three_outputs():
    parts = variational_autoencoder((16,), code=3, input=(1, 8, 8))
    assert outputs(parts.network) == [(1, 8, 8), (3,), (3,)]
    assert outputs(parts.encoder) == [(3,), (3,)]


def test_channels_of_a_residual_network_double_from_stage_to_stage():
    weights = lm.Model(resnet(18, 7, "cifar", (1, 8, 8), width=4)).parameters().values()
    assert {weight.shape[0] for weight in weights if weight.ndim == 4} == {4, 8, 16, 32}


def same_definition(one: lm.Network, other: lm.Network) -> bool:
    """Whether both have the same layers, whatever their names."""
    return unnamed(encode(one)[0]) == unnamed(encode(other)[0])


def unnamed(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: unnamed(value) for key, value in data.items() if key != "name"}
    return [unnamed(one) for one in data] if isinstance(data, list) else data


def test_vgg_is_the_network_of_the_workload():
    layers: list[lm.Layer] = []
    for width in (32, 64, 128):
        for _ in range(2):
            start = lm.init.KaimingUniform(mode="fan_out", nonlinearity="relu")
            layers.append(lm.Conv2d(width, 3, padding="same", weight_init=start))
            layers += [lm.BatchNorm(), lm.ReLU()]
        layers.append(lm.MaxPool2d(2))
    layers += [lm.Flatten(), lm.Linear(256), lm.ReLU(), lm.Linear(10)]
    stages = ((32, 32), (64, 64), (128, 128))
    network = vgg(stages, 10, (3, 32, 32), hidden=(256,), batch_norm=True, dropout=0)
    assert same_definition(network, lm.Sequential(lm.Input(3, 32, 32), *layers))


def test_mlp_takes_a_users_activation():
    layers = lm.Linear(4), lm.Tanh(), lm.Linear(2)
    assert same_definition(
        mlp((4,), 2, (3,), activation=lm.Tanh()), lm.Sequential(lm.Input(3), *layers)
    )


# Sequences ----------------------------------------------------------------------------------------


def test_a_classifier_takes_features_or_tokens_and_optionally_lengths():
    net = lm.networks.lstm_classifier(5, 7, inputs=3, features=8, layers=2, bidirectional=False)
    assert [x.shape[1:] for x in (*net.inputs, *net.outputs)] == [(7, 3), (5,)]
    assert net.parameter_count() == 4 * 8 * (3 + 8 + 2) + 4 * 8 * (8 + 8 + 2) + 5 * 9
    net = lm.networks.lstm_classifier(5, 7, vocabulary=11, features=8, lengths=True)
    assert [x.shape[1:] for x in (*net.inputs, *net.outputs)] == [(7,), (), (5,)]
    assert net.parameter_count() == 11 * 8 + 2 * 4 * 8 * (8 + 8 + 2) + 5 * 17


@pytest.mark.sampled
def test_a_classifier_learns_the_first_token_of_sequences_of_different_lengths():
    generator = np.random.default_rng(0)
    things, lengths = generator.integers(0, 6, (1000, 12)), generator.integers(1, 13, 1000)
    model = lm.Model(
        lm.networks.lstm_classifier(
            6, 12, vocabulary=6, features=16, bidirectional=False, lengths=True
        )
    )
    data = ((things, lengths), things[:, 0])
    model.fit(data, epochs=12, batch_size=50, loss=lm.CrossEntropy(), optimizer=lm.Adam(1e-2))
    assert (model.predict((things, lengths)).argmax(1) == things[:, 0]).mean() > 0.95


def test_a_causal_encoder_attends_to_earlier_positions_only():
    tokens = np.random.default_rng(0).integers(0, 11, (4, 7))
    changed = tokens.copy()
    changed[:, 5] = (changed[:, 5] + 1) % 11
    for causal in (True, False):
        model = lm.Model(lm.networks.transformer_encoder(11, 7, 8, 2, 2, 16, causal=causal))
        before, after = model.predict(tokens), model.predict(changed)
        assert np.array_equal(before[:, :, :5], after[:, :, :5]) == causal
        assert (before[:, :, 5:] != after[:, :, 5:]).all()


@pytest.mark.sampled
def test_a_causal_encoder_learns_the_next_token():
    """Each sequence counts on from a random start."""
    starts = np.random.default_rng(0).integers(0, 10, (2000, 1))
    numbers = (starts + np.arange(9)) % 10
    net = lm.networks.transformer_encoder(10, 8, 16, 2, 1, 32, causal=True, dropout=0.0)
    model = lm.Model(net)
    x, y = numbers[:, :-1], numbers[:, 1:]
    model.fit((x, y), epochs=3, batch_size=50, loss=lm.CrossEntropy(), optimizer=lm.Adam(1e-2))
    assert (model.predict(x).argmax(1) == y).mean() > 0.99


# Training -----------------------------------------------------------------------------------------

# Deep networks, which take seconds to compile, are trained where they are compared with PyTorch.
SMALL: dict[str, Callable[[], lm.Network]] = {
    "mlp": lambda: mlp((16,), 3, (8,)),
    "lenet": lambda: lenet(3, (1, 16, 16)),
    "vgg": lambda: vgg(((4, 4), (8,)), 3, (1, 8, 8), hidden=(16,), batch_norm=True),
    "unet": lambda: unet(3, (1, 8, 8), (4, 8, 16), batch_norm=True),
    "autoencoder": lambda: autoencoder((16,), 3, (1, 8, 8)).network,
    "variational_autoencoder": lambda: variational_autoencoder((16,), 3, (1, 8, 8)).network,
    "dcgan's generator": lambda: dcgan(8, (1, 8, 8), 4)[0],
    "dcgan's discriminator": lambda: dcgan(8, (1, 8, 8), 4)[1],
}


@pytest.mark.parametrize("name", SMALL)
def test_a_network_learns(name):
    network, generator = SMALL[name](), np.random.default_rng(0)
    x = generator.random((16, *network.inputs[0].shape[1:]), dtype="float32")
    first = network.outputs[0].shape[1:]
    loss: Any = lm.MSE()
    y: Array = generator.random((16, *first), dtype="float32")
    if len(network.outputs) > 1:
        loss = lm.EvidenceLowerBound()
    elif first[0] == 3:
        loss, y = lm.CrossEntropy(), generator.integers(0, 3, (16, *first[1:]))
    with lm.Model(network, engine="cpu").training(loss, lm.Adam(2e-3), 16) as training:
        losses = [float(training.step(x, y)) for _ in range(20)]
    assert np.mean(losses[-5:]) < np.mean(losses[:5])


def test_a_dcgan_starts_with_the_deviation_of_its_paper():
    for network in dcgan(50, (3, 16, 16), 16):
        weights = [w for w in lm.Model(network).parameters().values() if w.ndim == 4]
        for weight in weights:
            assert weight.std() == pytest.approx(0.02, rel=0.2)
            assert abs(weight.mean()) < 0.003


def test_activations_of_a_deep_vgg_keep_their_scale():
    stages = [[16] * 8, [16] * 8]
    model = lm.Model(vgg(stages, 10, (3, 16, 16), hidden=(), dropout=0))
    noise = np.random.default_rng(0).normal(size=(4, 3, 16, 16)).astype("float32")
    assert 0.05 < np.abs(model.predict(noise)).mean() < 5


# Errors -------------------------------------------------------------------------------------------

_OF_IMAGES = ": this is not a shape of images\n  expected  input=(channels, height, width)\n"
_COLOUR = "Images of one colour have one channel"
_CHANNELS = "Channels come first: input=(3, 64, 64), and for the data array.transpose(0, 3, 1, 2)."
_SQUARES = "a DCGAN is defined for square images of some sizes only\n"


@pytest.mark.cases(
    "row",
    *(
        (
            lambda both=both: lm.networks.lstm_classifier(5, 7, **both),
            "lstm_classifier takes either inputs or a vocabulary",
        )
        for both in ({}, {"inputs": 3, "vocabulary": 11})
    ),
    (
        lambda: vgg(17),
        *("there is no VGG of this depth\n", "  expected  11, 13, 16 or 19\n", "  found     17\n"),
        "  Give the channels of each convolution instead: ((64, 64), (128, 128)).",
    ),
    (
        lambda: resnet(20),
        "there is no residual network of this depth\n",
        *("  expected  18 or 34 or 50 or 101 or 152\n", "  found     20"),
    ),
    (
        lambda: unet(2, (1, 44, 48), (4, 8, 16, 32)),
        *("an image in the encoder cannot be halved\n", "  expected  an even height and width\n"),
        "  found     11 x 12\n",
        "  The image is halved 3 times: with padding='same', height and width must be ",
        "multiples of 8.",
    ),
    (
        lambda: dcgan(8, (1, 28, 28)),
        *(_SQUARES, "  expected  8 x 8, 16 x 16, 32 x 32, ..\n", "  found     28 x 28\n"),
        "  Enlarge or pad the images: lm.Upsample, lm.Pad.",
    ),
    *(
        (lambda image=image: dcgan(8, image), _SQUARES)
        for image in ((1, 4, 4), (1, 8, 16), (1, 24, 24))
    ),
    *(
        row
        for make in (lenet, resnet, mobilenet_v2, unet)
        for row in (
            (
                lambda make=make: make(input=(64, 64, 3)),
                *(_OF_IMAGES, "  found     (64, 64, 3)\n", f"  {_CHANNELS}"),
            ),
            (lambda make=make: make(input=(64, 64)), _COLOUR),
            (
                lambda make=make: make(input=32),
                *(_OF_IMAGES, "  found     32\n", f"  {_COLOUR}: input=(1, 32, 32)."),
            ),
        )
    ),
    *(
        (
            lambda make=make, options={name: number}: make(**options),
            f": {name} must be a list of numbers",
            f"Write a single one with a comma: {name}=({number},).",
        )
        for make, name, number in (
            *((mlp, "widths", 256), (mlp, "input", 784), (autoencoder, "widths", 256)),
            *((unet, "widths", 64), (vgg, "hidden", 64)),
        )
    ),
)
def test_unsupported_variants_are_refused_at_the_users_line(row):
    call, *parts = row
    assert "test_networks.py:" in check_refusal(DefinitionError, call, *parts)


@pytest.mark.parametrize("shape", [(64, 8, 3), (12, 1000, 1), (64, 32, 1), (16, 64, 3)])
def test_narrow_images_of_many_channels_are_images(shape):
    assert lm.networks.mobilenet_v2(10, input=shape).inputs[0].shape[1:] == shape


# PyTorch ------------------------------------------------------------------------------------------

# Relative to the largest element of an array, in float64.
TOLERANCE = 1e-9


def resnet18_twin(torch: Any) -> Any:
    """ResNet-18 with the stem for CIFAR, in the order in which Lamina makes the layers."""
    nn = torch.nn

    class Block(nn.Module):
        def __init__(self, inputs: int, width: int, stride: int) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False)
            self.norm1 = nn.BatchNorm2d(width)
            self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
            self.norm2 = nn.BatchNorm2d(width)
            self.shortcut = nn.Sequential()
            if stride > 1 or inputs != width:
                projection = nn.Conv2d(inputs, width, 1, stride, bias=False)
                self.shortcut = nn.Sequential(projection, nn.BatchNorm2d(width))

        def forward(self, x: Any) -> Any:
            y = torch.relu(self.norm1(self.conv1(x)))
            return torch.relu(self.norm2(self.conv2(y)) + self.shortcut(x))

    layers = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    inputs = 64
    for width, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [Block(inputs, width, stride), Block(width, width, 1)]
        inputs = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


def mobilenet_v2_twin(torch: Any) -> Any:
    """MobileNetV2 of a quarter of the width, without dropout."""
    nn = torch.nn

    class Bottleneck(nn.Module):
        def __init__(self, inputs: int, channels: int, expansion: int, stride: int) -> None:
            super().__init__()
            inner = inputs * expansion
            layers = convolution(inputs, inner, 1) if expansion > 1 else []
            layers += convolution(inner, inner, 3, stride, inner)
            self.layers = nn.Sequential(*layers, *convolution(inner, channels, 1)[:2])
            self.residual = stride == 1 and inputs == channels

        def forward(self, x: Any) -> Any:
            return x + self.layers(x) if self.residual else self.layers(x)

    def convolution(
        inputs: int, channels: int, window: int, stride: int = 1, groups: int = 1
    ) -> list[Any]:
        padding = window // 2
        layer = nn.Conv2d(inputs, channels, window, stride, padding, groups=groups, bias=False)
        return [layer, nn.BatchNorm2d(channels), nn.ReLU6()]

    layers = convolution(3, 8, 3, 2)
    inputs = 8
    for expansion, channels, count, stride in (
        *((1, 8, 1, 1), (6, 8, 2, 2), (6, 8, 3, 2), (6, 16, 4, 2)),
        *((6, 24, 3, 1), (6, 40, 3, 2), (6, 80, 1, 1)),
    ):
        for number in range(count):
            layers.append(Bottleneck(inputs, channels, expansion, stride if number == 0 else 1))
            inputs = channels
    layers += convolution(inputs, 1280, 1)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, 10))


TWINS: dict[str, tuple[Callable[[], lm.Network], Callable[[Any], Any]]] = {
    "resnet18": (lambda: resnet(18, 10, "cifar", (3, 8, 8)), resnet18_twin),
    "mobilenet_v2": (lambda: mobilenet_v2(10, 0.25, (3, 32, 32), dropout=0), mobilenet_v2_twin),
}
RATE = 0.01


@pytest.mark.slow
@pytest.mark.parametrize("name", TWINS)
def test_a_deep_network_agrees_with_pytorch(name, torch):
    """Scores in both modes, gradients, and running averages, with PyTorch's weights."""
    # Several threads only wait for each other where the machine is busy.
    torch.set_num_threads(1)
    torch.manual_seed(0)
    make, make_other = TWINS[name]
    model, other = lm.Model(make(), dtype="float64"), make_other(torch).double()
    x = np.random.default_rng(0).normal(size=(4, *model.network.inputs[0].shape[1:]))
    y = np.array([1, 7, 7, 0])

    def in_order(values):
        """The names in the order in which the layers were made."""
        network = model.network
        paths = [network.path(node) for node in network.nodes]
        order = {path.split(":")[0].removeprefix("net/"): n for n, path in enumerate(paths)}
        return sorted(values, key=lambda name: order[name.rpartition(".")[0]])

    names, states = in_order(model.parameters()), in_order(model.states())
    running = [buffer for buffer in other.buffers() if buffer.is_floating_point()]
    parameters = list(other.parameters())
    for average in running:
        average += 0.5 * torch.rand_like(average)
    mine = dict(zip(names + states, parameters + running, strict=True))
    model.set_parameters({name: tensor.detach().numpy() for name, tensor in mine.items()})

    x_torch, y_torch = torch.from_numpy(x), torch.from_numpy(y)
    other.eval()
    close(model.predict(x), other(x_torch).detach().numpy())

    other.train()
    loss = torch.nn.functional.cross_entropy(other(x_torch), y_torch)
    loss.backward()
    before = model.parameters()
    with model.training(lm.CrossEntropy(), lm.SGD(RATE), 4) as training:
        step_loss = float(training.step(x, y))
    assert step_loss == pytest.approx(loss.item(), rel=TOLERANCE)
    after = model.parameters()
    # Where a normalisation follows, the gradient of a shift is zero but for rounding.
    largest = max(float(tensor.grad.abs().max()) for tensor in parameters)
    for name, tensor in zip(names, parameters, strict=True):
        gradient = (before[name] - after[name]) / RATE  # one training step of SGD
        close(gradient, tensor.grad.numpy(), rounding=1e-14 / RATE * largest)
    for name, tensor in zip(states, running, strict=True):
        close(model.states()[name], tensor.numpy())


def close(found: Array, expected: Array, rounding: float = 0.0) -> None:
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= TOLERANCE * np.abs(expected).max() + rounding
