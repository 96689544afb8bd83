"""Seconds that `import lamina` takes beyond `import numpy` alone.

Fresh interpreters, the two in turn; medians of each and of the difference, pair by pair.

    python benchmarks/import_time.py [--pairs 15]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time

# Compiled modules are kept, as they are after any installation.
ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}


def seconds(statement: str) -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", statement], check=True, env=ENVIRONMENT)
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=15)
    pairs: int = parser.parse_args().pairs
    seconds("import lamina")
    times = [(seconds("import numpy"), seconds("import numpy, lamina")) for _ in range(pairs)]
    numpy, both = (statistics.median(column) for column in zip(*times, strict=True))
    difference = statistics.median(b - a for a, b in times)
    print(f"import numpy          {numpy:.3f} s")
    print(f"import numpy, lamina  {both:.3f} s")
    print(f"difference            {difference:.3f} s, median of {pairs} pairs")


if __name__ == "__main__":
    main()
