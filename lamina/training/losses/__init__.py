"""Losses: the error of a prediction as one number; one family a file.

A loss is a frozen record that builds its graph from ops, so its gradient is derived and it is fused
with the network. It gives the loss of each element; the base reduces them, with weights. All
formulas are those of PyTorch, or of Keras where only Keras has the loss.
"""

from lamina.lazy import loaded_when_used

if not loaded_when_used(__name__):
    from lamina.training.losses.binary import BCE as BCE
    from lamina.training.losses.binary import BCEWithLogits as BCEWithLogits
    from lamina.training.losses.binary import BinaryFocal as BinaryFocal
    from lamina.training.losses.classification import NLL as NLL
    from lamina.training.losses.classification import CrossEntropy as CrossEntropy
    from lamina.training.losses.classification import Focal as Focal
    from lamina.training.losses.distributions import EvidenceLowerBound as EvidenceLowerBound
    from lamina.training.losses.distributions import GaussianNLL as GaussianNLL
    from lamina.training.losses.distributions import KLDivergence as KLDivergence
    from lamina.training.losses.distributions import PoissonNLL as PoissonNLL
    from lamina.training.losses.embeddings import CosineEmbedding as CosineEmbedding
    from lamina.training.losses.embeddings import NegativeCosine as NegativeCosine
    from lamina.training.losses.embeddings import Triplet as Triplet
    from lamina.training.losses.embeddings import TripletWithDistance as TripletWithDistance
    from lamina.training.losses.loss import Elements as Elements
    from lamina.training.losses.loss import Loss as Loss
    from lamina.training.losses.margins import CategoricalHinge as CategoricalHinge
    from lamina.training.losses.margins import Hinge as Hinge
    from lamina.training.losses.margins import HingeEmbedding as HingeEmbedding
    from lamina.training.losses.margins import MarginRanking as MarginRanking
    from lamina.training.losses.margins import MultiLabelMargin as MultiLabelMargin
    from lamina.training.losses.margins import MultiLabelSoftMargin as MultiLabelSoftMargin
    from lamina.training.losses.margins import MultiMargin as MultiMargin
    from lamina.training.losses.margins import SoftMargin as SoftMargin
    from lamina.training.losses.margins import SquaredHinge as SquaredHinge
    from lamina.training.losses.regression import MAE as MAE
    from lamina.training.losses.regression import MAPE as MAPE
    from lamina.training.losses.regression import MSE as MSE
    from lamina.training.losses.regression import MSLE as MSLE
    from lamina.training.losses.regression import Huber as Huber
    from lamina.training.losses.regression import LogCosh as LogCosh
    from lamina.training.losses.regression import Quantile as Quantile
    from lamina.training.losses.regression import SmoothL1 as SmoothL1
    from lamina.training.losses.segmentation import Dice as Dice
    from lamina.training.losses.sequences import CTC as CTC
