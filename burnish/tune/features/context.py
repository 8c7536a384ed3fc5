"""Loop-context features: for every loop its length, annotation, place, and what it touches of every buffer.

Source: AutoTVM (Chen et al. 2018), appendix A.2.1, table 2. All counts and ratios are logarithms to base 2.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from burnish.kernels.nest import ANNOTATIONS, PARALLEL, READS, UNROLL, VECTORIZE, Nest
from burnish.loops.expr import ITEM_BYTES
from burnish.target import Target

BUFFERS = READS + 1  # slots: what is stored, then what is loaded, constants last
_BUFFERS = ("stored", "loaded", "constant")

TABLE_2 = (
    "length",
    *ANNOTATIONS,
    "top-down",
    "bottom-up",
    *(f"{feature} of {buffer}" for buffer in _BUFFERS for feature in ("touched", "reuse", "stride")),
)
"""Of a loop: iterations; annotation as 0 or 1; products of the lengths of outer and of inner loops; and for every buffer
the elements the loop touches, its iterations (inner loops included) for each of them, and the elements between two."""

MACHINE = ("touched / L1", "touched / L2", "operations / byte")
"""Of a loop, over all buffers: bytes it touches over the sizes of the caches; multiply-adds for each of them."""

CONTEXT = (*TABLE_2, *MACHINE)

SUMMARY = (
    "accumulators / registers",
    "parallel / cores",
    "busiest core",
    "padding",
    "vector / lanes",
    "unrolled",
    *(f"vector stride of {buffer}" for buffer in _BUFFERS),
    "iterations",
)
"""Of a nest: vector registers that its sums take over those there are; parallel iterations over cores; what the busiest
core has over an even share; iterations over those the definition has; vector length; copies that unrolling makes of the
statement; the stride of each buffer in the vector loop; iterations, the only one that tells the size of a task."""

_LENGTH, _ANNOTATION = 0, 1
TOP_DOWN, BOTTOM_UP, TOUCHED = 5, 6, 7
CACHE = len(TABLE_2)


def context(nest: Nest, target: Target) -> tuple[np.ndarray, np.ndarray]:
    """(:data:`CONTEXT` of every level [n, levels, features], :data:`SUMMARY` [n, features]), float32."""
    count, levels = nest.extent.shape
    features = np.zeros((count, levels, len(CONTEXT)), np.float32)
    summary = np.zeros((count, len(SUMMARY)), np.float32)
    item_bytes = np.array([ITEM_BYTES[b.dtype] for b in nest.buffers], np.int64)
    _fill(
        nest.extent, nest.annotation, nest.reduction, nest.elements, nest.stride, item_bytes, nest.points,
        np.array([target.lanes, target.vector_registers, target.cores]),
        np.log2(np.array([target.l1_bytes, target.l2_bytes], np.float64)), features, summary,
    )  # fmt: skip
    return features, summary


@njit(cache=True, nogil=True, error_model="numpy", no_cfunc_wrapper=True, _nrt=False)
def _fill(  # type: ignore[no-untyped-def]
    extent, annotation, reduction, elements, stride, item_bytes, points, machine, caches, features, summary
):
    count, levels = extent.shape
    lanes, registers, cores = machine
    for i in range(count):
        inside, innermost = 0.0, levels - 1
        accumulators, parallel, unrolled, vector = 1, 1, 1, 1
        for k in range(levels - 1, -1, -1):
            many, kind, row = extent[i, k], annotation[i, k], features[i, k]
            row[_ANNOTATION + kind] = 1.0
            row[BOTTOM_UP] = inside
            if many == 1 and k < levels - 1:  # touches what the next loop inside does
                for f in range(TOUCHED, len(row)):
                    row[f] = features[i, k + 1, f]
                for x in range(BUFFERS):
                    row[TOUCHED + 3 * x + 2] = 0.0
                continue
            length = np.log2(many)
            row[_LENGTH] = length
            inside += length
            touched_bytes = 0
            for x in range(len(item_bytes)):
                touched = np.log2(elements[i, x, k])
                row[TOUCHED + 3 * x] = touched
                row[TOUCHED + 3 * x + 1] = inside - touched
                row[TOUCHED + 3 * x + 2] = np.log2(1 + stride[i, x, k])
                touched_bytes += elements[i, x, k] * item_bytes[x]
            footprint = np.log2(touched_bytes)
            row[CACHE] = footprint - caches[0]
            row[CACHE + 1] = footprint - caches[1]
            row[CACHE + 2] = inside - footprint
            if kind == PARALLEL:
                parallel *= many
            elif kind == UNROLL:
                unrolled *= many
                accumulators *= 1 if reduction[k] else many
            elif kind == VECTORIZE:
                vector, innermost = many, k
                accumulators *= -(-many // lanes)
        for k in range(levels):
            features[i, k, TOP_DOWN] = inside - features[i, k, BOTTOM_UP] - features[i, k, _LENGTH]
        row = summary[i]
        row[0] = np.log2(accumulators / registers)
        row[1] = np.log2(parallel / cores)
        row[2] = np.log2(-(-parallel // cores) * cores / parallel)
        row[3] = inside - np.log2(points)
        row[4] = np.log2(vector / lanes)
        row[5] = np.log2(unrolled)
        for x in range(len(item_bytes)):
            row[6 + x] = np.log2(1 + stride[i, x, innermost])
        row[6 + BUFFERS] = inside
