"""Sample inputs for a model that comes without any: valid where they are used, and otherwise of many kinds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from burnish.loops.sizes import hinted
from burnish.runtime.buffers import numpy_dtype
from burnish.runtime.executable import TensorSpec
from burnish.runtime.integers import known_integers
from burnish.runtime.module import Module

Interval = tuple[float, float]  # inclusive
ANY: Interval = (-math.inf, math.inf)
LARGEST = 2.0**64  # of a finite bound
SPREAD = 9  # integers that may be any are within this of 0, or if they may not be negative, of the least one


def random_inputs(
    specs: Sequence[TensorSpec], seed: int, domains: Mapping[str, Interval] | None = None
) -> dict[str, np.ndarray]:
    """An array for every input by name, always the same for the same ``seed``.

    ``domains``: bounds of what inputs may be (``graph.domain.input_domains``). Floats are standard normal; within two
    bounds uniform, beyond a single one its distance is half normal. Integers are uniform within their bounds, or
    without any within ±9; half of all bools are true. Dimensions have the values of their hints.
    """
    random = np.random.default_rng(seed)
    known = domains or {}
    shapes = {spec.name: tuple(map(hinted, spec.shape)) for spec in specs}
    return {spec.name: draw(shapes[spec.name], spec.dtype, known.get(spec.name, ANY), random) for spec in specs}


def module_inputs(module: Module, seed: int = 0) -> dict[str, np.ndarray]:
    """Random inputs for a compiled module, which knows its inputs' domains, and which of them are offsets of rows."""
    domains = known_domains(module.executable.info)
    for position, low, high, _ in known_integers(module.executable.info, len(module.inputs)):
        if low is not None:  # indices, of which calls refuse those out of range
            domains[module.inputs[position].name] = float(low), float(high - 1)
    found = random_inputs(module.inputs, seed, domains)
    random = np.random.default_rng(seed)
    for name, limit in module.row_offsets.items():
        found[name] = draw_offsets(found[name].shape, str(found[name].dtype), limit, random)
    return found


def draw(shape: Sequence[int], dtype: str, domain: Interval, random: np.random.Generator) -> np.ndarray:
    """Random values of a type of Burnish's, within the domain as far as the type reaches: what shall be negative is as
    far from 0 on the other side where the type has no sign.
    """
    low, high = domain
    found = numpy_dtype(dtype)
    if dtype == "bool":
        return np.asarray(random.integers(0, 2, shape)).astype(found)
    if "float" in dtype:
        if math.isfinite(low) and math.isfinite(high):
            values = random.uniform(low, high, shape)
        else:
            values = random.standard_normal(shape)
            if math.isfinite(low):
                values = low + abs(values)
            elif math.isfinite(high):
                values = high - abs(values)
        return np.asarray(values).astype(found)
    least, most = np.iinfo(found).min, np.iinfo(found).max
    if high < least:  # of what is negated before it is used
        low, high = -high, -low
    if not math.isfinite(low):
        low = high - 2 * SPREAD if math.isfinite(high) else max(-SPREAD, least)
    if not math.isfinite(high):
        high = low + 2 * SPREAD
    first = min(max(math.ceil(low), least), most)
    last = max(first, min(math.floor(high), most))
    return np.asarray(random.integers(first, last, shape, dtype=found, endpoint=True))


def draw_offsets(shape: Sequence[int], dtype: str, limit: int, random: np.random.Generator) -> np.ndarray:
    """Random offsets of rows: from 0 to ``limit``, in order."""
    values = np.sort(random.integers(0, limit, math.prod(shape), endpoint=True))
    values[:1], values[-1:] = 0, limit
    return values.reshape(shape).astype(numpy_dtype(dtype))


def plain_domains(domains: Mapping[str, Interval]) -> dict[str, list[float | None]]:
    """Domains as JSON holds them: None is no bound."""
    return {name: [b if math.isfinite(b) else None for b in bounds] for name, bounds in domains.items()}


def known_domains(info: Mapping[str, Any]) -> dict[str, Interval]:
    """The domains that a compiled model's ``info`` holds; what an altered file may hold instead is left out."""
    found = {}
    held = info.get("domains")
    for name, pair in held.items() if isinstance(held, Mapping) else ():
        if isinstance(pair, list) and len(pair) == 2 and all(map(_is_bound, pair)):
            low, high = (end if b is None else float(b) for b, end in zip(pair, ANY, strict=True))
            if low <= high:
                found[name] = low, high
    return found


def _is_bound(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and abs(value) < LARGEST)
