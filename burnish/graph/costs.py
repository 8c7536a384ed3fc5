"""Analytic cost model: seconds of arithmetic, traffic and copies on a target, of which every estimate is made.

The rates are those of the target (:class:`burnish.machines.target.Target`: declared by its machine, or measured), and
no other module divides by them. What shares of them are reached was measured with kernels of ours, on the machines of
2025/26: those of a single algorithm stand with it (:mod:`burnish.graph.estimates`), those of others here.

Not costs in this sense, and apart: how templates rank tiles (registers and vector steps of one kernel, no seconds), how
much work is worth a second thread (operations), forecasts of what a search will gain (statistics of its trials).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from burnish.loops.sizes import greatest, hinted, is_dim, is_size
from burnish.machines.target import Target
from burnish.ops.bf16x3 import DEPTH, ROWS, TERMS, multiplies_parts

# Shares of the peak: products and direct convolutions, those of few rows, tiles of a matrix unit in a convolution and
# in a product, and windows that are summed or compared, whose operands all come from a cache.
DIRECT_EFFICIENCY, SMALL_EFFICIENCY = 0.8, 0.35
TILE_EFFICIENCY, PRODUCT_TILE_EFFICIENCY = 0.75, 0.6
POOL_EFFICIENCY = 0.15
PRODUCT_PARTS_WORK = 100.0  # vector operations to make both parts of an input element of a product
KERNEL = 1.0e-6  # seconds to begin a kernel and wait for all threads
LINES = 0.2e-6  # seconds of a parallel region without work, for each thread: two cache lines that move between cores


def arithmetic_seconds(operations: float, target: Target, efficiency: float = 1.0) -> float:
    """Seconds of float32 operations on all cores, at a share of their peak."""
    return operations / (target.flops * efficiency)


def matrix_seconds(operations: float, target: Target, efficiency: float) -> float:
    """Seconds of operations of the matrix units on their own element type. Only for targets that have them."""
    return operations / (target.matrix_flops * efficiency)


def cache_seconds(nbytes: float, target: Target) -> float:
    """Seconds of bytes that move through the caches behind the first, such as activations."""
    return nbytes / target.cache_bandwidth


def memory_seconds(nbytes: float, target: Target) -> float:
    """Seconds of bytes that are read from memory, such as weights in a model larger than the caches."""
    return nbytes / target.memory_bandwidth


def region_seconds(threads: int) -> float:
    """Seconds to begin a parallel region and wait for its threads."""
    return LINES * threads


def copy_seconds(read: float, written: float, target: Target) -> float:
    """Seconds of a copy, or of packing, by the bytes read and written."""
    return cache_seconds(read + written, target)


def roofline_seconds(operations: float, moved: float, target: Target, efficiency: float, weights: float = 0.0) -> float:
    """Roofline seconds of a kernel whose arithmetic, ``moved`` bytes and streaming of ``weights`` overlap."""
    seconds = arithmetic_seconds(operations, target, efficiency)
    return max(seconds, memory_seconds(weights, target), cache_seconds(moved, target))


def least_seconds(operations: float, moved: float, target: Target) -> float:
    """Roofline seconds of a kernel at the highest rate of all units, of which it may use any."""
    rate = max(1.0, target.matrix_flops / target.flops) if target.unit is not None else 1.0
    return roofline_seconds(operations / rate, moved, target, 1.0)


def product_in_parts_seconds(operations: float, elements: float, target: Target) -> float:
    """Seconds of a product by a matrix unit in bfloat16 parts: splitting ``elements`` of input, and the products."""
    parts = arithmetic_seconds(PRODUCT_PARTS_WORK * 2 * elements, target)
    return parts + matrix_seconds(TERMS * operations, target, PRODUCT_TILE_EFFICIENCY)


def product_in_parts(left: Sequence[int], right: Sequence[int], target: Target) -> bool:
    """Whether a product with a constant matrix is faster in bfloat16 parts: from half a tile of rows on."""
    if len(right) != 2 or len(left) < 2 or not multiplies_parts(target.unit):
        return False
    rows = [extent for extent in left[:-1] if greatest(extent) > 1]
    if len(rows) > 2:  # blocks of rows would cross the ends of several axes
        return False
    if any(map(is_size, rows)) and not (len(rows) == 1 and is_dim(rows[0])):
        return False  # whole tiles of rows cannot be told from parts of them
    return hinted(prod(left[:-1])) > ROWS // 2 and hinted(right[0]) >= DEPTH and hinted(right[1]) >= ROWS
