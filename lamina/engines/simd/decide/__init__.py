"""The decisions on how a program is run, before code is written: algorithms, packing, splits."""
