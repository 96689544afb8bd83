"""Engines: devices that compile and run programs; one folder each, which alone knows its driver."""

from lamina.engines.cpu.target import CPU

# The engine where none is named, and its target: plans are made for it without opening it.
DEFAULT_ENGINE = "cpu"
DEFAULT_TARGET = CPU
