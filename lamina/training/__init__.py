"""Training: losses, optimizers, schedules, metrics, clipping, and the fit loop."""
