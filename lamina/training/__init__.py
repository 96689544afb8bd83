"""Training: losses, optimizers, learning-rate schedules, metrics, clipping, and the fit loop."""

from lamina.lazy import loaded_when_used

if not loaded_when_used(__name__):
    from lamina.training import callbacks as callbacks
    from lamina.training import clipping as clipping
    from lamina.training import losses as losses
    from lamina.training import metrics as metrics
    from lamina.training import optimizers as optimizers
    from lamina.training import schedules as schedules
