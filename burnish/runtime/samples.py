"""Inputs for a model that nobody has given inputs for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from burnish.runtime.buffers import numpy_dtype
from burnish.runtime.executable import TensorSpec


def random_inputs(specs: Sequence[TensorSpec], seed: int) -> dict[str, np.ndarray]:
    """Standard normal floats, and integers 0 or 1, which are valid indices into anything that has two entries."""
    random = np.random.default_rng(seed)
    arrays = {}
    for spec in specs:
        floating = "float" in spec.dtype
        values = random.standard_normal(spec.shape) if floating else random.integers(0, 2, spec.shape)
        arrays[spec.name] = np.asarray(values).astype(numpy_dtype(spec.dtype))
    return arrays
