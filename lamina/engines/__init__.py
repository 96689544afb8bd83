"""Engines: devices that compile and run programs. Only an engine's folder uses its driver.

Comes in: a program, and arrays of the host. Leaves: a running program and its results. Engines know
neither ops nor layers. Read `engine.py` first, then `interpreter/`.
"""

from lamina.engines.cpu.target import CPU

# The default engine, and its target: plans are made for it without opening it.
DEFAULT_ENGINE = "cpu"
DEFAULT_TARGET = CPU
