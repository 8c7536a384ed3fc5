"""The fast Fourier transform of lines of any length, as loops: Stockham's, by factors 4, 2, 3, 5 and other primes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from burnish.loops.sizes import hinted, is_size
from burnish.ops.operator import NativeCall, TensorType, normal_axis

MOST_PRIME = 1 << 9  # of a length: by a greater one a transform is as slow as a product
FEW = 16  # elements of an inverse, whose rounding errors the standard's tests expect to be those of NumPy in float32
MOST_LENGTH = 1 << 16  # of a line, which lies in scratch memory


def _by_four(z: Any, w: Any, a: int, b: int, n: int, rest: int, done: int, sign: float) -> None:
    """One factor of a line of complex numbers in rows ``a``, ``a + 1`` of ``z``, to ``b``. ``rest`` is the length that
    is left to be transformed, ``done`` that of what is.
    """
    m = rest // 4
    for j in range(m):
        c1, s1 = w[0, j * done], sign * w[1, j * done]
        c2, s2 = w[0, 2 * j * done], sign * w[1, 2 * j * done]
        c3, s3 = w[0, 3 * j * done], sign * w[1, 3 * j * done]
        p0, p1, p2, p3 = j * done, (j + m) * done, (j + 2 * m) * done, (j + 3 * m) * done
        q = 4 * j * done
        for k in range(done):
            r0, i0, r1, i1 = z[a, p0 + k], z[a + 1, p0 + k], z[a, p1 + k], z[a + 1, p1 + k]
            r2, i2, r3, i3 = z[a, p2 + k], z[a + 1, p2 + k], z[a, p3 + k], z[a + 1, p3 + k]
            er, ei, fr, fi = r0 + r2, i0 + i2, r0 - r2, i0 - i2
            gr, gi = r1 + r3, i1 + i3
            hr, hi = -sign * (i1 - i3), sign * (r1 - r3)
            z[b, q + k], z[b + 1, q + k] = er + gr, ei + gi
            tr, ti = fr + hr, fi + hi
            z[b, q + done + k], z[b + 1, q + done + k] = tr * c1 - ti * s1, tr * s1 + ti * c1
            tr, ti = er - gr, ei - gi
            z[b, q + 2 * done + k], z[b + 1, q + 2 * done + k] = tr * c2 - ti * s2, tr * s2 + ti * c2
            tr, ti = fr - hr, fi - hi
            z[b, q + 3 * done + k], z[b + 1, q + 3 * done + k] = tr * c3 - ti * s3, tr * s3 + ti * c3


def _by_two(z: Any, w: Any, a: int, b: int, n: int, rest: int, done: int, sign: float) -> None:
    m = rest // 2
    for j in range(m):
        c, s = w[0, j * done], sign * w[1, j * done]
        p, q = (j + m) * done, 2 * j * done
        for k in range(done):
            r0, i0, r1, i1 = z[a, j * done + k], z[a + 1, j * done + k], z[a, p + k], z[a + 1, p + k]
            z[b, q + k], z[b + 1, q + k] = r0 + r1, i0 + i1
            tr, ti = r0 - r1, i0 - i1
            z[b, q + done + k], z[b + 1, q + done + k] = tr * c - ti * s, tr * s + ti * c


def _by_prime(z: Any, w: Any, a: int, b: int, n: int, rest: int, done: int, sign: float, r: int) -> None:
    """Any factor: element by element the sum of ``r`` others, those that lie opposite each other together."""
    m = rest // r
    for j in range(m):
        for k in range(done):
            for f in range(r):
                sr, si = z[a, j * done + k], z[a + 1, j * done + k]
                for p in range(1, (r + 1) // 2):
                    turn = p * f % r * (n // r)
                    c, s = w[0, turn], sign * w[1, turn]
                    x, y = (j + p * m) * done + k, (j + (r - p) * m) * done + k
                    sr += (z[a, x] + z[a, y]) * c - (z[a + 1, x] - z[a + 1, y]) * s
                    si += (z[a + 1, x] + z[a + 1, y]) * c + (z[a, x] - z[a, y]) * s
                turn = j * f * done % n
                c, s = w[0, turn], sign * w[1, turn]
                to = (r * j + f) * done + k
                z[b, to], z[b + 1, to] = sr * c - si * s, sr * s + si * c


def _transformed(z: Any, w: Any, factors: Any, given: int, n: int, sign: float) -> int:
    """Transforms the line in rows 0 and 1, zero from ``given`` on; the first of the two rows where it is then."""
    for t in range(given, n):
        z[0, t], z[1, t] = 0.0, 0.0
    at, rest, done = 0, n, 1
    for f in range(factors.shape[0]):
        r = factors[f]
        if r == 4:
            _by_four(z, w, at, 2 - at, n, rest, done, sign)
        elif r == 2:
            _by_two(z, w, at, 2 - at, n, rest, done, sign)
        else:
            _by_prime(z, w, at, 2 - at, n, rest, done, sign, r)
        at, rest, done = 2 - at, rest // r, done * r
    return at


def _complex_lines(x: Any, out: Any, z: Any, w: Any, factors: Any, n: int, inverse: int, begin: int, end: int) -> None:
    """Lines ``begin`` to ``end`` of ``x`` [outer, given, inner, 2]."""
    inner, given = x.shape[2], min(x.shape[1], n)
    for line in range(begin, end):
        o, i = line // inner, line % inner
        for t in range(given):
            z[0, t], z[1, t] = x[o, t, i, 0], x[o, t, i, 1]
        at = _transformed(z, w, factors, given, n, 1.0 if inverse else -1.0)
        scale = 1.0 / n if inverse else 1.0
        for k in range(out.shape[1]):
            out[o, k, i, 0], out[o, k, i, 1] = z[at, k] * scale, z[at + 1, k] * scale


def _real_lines(x: Any, out: Any, z: Any, w: Any, factors: Any, n: int, inverse: int, begin: int, end: int) -> None:
    """Pairs of real lines of ``x`` [outer, given, inner, 1], one as real and one as imaginary parts."""
    inner, given, lines = x.shape[2], min(x.shape[1], n), x.shape[0] * x.shape[2]
    for pair in range(begin, end):
        first, second = 2 * pair, min(2 * pair + 1, lines - 1)
        o, i, p, j = first // inner, first % inner, second // inner, second % inner
        for t in range(given):
            z[0, t], z[1, t] = x[o, t, i, 0], x[p, t, j, 0]
        at = _transformed(z, w, factors, given, n, 1.0 if inverse else -1.0)
        half = 0.5 / n if inverse else 0.5
        for k in range(out.shape[1]):
            other = n - k if k > 0 else 0
            r, s, u, v = z[at, k], z[at, other], z[at + 1, k], z[at + 1, other]
            out[o, k, i, 0], out[o, k, i, 1] = (r + s) * half, (u - v) * half
            out[p, k, j, 0], out[p, k, j, 1] = (u + v) * half, (s - r) * half


def _halves(x: Any, out: Any, z: Any, w: Any, factors: Any, n: int, inverse: int, begin: int, end: int) -> None:
    """Pairs of real lines from the first halves of their transforms, ``x`` [outer, given, inner, 1 or 2]."""
    inner, given, lines = x.shape[2], min(x.shape[1], n // 2 + 1), x.shape[0] * x.shape[2]
    for pair in range(begin, end):
        first, second = 2 * pair, min(2 * pair + 1, lines - 1)
        o, i, p, j = first // inner, first % inner, second // inner, second % inner
        for t in range(n):
            z[0, t], z[1, t] = 0.0, 0.0
        for k in range(given):
            ar, br, ai, bi = float(x[o, k, i, 0]), float(x[p, k, j, 0]), 0.0, 0.0
            if x.shape[3] > 1 and k > 0 and 2 * k != n:
                ai, bi = float(x[o, k, i, 1]), float(x[p, k, j, 1])
            z[0, k], z[1, k] = ar - bi, ai + br
            if k > 0:
                z[0, n - k], z[1, n - k] = ar + bi, br - ai
        at = _transformed(z, w, factors, n, n, 1.0)
        for t in range(out.shape[1]):
            out[o, t, i, 0], out[p, t, j, 0] = z[at, t] / n, z[at + 1, t] / n


def dft_call(
    inputs: Sequence[TensorType], outputs: Sequence[TensorType], attrs: Mapping[str, Any]
) -> NativeCall | None:
    """The kernel of ``dft``."""
    ((shape, dtype),), ((found, _),), n = inputs, outputs, attrs["length"]
    if dtype not in ("float32", "float64") or is_size(n) or n > MOST_LENGTH:
        return None
    if attrs["inverse"] and dtype == "float32" and n < FEW:
        return None
    factors = _factors(n)
    if max(factors, default=1) > MOST_PRIME:
        return None
    axis = normal_axis(attrs["axis"], len(shape))
    views = tuple(((prod(s[:axis]), s[axis], prod(s[axis + 1 : -1]), s[-1]), dtype) for s in (shape, found))
    lines = views[0][0][0] * views[0][0][2]
    halves = attrs["inverse"] and attrs["onesided"]
    function = _halves if halves else _real_lines if shape[-1] == 1 else _complex_lines
    units = lines if function is _complex_lines else (lines + 1) // 2
    angle = 2 * np.pi * np.arange(n) / n
    tables = (np.stack([np.cos(angle), np.sin(angle)]), np.array(factors, np.int64))
    numbers = (n, int(attrs["inverse"]))
    return NativeCall(function, views, numbers, units, hinted(lines) * n * 8, (((4, n), "float64"),), tables)


def _factors(n: int) -> list[int]:
    """Factors of a length: fours, then primes in order."""
    found, r = [], 4
    while n > 1:
        while n % r == 0:
            found.append(r)
            n //= r
        r = {4: 2, 2: 3}.get(r, r + 2)
        if r > 3 and r * r > n > 1 and n % 2:
            r = n
    return found
