"""The fit: batches, epochs, evaluation, checkpoints, callbacks, history.

Comes in: a model's parameters, data, and the `TrainingOptions` of `lamina.learning`, whose packages
users find here too. Leaves: changed parameters, a history, files. Read `fit.py` first, then
`training.py`.
"""

from lamina.base.lazy import loaded_when_used

if not loaded_when_used(__name__):
    from lamina.learning import clipping as clipping
    from lamina.learning import losses as losses
    from lamina.learning import metrics as metrics
    from lamina.learning import optimizers as optimizers
    from lamina.learning import schedules as schedules
    from lamina.training import callbacks as callbacks
