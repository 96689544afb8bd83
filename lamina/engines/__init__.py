"""Engines: devices that compile and run programs; one folder each, the only importer of its driver."""
