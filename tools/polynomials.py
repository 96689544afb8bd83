"""The polynomials of `lamina.codegen.functions`, computed in high precision.

`python tools/polynomials.py` prints them. They interpolate at Chebyshev nodes, which comes
within a small factor of the best polynomial (Trefethen, Approximation Theory and Approximation
Practice, 2013, chapter 16). Needs mpmath.
"""

from __future__ import annotations

from collections.abc import Callable

from mpmath import mp, mpf

mp.dps = 50


def fit(
    function: Callable[[mpf], mpf], low: float | mpf, high: float | mpf, degree: int
) -> list[float]:
    """Coefficients, constant first."""
    low, high = mpf(low), mpf(high)
    coefficients, error = mp.chebyfit(function, [low, high], degree + 1, error=True)
    print(f"#   degree {degree}, largest error {mp.nstr(error, 3)}")
    return [float(c) for c in reversed(coefficients)]


def _nonzero(function: Callable[[mpf], mpf]) -> Callable[[mpf], mpf]:
    """Functions with a removable gap at zero, moved away from it."""
    return lambda x: function(x if abs(x) > mpf(10) ** -18 else mpf(10) ** -18)


def exp_tail(r: mpf) -> mpf:
    """(exp(r) - 1 - r) / r**2."""
    return sum(r**n / mp.factorial(n + 2) for n in range(40))


def log_tail(z: mpf) -> mpf:
    """(log((1 + s) / (1 - s)) - 2 s) / s**3, with z = s**2."""
    return sum(2 * z**n / (2 * n + 3) for n in range(60))


def sin_tail(z: mpf) -> mpf:
    """(sin(r) - r) / r**3, with z = r**2."""
    return sum((-1) ** (n + 1) * z**n / mp.factorial(2 * n + 3) for n in range(30))


def cos_tail(z: mpf) -> mpf:
    """(cos(r) - 1 + r**2 / 2) / r**4, with z = r**2."""
    return sum((-1) ** n * z**n / mp.factorial(2 * n + 4) for n in range(30))


def erf_near(z: mpf) -> mpf:
    """erf(x) / x - 1, with z = x**2."""
    return _nonzero(lambda y: mp.erf(mp.sqrt(y)) / mp.sqrt(y) - 1)(abs(z))


def erf_far(x: mpf) -> mpf:
    """-log(1 - erf(x))."""
    return -mp.log(mp.erfc(x))


def atan_tail(z: mpf) -> mpf:
    """(atan(t) - t) / t**3, with z = t**2."""
    return sum((-1) ** (n + 1) * z**n / mpf(2 * n + 3) for n in range(90))


def erfc_scaled(centre: float) -> Callable[[mpf], mpf]:
    """(1 + 2 x) exp(x**2) erfc(x), with t = (x - centre) / (x + centre)."""

    def function(t: mpf) -> mpf:
        x = centre * (1 + t) / (1 - t)
        return (1 + 2 * x) * mp.exp(x * x) * mp.erfc(x)

    return function


HALF_LN2 = mp.log(2) / 2 + mpf("1e-4")
LARGEST_S2 = ((mp.sqrt(2) - 1) / (mp.sqrt(2) + 1)) ** 2 + mpf("1e-5")
QUARTER_PI2 = (mp.pi / 4 + mpf("1e-4")) ** 2
EIGHTH_PI_TANGENT2 = (mp.tan(mp.pi / 8) + mpf("1e-5")) ** 2
ERFC_CENTRE = 4


def erfc_end(x: float) -> mpf:
    """The t of an x."""
    return mpf(x - ERFC_CENTRE) / (x + ERFC_CENTRE)


if __name__ == "__main__":
    for name, function, low, high, degrees in (
        ("EXP", exp_tail, -HALF_LN2, HALF_LN2, (4, 10)),
        ("LOG", log_tail, 0, LARGEST_S2, (2, 6)),
        ("SIN", sin_tail, 0, QUARTER_PI2, (5,)),
        ("COS", cos_tail, 0, QUARTER_PI2, (5,)),
        ("ERF_NEAR", erf_near, 0, 1, (5, 11)),
        ("ERF_FAR32", erf_far, 1, 4, (8, 9, 10)),
        ("ERF_FAR64", erf_far, 1, 2.5, (14, 16, 18)),
        ("ERF_FAR64b", erf_far, 2.5, 6, (14, 16, 18)),
        ("ATAN", atan_tail, 0, EIGHTH_PI_TANGENT2, (4, 11)),
        ("ERFC32", erfc_scaled(ERFC_CENTRE), -1, erfc_end(10.1), (11,)),
        ("ERFC64", erfc_scaled(ERFC_CENTRE), -1, erfc_end(27.3), (22,)),
    ):
        for degree in degrees:
            print(name, fit(function, low, high, degree))
