"""Random arrays: draws from seeded generators, which the engine knows as resources that every draw writes."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from burnish import ops
from burnish.array.array import Array, holding
from burnish.array.engine import Resource
from burnish.array.lazy import concrete, engine
from burnish.array.memory import view_of
from burnish.array.operators import NORMAL, UNIFORM
from burnish.array.types import array_type, dtype_name
from burnish.errors import InputError

LONG = 20_000  # numbers, whose draw takes some 200 µs


class Generator:
    """Random number generator. Draws take their turns, in the order in which they are asked for, on any thread: two
    generators of one seed give the same numbers.
    """

    def __init__(self, seed: int | None = None) -> None:
        """``seed``: a whole number from 0 to 4294967295; by default from the system's entropy. Raises InputError."""
        if seed is not None and (not hasattr(seed, "__index__") or not 0 <= int(seed) < 1 << 32):
            raise InputError(f"seed: found {seed!r}; allowed: a whole number from 0 to 4294967295, or None")
        self._seeds = np.random.RandomState(seed)
        self._resource = Resource(f"random seed {seed}")

    def uniform(
        self, low: float = 0.0, high: float = 1.0, shape: int | Sequence[int] = (), dtype: Any = "float32"
    ) -> Array:
        """Numbers from ``low`` to ``high``. Raises InputError and ModelError."""
        return self._draw(UNIFORM, shape, dtype, {"low": float(low), "high": float(high)})

    def normal(
        self, mean: float = 0.0, scale: float = 1.0, shape: int | Sequence[int] = (), dtype: Any = "float32"
    ) -> Array:
        """Numbers of the normal distribution. Raises InputError and ModelError."""
        return self._draw(NORMAL, shape, dtype, {"mean": float(mean), "scale": float(scale)})

    def _draw(self, name: str, shape: int | Sequence[int], dtype: Any, attrs: Mapping[str, float]) -> Array:
        extents = (int(shape),) if isinstance(shape, int) else tuple(int(d) for d in shape)
        operator = ops.operator_named(name)
        complete = operator.complete({"shape": extents, "dtype": dtype_name(dtype), **attrs})
        ((found, named),) = operator.infer([], complete)
        kind, implementation = array_type(tuple(found), named), operator.extern
        assert implementation is not None
        block = kind.recycler.block()
        memory = view_of(block, block.address, kind.shape, kind.numpy)

        def run() -> None:
            seed = int(self._seeds.randint(0, 1 << 32, dtype=np.uint64))
            memory[...] = implementation(**{**complete, "seed": float(seed)})

        size = kind.tensor.size
        engine.push(run, [self._resource], [self._resource, block.resource()], name=name, long=size >= LONG)
        return holding(concrete(kind, block, block.address))


_default = Generator()
_lock = threading.Lock()


def seed(value: int | None = None) -> None:
    """Starts the generator of :func:`uniform` and :func:`normal` anew. Raises InputError."""
    global _default
    with _lock:
        _default = Generator(value)


def uniform(low: float = 0.0, high: float = 1.0, shape: int | Sequence[int] = (), dtype: Any = "float32") -> Array:
    """Numbers from ``low`` to ``high``, of the common generator."""
    return _default.uniform(low, high, shape, dtype)


def normal(mean: float = 0.0, scale: float = 1.0, shape: int | Sequence[int] = (), dtype: Any = "float32") -> Array:
    """Numbers of the normal distribution, of the common generator."""
    return _default.normal(mean, scale, shape, dtype)
