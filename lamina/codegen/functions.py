"""Mathematical functions as vector instructions: no tables, no calls, no branches.

Errors are at most 4 units in the last place in float32 and float64; infinities, NaN, zeros of both
signs and denormal numbers are handled. The method is the classic one: range reduction, polynomial
approximation, reconstruction (Cody and Waite, Software Manual for the Elementary Functions, 1980;
Muller, Elementary Functions, 2016). `tests/unit/polynomials.py` computes the polynomials.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from lamina.codegen.builder import Builder
from lamina.codegen.values import Type, Value, constant
from lamina.records import frozen_dataclass


@frozen_dataclass
class _Format:
    """A floating format and the polynomials for it.

    Attributes:
        integer: the integer element of the same size.
        mantissa: the stored bits of the mantissa.
        bias: of the exponent.
        ln2: log(2) as a sum of two numbers; products of the first with an exponent are exact.
        exp_low, exp_high: exp(x) is zero below the first and infinite above the second.
        expm1_low: expm1(x) is -1 below it.
        tanh_high: tanh(x) is 1 above it.
        exp: (exp(r) - 1 - r) / r**2 for abs(r) <= log(2) / 2.
        log: (log((1 + s) / (1 - s)) - 2 s) / s**3 in powers of s**2.
        erf_near: erf(x) / x - 1 in powers of x**2, up to 1.
        erf_far: (from, -log(1 - erf(x)) in powers of x), piece by piece.
        erf_high: erf(x) is 1 above it.
    """

    integer: str
    mantissa: int
    bias: int
    ln2: tuple[float, float]
    exp_low: float
    exp_high: float
    expm1_low: float
    tanh_high: float
    exp: tuple[float, ...]
    log: tuple[float, ...]
    erf_near: tuple[float, ...]
    erf_far: tuple[tuple[float, tuple[float, ...]], ...]
    erf_high: float


_FORMATS = {
    "float": _Format(
        integer="i32",
        mantissa=23,
        bias=127,
        ln2=(0.693145751953125, 1.4286068203094172e-06),
        exp_low=-104.0,
        exp_high=89.0,
        expm1_low=-20.0,
        tanh_high=10.0,
        exp=(
            *(0.5, 0.166665769219854, 0.041666554532615786),
            *(0.008363190325615149, 0.001392619766942992),
        ),
        log=(0.6666668505853668, 0.3998877280664442, 0.29580301503323675),
        erf_near=(
            *(0.12837912617873729, -0.37612343775327806, 0.11280316652505075),
            *(-0.02671505423226643, 0.004921762027877231, -0.0005648059865503044),
        ),
        erf_far=(
            (
                1.0,
                (
                    *(-0.00032013804967769883, 1.130233434841994, 0.631826051559163),
                    *(0.11008008294882024, -0.026421136005663898, 0.004759596293266265),
                    *(-0.0005968056256607798, 4.605804268918978e-05, -1.6371514145936436e-06),
                ),
            ),
        ),
        erf_high=4.0,
    ),
    "double": _Format(
        integer="i64",
        mantissa=52,
        bias=1023,
        ln2=(0.693147180369123816490, 1.90821492927058770002e-10),
        exp_low=-746.0,
        exp_high=710.0,
        expm1_low=-45.0,
        tanh_high=22.0,
        exp=(
            *(0.5, 0.1666666666666667, 0.04166666666666667, 0.008333333333326124),
            *(0.0013888888888883742, 0.00019841269874858612, 2.4801587325574868e-05),
            *(2.7557255352032673e-06, 2.7557273608709007e-07, 2.51052370507603e-08),
            2.0914701283103285e-09,
        ),
        log=(
            *(0.666666666666667, 0.39999999999899294, 0.28571428626069917),
            *(0.22222211119382992, 0.18182890247978326, 0.15331684287930758),
            0.14616910807262468,
        ),
        erf_near=(
            *(0.12837916709551256, -0.37612638903183543, 0.11283791670945006),
            *(-0.02686617064323777, 0.0052239776071164225, -0.0008548325975389692),
            *(0.00012055294904839707, -1.492473690741966e-05, 1.6447424703317362e-06),
            *(-1.6208483801871705e-07, 1.3720064546777686e-08, -7.795898827002142e-10),
        ),
        erf_far=(
            (
                1.0,
                (
                    *(1.7974006948759254e-07, 1.1283772508386534, 0.6366292762286155),
                    *(0.10274355365046965, -0.01906740615524328, -0.0003021082177747954),
                    *(0.001800908201368631, -0.0006769296560609868, 7.587551928775859e-05),
                    *(4.922933655412966e-05, -3.3709993180051275e-05, 1.1742692149284275e-05),
                    *(-2.759894123008719e-06, 4.553553954836914e-07, -5.1133743673012034e-08),
                    *(3.5347960812852366e-09, -1.1398544940688474e-10),
                ),
            ),
            (
                2.5,
                (
                    *(-0.0012578360370742478, 1.1336687701700217, 0.6262351562678566),
                    *(0.11536328412878058, -0.029596350975268918, 0.006003254215574707),
                    *(-0.0009038370815952036, 8.594032776034542e-05, -1.0378134414458123e-06),
                    *(-1.2386816415991777e-06, 2.3527193271797854e-07, -2.4181758611340018e-08),
                    *(1.5361787455131221e-09, -5.697864217875677e-11, 9.517672093522239e-13),
                ),
            ),
        ),
        erf_high=6.0,
    ),
}
# (sin(r) - r) / r**3 and (cos(r) - 1 + r**2 / 2) / r**4 in powers of r**2, for abs(r) <= pi / 4.
_SIN = (
    *(-0.16666666666666666, 0.008333333333330946, -0.00019841269836753985),
    *(2.755731610017207e-06, -2.5051131348960252e-08, 1.5918093561437795e-10),
)
_COS = (
    *(0.041666666666666664, -0.0013888888888887395, 2.4801587298762816e-05),
    *(-2.755731727024068e-07, 2.087614595808494e-09, -1.1382610070998325e-11),
)
# pi / 2 as a sum of three numbers; products of the first two with numbers below 2**20 are exact.
_HALF_PI_SINGLE = (1.5707963705062866, -4.371138828673793e-08, -1.7151245100058819e-15)
_HALF_PI = (1.5707963267341256142, 6.0771005063039659766e-11, 2.0222662487959506e-21)


def _format(x: Value) -> _Format:
    return _FORMATS[x.type.element]


def _polynomial(code: Builder, x: Value, coefficients: Sequence[float]) -> Value:
    """Horner's rule; the constant coefficient comes first."""
    total = constant(coefficients[-1], x.type)
    for coefficient in reversed(coefficients[:-1]):
        total = code.multiply_add(total, x, constant(coefficient, x.type))
    return total


def _bits(code: Builder, x: Value) -> Value:
    return code.convert("bitcast", x, _format(x).integer)


def _clamped(code: Builder, x: Value, low: float, high: float) -> Value:
    """The number clamped to low .. high; NaN stays."""
    bottom, top = constant(low, x.type), constant(high, x.type)
    x = code.select(code.compare("olt", x, bottom), bottom, x)
    return code.select(code.compare("ogt", x, top), top, x)


def _rounded(code: Builder, x: Value) -> tuple[Value, Value]:
    """The nearest integer, for numbers that are not large: as a float and as an integer.

    Adding 1.5 * 2**mantissa leaves the integer in the lowest bits.
    """
    shape = _format(x)
    magic = constant(1.5 * 2.0**shape.mantissa, x.type)
    lifted = code.add(x, magic)
    integer = code.subtract(_bits(code, lifted), _bits(code, magic))
    return code.subtract(lifted, magic), integer


def _as_float(code: Builder, integer: Value, type: Type) -> Value:
    """A small integer of the float's size as a float: the inverse of `_rounded`."""
    shape = _FORMATS[type.element]
    magic = constant(1.5 * 2.0**shape.mantissa, type)
    lifted = code.add(integer, _bits(code, magic))
    return code.subtract(code.convert("bitcast", lifted, type.element), magic)


def _power_of_two(code: Builder, exponent: Value, type: Type) -> Value:
    """2**exponent, within the normal numbers."""
    shape = _FORMATS[type.element]
    biased = code.add(exponent, constant(shape.bias, exponent.type))
    bits = code.binary("shl", biased, constant(shape.mantissa, exponent.type))
    return code.convert("bitcast", bits, type.element)


def _reduced_exp(code: Builder, x: Value) -> tuple[Value, Value]:
    """(r, n) with x = r + n log(2), abs(r) about log(2) / 2 or less."""
    shape = _format(x)
    count, integer = _rounded(code, code.multiply(x, constant(1 / math.log(2), x.type)))
    negative = code.negate(count)
    r = code.multiply_add(negative, constant(shape.ln2[0], x.type), x)
    return code.multiply_add(negative, constant(shape.ln2[1], x.type), r), integer


def _scaled(code: Builder, x: Value, exponent: Value) -> Value:
    """The product x * 2**exponent by two multiplications: it may be denormal or infinite."""
    half = code.binary("ashr", exponent, constant(1, exponent.type))
    other = code.subtract(exponent, half)
    x = code.multiply(x, _power_of_two(code, half, x.type))
    return code.multiply(x, _power_of_two(code, other, x.type))


def _exp_minus_one(code: Builder, r: Value) -> Value:
    """exp(r) - 1 for abs(r) <= log(2) / 2."""
    square = code.multiply(r, r)
    return code.multiply_add(square, _polynomial(code, r, _format(r).exp), r)


def exp(code: Builder, x: Value) -> Value:
    """E to the power x: exp(r) * 2**n."""
    shape = _format(x)
    r, exponent = _reduced_exp(code, _clamped(code, x, shape.exp_low, shape.exp_high))
    return _scaled(code, code.add(_exp_minus_one(code, r), constant(1, x.type)), exponent)


def expm1(code: Builder, x: Value) -> Value:
    """exp(x) - 1, accurate near zero: 2**n (exp(r) - 1) + (2**n - 1)."""
    shape = _format(x)
    r, exponent = _reduced_exp(code, _clamped(code, x, shape.expm1_low, shape.exp_high))
    # Half the result is computed and then doubled, because 2**n may overflow.
    less = code.subtract(exponent, constant(1, exponent.type))
    scale = _power_of_two(code, less, x.type)
    rest = code.subtract(scale, constant(0.5, x.type))
    half = code.multiply_add(scale, _exp_minus_one(code, r), rest)
    zero = code.compare("oeq", x, constant(0, x.type))
    return code.select(zero, x, code.add(half, half))


def _split(code: Builder, x: Value) -> tuple[Value, Value]:
    """(m, e) with x = m * 2**e and m from sqrt(1/2) to sqrt(2), for positive normal x."""
    shape = _format(x)
    root = _bits(code, constant(math.sqrt(0.5), x.type))
    past = code.subtract(_bits(code, x), root)
    width = constant(shape.mantissa, past.type)
    exponent = code.binary("ashr", past, width)
    m = code.subtract(_bits(code, x), code.binary("shl", exponent, width))
    return code.convert("bitcast", m, x.type.element), exponent


def _log_sum(code: Builder, f: Value, exponent: Value, correction: Value) -> Value:
    """log(1 + f) + exponent * log(2) + correction, f from sqrt(1/2) - 1 to sqrt(2) - 1.

    With s = f / (2 + f), log(1 + f) is f - f**2 / 2 + s (f**2 / 2 + s**2 R(s**2)), where only
    small terms are rounded before the last addition (as in the logarithm of FDLIBM, Sun, 1993).
    """
    shape = _format(f)
    s = code.divide(f, code.add(f, constant(2, f.type)))
    z = code.multiply(s, s)
    tail = code.multiply(z, _polynomial(code, z, shape.log))
    half = code.multiply(code.multiply(f, f), constant(0.5, f.type))
    count = _as_float(code, exponent, f.type)
    low = code.multiply_add(count, constant(shape.ln2[1], f.type), correction)
    low = code.multiply_add(s, code.add(half, tail), low)
    rest = code.subtract(half, low)
    high = code.multiply(count, constant(shape.ln2[0], f.type))
    return code.add(high, code.subtract(f, rest))


def _log_edges(code: Builder, x: Value, distance: Value, result: Value) -> Value:
    """The result, corrected where x is infinite and where `distance` is not positive.

    `distance` is the distance of x above the pole of the logarithm.
    """
    type = x.type
    infinite = code.compare("oeq", x, constant(math.inf, type))
    result = code.select(infinite, x, result)
    zero = constant(0, type)
    result = code.select(code.compare("oeq", distance, zero), constant(-math.inf, type), result)
    # Below zero, and for NaN.
    return code.select(code.compare("oge", distance, zero), result, constant(math.nan, type))


def log(code: Builder, x: Value) -> Value:
    """The natural logarithm: log(m) + e log(2)."""
    shape = _format(x)
    tiny = code.compare("olt", x, constant(2.0 ** (1 - shape.bias), x.type))
    raised = code.multiply(x, constant(2.0 ** (shape.mantissa + 2), x.type))
    m, exponent = _split(code, code.select(tiny, raised, x))
    lowered = code.subtract(exponent, constant(shape.mantissa + 2, exponent.type))
    exponent = code.select(tiny, lowered, exponent)
    f = code.subtract(m, constant(1, x.type))
    result = _log_sum(code, f, exponent, constant(0, x.type))
    return _log_edges(code, x, x, result)


def log1p(code: Builder, x: Value) -> Value:
    """log(1 + x), accurate near zero: the rounding error of 1 + x is corrected."""
    one = constant(1, x.type)
    u = code.add(x, one)
    large = code.compare("oge", x, one)
    lost = code.select(
        large,
        code.subtract(one, code.subtract(u, x)),
        code.subtract(x, code.subtract(u, one)),
    )
    m, exponent = _split(code, u)
    result = _log_sum(code, code.subtract(m, one), exponent, code.divide(lost, u))
    result = _log_edges(code, x, u, result)
    small = code.compare("olt", code.intrinsic("fabs", x), constant(2.0**-60, x.type))
    return code.select(small, x, result)


def tanh(code: Builder, x: Value) -> Value:
    """The hyperbolic tangent: t / (t + 2) with t = exp(2 |x|) - 1."""
    size = _clamped(code, code.intrinsic("fabs", x), 0.0, _format(x).tanh_high)
    t = expm1(code, code.add(size, size))
    result = code.divide(t, code.add(t, constant(2, x.type)))
    return code.intrinsic("copysign", result, x)


def sigmoid(code: Builder, x: Value) -> Value:
    """1 / (1 + exp(-x)); for negative x as exp(x) / (1 + exp(x))."""
    one = constant(1, x.type)
    small = exp(code, code.negate(code.intrinsic("fabs", x)))
    above = code.select(code.compare("oge", x, constant(0, x.type)), one, small)
    return code.divide(above, code.add(one, small))


def softplus(code: Builder, x: Value) -> Value:
    """log(1 + exp(x)): max(x, 0) + log1p(exp(-|x|))."""
    small = log1p(code, exp(code, code.negate(code.intrinsic("fabs", x))))
    zero = constant(0, x.type)
    return code.add(code.select(code.compare("olt", x, zero), zero, x), small)


def erf(code: Builder, x: Value) -> Value:
    """The error function: x + x P(x**2) up to 1, beyond it 1 - exp(-Q(x))."""
    shape = _format(x)
    one = constant(1, x.type)
    near = code.multiply_add(x, _polynomial(code, code.multiply(x, x), shape.erf_near), x)
    size = code.intrinsic("fabs", x)
    bounded = _clamped(code, size, 0.0, shape.erf_high)
    exponent = _polynomial(code, bounded, shape.erf_far[0][1])
    for start, coefficients in shape.erf_far[1:]:
        beyond = code.compare("oge", bounded, constant(start, x.type))
        exponent = code.select(beyond, _polynomial(code, bounded, coefficients), exponent)
    far = code.subtract(one, exp(code, code.negate(exponent)))
    far = code.intrinsic("copysign", far, x)
    return code.select(code.compare("olt", size, one), near, far)


def sin(code: Builder, x: Value) -> Value:
    """The sine, to 4 units in the last place for abs(x) up to 1e6.

    Larger x lose digits; results stay within [-1, 1].
    """
    return _circular(code, x, 0)


def cos(code: Builder, x: Value) -> Value:
    """The cosine, to 4 units in the last place for abs(x) up to 1e6.

    Larger x lose digits; results stay within [-1, 1].
    """
    return _circular(code, x, 1)


def _circular(code: Builder, x: Value, quarters: int) -> Value:
    """sin(x + quarters * pi / 2), in float64 if available."""
    if x.type.element == "float" and code.module.doubles:
        wide = _circular(code, code.convert("fpext", x, "double"), quarters)
        return code.convert("fptrunc", wide, "float")
    type = x.type
    given, is_single = x, type.element == "float"
    if is_single:
        # Beyond this, no digit of the result is right, and products would overflow.
        x = _clamped(code, x, -(2.0**30), 2.0**30)
    count, quarter = _rounded(code, code.multiply(x, constant(2 / math.pi, type)))
    if is_single:
        r = _less_half_pis(code, x, count)
    else:
        r = x
        for term in _HALF_PI:
            r = code.subtract(r, code.multiply(count, constant(term, type)))
    z = code.multiply(r, r)
    sine = code.multiply_add(code.multiply(r, z), _polynomial(code, z, _SIN), r)
    # 1 - z / 2 and its rounding error.
    half = code.multiply(z, constant(0.5, type))
    one = constant(1, type)
    near = code.subtract(one, half)
    lost = code.subtract(code.subtract(one, near), half)
    tail = code.multiply_add(code.multiply(z, z), _polynomial(code, z, _COS), lost)
    cosine = code.add(near, tail)
    quadrant = code.add(quarter, constant(quarters, quarter.type))
    odd = _has_bit(code, quadrant, 1)
    result = code.select(odd, cosine, sine)
    result = code.select(_has_bit(code, quadrant, 2), code.negate(result), result)
    result = _clamped(code, result, -1.0, 1.0)
    if is_single:
        # NaN for infinity.
        result = code.add(result, code.subtract(given, given))
    if quarters == 0:
        result = code.select(code.compare("oeq", x, constant(0, type)), x, result)
    return result


def _less_half_pis(code: Builder, x: Value, count: Value) -> Value:
    """The difference x - count * pi / 2, in float32 arithmetic alone.

    Each product is a sum of two numbers; the rounding errors of differences are added at the end.
    """
    r, lost = x, constant(0, x.type)
    for piece in _HALF_PI_SINGLE:
        for term in _two_product(code, count, constant(piece, x.type)):
            r, rounding = _two_sum(code, r, code.negate(term))
            lost = code.add(lost, rounding)
    return code.add(r, lost)


def _has_bit(code: Builder, integer: Value, bit: int) -> Value:
    masked = code.binary("and", integer, constant(bit, integer.type))
    return code.compare("ne", masked, constant(0, integer.type))


def floor(code: Builder, x: Value) -> Value:
    """The largest integer not above x; not every processor has an instruction for it."""
    large = constant(2.0 ** _format(x).mantissa, x.type)
    size = code.intrinsic("fabs", x)
    # Adding and subtracting 2**mantissa rounds to the nearest integer.
    near = code.subtract(code.add(size, large), large)
    near = code.intrinsic("copysign", near, x)
    down = code.subtract(near, constant(1, x.type))
    down = code.select(code.compare("ogt", near, x), down, near)
    # NaN and numbers without fraction stay, zeros with their sign.
    return code.select(code.compare("olt", size, large), down, x)


# Powers: the logarithm must be known to more digits than the result


def _two_sum(code: Builder, a: Value, b: Value) -> tuple[Value, Value]:
    """The sum a + b and its rounding error (Knuth, TAOCP 2, 4.2.2)."""
    total = code.add(a, b)
    back = code.subtract(total, a)
    lost = code.add(code.subtract(a, code.subtract(total, back)), code.subtract(b, back))
    return total, lost


def _two_product(code: Builder, a: Value, b: Value) -> tuple[Value, Value]:
    """The product a * b and its rounding error (Dekker, 1971)."""
    product = code.multiply(a, b)
    if code.module.fused:
        return product, code.intrinsic("fma", a, b, code.negate(product))
    (a_high, a_low), (b_high, b_low) = (_halves(code, a), _halves(code, b))
    lost = code.subtract(code.multiply(a_high, b_high), product)
    lost = code.add(lost, code.multiply(a_high, b_low))
    lost = code.add(lost, code.multiply(a_low, b_high))
    return product, code.add(lost, code.multiply(a_low, b_low))


def _halves(code: Builder, a: Value) -> tuple[Value, Value]:
    """Two numbers of half as many bits whose sum is a."""
    bits = (_format(a).mantissa + 2) // 2
    scaled = code.multiply(a, constant(2.0**bits + 1, a.type))
    high = code.subtract(scaled, code.subtract(scaled, a))
    return high, code.subtract(a, high)


def _precise_log(code: Builder, x: Value) -> tuple[Value, Value]:
    """log(x) of positive finite x as a sum of two numbers, to about 2**-64 in float64.

    log(m) is 2 s + 2/3 s**3 + s**5 R(s**2) with s = (m - 1) / (m + 1), the first two terms in
    twice the precision.
    """
    shape = _format(x)
    type = x.type
    tiny = code.compare("olt", x, constant(2.0 ** (1 - shape.bias), type))
    raised = code.multiply(x, constant(2.0 ** (shape.mantissa + 2), type))
    m, exponent = _split(code, code.select(tiny, raised, x))
    lowered = code.subtract(exponent, constant(shape.mantissa + 2, exponent.type))
    count = _as_float(code, code.select(tiny, lowered, exponent), type)
    f = code.subtract(m, constant(1, type))
    below, below_low = _two_sum(code, m, constant(1, type))
    s = code.divide(f, below)
    # f - s * (m + 1) is the remainder of the division.
    product, lost = _two_product(code, s, below)
    rest = code.subtract(code.subtract(f, product), lost)
    rest = code.subtract(rest, code.multiply(s, below_low))
    s_low = code.divide(rest, below)
    z, z_low = _two_product(code, s, s)
    z_low = code.multiply_add(code.add(s, s), s_low, z_low)
    cube, cube_low = _two_product(code, s, z)
    cube_low = code.multiply_add(s, z_low, cube_low)
    cube_low = code.multiply_add(z, s_low, cube_low)
    third = 2 / 3
    term, term_low = _two_product(code, cube, constant(third, type))
    term_low = code.multiply_add(cube_low, constant(third, type), term_low)
    # No float equals 2/3, so the difference is added.
    lacking = constant(_TWO_THIRDS_LACK[type.element], type)
    term_low = code.multiply_add(cube, lacking, term_low)
    tail = code.multiply(code.multiply(cube, z), _polynomial(code, z, _POWER_LOG))
    high, low = _two_sum(code, code.add(s, s), term)
    low = code.add(code.add(low, code.add(term_low, tail)), code.add(s_low, s_low))
    far, far_low = _two_sum(code, code.multiply(count, constant(shape.ln2[0], type)), high)
    low = code.add(low, far_low)
    # exponent * log(2): the first summand is exact, the second in twice the precision.
    second, second_low = _two_product(code, count, constant(shape.ln2[1], type))
    far, more = _two_sum(code, far, second)
    return _two_sum(code, far, code.add(low, code.add(more, second_low)))


# log((1 + s) / (1 - s)) is 2 s + 2/3 s**3 + s**5 times this, in powers of s**2.
_POWER_LOG = (
    *(0.4, 0.2857142857142857, 0.2222222222222222, 0.18181818181818182),
    *(0.15384615384615385, 0.13333333333333333, 0.11764705882352941, 0.10526315789473684),
    *(0.09523809523809523, 0.08695652173913043),
)


# 2/3 minus the nearest number of each format.
_TWO_THIRDS_LACK = {"float": -1.9868214925130207e-08, "double": 3.700743415417188e-17}


def power(code: Builder, x: Value, y: Value) -> Value:
    """X to the power y: exp(y log |x|) with the sign of an odd power, in float64 if available.

    The special cases are those of C and IEEE 754: anything to the power 0 and 1 to any power is
    1; a negative number to a power that is not an integer is NaN.
    """
    if x.type.element == "float" and code.module.doubles:
        wide = (code.convert("fpext", operand, "double") for operand in (x, y))
        return code.convert("fptrunc", power(code, *wide), "float")
    type = x.type
    zero, one = constant(0, type), constant(1, type)
    size = code.intrinsic("fabs", x)
    high, low = _precise_log(code, size)
    # With larger exponents every power is zero or infinite, except powers of 1.
    bounded = _clamped(code, y, -1e20, 1e20)
    total, lost = _two_product(code, bounded, high)
    rest = code.multiply_add(bounded, low, lost)
    shape = _format(x)
    inside = _clamped(code, total, shape.exp_low, shape.exp_high)
    rest = code.select(code.compare("oeq", inside, total), rest, zero)
    r, exponent = _reduced_exp(code, inside)
    r = code.add(r, rest)
    result = _scaled(code, code.add(_exp_minus_one(code, r), one), exponent)
    # Zero and infinity have no finite logarithm that could be multiplied.
    infinite = constant(math.inf, type)
    rising = code.compare("ogt", y, zero)
    at_zero = code.select(rising, zero, infinite)
    at_infinity = code.select(rising, infinite, zero)
    result = code.select(code.compare("oeq", size, zero), at_zero, result)
    result = code.select(code.compare("oeq", size, infinite), at_infinity, result)
    # An infinite power of a finite number.
    endless = code.compare("oeq", code.intrinsic("fabs", y), infinite)
    grows = code.binary("xor", code.compare("ogt", size, one), code.compare("olt", y, zero))
    limit = code.select(grows, infinite, zero)
    limit = code.select(code.compare("oeq", size, one), one, limit)
    result = code.select(endless, limit, result)
    # Signs.
    whole = code.compare("oeq", floor(code, y), y)
    half = code.multiply(y, constant(0.5, type))
    odd = code.binary("and", whole, code.compare("une", floor(code, half), half))
    negative = code.compare("slt", _bits(code, x), constant(0, type.of(_format(x).integer)))
    flipped = code.select(code.binary("and", negative, odd), code.negate(result), result)
    below = code.compare("olt", x, zero)
    finite = code.compare("olt", size, infinite)
    undefined = code.binary("and", code.binary("and", below, finite), _not(code, whole))
    result = code.select(undefined, constant(math.nan, type), flipped)
    result = code.select(code.compare("uno", x, y), code.add(x, y), result)
    ones = code.binary("or", code.compare("oeq", y, zero), code.compare("oeq", x, one))
    return code.select(ones, one, result)


def _not(code: Builder, condition: Value) -> Value:
    return code.binary("xor", condition, constant(True, condition.type))


FUNCTIONS: Mapping[str, Callable[[Builder, Value], Value]] = {
    "exp": exp,
    "expm1": expm1,
    "log": log,
    "log1p": log1p,
    "sin": sin,
    "cos": cos,
    "tanh": tanh,
    "erf": erf,
    "sigmoid": sigmoid,
    "softplus": softplus,
}
