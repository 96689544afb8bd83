"""The target of the cpu engine. Imports no code generator."""

from __future__ import annotations

from lamina.program.target import Target

# Positions are computed in registers of 64 bits. Sorting takes longer than additions, which threads
# share along axes that are not indexed.
CPU = Target("cpu", launch_bytes=512.0, narrow_positions=False, scatter="in order")
