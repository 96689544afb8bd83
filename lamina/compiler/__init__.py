"""The compiler: from a graph to a program. Start with `pipeline.py`."""
