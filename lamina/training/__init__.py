"""Training: losses, optimizers, learning-rate schedules, metrics, clipping, and the fit loop."""

from lamina.base.lazy import loaded_when_used

if not loaded_when_used(__name__):
    from lamina.learning import clipping as clipping
    from lamina.learning import losses as losses
    from lamina.learning import metrics as metrics
    from lamina.learning import optimizers as optimizers
    from lamina.learning import schedules as schedules
    from lamina.training import callbacks as callbacks
