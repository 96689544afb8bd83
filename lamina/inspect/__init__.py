"""What a program costs, as plain tables: the bill of its memory, its steps, its arithmetic.

Comes in: programs, graphs and engines' listings. Leaves: records that print themselves. Nothing
here changes or runs a program. Read `bill.py` first.
"""
