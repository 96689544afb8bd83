"""The target of the cpu engine. Imports no code generator."""

from __future__ import annotations

from lamina.engines.simd.target import processor_target

CPU = processor_target("cpu", launch_bytes=512.0)
