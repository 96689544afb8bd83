"""Engines: devices that compile and run programs. Only an engine's folder uses its driver."""

from lamina.engines.cpu.target import CPU

# The default engine, and its target: plans are made for it without opening it.
DEFAULT_ENGINE = "cpu"
DEFAULT_TARGET = CPU
