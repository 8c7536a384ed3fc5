"""Constant deduplication: exporters repeat a weight wherever a loop was unrolled over it; equal values become one."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

import numpy as np

from burnish.graph.graph import Graph

SAMPLED = 64  # elements that are looked at before whole tensors are compared


def share_constants(graph: Graph) -> Graph:
    """``graph`` with one constant for all that are equal to the last bit.

    Tensors of a single value stay apart: they stand for weights that a test model leaves out, and which would differ.
    """
    found: dict[Hashable, list[str]] = {}
    same: dict[str, str] = {}
    for name, array in graph.constants.items():
        sample = array.flat[:: max(1, array.size // SAMPLED)]
        if name in graph.outputs or (array.size > 1 and np.all(sample == sample[0])):
            continue
        alike = found.setdefault((array.shape, str(array.dtype), sample.tobytes()), [])
        first = next((other for other in alike if _equal(graph.constants[other], array)), None)
        if first is None:
            alike.append(name)
        else:
            same[name] = first
    if not same:
        return graph
    return graph.with_nodes([replace(n, inputs=tuple(same.get(i, i) for i in n.inputs)) for n in graph.nodes])


def _equal(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two arrays of one shape and dtype hold the same bytes: NaN equals itself, and 0 is not -0."""
    return np.ascontiguousarray(a).tobytes() == np.ascontiguousarray(b).tobytes()
