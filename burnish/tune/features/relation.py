"""Context relation features: of what fits below a threshold, the most reuse and the fewest visits.

Source: AutoTVM (Chen et al. 2018), section 4 and appendix A.2.2: ``R_t``, the greatest ``Z_ki`` over the loops k with
``Z_kj < t``, for the pairs (touched, reuse ratio) and (touched, top-down). Here thresholds are bytes relative to the
first cache, and visits, the top-down product, relative to all iterations: the same numbers mean the same for another
shape, operator or machine. Visits grow inwards while what is touched shrinks, so that it is their least value that a
threshold decides. One more pair takes all buffers together, with operations for each byte as reuse.
"""

from __future__ import annotations

import numpy as np

from burnish.base.jit import njit
from burnish.kernels.nest import CandidateNests
from burnish.loops.expr import ITEM_BYTES
from burnish.machines.target import Target
from burnish.tune.features.context import BOTTOM_UP, BUFFERS, CACHE, SUMMARY, TOUCHED

THRESHOLDS = np.arange(-9.0, 11.0, 2.0, dtype=np.float32)
"""log2 of bytes over those of the first cache: from one line to more than other caches hold."""

_KINDS = ("reuse", "visits")
_SLOTS = ("stored", "loaded", "constant", "all")
RELATION = (
    *(f"{kind} of {slot} below L1 * 2^{t:g}" for slot in _SLOTS for kind in _KINDS for t in THRESHOLDS),
    *SUMMARY[:-1],
)


def relation(nest: CandidateNests, target: Target, context: np.ndarray, summary: np.ndarray) -> np.ndarray:
    """:data:`RELATION` of nests with these :func:`~burnish.tune.features.context.context` features, float32 [n, d]."""
    features = np.zeros((len(context), len(RELATION)), np.float32)
    item_bytes = np.log2([float(ITEM_BYTES[b.dtype]) for b in nest.buffers])
    offsets = np.full(BUFFERS + 1, np.inf, np.float32)  # a slot without a buffer is below no threshold
    offsets[: len(item_bytes)] = item_bytes - np.log2(target.l1_bytes)
    offsets[BUFFERS] = 0.0
    _fill(context, offsets, THRESHOLDS, features)
    features[:, -len(SUMMARY) + 1 :] = summary[:, :-1]
    return features


@njit(cache=True, nogil=True, error_model="numpy", no_cfunc_wrapper=True, _nrt=False)
def _fill(context, offsets, thresholds, features):  # type: ignore[no-untyped-def]
    """Loops touch more the further out they are: those below a threshold are the inner ones, up to some level."""
    count, levels = context.shape[:2]
    many = len(thresholds)
    for i in range(count):
        for x in range(BUFFERS + 1):
            touched, reused = (CACHE, CACHE + 2) if x == BUFFERS else (TOUCHED + 3 * x, TOUCHED + 3 * x + 1)
            reuse, visits, k = np.float32(0.0), np.float32(0.0), levels - 1  # of the statement: one element, once each
            column = 2 * many * x
            # Thresholds ascend, so k goes on where the last one stopped: one pass over the loops for all of them.
            for t in range(many):
                while k >= 0 and context[i, k, touched] + offsets[x] < thresholds[t]:
                    reuse = max(reuse, context[i, k, reused])
                    visits = min(visits, -context[i, k, BOTTOM_UP] - context[i, k, 0])
                    k -= 1
                features[i, column + t] = reuse
                features[i, column + many + t] = visits
