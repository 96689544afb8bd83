"""One cold start: `python cold.py MODULE FUNCTION WORKLOAD.json DATA.npz [STEPS]`.

Prints, as JSON, the seconds from the first import to the end of the first training step (or of
STEPS training steps), and the peak memory of the process after its imports and at the end. Nothing
heavy is imported before the clock starts. The start of the interpreter does not count.
"""

import importlib
import json
import resource
import sys
import time
from pathlib import Path

module, function, workload_file, data_file, *steps = sys.argv[1:]


def peak() -> int:
    """The largest resident size so far, in bytes."""
    status = Path("/proc/self/status")
    if status.exists():
        # On Linux, getrusage includes the process that started this one.
        lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
        return int(lines["VmHWM"].split()[0]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


started = time.perf_counter()
make = getattr(importlib.import_module(module), function)
worker = sys.modules["worker"]
imported, imported_bytes = time.perf_counter(), peak()
workload = worker.read_workload(Path(workload_file).read_text())
peer = make(workload, worker.read_data(data_file))
peer.run(int(steps[0]) if steps else 1)
finished = time.perf_counter()

print(
    json.dumps(
        {
            "seconds": finished - started,
            "import_seconds": imported - started,
            "imported_bytes": imported_bytes,
            "peak_bytes": peak(),
        }
    )
)
