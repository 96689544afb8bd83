"""Running compiled programs: where compiler and engine meet.

`Parameters` owns the values of a model on an engine. `Inference` runs forward passes with them.
`compile_for_batch` compiles the graph of one batch. Training is in `lamina.training`.
"""

from lamina.runtime.compiled import compile_for_batch as compile_for_batch
from lamina.runtime.function import Function as Function
from lamina.runtime.inference import Inference as Inference
from lamina.runtime.parameters import Parameters as Parameters
