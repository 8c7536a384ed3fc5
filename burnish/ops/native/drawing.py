"""Random numbers as loops: a Mersenne twister (MT19937), uniform and normal numbers, and samples of classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod, sqrt
from typing import Any

from burnish.loops.sizes import hinted
from burnish.ops.operator import ENTROPY, NativeCall, TensorType

WORDS, SHIFT = 624, 397  # of the twister's state (Matsumoto and Nishimura 1998)
SCRATCH: tuple[TensorType, ...] = (((WORDS + 1,), "int64"),)  # its words, and how many of them were given
HALF_LOG = 0.6931471805599453  # ln 2
WHOLE = 0xFFFFFFFF


def _start(state: Any, seed: int, known: int) -> None:
    """The state of a seed of 32 bits, or of 64 bits of entropy: then each word is one of SplitMix64."""
    seed = seed if known else seed | 1
    state[0] = seed & WHOLE
    for i in range(1, WORDS):
        if known:
            state[i] = (1812433253 * (state[i - 1] ^ (state[i - 1] >> 30)) + i) & WHOLE
        else:
            z = seed + i * -7046029254386353131
            z = (z ^ ((z >> 30) & 0x3FFFFFFFF)) * -4658895280553007687
            z = (z ^ ((z >> 27) & 0x1FFFFFFFFF)) * -7723592293110705685
            state[i] = (z >> 31) & WHOLE
    state[WORDS] = WORDS


def _next(state: Any) -> int:
    """The next 32 bits."""
    if state[WORDS] >= WORDS:
        for i in range(WORDS):
            y = (state[i] & 0x80000000) | (state[(i + 1) % WORDS] & 0x7FFFFFFF)
            state[i] = state[(i + SHIFT) % WORDS] ^ (y >> 1) ^ (0x9908B0DF if y & 1 else 0)
        state[WORDS] = 0
    y = state[state[WORDS]]
    state[WORDS] += 1
    y ^= y >> 11
    y ^= (y << 7) & 0x9D2C5680
    y ^= (y << 15) & 0xEFC60000
    return int(y ^ (y >> 18))


def _unit(state: Any) -> float:
    """A number from 0 to below 1 of 53 bits."""
    high, low = _next(state) >> 5, _next(state) >> 6
    return (high * 67108864.0 + low) / 9007199254740992.0


def _log(x: float) -> float:
    """The natural logarithm of a positive finite number: by the series of the inverse hyperbolic tangent."""
    k = 0
    while x < 5e-10:
        x, k = x * 1073741824.0, k - 30
    while x > 2e9:
        x, k = x / 1073741824.0, k + 30
    while x < 0.7071067811865476:
        x, k = x * 2.0, k - 1
    while x > 1.4142135623730951:
        x, k = x * 0.5, k + 1
    s = (x - 1.0) / (x + 1.0)
    z = s * s
    tail = 0.0
    for n in range(23, 1, -2):
        tail = z * (tail + 1.0 / n)
    return k * HALF_LOG + (2.0 * s + 2.0 * s * tail)


def _uniform(out: Any, state: Any, seed: int, known: int, low: float, high: float, begin: int, end: int) -> None:
    _start(state, seed, known)
    for i in range(out.shape[0]):
        out[i] = low + (high - low) * _unit(state)


def _normal(out: Any, state: Any, seed: int, known: int, mean: float, scale: float, begin: int, end: int) -> None:
    """Normal random numbers by the polar method, two from one point in the circle."""
    _start(state, seed, known)
    kept, has = 0.0, False
    for i in range(out.shape[0]):
        if has:
            value, has = kept, False
        else:
            a, b, r = 0.0, 0.0, 2.0
            while r >= 1.0 or r == 0.0:
                a, b = 2.0 * _unit(state) - 1.0, 2.0 * _unit(state) - 1.0
                r = a * a + b * b
            factor = sqrt(-2.0 * _log(r) / r)
            kept, has, value = factor * a, True, factor * b
        out[i] = mean + scale * value


def _classes(x: Any, out: Any, state: Any, seed: int, known: int, begin: int, end: int) -> None:
    """The greatest of log probability and Gumbel noise is a sample."""
    _start(state, seed, known)
    for row in range(x.shape[0]):
        for k in range(out.shape[1]):
            best, place = 0.0, -1
            for c in range(x.shape[1]):
                unit = 1.0 - _unit(state)
                while unit >= 1.0:
                    unit = 1.0 - _unit(state)
                value = x[row, c] - _log(-_log(unit))
                if place < 0 or value > best or (value != value and best == best):
                    best, place = value, c
            out[row, k] = place


def _seed(attrs: Mapping[str, Any]) -> tuple[Any, int]:
    """The seed, and whether there is one: else the entropy of a call."""
    seed = attrs["seed"]
    return (ENTROPY, 0) if seed is None else (int(seed) & WHOLE, 1)


def _drawn(
    function: Any, first: str, second: str, outputs: Sequence[TensorType], attrs: Mapping[str, Any]
) -> NativeCall | None:
    ((shape, dtype),) = outputs
    if dtype not in ("float32", "float64"):
        return None
    numbers = (*_seed(attrs), float(attrs[first]), float(attrs[second]))
    return NativeCall(function, (((prod(shape),), dtype),), numbers, 1, hinted(prod(shape)), SCRATCH)


def random_uniform_call(
    inputs: Sequence[TensorType], outputs: Sequence[TensorType], attrs: Mapping[str, Any]
) -> NativeCall | None:
    """The kernel of ``random_uniform``."""
    return _drawn(_uniform, "low", "high", outputs, attrs)


def random_normal_call(
    inputs: Sequence[TensorType], outputs: Sequence[TensorType], attrs: Mapping[str, Any]
) -> NativeCall | None:
    """The kernel of ``random_normal``."""
    return _drawn(_normal, "mean", "scale", outputs, attrs)


def multinomial_call(
    inputs: Sequence[TensorType], outputs: Sequence[TensorType], attrs: Mapping[str, Any]
) -> NativeCall | None:
    """The kernel of ``multinomial``."""
    if inputs[0][1] not in ("float32", "float64"):
        return None
    return NativeCall(_classes, (*inputs, *outputs), _seed(attrs), 1, 1, SCRATCH)
