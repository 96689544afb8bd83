"""Functions of arrays, compiled from any graph of ops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

from lamina.base.shapes import Array, float32
from lamina.checks import checked
from lamina.engines.discovery import DEFAULT_ENGINE, open_engine
from lamina.engines.engine import Engine
from lamina.errors import DefinitionError
from lamina.graph import Tensor
from lamina.network import Network
from lamina.runtime.compiled import CompiledProgram, Placement, RecentPrograms, compile_for_batch
from lamina.runtime.index_checks import check_indices, index_checks
from lamina.runtime.model_lock import ModelLock
from lamina.step.derive import BatchSpecs, inference_graph
from lamina.step.names import unnamed
from lamina.step.specs import check_batch, converted


@final
class Function:
    """A compiled graph: a function from arrays to arrays. Made by `lamina.compile`."""

    def __init__(
        self, inputs: Tensor | Sequence[Tensor], outputs: Tensor | Sequence[Tensor], engine: Engine
    ) -> None:
        self._network = Network(inputs, outputs)
        self._placement = Placement(engine, ModelLock(), engine.arena())
        self._programs: RecentPrograms[int] = RecentPrograms()
        # Every input keeps the dtype of its definition.
        dtypes = [tensor.dtype for tensor in self._network.inputs]
        self._graph = inference_graph(BatchSpecs(self._network, float32, input_dtypes=dtypes))
        record = self._graph.trace.record
        self._inputs = unnamed("input", len(self._network.inputs))
        self._index_checks = index_checks(record.index_limits, self._inputs.labels)
        if record.parameters or record.states:
            raise DefinitionError(
                "a compiled function has no parameters, but its tensors come from layers",
                facts=(("found", ", ".join((*record.parameters, *record.states))),),
                where="compile",
                advice="Make a network: lm.Model(lm.Network(inputs=..., outputs=...)).",
            )

    def __call__(self, *arrays: Any) -> tuple[Array, ...]:
        """The outputs for one batch.

        Args:
            arrays: an array for each input, batch first, all with the same number of examples.

        Raises:
            LaminaError: if an array does not fit its input.
        """
        specs = [(tensor.shape, tensor.dtype) for tensor in self._network.inputs]
        inputs = zip(converted(arrays, self._inputs, specs), specs, strict=True)
        ready = [array.astype(dtype.numpy) for array, (_, dtype) in inputs]
        batch = check_batch(ready, specs, self._inputs.labels) if ready else 1
        check_indices(self._index_checks, ready)
        with self._placement.lock.mutex:
            compiled = self._programs.get(batch, self._compile)
            compiled.run(ready)
            return tuple(compiled.executable.output(name) for name, _ in compiled.program.outputs)

    def _compile(self, batch: int) -> CompiledProgram:
        return compile_for_batch(self._graph, batch, self._placement, {}, "function")


@checked
def compile(
    inputs: Tensor | Sequence[Tensor],
    outputs: Tensor | Sequence[Tensor],
    engine: str = DEFAULT_ENGINE,
) -> Function:
    """A graph of ops, compiled to a function of arrays, anew for each batch size.

    Args:
        inputs: one or several tensors made by `lamina.Input`.
        outputs: one or several tensors computed from them.

    Returns:
        A function of arrays in the order of the inputs, batch first, that returns a tuple of
        arrays.

    Example:
        >>> x = lm.Input()
        >>> square = lm.compile(inputs=[x], outputs=[x * x])
        >>> square([1.0, 2.0])[0].tolist()
        [1.0, 4.0]
    """
    return Function(inputs, outputs, open_engine(engine))
