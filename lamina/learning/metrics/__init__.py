"""Metrics: measures of predictions, accumulated batch by batch; one family a file.

A metric is a frozen record. It builds sums over a batch from ops, so that they are computed on the
device with the prediction. The sums of all batches are added, and `result` computes the metric.
Metrics that need all examples at once, such as `AUROC`, build rows of each example instead, which
are kept on the host. Classes are on axis 1 of the prediction, as for `CrossEntropy`.
"""

from lamina.base.lazy import loaded_when_used

if not loaded_when_used(__name__):
    from lamina.learning.metrics.classification import F1 as F1
    from lamina.learning.metrics.classification import Accuracy as Accuracy
    from lamina.learning.metrics.classification import BinaryAccuracy as BinaryAccuracy
    from lamina.learning.metrics.classification import Precision as Precision
    from lamina.learning.metrics.classification import Recall as Recall
    from lamina.learning.metrics.classification import TopK as TopK
    from lamina.learning.metrics.confusion import CohenKappa as CohenKappa
    from lamina.learning.metrics.confusion import ConfusionMatrix as ConfusionMatrix
    from lamina.learning.metrics.confusion import MatthewsCorrelation as MatthewsCorrelation
    from lamina.learning.metrics.confusion import MeanIoU as MeanIoU
    from lamina.learning.metrics.metric import Metric as Metric
    from lamina.learning.metrics.probabilities import CalibrationError as CalibrationError
    from lamina.learning.metrics.probabilities import Perplexity as Perplexity
    from lamina.learning.metrics.ranking import AUROC as AUROC
    from lamina.learning.metrics.ranking import AveragePrecision as AveragePrecision
    from lamina.learning.metrics.regression import R2 as R2
    from lamina.learning.metrics.regression import MeanAbsoluteError as MeanAbsoluteError
    from lamina.learning.metrics.regression import MeanSquaredError as MeanSquaredError
    from lamina.learning.metrics.regression import PearsonCorrelation as PearsonCorrelation
    from lamina.learning.metrics.regression import RootMeanSquaredError as RootMeanSquaredError
