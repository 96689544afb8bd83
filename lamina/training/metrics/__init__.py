"""Metrics: measures of predictions, accumulated batch by batch; one family a file.

A metric is a frozen record. It builds sums over a batch from ops, so that they are computed on the
device with the prediction. The sums of all batches are added, and `result` computes the metric.
Metrics that need all examples at once, such as `AUROC`, build rows of each example instead, which
are kept on the host. Classes are on axis 1 of the prediction, as for `CrossEntropy`.
"""

from lamina.lazy import loaded_when_used

if not loaded_when_used(__name__):
    from lamina.training.metrics.classification import F1 as F1
    from lamina.training.metrics.classification import Accuracy as Accuracy
    from lamina.training.metrics.classification import BinaryAccuracy as BinaryAccuracy
    from lamina.training.metrics.classification import Precision as Precision
    from lamina.training.metrics.classification import Recall as Recall
    from lamina.training.metrics.classification import TopK as TopK
    from lamina.training.metrics.confusion import CohenKappa as CohenKappa
    from lamina.training.metrics.confusion import ConfusionMatrix as ConfusionMatrix
    from lamina.training.metrics.confusion import MatthewsCorrelation as MatthewsCorrelation
    from lamina.training.metrics.confusion import MeanIoU as MeanIoU
    from lamina.training.metrics.metric import Metric as Metric
    from lamina.training.metrics.probabilities import CalibrationError as CalibrationError
    from lamina.training.metrics.probabilities import Perplexity as Perplexity
    from lamina.training.metrics.ranking import AUROC as AUROC
    from lamina.training.metrics.ranking import AveragePrecision as AveragePrecision
    from lamina.training.metrics.regression import R2 as R2
    from lamina.training.metrics.regression import MeanAbsoluteError as MeanAbsoluteError
    from lamina.training.metrics.regression import MeanSquaredError as MeanSquaredError
    from lamina.training.metrics.regression import PearsonCorrelation as PearsonCorrelation
    from lamina.training.metrics.regression import RootMeanSquaredError as RootMeanSquaredError
