"""Engines: devices that compile and run programs; one folder each, which alone knows its driver."""

DEFAULT_ENGINE = "cpu"
