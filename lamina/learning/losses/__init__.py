"""Losses: the error of a prediction as one number; one family a file.

A loss is a frozen record that builds its graph from ops, so its gradient is derived and it is fused
with the network. It gives the loss of each element; the base reduces them, with weights. All
formulas are those of PyTorch, or of Keras where only Keras has the loss.
"""

from lamina.base.lazy import loaded_when_used

if not loaded_when_used(__name__):
    from lamina.learning.losses.binary import BCE as BCE
    from lamina.learning.losses.binary import BCEWithLogits as BCEWithLogits
    from lamina.learning.losses.binary import BinaryFocal as BinaryFocal
    from lamina.learning.losses.classification import NLL as NLL
    from lamina.learning.losses.classification import CrossEntropy as CrossEntropy
    from lamina.learning.losses.classification import Focal as Focal
    from lamina.learning.losses.distributions import EvidenceLowerBound as EvidenceLowerBound
    from lamina.learning.losses.distributions import GaussianNLL as GaussianNLL
    from lamina.learning.losses.distributions import KLDivergence as KLDivergence
    from lamina.learning.losses.distributions import PoissonNLL as PoissonNLL
    from lamina.learning.losses.embeddings import CosineEmbedding as CosineEmbedding
    from lamina.learning.losses.embeddings import NegativeCosine as NegativeCosine
    from lamina.learning.losses.embeddings import Triplet as Triplet
    from lamina.learning.losses.embeddings import TripletWithDistance as TripletWithDistance
    from lamina.learning.losses.loss import Elements as Elements
    from lamina.learning.losses.loss import Loss as Loss
    from lamina.learning.losses.margins import CategoricalHinge as CategoricalHinge
    from lamina.learning.losses.margins import Hinge as Hinge
    from lamina.learning.losses.margins import HingeEmbedding as HingeEmbedding
    from lamina.learning.losses.margins import MarginRanking as MarginRanking
    from lamina.learning.losses.margins import MultiLabelMargin as MultiLabelMargin
    from lamina.learning.losses.margins import MultiLabelSoftMargin as MultiLabelSoftMargin
    from lamina.learning.losses.margins import MultiMargin as MultiMargin
    from lamina.learning.losses.margins import SoftMargin as SoftMargin
    from lamina.learning.losses.margins import SquaredHinge as SquaredHinge
    from lamina.learning.losses.regression import MAE as MAE
    from lamina.learning.losses.regression import MAPE as MAPE
    from lamina.learning.losses.regression import MSE as MSE
    from lamina.learning.losses.regression import MSLE as MSLE
    from lamina.learning.losses.regression import Huber as Huber
    from lamina.learning.losses.regression import LogCosh as LogCosh
    from lamina.learning.losses.regression import Quantile as Quantile
    from lamina.learning.losses.regression import SmoothL1 as SmoothL1
    from lamina.learning.losses.segmentation import Dice as Dice
    from lamina.learning.losses.sequences import CTC as CTC
