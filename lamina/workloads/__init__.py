"""The networks on which Lamina is measured, for `lamina bench` and `benchmarks/`.

Comes in: the name of a workload. Leaves: its network, its data, and the seconds of its runs. Read
`definitions.py` first.
"""

from lamina.workloads.definitions import LARGE as LARGE
from lamina.workloads.definitions import LATENCIES as LATENCIES
from lamina.workloads.definitions import NAMES as NAMES
from lamina.workloads.definitions import POPULATIONS as POPULATIONS
from lamina.workloads.definitions import PRODUCTS as PRODUCTS
from lamina.workloads.definitions import SEED as SEED
from lamina.workloads.definitions import WORKLOADS as WORKLOADS
from lamina.workloads.definitions import Ready as Ready
from lamina.workloads.definitions import Stack as Stack
from lamina.workloads.definitions import Workload as Workload
from lamina.workloads.definitions import chosen as chosen
from lamina.workloads.runner import LONGEST_RUN as LONGEST_RUN
from lamina.workloads.runner import Runner as Runner
from lamina.workloads.runner import measure as measure
from lamina.workloads.runner import samples as samples
