"""Losses: the error of a prediction as one number; one family a file.

A loss is a frozen record that builds its graph from ops, so its gradient is derived and it is fused
with the network. All formulas are those of PyTorch.
"""

from lamina.lazy import loaded_when_used

if not loaded_when_used(__name__):
    from lamina.training.losses.classification import BCE as BCE
    from lamina.training.losses.classification import NLL as NLL
    from lamina.training.losses.classification import BCEWithLogits as BCEWithLogits
    from lamina.training.losses.classification import CrossEntropy as CrossEntropy
    from lamina.training.losses.classification import Hinge as Hinge
    from lamina.training.losses.distributions import EvidenceLowerBound as EvidenceLowerBound
    from lamina.training.losses.distributions import KLDivergence as KLDivergence
    from lamina.training.losses.distributions import Triplet as Triplet
    from lamina.training.losses.loss import Loss as Loss
    from lamina.training.losses.regression import MAE as MAE
    from lamina.training.losses.regression import MSE as MSE
    from lamina.training.losses.regression import Huber as Huber
