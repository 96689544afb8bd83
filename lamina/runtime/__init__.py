"""Running networks: the only place where compiler and engine meet.

`Parameters` owns a model's values on an engine; `Inference` and `Evaluation` run forward passes
over them, `Training` changes them. Each holds compiled programs, one for each batch size in use,
and whatever memory those need; `release` gives it back.
"""

from lamina.runtime.arrays import target_specs as target_specs
from lamina.runtime.attached import Evaluation as Evaluation
from lamina.runtime.attached import Recorded as Recorded
from lamina.runtime.inference import Function as Function
from lamina.runtime.inference import Inference as Inference
from lamina.runtime.parameters import Parameters as Parameters
from lamina.runtime.prepared import prepare as prepare
from lamina.runtime.training import Training as Training
