"""Small workloads, for which waiting threads cost the most; `contention.py` measures them."""

from lamina.layers import Linear, ReLU
from lamina.learning.losses import CrossEntropy
from lamina.learning.optimizers import SGD
from lamina.workloads import Stack, Workload

CONTROL = Stack((8,), (Linear(64), ReLU(), Linear(64), ReLU(), Linear(4)))
TABLE = Stack(
    (54,), (*(Linear(200), ReLU(), Linear(200), ReLU()), *(Linear(200), ReLU(), Linear(7)))
)
SMALL = {
    workload.name: workload
    for workload in (
        Workload("control", CONTROL, 32, "step", CrossEntropy(), SGD(0.1)),
        Workload("table", TABLE, 512, "step", CrossEntropy(), SGD(0.01)),
    )
}
