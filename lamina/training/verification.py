"""`verify`: checks a network's gradients by finite differences, and all usable engines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated

import numpy as np

from lamina.base import shapes
from lamina.base.records import frozen_dataclass
from lamina.base.shapes import Array, DType
from lamina.checks import checked
from lamina.checks.kinds import Instance
from lamina.data import Dataset, as_dataset
from lamina.data.dataset import Data
from lamina.engines.discovery import devices, open_engine
from lamina.engines.engine import Device, Memory
from lamina.graph import Graph, Tensor
from lamina.learning.by_output import Losses, as_loss
from lamina.learning.optimizers import SGD
from lamina.learning.protocols import BatchSize, Loss, TrainingOptions
from lamina.network import Network
from lamina.ops.differentiate import gradients
from lamina.reports import table_text
from lamina.runtime import Parameters, compile_for_batch
from lamina.runtime.random_examples import random_examples, random_normal
from lamina.step.derive import BatchGraph, BatchSpecs, evaluation_graph
from lamina.step.precision import Precision
from lamina.step.specs import positional, target_specs
from lamina.training.progress import with_progress
from lamina.training.training import Training

# A gradient in float64 agrees with central differences of this relative length to about 1e-9. A
# larger deviation than the tolerance means a wrong formula, or a kink between the two points.
DIFFERENCE = 1e-6
GRADIENT_TOLERANCE = 1e-5
# The change of a parameter in one training step in float32 differs between engines by the rounding
# in sums of some thousand terms.
ENGINE_TOLERANCE = 1e-3
# The number of random directions. The median deviation counts. If it is above the tolerance,
# shorter lengths are tried. A wrong gradient deviates in nearly all directions and at every length.
# A kink (ReLU at 0) between the two points does so in some directions and at some lengths only.
DIRECTIONS = 5
# After cancellation a sum consists of rounding errors, which are random. So the error of an engine
# may be ROUNDING times the error of the interpreter in float32. The gradients of the interpreter
# are checked in float64; its error may be INTERPRETER_ROUNDING * ENGINE_TOLERANCE times the largest
# change.
ROUNDING = 100
INTERPRETER_ROUNDING = 10
# Some gradients are zero except for rounding, as of biases before batch normalisation.
# So deviations are divided by at least this fraction of the largest gradient of the network.
NEGLIGIBLE = 1e-4

_NETWORK = Instance(
    Network, "a network is verified", "A model has one: lm.verify(model.network, loss)."
)


@frozen_dataclass
class Finding:
    """One comparison.

    Attributes:
        what: the value compared, `"gradient of 1.weight"` or `"training step on opencl:0"`.
        deviation: the deviation relative to the largest value compared; 0 is perfect.
        tolerance: the most that is accepted.
    """

    what: str
    deviation: float
    tolerance: float

    @property
    def passed(self) -> bool:
        return self.deviation <= self.tolerance


@frozen_dataclass
class Report:
    """The result of `verify`; `print` shows it as a table.

    Attributes:
        findings: a finding for each parameter and each engine.
        skipped: the devices that cannot be used, with the reason.
    """

    findings: tuple[Finding, ...]
    skipped: tuple[Device, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether every deviation is within its tolerance."""
        return all(finding.passed for finding in self.findings)

    def __str__(self) -> str:
        rows = [
            (
                finding.what,
                f"{finding.deviation:.1e}",
                f"{finding.tolerance:.0e}",
                "ok" if finding.passed else "FAILED",
            )
            for finding in self.findings
        ]
        table = table_text(("check", "deviation", "tolerance", ""), rows, align="lrrl")
        skipped = [f"not checked on {device.engine}: {device.problem}\n" for device in self.skipped]
        verdict = "all checks passed" if self.passed else "SOME CHECKS FAILED"
        return f"{table}\n{''.join(skipped)}{verdict}"


@checked
def verify(
    network: Annotated[Network, _NETWORK],
    loss: Losses,
    *,
    data: Data | None = None,
    batch_size: BatchSize = 8,
    seed: int = 0,
) -> Report:
    """Checks each parameter's gradient by finite differences, and the engines against each other.

    Args:
        network: the network, checked in training mode.
        loss: the loss whose gradients are checked.
        data: examples to check on; random ones by default.
        batch_size: the number of random examples.
        seed: the seed of parameters, random examples and directions.

    Returns:
        A report; `report.passed` is true if all checks passed. On terminals a bar shows the
        progress.

    Raises:
        DataError: if random examples cannot be made, because an input takes integers.
        DefinitionError: if `network` is not a network.

    Example:
        >>> net = lm.Sequential(lm.Input(3), lm.Linear(4), lm.Tanh(), lm.Linear(2))
        >>> lm.verify(net, loss=lm.CrossEntropy()).passed
        True
    """
    loss = as_loss(loss)
    dataset = (
        positional(as_dataset(data).dense(), network, loss, shapes.float64)
        if data is not None
        else random_examples(network, loss, batch_size, seed, shapes.float64, where="verify")
    )
    # The training steps come first: they raise the clearest errors for data that does not fit.
    all_devices = devices()
    usable = [device for device in all_devices if not device.problem]
    engines = _engine_findings(network, loss, dataset, seed, usable)
    return Report(
        (*_gradient_findings(network, loss, dataset, seed), *engines),
        tuple(device for device in all_devices if device.problem),
    )


def _gradient_findings(network: Network, loss: Loss, dataset: Dataset, seed: int) -> list[Finding]:
    """In float64, in random directions d: (L(p + e d) - L(p - e d)) / 2e against gradient . d."""
    # The loss in training mode, and the gradient of each parameter, under its name.
    batch = BatchSpecs(network, shapes.float64, None, dataset.input_dtypes, target_specs(dataset))
    forward = evaluation_graph(batch, loss, training=True)
    value: Tensor = dict(forward.graph.outputs)["loss"]
    variables = forward.trace.record.parameters
    gradient = gradients(value, [variable.tensor for variable in variables.values()])
    outputs = (("loss", value), *zip(variables, gradient, strict=True))
    graph = BatchGraph(Graph(forward.graph.inputs, outputs), forward.trace)
    parameters = Parameters(network, open_engine("interpreter"), Precision(shapes.float64), seed)
    memories = parameters.with_random_state()
    compiled = compile_for_batch(graph, len(dataset), parameters.placement, memories, "verify")
    arrays = (*dataset.input_arrays, *dataset.target_arrays)

    def loss_with(memory: Memory, value: Array) -> float:
        memory.write(value)
        compiled.run(arrays)
        return compiled.executable.scalar("loss")

    compiled.run(arrays)
    slopes = {
        name: compiled.executable.output(name) for name in parameters.variables if name in variables
    }
    largest = max((float(np.linalg.norm(slope)) for slope in slopes.values()), default=0.0)
    smallest = max(NEGLIGIBLE * largest, 1e-8)
    findings: list[Finding] = []
    for number, name in enumerate(with_progress(list(slopes), "gradients")):
        memory = parameters.memories[name]
        start = memory.read()
        loss_at = partial(loss_with, memory)
        deviations: list[float] = []
        first = 2000 + DIRECTIONS * number
        for stream in range(first, first + DIRECTIONS):
            direction = random_normal(start.shape, seed, stream)
            deviations.append(_deviation(loss_at, start, direction, slopes[name], smallest))
            memory.write(start)
        median = sorted(deviations)[DIRECTIONS // 2]
        findings.append(Finding(f"gradient of {name}", median, GRADIENT_TOLERANCE))
    return findings


def _deviation(
    loss_at: Callable[[Array], float], start: Array, direction: Array, slope: Array, smallest: float
) -> float:
    """How far differences of the loss are from its slope, relative to that, or to `smallest`."""
    exact = float((slope * direction).sum())
    size = max(abs(exact), float(np.linalg.norm(slope)), smallest)
    scale = DIFFERENCE * max(1.0, float(np.abs(start).max(initial=0.0)))
    least = np.inf
    for length in (scale, scale / 10, scale / 100):
        change = loss_at(start + length * direction) - loss_at(start - length * direction)
        deviation = abs(change / (2 * length) - exact) / size
        if np.isfinite(deviation):
            least = min(least, deviation)
        if least <= GRADIENT_TOLERANCE:
            break
    return least


def _engine_findings(
    network: Network, loss: Loss, dataset: Dataset, seed: int, usable: Sequence[Device]
) -> list[Finding]:
    """One float32 training step on each device against the same in float64."""
    changes_on = partial(_changes, network, loss, dataset, seed)
    exact = changes_on("interpreter", shapes.float64)
    most = max((_largest(change) for _, change in exact.values()), default=0.0)
    added = float(np.finfo("float32").eps) / ENGINE_TOLERANCE
    plain = changes_on("interpreter", shapes.float32)
    findings: list[Finding] = []
    for device in usable:
        is_plain = device.engine == "interpreter"
        changes = plain if is_plain else changes_on(device.engine, shapes.float32)
        worst = 0.0
        for name, (start, change) in exact.items():
            off = _largest(plain[name][1] - change)
            size = max(
                _largest(change),
                # Changes below the resolution of the parameter in float32 have no effect.
                added * _largest(start),
                INTERPRETER_ROUNDING * most if is_plain else ROUNDING * off / ENGINE_TOLERANCE,
                1e-12,
            )
            deviation = _largest(changes[name][1] - change) / size
            worst = max(worst, deviation) if np.isfinite(deviation) else np.inf
        findings.append(Finding(f"training step on {device.engine}", worst, ENGINE_TOLERANCE))
    return findings


def _largest(array: Array) -> float:
    return float(np.abs(array).max(initial=0.0))


def _changes(
    network: Network, loss: Loss, dataset: Dataset, seed: int, engine: str, dtype: DType
) -> dict[str, tuple[Array, Array]]:
    """Each parameter, and its change in one training step of gradient descent."""
    converted = Dataset(dataset.input_arrays, dataset.target_arrays or None, dtype=dtype.name)
    parameters = Parameters(network, open_engine(engine), Precision(dtype), seed)
    options = TrainingOptions(loss, SGD(0.1))
    with Training(parameters, options, converted, len(converted), seed=seed) as training:
        names = list(parameters.variables)
        before = parameters.read(names)
        training.step(converted.input_arrays, converted.target_arrays)
        after = parameters.read(names)
    return {name: (before[name], after[name] - before[name]) for name in names}
