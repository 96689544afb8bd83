"""Seconds to import Lamina, beyond `import numpy` alone, and to start its command line.

Names are loaded when they are first used, so `import lamina` alone loads little. The rows after it
use more and more of Lamina. Each row is a fresh interpreter, and a round runs all rows. The figures
are medians over the rounds; "beyond" is the difference within a round. Compiled programs come from
the cache, which an unmeasured first round fills.

    python benchmarks/import_time.py [--rounds 15]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time

NETWORK = (
    "import lamina as lm; "
    "net = lm.Sequential(lm.Input(784), lm.Linear(128), lm.ReLU(), lm.Linear(10))"
)
TRAINING = (
    f"{NETWORK}; model = lm.Model(net); "
    "x, y = numpy.zeros((64, 784), numpy.float32), numpy.zeros(64, numpy.int64); "
    "model.fit((x, y), epochs=1, loss=lm.CrossEntropy(), optimizer=lm.Adam(1e-3)); "
    "model.predict(x)"
)
EVERY_NAME = (
    "from lamina import *; from lamina.layers import *; from lamina.ops import *; "
    "from lamina.data import *; from lamina.networks import *"
)
BEYOND_NUMPY = {
    "import lamina": "import lamina",
    "... and define a network": NETWORK,
    "... and train it, and predict": TRAINING,
    "import every name": EVERY_NAME,
}
COMMANDS = {"lamina --version": ["--version"], "lamina --help": ["--help"]}


def seconds(arguments: list[str], folder: str) -> float:
    environment = {**os.environ, "LAMINA_CACHE": folder}
    # Compiled modules are kept, as they are after any installation.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    started = time.perf_counter()
    done = subprocess.run([sys.executable, *arguments], env=environment, stdout=subprocess.DEVNULL)
    end = time.perf_counter()
    done.check_returncode()
    return end - started


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    rounds: int = parser.parse_args().rounds
    programs = {"python": ["-c", "pass"], "import numpy": ["-c", "import numpy"]}
    for title, code in BEYOND_NUMPY.items():
        programs[title] = ["-c", f"import numpy; {code}"]
    for title, arguments in COMMANDS.items():
        programs[title] = ["-m", "lamina", *arguments]
    with tempfile.TemporaryDirectory() as folder:
        table = [
            {title: seconds(arguments, folder) for title, arguments in programs.items()}
            for _ in range(rounds + 1)
        ][1:]
    for title in programs:
        base = "import numpy" if title in BEYOND_NUMPY else ""
        taken = statistics.median(row[title] - (row[base] if base else 0) for row in table)
        print(f"{title:<32}{taken:7.3f} s{f' beyond {base}' if base else ''}")
    print(f"medians of {rounds} rounds")


if __name__ == "__main__":
    main()
