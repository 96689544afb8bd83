"""The compiler: from a graph to a program.

Comes in: a graph with a fixed batch, and the target. Leaves: a program with planned buffers.
Nothing here opens a device. Read `pipeline.py` first: the list of passes.
"""
