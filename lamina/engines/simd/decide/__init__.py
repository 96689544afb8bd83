"""The decisions on how a program is run, before code is written: algorithms, packing, splits.

Comes in: a program, and the properties of a processor. Leaves: a `ProgramSchedule`. Nothing here
writes code. Read `schedule.py` first, then `program.py`.
"""
