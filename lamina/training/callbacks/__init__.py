"""Callbacks: objects whose hooks `fit` calls, public as `lamina.callbacks`.

Comes in: the events of a fit, and its state. Leaves: files, other learning rates, the end of the
fit. Read `callback.py` first, then `monitoring.py`.
"""

from lamina.base.lazy import loaded_when_used

if not loaded_when_used(__name__):
    from lamina.training.callbacks.callback import Callback as Callback
    from lamina.training.callbacks.callback import RunningFit as RunningFit
    from lamina.training.callbacks.logs import CSVLog as CSVLog
    from lamina.training.callbacks.logs import JSONLinesLog as JSONLinesLog
    from lamina.training.callbacks.logs import PrintEpochs as PrintEpochs
    from lamina.training.callbacks.logs import TensorBoard as TensorBoard
    from lamina.training.callbacks.monitoring import EarlyStopping as EarlyStopping
    from lamina.training.callbacks.monitoring import ReduceOnPlateau as ReduceOnPlateau
    from lamina.training.callbacks.monitoring import SaveModels as SaveModels
    from lamina.training.callbacks.monitoring import TimeLimit as TimeLimit
