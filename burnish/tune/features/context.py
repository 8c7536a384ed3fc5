"""Loop-context features: for every loop its length, annotation, place, and what it touches of every buffer.

Source: AutoTVM (Chen et al. 2018), appendix A.2.1, table 2. All counts and ratios are logarithms to base 2.
"""

from __future__ import annotations

import numpy as np

from burnish.base.jit import njit
from burnish.kernels.nest import ANNOTATIONS, READS, CandidateNests, LoopKind
from burnish.loops.expr import ITEM_BYTES
from burnish.machines.target import Target

_PARALLEL, _UNROLL, _VECTORIZE = LoopKind.PARALLEL, LoopKind.UNROLL, LoopKind.VECTORIZE  # known to compiled loops
BUFFERS = READS + 1  # slots: what is stored, then what is loaded, constants last
_BUFFERS = ("stored", "loaded", "constant")

TABLE_2 = (
    "length",
    *ANNOTATIONS,
    "top-down",
    "bottom-up",
    *(f"{feature} of {buffer}" for buffer in _BUFFERS for feature in ("touched", "reuse", "stride")),
)
"""Of a loop: iterations; annotation as 0 or 1; products of the lengths of outer and of inner loops; for every buffer
the elements the loop touches, its iterations (inner loops included) for each of them, and the elements between two."""

MACHINE = ("touched / L1", "touched / L2", "operations / byte")
"""Of a loop, over all buffers: bytes it touches over the sizes of the caches; multiply-adds for each of them."""

CONTEXT = (*TABLE_2, *MACHINE)

SUMMARY = (
    "accumulators / registers",
    "parallel / cores",
    "busiest core",
    "vector / lanes",
    "unrolled",
    "padding",
    *(f"vector stride of {buffer}" for buffer in _BUFFERS),
    "iterations",
)
"""Of a nest: registers that its sums take over those there are, vectors or a matrix unit's tiles; parallel iterations
over cores; what the busiest core has over an even share; vector length; copies that unrolling makes of the statement;
iterations over those that the definition has; the stride of each buffer in the vector loop; iterations, the only one
that tells the size of a task."""

_LENGTH, _ANNOTATION = 0, 1
TOP_DOWN, BOTTOM_UP, TOUCHED = 5, 6, 7
CACHE = len(TABLE_2)
_LOGARITHMS = slice(0, 5)  # columns of the summary that are first written as they are


def context(nest: CandidateNests, target: Target) -> tuple[np.ndarray, np.ndarray]:
    """(:data:`CONTEXT` of every level [n, levels, features], :data:`SUMMARY` [n, features]), float32."""
    levels, count = nest.extent.shape
    features = np.empty((count, levels, len(CONTEXT)), np.float32)
    summary = np.zeros((count, len(SUMMARY)), np.float32)
    touched = nest.elements[:, :-1].astype(np.float32)
    footprint = np.zeros((levels, count), np.float32)
    for buffer, elements in zip(nest.buffers, touched, strict=True):
        footprint += elements * ITEM_BYTES[buffer.dtype]
    _fill(
        np.log2(nest.extent.astype(np.float32)), nest.extent, nest.annotation.astype(np.int64), nest.reduction,
        np.log2(touched), np.log2(1 + nest.stride.astype(np.float32)), np.log2(footprint),
        np.array([target.lanes, nest.registers or target.vector_registers, target.cores], np.float64),
        np.log2(np.array([target.l1_bytes, target.l2_bytes, nest.points], np.float32)), features, summary,
    )  # fmt: skip
    summary[:, _LOGARITHMS] = np.log2(summary[:, _LOGARITHMS])
    return features, summary


@njit(cache=True, nogil=True, error_model="numpy", no_cfunc_wrapper=True, _nrt=False)
def _fill(  # type: ignore[no-untyped-def]
    lengths, extent, annotation, reduction, touched, stride, footprint, machine, sizes, features, summary
):
    levels, count = lengths.shape
    lanes, registers, cores = machine
    for i in range(count):
        inside, innermost = np.float32(0.0), levels - 1
        accumulators, parallel, unrolled, vector = 1.0, 1.0, 1.0, 1.0
        # From the innermost loop out: `inside` is log2 of the iterations of one pass of loop k's body.
        for k in range(levels - 1, -1, -1):
            many, kind, row = extent[k, i], annotation[k, i], features[i, k]
            for f in range(len(row)):
                row[f] = 0.0
            row[_ANNOTATION + kind] = 1.0
            row[BOTTOM_UP] = inside
            row[_LENGTH] = lengths[k, i]
            inside += lengths[k, i]
            for x in range(len(touched)):
                row[TOUCHED + 3 * x] = touched[x, k, i]
                row[TOUCHED + 3 * x + 1] = inside - touched[x, k, i]
                row[TOUCHED + 3 * x + 2] = stride[x, k, i]
            row[CACHE] = footprint[k, i] - sizes[0]
            row[CACHE + 1] = footprint[k, i] - sizes[1]
            row[CACHE + 2] = inside - footprint[k, i]
            if kind == _PARALLEL:
                parallel *= many
            elif kind == _UNROLL:
                unrolled *= many
                accumulators *= 1.0 if reduction[k] else many
            elif kind == _VECTORIZE:
                vector, innermost = many, k
                accumulators *= np.ceil(many / lanes)
        # Only now the whole nest's iterations are known: those outside of loop k are the rest, in logarithms.
        for k in range(levels):
            features[i, k, TOP_DOWN] = inside - features[i, k, BOTTOM_UP] - features[i, k, _LENGTH]
        row = summary[i]
        row[0] = accumulators / registers
        row[1] = parallel / cores
        row[2] = np.ceil(parallel / cores) * cores / parallel
        row[3] = vector / lanes
        row[4] = unrolled
        row[5] = inside - sizes[2]
        for x in range(len(touched)):
            row[6 + x] = stride[x, innermost, i]
        row[6 + BUFFERS] = inside
