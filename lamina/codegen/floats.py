"""The formats of floats, the numbers that functions need in each, and exact operations on floats.

`tools/polynomials.py` computes the polynomials.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from lamina.base.records import frozen_dataclass
from lamina.codegen.builder import Builder
from lamina.codegen.values import Type, Value


@frozen_dataclass
class Format:
    """A floating format and the polynomials for it.

    Attributes:
        integer: the integer element of the same size.
        mantissa: the stored bits of the mantissa.
        bias: the bias of the exponent.
        ln2: log(2) as a sum of two numbers; products of the first with an exponent are exact.
        exp_low, exp_high: the bounds of x; exp(x) is zero below and infinite above them.
        expm1_low: the bound of x; expm1(x) is -1 below it.
        tanh_high: the bound of x; tanh(x) is 1 above it.
        exp: (exp(r) - 1 - r) / r**2 for abs(r) <= log(2) / 2.
        log: (log((1 + s) / (1 - s)) - 2 s) / s**3 in powers of s**2.
        erf_near: erf(x) / x - 1 in powers of x**2, up to 1.
        erf_far: (from, -log(1 - erf(x)) in powers of x), piece by piece.
        erf_high: the bound of x; erf(x) is 1 above it.
        erfc: (1 + 2 x) exp(x**2) erfc(x) in powers of (x - 4) / (x + 4), for positive x.
        erfc_high: the bound of x; erfc(x) is zero above it.
        sinh_high: the bound of x; sinh(x) and cosh(x) are infinite above it.
        atan: (atan(t) - t) / t**3 in powers of t**2, for abs(t) <= tan(pi / 8).
        quarter_pi: pi / 4 as a sum of two numbers; products of the first with 1 to 4 are exact.
        log10_2: log10(2) as a sum of two numbers; products of the first with an exponent are exact.
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
    erfc: tuple[float, ...]
    erfc_high: float
    sinh_high: float
    atan: tuple[float, ...]
    quarter_pi: tuple[float, float]
    log10_2: tuple[float, float]


_ERF_FAR_SINGLE = (
    *(-0.00032013804967769883, 1.130233434841994, 0.631826051559163, 0.11008008294882024),
    *(-0.026421136005663898, 0.004759596293266265, -0.0005968056256607798),
    *(4.605804268918978e-05, -1.6371514145936436e-06),
)
_ERF_FAR = (
    *(1.7974006948759254e-07, 1.1283772508386534, 0.6366292762286155, 0.10274355365046965),
    *(-0.01906740615524328, -0.0003021082177747954, 0.001800908201368631),
    *(-0.0006769296560609868, 7.587551928775859e-05, 4.922933655412966e-05),
    *(-3.3709993180051275e-05, 1.1742692149284275e-05, -2.759894123008719e-06),
    *(4.553553954836914e-07, -5.1133743673012034e-08, 3.5347960812852366e-09),
    -1.1398544940688474e-10,
)
_ERF_FARTHER = (
    *(-0.0012578360370742478, 1.1336687701700217, 0.6262351562678566, 0.11536328412878058),
    *(-0.029596350975268918, 0.006003254215574707, -0.0009038370815952036),
    *(8.594032776034542e-05, -1.0378134414458123e-06, -1.2386816415991777e-06),
    *(2.3527193271797854e-07, -2.4181758611340018e-08, 1.5361787455131221e-09),
    *(-5.697864217875677e-11, 9.517672093522239e-13),
)
FORMATS = {
    "float": Format(
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
        erf_far=((1.0, _ERF_FAR_SINGLE),),
        erf_high=4.0,
        erfc=(
            *(1.2329951184781531, -0.1396211321966304, 0.015379665629863665),
            *(0.06809792045655934, -0.10103855825715444, 0.09371954982353702),
            *(-0.06635028700421661, 0.03723552812176736, -0.016025416886807742),
            *(0.005010903007745404, -0.0011707049069710075, -0.0006529517855397417),
        ),
        erfc_high=10.1,
        sinh_high=89.5,
        atan=(
            *(-0.3333333176081416, 0.19999540402202218, -0.14263952776150204),
            *(0.10743700991652794, -0.06451827128084217),
        ),
        quarter_pi=(0.7853975296020508, 6.337953975283657e-07),
        log10_2=(0.301025390625, 4.605038981195214e-06),
    ),
    "double": Format(
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
        erf_far=((1.0, _ERF_FAR), (2.5, _ERF_FARTHER)),
        erf_high=6.0,
        erfc=(
            *(1.2329951186255526, -0.13962111684056286, 0.015379652102621091),
            *(0.0680970542547336, -0.10103906603637362, 0.09373283499690535),
            *(-0.0663303658110103, 0.03716751556105671, -0.016197734065502876),
            *(0.005031969765051122, -0.0007577732963739462, -0.00019925553476007838),
            *(0.0001506220523230599, -2.4403160497192634e-05, -1.1224293594679385e-05),
            *(5.718067004785881e-06, 3.006053020270926e-07, -8.356886054802244e-07),
            *(6.326381936013846e-08, 1.1597564919712835e-07, -7.796210935750394e-09),
            *(-1.3952812123042382e-08, -1.907388627007971e-09),
        ),
        erfc_high=27.3,
        sinh_high=710.5,
        atan=(
            *(-0.3333333333333333, 0.19999999999999804, -0.14285714285659804),
            *(0.11111111105153101, -0.0909090875338416, 0.07692296371657548),
            *(-0.06666424825128896, 0.0587892830096501, -0.052304491382598274),
            *(0.04551569809573824, -0.034569959909536985, 0.016285089636098326),
        ),
        quarter_pi=(0.7853981633974456, 2.6951514290790595e-15),
        log10_2=(0.30102999566383914, 1.42050232272661e-13),
    ),
}


def format_of(x: Value) -> Format:
    """The format of a value."""
    return FORMATS[x.type.element]


def polynomial(code: Builder, x: Value, coefficients: Sequence[float]) -> Value:
    """Horner's rule; the constant coefficient comes first."""
    total = code.constant(coefficients[-1], x.type)
    for coefficient in reversed(coefficients[:-1]):
        total = code.multiply_add(total, x, coefficient)
    return total


def bits_of(code: Builder, x: Value) -> Value:
    """The bits of a float as an integer."""
    return code.convert("bitcast", x, format_of(x).integer)


def clamped(code: Builder, x: Value, low: float, high: float) -> Value:
    """The number clamped to low .. high; NaN stays."""
    x = code.select(x < low, low, x)
    return code.select(x > high, high, x)


def nearest_integer(code: Builder, x: Value) -> tuple[Value, Value]:
    """The nearest integer, for numbers that are not large: as a float and as an integer.

    Adding 1.5 * 2**mantissa leaves the integer in the lowest bits.
    """
    shape = format_of(x)
    magic = code.constant(1.5 * 2.0**shape.mantissa, x.type)
    lifted = x + magic
    integer = bits_of(code, lifted) - bits_of(code, magic)
    return lifted - magic, integer


def as_float(code: Builder, integer: Value, type: Type) -> Value:
    """A small integer of the float's size as a float: the inverse of `nearest_integer`."""
    shape = FORMATS[type.element]
    magic = code.constant(1.5 * 2.0**shape.mantissa, type)
    lifted = integer + bits_of(code, magic)
    return code.convert("bitcast", lifted, type.element) - magic


def power_of_two(code: Builder, exponent: Value, type: Type) -> Value:
    """2**exponent. It must be a normal number, which is not checked."""
    shape = FORMATS[type.element]
    return code.convert("bitcast", (exponent + shape.bias) << shape.mantissa, type.element)


def scaled(code: Builder, x: Value, exponent: Value) -> Value:
    """The product x * 2**exponent by two multiplications: it may be denormal or infinite."""
    half = code.binary("ashr", exponent, 1)
    other = exponent - half
    x = x * power_of_two(code, half, x.type)
    return x * power_of_two(code, other, x.type)


def split_exponent(code: Builder, x: Value) -> tuple[Value, Value]:
    """(m, e) with x = m * 2**e and m from sqrt(1/2) to sqrt(2), for positive normal x."""
    shape = format_of(x)
    root = bits_of(code, code.constant(math.sqrt(0.5), x.type))
    past = bits_of(code, x) - root
    exponent = code.binary("ashr", past, shape.mantissa)
    m = bits_of(code, x) - (exponent << shape.mantissa)
    return code.convert("bitcast", m, x.type.element), exponent


def mantissa_and_exponent(code: Builder, x: Value) -> tuple[Value, Value]:
    """(m, e) with x = m * 2**e and m from sqrt(1/2) to sqrt(2), for positive finite x."""
    shape = format_of(x)
    tiny = x < 2.0 ** (1 - shape.bias)
    raised = x * 2.0 ** (shape.mantissa + 2)
    m, exponent = split_exponent(code, code.select(tiny, raised, x))
    lowered = exponent - (shape.mantissa + 2)
    return m, code.select(tiny, lowered, exponent)


def round_half_even(code: Builder, x: Value) -> Value:
    """The nearest integer, the even one of two; not every processor has an instruction for it."""
    large = 2.0 ** format_of(x).mantissa
    size = code.intrinsic("fabs", x)
    # For numbers below 2**mantissa, adding and subtracting that rounds.
    near = code.intrinsic("copysign", size + large - large, x)
    # NaN and numbers without fraction stay.
    return code.select(size < large, near, x)


def floor(code: Builder, x: Value) -> Value:
    """The largest integer not above x; not every processor has an instruction for it."""
    large = 2.0 ** format_of(x).mantissa
    size = code.intrinsic("fabs", x)
    near = code.intrinsic("copysign", size + large - large, x)
    down = near - 1
    down = code.select(near > x, down, near)
    # NaN and numbers without fraction stay, zeros with their sign.
    return code.select(size < large, down, x)


def two_sum(code: Builder, a: Value, b: Value) -> tuple[Value, Value]:
    """The sum a + b and its rounding error (Knuth, TAOCP 2, 4.2.2)."""
    total = a + b
    back = total - a
    lost = a - (total - back) + (b - back)
    return total, lost


def two_product(code: Builder, a: Value, b: Value) -> tuple[Value, Value]:
    """The product a * b and its rounding error (Dekker, 1971)."""
    product = a * b
    if code.module.fused:
        return product, code.intrinsic("fma", a, b, -product)
    (a_high, a_low), (b_high, b_low) = (_halves(code, a), _halves(code, b))
    return product, a_high * b_high - product + a_high * b_low + a_low * b_high + a_low * b_low


def _halves(code: Builder, a: Value) -> tuple[Value, Value]:
    """Two numbers of half as many bits whose sum is a."""
    bits = (format_of(a).mantissa + 2) // 2
    scaled = a * (2.0**bits + 1)
    high = scaled - (scaled - a)
    return high, a - high
