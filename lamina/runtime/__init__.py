"""Running compiled programs: where compiler and engine meet.

Comes in: graphs of one batch, and the caller's arrays. Leaves: results, and parameters in the
memory of an engine. `Parameters` owns the values of a model; `Inference` runs forward passes with
them; `compile_for_batch` compiles. Training is in `lamina.training`. Read `compiled.py` first.
"""

from lamina.runtime.compiled import compile_for_batch as compile_for_batch
from lamina.runtime.function import Function as Function
from lamina.runtime.inference import Inference as Inference
from lamina.runtime.parameters import Parameters as Parameters
