"""Gradient of attention in steps of training: by two launches that compute scores again, or with scores in memory.

Halves, and float32 that may be rounded, are multiplied on tensor cores, and always take the first way. Without these it
is chosen by predicted seconds: the two launches compute seven products, but for the blocks that a band of keys hides,
and the other way five, which a band does not make smaller, and stores and reads an element for every pair of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from math import prod

import numpy as np

from burnish.graph.costs import memory_seconds
from burnish.graph.graph import Graph, TensorType
from burnish.graph.row_attention import Band, gather_attention
from burnish.kernels.task import KernelTask
from burnish.kernels.templates import first_match, is_general
from burnish.loops.expr import ITEM_BYTES
from burnish.loops.tensor import placeholder
from burnish.machines.target import Target
from burnish.ops import OPERATORS
from burnish.ops.row_attention import BLOCKWISE

GRADIENTS = ("row_attention_query_gradient", "row_attention_key_gradient")
READ, BANDED = 1, 2  # times that scores in memory are read by the second product; read and stored by a band
BLOCK = 64  # rows and keys by which blocks are taken to be hidden


def gathered(graph: Graph, target: Target) -> Graph:
    """A graph whose attention is single nodes, for a step of training on a GPU."""
    return gather_attention(graph, tiled_by(target))


def tiled_by(target: Target) -> Callable[[TensorType, TensorType, TensorType, Band | None], bool]:
    """Function that says of types of queries, keys and values, and a band, whether the gradient is two launches."""

    @cache
    def tiled(query: TensorType, key: TensorType, value: TensorType, band: Band | None) -> bool:
        tasks = [_gradient_task(op, query, key, value) for op in GRADIENTS]
        if any(is_general(task, target) for task in tasks):
            return False
        seconds = [first_match(task, target).seconds for task in tasks]
        other = seconds_by_products(query, key, value, band, target)
        share = seen_share(query.shape[-2], key.shape[-2], band)
        return other is None or None in seconds or sum(s for s in seconds if s is not None) * share <= other

    return tiled


def seen_share(rows: int, keys: int, band: Band | None) -> float:
    """Share of the blocks of rows and keys that have a pair in a band."""
    if band is None:
        return 1.0
    low, high = band
    row, key = np.arange(0, rows, BLOCK)[:, None], np.arange(0, keys, BLOCK)
    seen = (key <= np.minimum(row + BLOCK, rows) - 1 + high) & (np.minimum(key + BLOCK, keys) - 1 >= row + low)
    return float(seen.mean())


def seconds_by_products(
    query: TensorType, key: TensorType, value: TensorType, band: Band | None, target: Target
) -> float | None:
    """Predicted seconds of five products and what lies between them; None where some have no prediction."""
    lead, (rows, depth), (keys, columns) = prod(query.shape[:-2]), query.shape[-2:], value.shape[-2:]
    own, other, back, scores = (lead, rows, depth), (lead, keys, depth), (lead, rows, columns), (lead, rows, keys)
    products = [
        _product_seconds(query.dtype, left, right, target, **attrs)
        for left, right, attrs in (
            (own, other, {"transpose_b": True}), (back, (lead, keys, columns), {"transpose_b": True}),
            (scores, other, {}), (scores, own, {"transpose_a": True}), (scores, back, {"transpose_a": True}),
        )
    ]  # fmt: skip
    if None in products:
        return None
    times = READ + (BANDED if band is not None else 0)
    nbytes = prod(scores) * ITEM_BYTES[query.dtype] * times
    return sum(s for s in products if s is not None) + memory_seconds(nbytes, target)


def _product_seconds(
    dtype: str, left: Sequence[int], right: Sequence[int], target: Target, **attrs: bool
) -> float | None:
    inputs = [placeholder(tuple(shape), dtype, f"x{n}") for n, shape in enumerate((left, right))]
    found = OPERATORS["matmul"].define("y", inputs, attrs)
    return first_match(KernelTask("kernel", tuple(inputs), tuple(found), "", {}, frozenset()), target).seconds


def _gradient_task(op: str, query: TensorType, key: TensorType, value: TensorType) -> KernelTask:
    """A gradient of attention, of which all pairs count."""
    sums = query.shape[:-1]
    shapes = [query.shape, key.shape, value.shape, (*sums, value.shape[-1]), sums, sums]
    wide = "float32" if query.dtype in BLOCKWISE else query.dtype
    kinds = [*[query.dtype] * 4, wide, wide]
    inputs = [placeholder(shape, kind, f"x{n}") for n, (shape, kind) in enumerate(zip(shapes, kinds, strict=True))]
    return KernelTask("kernel", tuple(inputs), tuple(OPERATORS[op].define("y", inputs, {})), op, {}, frozenset())
