"""Opaque operators that make random numbers, by NumPy's generators; with a seed, the same at every call.

Nodes that are alike are one to the passes over graphs: those without a seed get a ``stream`` of their own each.
"""

from __future__ import annotations

import numpy as np

from burnish.loops.expr import FLOATS, INTS
from burnish.loops.numeric import numpy_dtype
from burnish.loops.tensor import Tensor, placeholder
from burnish.ops.operator import Ints, opaque, require, require_float, require_rank


def _generator(seed: float | None) -> np.random.RandomState:
    """A Mersenne twister, from the whole part of the seed as NumPy starts one, or from the system's entropy."""
    return np.random.RandomState(None if seed is None else int(seed) & 0xFFFFFFFF)


def _floats(name: str, shape: Ints, dtype: str) -> Tensor:
    """What is drawn: a tensor of a float dtype."""
    require(dtype in FLOATS, "attribute 'dtype'", dtype, ", ".join(FLOATS))
    return placeholder(shape, dtype, name)


def _random_uniform(shape: Ints, dtype: str, low: float, high: float, seed: float | None, stream: int) -> np.ndarray:
    return (low + (high - low) * _generator(seed).random_sample(shape)).astype(numpy_dtype(dtype))


@opaque(_random_uniform)
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


@opaque(_random_normal)
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


@opaque(_multinomial)
def multinomial(
    name: str, x: Tensor, *, count: int, dtype: str = "int32", seed: float | None = None, stream: int = 0
) -> Tensor:
    """``count`` samples a row of ``x`` [B, classes], which holds unnormalized log probabilities."""
    require_float(x, "x")
    require_rank(x, "x", 2, "[B, classes]")
    require(x.shape[1] > 0, "input 'x'", f"shape {list(x.shape)}", "some classes")
    require(dtype in INTS, "attribute 'dtype'", dtype, ", ".join(INTS))
    return placeholder((x.shape[0], count), dtype, name)


OPERATORS = (random_uniform, random_normal, multinomial)
