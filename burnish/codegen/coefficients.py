"""Floating formats as the vector math sees them: layout constants and the coefficients of its approximations.

Coefficients, lowest power first, were found by Remez exchange in 50-digit arithmetic for least relative error of the
result (its weight function), then rounded to the format; a few leading ones were held at their exact value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Polynomial = tuple[float, ...]
Rational = tuple[Polynomial, Polynomial]

LOG2E = 1.4426950408889634
TWO_OVER_PI = 0.6366197723675814


@dataclass(frozen=True, slots=True)
class Format:
    """An IEEE binary format. ``integer`` has its width; ``ln2`` is log(2) as a part with trailing zeros and a rest."""

    dtype: str
    integer: str
    mantissa: int  # explicit bits
    bias: int
    ln2: tuple[float, float]
    exp_range: tuple[float, float]  # exp rounds to 0 below and to infinity above
    exp: Polynomial  # e^r, |r| <= log(2) / 2
    log: Polynomial  # (2 atanh(s) - 2 s) / s^3 in s^2, |s| <= 3 - sqrt(8)
    sin: Polynomial  # (sin r - r) / r^3 in r^2, |r| <= pi / 4
    cos: Polynomial  # (cos r - 1 + r^2 / 2) / r^4 in r^2
    half_pi_parts: int  # how many of HALF_PI the reduction of sin and cos needs

    @property
    def bits(self) -> int:
        """Width of the format."""
        return 32 if self.dtype == "float32" else 64

    @property
    def magic(self) -> float:
        """Adding this number leaves the nearest integer in the low bits."""
        return 1.5 * 2.0**self.mantissa

    @property
    def tiny(self) -> float:
        """The smallest normal number."""
        return 2.0 ** (1 - self.bias)


FORMATS: Mapping[str, Format] = {
    "float32": Format(
        dtype="float32",
        integer="uint32",
        mantissa=23,
        bias=127,
        ln2=(0.693145751953125, 1.4286068203094173e-06),
        exp_range=(-104.0, 89.0),
        exp=(1.0, 1.0, 0.49999994, 0.16666521, 0.04166839, 0.008368717, 0.0013814599),
        log=(0.66666776, 0.39977533, 0.29871997),
        sin=(-0.16666655, 0.008332173, -0.00019516656),
        cos=(0.041666646, -0.0013887362, 2.443773e-05),
        half_pi_parts=3,
    ),
    "float64": Format(
        dtype="float64",
        integer="uint64",
        mantissa=52,
        bias=1023,
        ln2=(0.6931471805598903, 5.497923018708371e-14),
        exp_range=(-746.0, 710.0),
        exp=(1.0, 1.0, 0.5000000000000011, 0.16666666666666413, 0.04166666666653016, 0.008333333333494465,
             0.001388888894363005, 0.0001984126950657133, 2.480149309892918e-05, 2.7557586380882427e-06,
             2.7630248379742436e-07, 2.5000059256054842e-08),
        log=(0.6666666666666734, 0.39999999999413965, 0.28571428742562144, 0.22222198553785505, 0.18183565407248337,
             0.15314021118750684, 0.14796261168009292),
        sin=(-0.16666666666666632, 0.008333333333322316, -0.00019841269829725216, 2.755731366206148e-06,
             -2.5050753265092574e-08, 1.5896504975467335e-10),
        cos=(0.0416666666666666, -0.001388888888887399, 2.4801587289394903e-05, -2.7557314326023604e-07,
             2.087571955774313e-09, -1.1359448630332592e-11),
        half_pi_parts=4,
    ),
}  # fmt: skip

# pi / 2 in float64: the leading parts have 31 bits, so their products with integers below 2^22 are exact
HALF_PI = (1.5707963267341256, 6.07710050359346e-11, 2.9127320548227e-20, 1.2706558760139879e-29)
HALF_PI_PAIR = (1.5707963267948966, 6.123233995736766e-17)  # as near as two float64 can be
# The binary digits of 2 / pi behind the point, behind a word of zeros: what the greatest float64 needs of them
TWO_OVER_PI_WORDS = (
    0,
    0xA2F9836E4E441529,
    0xFC2757D1F534DDC0,
    0xDB6295993C439041,
    0xFE5163ABDEBBC561,
    0xB7246E3A424DD2E0,
    0x06492EEA09D1921C,
    0xFE1DEB1CB129A73E,
    0xE88235F52EBB4484,
    0xE99C7026B45F7E41,
    0x3991D639835339F4,
    0x9C845F8BBDF9283B,
    0x1FF897FFDE05980F,
    0xEF2F118B5A0A6D1F,
    0x6D367ECF27CB09B7,
    0x4F463F669E5FEA2D,
    0x7527BAC7EBE5F17B,
    0x3D0739F78A5292EA,
    0x6BFB5FB11F8D5D08,
    0x56033046FC7B6BAB,
)

# float32: tanh(x) / x and erf(x) / x in x^2, up to where the result rounds to 1; the last bits of the rounded
# coefficients are from a random descent on the error of the code itself
TANH32: Rational = (
    (1.0, 0.13382682, 0.0034974834, 2.06376e-05, 1.3389166e-08),
    (1.0, 0.46716, 0.025884379, 0.0003288617, 7.7917497e-07),
)
TANH32_ONE = 9.02
ERF32: Rational = (
    (1.1283791, 0.19177356, 0.05292079, 0.0038221532, 0.00028579737, 2.0347536e-06),
    (1.0, 0.50328726, 0.11466653, 0.015082248, 0.0011756049, 3.7980964e-05),
)
ERF32_ONE = 3.925

# float64: (tanh(x) / x - 1) / x^2 in x^2 up to 0.625
TANH64: Rational = (
    (-0.33333333333333326, -0.020496803525998093, -0.00019908967992543356),
    (1.0, 0.46149041057797946, 0.02328867136646245, 0.00020643910703784516),
)
TANH64_SMALL = 0.625
# float64: erf(x) / x - 1 in x^2 up to 1, and erfc(x) exp(x^2) in x from 1 to 6
ERF64: Rational = (
    (0.1283791670955126, -0.317011826751911, -0.04831544234671495, -0.00881342958650916, -0.0004952688457562784,
     -2.0716496683232686e-05),
    (1.0, 0.4604684982567785, 0.09379243321467172, 0.010688994637315017, 0.0006920824367977821,
     2.0791352293323238e-05),
)  # fmt: skip
ERFCX64: Rational = (
    (0.9999998897343578, 1.389966444620592, 0.9487612236154277, 0.37314566080580436, 0.08420435238664642,
     0.00890858648489022),
    (1.0, 2.51834444782154, 2.790414491947338, 1.7556807865483313, 0.6693383983419927, 0.14924439296214537,
     0.01579018200680891),
)  # fmt: skip
ERF64_ONE = 6.0

# float64 pow: (2 atanh(s) - 2 s - 2/3 s^3) / s^5 in s^2; 2/3 as two numbers
LOG_TAIL64: Polynomial = (
    0.40000000000002256, 0.2857142857009842, 0.22222222520131496, 0.18181784348586152, 0.15386758198893616,
    0.1325679721313528, 0.13196522370120753,
)  # fmt: skip
TWO_THIRDS = (0.6666666666666666, 3.700743415417188e-17)
