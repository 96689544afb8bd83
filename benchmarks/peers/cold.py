"""One cold start: `python cold.py MODULE FUNCTION WORKLOAD.json DATA.npz`.

Prints, as JSON, the seconds from the first import to the end of the first step, and the most
memory the process had. Nothing heavy is imported before the clock starts; the interpreter itself
is up by then.
"""

import importlib
import json
import resource
import sys
import time
from pathlib import Path

module, function, workload_file, data_file = sys.argv[1:]

started = time.perf_counter()
make = getattr(importlib.import_module(module), function)
worker = sys.modules["worker"]
imported = time.perf_counter()
workload = worker.read_workload(Path(workload_file).read_text())
peer = make(workload, worker.read_data(data_file))
peer.run(1)
finished = time.perf_counter()

# Kilobytes on Linux, bytes on macOS.
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(
    json.dumps(
        {
            "seconds": finished - started,
            "import_seconds": imported - started,
            "peak_bytes": peak if sys.platform == "darwin" else peak * 1024,
        }
    )
)
