"""Random numbers: opaque operators, by NumPy's generators; with a seed, the same at every call. And dropout.

Nodes that are alike are one to the passes over graphs: those without a seed get a ``stream`` of their own each.
"""

from __future__ import annotations

import numpy as np

from burnish.loops.expr import FLOATS, INTS, Expr, cast, math, select, wrap
from burnish.loops.numeric import numpy_dtype
from burnish.loops.tensor import Tensor, compute, placeholder
from burnish.ops.native.drawing import multinomial_call, random_normal_call, random_uniform_call
from burnish.ops.operator import Ints, opaque, operator, require, require_input


def _generator(seed: float | None) -> np.random.RandomState:
    """A Mersenne twister, from the whole part of the seed as NumPy starts one, or from the system's entropy."""
    return np.random.RandomState(None if seed is None else int(seed) & 0xFFFFFFFF)


def _floats(name: str, shape: Ints, dtype: str) -> Tensor:
    """Random draws: a placeholder of a float dtype."""
    require(dtype in FLOATS, "attribute 'dtype'", dtype, ", ".join(FLOATS))
    return placeholder(shape, dtype, name)


def _random_uniform(shape: Ints, dtype: str, low: float, high: float, seed: float | None, stream: int) -> np.ndarray:
    return (low + (high - low) * _generator(seed).random_sample(shape)).astype(numpy_dtype(dtype))


@opaque(_random_uniform, random_uniform_call)
def random_uniform(
    name: str,
    *,
    shape: Ints,
    dtype: str,
    low: float = 0.0,
    high: float = 1.0,
    seed: float | None = None,
    stream: int = 0,
) -> Tensor:
    """Numbers of the uniform distribution from ``low`` to ``high``."""
    return _floats(name, shape, dtype)


def _random_normal(shape: Ints, dtype: str, mean: float, scale: float, seed: float | None, stream: int) -> np.ndarray:
    return (mean + scale * _generator(seed).standard_normal(shape)).astype(numpy_dtype(dtype))


@opaque(_random_normal, random_normal_call)
def random_normal(
    name: str,
    *,
    shape: Ints,
    dtype: str,
    mean: float = 0.0,
    scale: float = 1.0,
    seed: float | None = None,
    stream: int = 0,
) -> Tensor:
    """Numbers of the normal distribution."""
    return _floats(name, shape, dtype)


def _multinomial(x: np.ndarray, count: int, dtype: str, seed: float | None, stream: int) -> np.ndarray:
    rng = _generator(seed)
    noise = rng.gumbel(size=(x.shape[0], count, x.shape[1]))  # the greatest of log p + Gumbel noise is a sample of p
    return np.argmax(x.astype(np.float64)[:, None] + noise, 2).astype(numpy_dtype(dtype))


@opaque(_multinomial, multinomial_call)
def multinomial(
    name: str, x: Tensor, *, count: int, dtype: str = "int32", seed: float | None = None, stream: int = 0
) -> Tensor:
    """``count`` samples a row of ``x`` [B, classes], which holds unnormalized log probabilities."""
    require_input(x, "x", 2, "[B, classes]", dtype=FLOATS)
    require(x.shape[1] > 0, "input 'x'", f"shape {list(x.shape)}", "some classes")
    require(dtype in INTS, "attribute 'dtype'", dtype, ", ".join(INTS))
    return placeholder((x.shape[0], count), dtype, name)


# --- random bits of a counter -----------------------------------------------------------------------------------------


def _mixed(h: Expr) -> Expr:
    """A permutation of 32 bits in which each depends on all: the finalizer of MurmurHash3 (Appleby)."""

    def folded(e: Expr, by: int) -> Expr:
        return math("bitxor", e, math("shr", e, wrap(by, "uint32")))

    h = folded(h, 16) * wrap(0x85EBCA6B, "uint32")
    h = folded(h, 13) * wrap(0xC2B2AE35, "uint32")
    return folded(h, 16)


@operator
def dropout(name: str, x: Tensor, seed: Tensor, first: Tensor | None = None, *, rate: float, stream: int = 0) -> Tensor:
    """``x`` with each element 0 with probability ``rate``, else divided by ``1 - rate`` (Srivastava et al. 2014).

    Counter-based: which elements stay depends on their positions, on ``seed`` (int64, a scalar) and on ``stream``
    alone, so that a gradient computes it again. ``first``, int64, a scalar: where ``x`` is a part of a larger tensor,
    the number there of its first row, by which the same elements stay. Stage ``name.keys`` [2] hashes seed and stream.
    """
    require_input(x, "x", dtype=FLOATS)
    require_input(seed, "seed", shape=(), dtype=("int64",))
    if first is not None:
        require_input(first, "first", shape=(), dtype=("int64",))
        require(len(x.shape) > 0, "input 'x'", "a scalar", "a tensor with rows, as 'first' is given")
    require(0 <= rate < 1, "attribute 'rate'", rate, "0 to less than 1")

    def key(k: Expr) -> Expr:
        low, high = (cast("uint32", e) for e in (seed[()], math("shr", seed[()], wrap(32, "int64"))))
        first = _mixed(low + wrap(0x9E3779B9 * (stream + 1) & 0xFFFFFFFF, "uint32"))
        return _mixed(math("bitxor", first, _mixed(high + cast("uint32", k) + wrap(1, "uint32"))))

    keys = compute((2,), key, f"{name}.keys")
    least = wrap(min(round(rate * 2**32), 2**32 - 1), "uint32")

    def element(*i: Expr) -> Expr:
        flat: Expr = wrap(0)
        places = i if first is None else (i[0] + first[()], *i[1:])
        for position, extent in zip(places, x.shape, strict=True):
            flat = flat * extent + position
        bits = _mixed(_mixed(math("bitxor", cast("uint32", flat), keys[0])) + keys[1])
        return select(bits >= least, x[i] * wrap(1 / (1 - rate), x.dtype), wrap(0.0, x.dtype))

    return compute(x.shape, element, name)


OPERATORS = (random_uniform, random_normal, multinomial, dropout)
