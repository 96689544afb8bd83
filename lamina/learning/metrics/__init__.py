"""Metrics: measures of predictions, accumulated batch by batch; one family a file.

Comes in: predictions, targets and weights. Leaves: a number. A metric is a frozen record. It builds
sums over a batch from ops, so that they are computed on the device with the prediction; `result`
computes the metric from the sums of all batches. Metrics that need all examples at once, such as
`AUROC`, build rows of each example instead, which are kept on the host. Classes are on axis 1 of
the prediction, as for `CrossEntropy`. Read `metric.py` first.
"""

from lamina.base.lazy import loaded_when_used

if not loaded_when_used(__name__):
    from lamina.learning.metrics.classification import *
    from lamina.learning.metrics.confusion import *
    from lamina.learning.metrics.metric import Metric as Metric
    from lamina.learning.metrics.probabilities import *
    from lamina.learning.metrics.ranking import *
    from lamina.learning.metrics.regression import *
