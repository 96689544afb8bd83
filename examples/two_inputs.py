"""Two inputs, two branches, one answer: a network in the functional style.

    python examples/two_inputs.py

Each example is a signal of 32 samples, a sine with noise, and one number, the sampling rate. The
frequency that is asked for depends on both: the signal tells how many samples a period has, and the
rate turns samples into seconds. A branch for each input, joined with `lm.concat`, and a residual
connection in the first.
"""

import numpy as np

import lamina as lm
