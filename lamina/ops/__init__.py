"""Ops: mathematical operations. One record per op: shape rule, gradient, reference, lowering rule.

Comes in: tensors and checked attributes. Leaves: tensors; for the compiler, steps of a program.
`ALL` is the table of records, from which tests are generated. Read `elementwise.py` first.
"""

from lamina.base.lazy import loaded_when_used

if not loaded_when_used(__name__):
    from lamina.ops.arithmetic import add as add
    from lamina.ops.arithmetic import div as div
    from lamina.ops.arithmetic import lerp as lerp
    from lamina.ops.arithmetic import maximum as maximum
    from lamina.ops.arithmetic import minimum as minimum
    from lamina.ops.arithmetic import mul as mul
    from lamina.ops.arithmetic import multiply_add as multiply_add
    from lamina.ops.arithmetic import pow as pow
    from lamina.ops.arithmetic import sub as sub
    from lamina.ops.attention import attention as attention
    from lamina.ops.bits import bitwise_and as bitwise_and
    from lamina.ops.bits import bitwise_not as bitwise_not
    from lamina.ops.bits import bitwise_or as bitwise_or
    from lamina.ops.bits import bitwise_xor as bitwise_xor
    from lamina.ops.bits import left_shift as left_shift
    from lamina.ops.bits import right_shift as right_shift
    from lamina.ops.broadcast import broadcast_to as broadcast_to
    from lamina.ops.broadcast import sum_to as sum_to
    from lamina.ops.clipping import clip as clip
    from lamina.ops.clipping import hardtanh as hardtanh
    from lamina.ops.comparison import equal as equal
    from lamina.ops.comparison import greater as greater
    from lamina.ops.comparison import greater_equal as greater_equal
    from lamina.ops.comparison import less as less
    from lamina.ops.comparison import less_equal as less_equal
    from lamina.ops.comparison import logical_and as logical_and
    from lamina.ops.comparison import logical_not as logical_not
    from lamina.ops.comparison import logical_or as logical_or
    from lamina.ops.comparison import logical_xor as logical_xor
    from lamina.ops.comparison import not_equal as not_equal
    from lamina.ops.comparison import where as where
    from lamina.ops.conversion import cast as cast
    from lamina.ops.conversion import recomputed as recomputed
    from lamina.ops.conversion import round_to_tf32 as round_to_tf32
    from lamina.ops.conversion import rounded as rounded
    from lamina.ops.conversion import stop_gradient as stop_gradient
    from lamina.ops.convolution import conv as conv
    from lamina.ops.convolution import conv_transpose as conv_transpose
    from lamina.ops.creation import arange as arange
    from lamina.ops.creation import constant as constant
    from lamina.ops.creation import full as full
    from lamina.ops.creation import ones_like as ones_like
    from lamina.ops.creation import zeros_like as zeros_like
    from lamina.ops.division import ceil as ceil
    from lamina.ops.division import floor_divide as floor_divide
    from lamina.ops.division import fmod as fmod
    from lamina.ops.division import remainder as remainder
    from lamina.ops.division import round as round
    from lamina.ops.division import trunc as trunc
    from lamina.ops.einsum import einsum as einsum
    from lamina.ops.elementwise import abs as abs
    from lamina.ops.elementwise import cos as cos
    from lamina.ops.elementwise import erf as erf
    from lamina.ops.elementwise import erfc as erfc
    from lamina.ops.elementwise import exp as exp
    from lamina.ops.elementwise import expm1 as expm1
    from lamina.ops.elementwise import floor as floor
    from lamina.ops.elementwise import gelu as gelu
    from lamina.ops.elementwise import log as log
    from lamina.ops.elementwise import log1p as log1p
    from lamina.ops.elementwise import neg as neg
    from lamina.ops.elementwise import reciprocal as reciprocal
    from lamina.ops.elementwise import relu as relu
    from lamina.ops.elementwise import rsqrt as rsqrt
    from lamina.ops.elementwise import sigmoid as sigmoid
    from lamina.ops.elementwise import sign as sign
    from lamina.ops.elementwise import sin as sin
    from lamina.ops.elementwise import softplus as softplus
    from lamina.ops.elementwise import sqrt as sqrt
    from lamina.ops.elementwise import tanh as tanh
    from lamina.ops.factorization import cholesky as cholesky
    from lamina.ops.factorization import det as det
    from lamina.ops.factorization import inverse as inverse
    from lamina.ops.factorization import slogdet as slogdet
    from lamina.ops.factorization import solve as solve
    from lamina.ops.factorization import solve_triangular as solve_triangular
    from lamina.ops.finite import copysign as copysign
    from lamina.ops.finite import isfinite as isfinite
    from lamina.ops.finite import isinf as isinf
    from lamina.ops.finite import isnan as isnan
    from lamina.ops.finite import nan_to_num as nan_to_num
    from lamina.ops.folding import fold as fold
    from lamina.ops.folding import unfold as unfold
    from lamina.ops.fourier import fft as fft
    from lamina.ops.fourier import ifft as ifft
    from lamina.ops.fourier import irfft as irfft
    from lamina.ops.fourier import rfft as rfft
    from lamina.ops.gathering import bincount as bincount
    from lamina.ops.gathering import gather as gather
    from lamina.ops.gathering import masked_fill as masked_fill
    from lamina.ops.gathering import scatter as scatter
    from lamina.ops.getitem import getitem as getitem
    from lamina.ops.indexing import one_hot as one_hot
    from lamina.ops.indexing import scatter_add as scatter_add
    from lamina.ops.indexing import scatter_along_axis as scatter_along_axis
    from lamina.ops.indexing import take as take
    from lamina.ops.indexing import take_along_axis as take_along_axis
    from lamina.ops.joining import concat as concat
    from lamina.ops.joining import split as split
    from lamina.ops.joining import stack as stack
    from lamina.ops.joining import unstack as unstack
    from lamina.ops.linalg import contract as contract
    from lamina.ops.linalg import dot as dot
    from lamina.ops.linalg import matmul as matmul
    from lamina.ops.linalg import outer as outer
    from lamina.ops.logarithms import exp2 as exp2
    from lamina.ops.logarithms import log2 as log2
    from lamina.ops.logarithms import log10 as log10
    from lamina.ops.logarithms import logaddexp as logaddexp
    from lamina.ops.logarithms import xlogy as xlogy
    from lamina.ops.movement import expand_dims as expand_dims
    from lamina.ops.movement import flip as flip
    from lamina.ops.movement import reshape as reshape
    from lamina.ops.movement import squeeze as squeeze
    from lamina.ops.movement import transpose as transpose
    from lamina.ops.norms import cdist as cdist
    from lamina.ops.norms import cosine_similarity as cosine_similarity
    from lamina.ops.norms import cross as cross
    from lamina.ops.norms import norm as norm
    from lamina.ops.norms import normalize as normalize
    from lamina.ops.padding import pad_with as pad_with
    from lamina.ops.pooling import window_argmax as window_argmax
    from lamina.ops.pooling import window_max as window_max
    from lamina.ops.pooling import window_sum as window_sum
    from lamina.ops.random import bernoulli as bernoulli
    from lamina.ops.random import normal as normal
    from lamina.ops.random import uniform as uniform
    from lamina.ops.rearranging import chunk as chunk
    from lamina.ops.rearranging import diag_embed as diag_embed
    from lamina.ops.rearranging import diagonal as diagonal
    from lamina.ops.rearranging import eye as eye
    from lamina.ops.rearranging import linspace as linspace
    from lamina.ops.rearranging import meshgrid as meshgrid
    from lamina.ops.rearranging import moveaxis as moveaxis
    from lamina.ops.rearranging import repeat as repeat
    from lamina.ops.rearranging import roll as roll
    from lamina.ops.rearranging import rot90 as rot90
    from lamina.ops.rearranging import swapaxes as swapaxes
    from lamina.ops.rearranging import tile as tile
    from lamina.ops.rearranging import trace as trace
    from lamina.ops.rearranging import tril as tril
    from lamina.ops.rearranging import triu as triu
    from lamina.ops.recomputation import computed_again as computed_again
    from lamina.ops.recurrence import recurrence as recurrence
    from lamina.ops.reduce import all as all
    from lamina.ops.reduce import any as any
    from lamina.ops.reduce import argmax as argmax
    from lamina.ops.reduce import argmin as argmin
    from lamina.ops.reduce import element_count as element_count
    from lamina.ops.reduce import max as max
    from lamina.ops.reduce import mean as mean
    from lamina.ops.reduce import min as min
    from lamina.ops.reduce import prod as prod
    from lamina.ops.reduce import std as std
    from lamina.ops.reduce import sum as sum
    from lamina.ops.reduce import variance as variance
    from lamina.ops.sampling import affine_grid as affine_grid
    from lamina.ops.sampling import grid_sample as grid_sample
    from lamina.ops.scans import cummax as cummax
    from lamina.ops.scans import cummin as cummin
    from lamina.ops.scans import cumprod as cumprod
    from lamina.ops.scans import cumsum as cumsum
    from lamina.ops.slicing import pad as pad
    from lamina.ops.softmax import log_softmax as log_softmax
    from lamina.ops.softmax import logsumexp as logsumexp
    from lamina.ops.softmax import softmax as softmax
    from lamina.ops.sorting import argsort as argsort
    from lamina.ops.sorting import median as median
    from lamina.ops.sorting import sort as sort
    from lamina.ops.sorting import top_k as top_k
    from lamina.ops.special_functions import digamma as digamma
    from lamina.ops.special_functions import erfinv as erfinv
    from lamina.ops.special_functions import lgamma as lgamma
    from lamina.ops.special_functions import polygamma as polygamma
    from lamina.ops.trigonometry import acos as acos
    from lamina.ops.trigonometry import acosh as acosh
    from lamina.ops.trigonometry import asin as asin
    from lamina.ops.trigonometry import asinh as asinh
    from lamina.ops.trigonometry import atan as atan
    from lamina.ops.trigonometry import atan2 as atan2
    from lamina.ops.trigonometry import atanh as atanh
    from lamina.ops.trigonometry import cosh as cosh
    from lamina.ops.trigonometry import hypot as hypot
    from lamina.ops.trigonometry import sinh as sinh
    from lamina.ops.trigonometry import tan as tan
    from lamina.ops.windows import Window as Window

from importlib import import_module as _import_module

from lamina.graph import CONSTANT, LEAF, OPS, Op

# Each record enters the registry when its file is imported.
_FILES = (
    *("movement", "slicing", "joining", "broadcast", "conversion", "elementwise", "arithmetic"),
    *("clipping", "division", "bits", "finite", "logarithms", "trigonometry", "comparison"),
    *("creation", "reduce", "softmax", "linalg", "windows", "convolution", "pooling", "indexing"),
    *("getitem", "sorting", "attention", "random", "recurrence", "scans", "factorization"),
    *("recomputation", "special_functions", "fourier"),
)
for _file in _FILES:
    _import_module(f"lamina.ops.{_file}")

ALL: tuple[Op, ...] = tuple(op for op in OPS.seal() if op not in (LEAF, CONSTANT))
