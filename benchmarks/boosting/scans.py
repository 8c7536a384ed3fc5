"""Forms of the exact scan that differ in how they fetch statistics (Fig. 2.7), and a blocked histogram (Fig. 2.9)."""

import numpy as np
from numba import njit
from numpy.typing import NDArray

from burnish.boost import scan
from burnish.boost.records import Records

_BUFFER = 64  # entries of the paper's mini-batch
kernel = njit(cache=True, nogil=True, error_model="numpy", _nrt=False)  # see burnish.boost.scan


def narrow(records: Records) -> NDArray[np.int64]:
    """The words of records, one for each row."""
    assert records.words.ndim == 1
    return records.words


def state_of(words: NDArray[np.int64], slots: int) -> tuple[NDArray[np.float64], tuple[float | bool, ...]]:
    """The state of a scan of a column that no row misses, for the sums of these rows; and rules with λ = 1."""
    table = np.zeros((slots + 1, int(scan.WIDTH)))
    slot = words & 0xFFFF
    table[:, int(scan.TOTAL_G)] = np.bincount(slot, (words >> 40).astype(np.float64), slots + 1)
    table[:, int(scan.TOTAL_H)] = np.bincount(slot, ((words << 24) >> 40).astype(np.float64), slots + 1)
    table[-1, int(scan.TOTAL_H)] = -np.inf
    rule = (2.0**23, 2.0**23, 2.0**-23, 2.0**-23, 1.0, 0.0, 0.0, 1.0, True)
    state = table.ravel()
    scan.clear(state, slots + 1, 0, rule)
    return state, rule


@kernel
def _naive(rows, values, first, last, words, state, rule, bounds):  # type: ignore[no-untyped-def]
    for j in range(np.uint64(first), np.uint64(last)):
        slot, g, h = scan.read(words, np.uint64(rows[j]))
        scan.visit(state, slot * scan.WIDTH, g, h, float(values[j]), 0, rule, bounds, 0)


@njit(cache=True, nogil=True, error_model="numpy")
def _buffer(rows, values, first, last, words, state, rule, bounds):  # type: ignore[no-untyped-def]
    _buffered(rows, values, first, last, words, state, rule, bounds, np.empty(_BUFFER, np.int64))


@kernel
def _buffered(rows, values, first, last, words, state, rule, bounds, buffer):  # type: ignore[no-untyped-def]
    """§2.3.2: statistics of a mini-batch are fetched into a buffer, which depend on nothing, and then accumulated."""
    for low in range(np.uint64(first), np.uint64(last), np.uint64(_BUFFER)):
        count = min(np.uint64(_BUFFER), np.uint64(last) - low)
        for k in range(count):
            buffer[k] = words[np.uint64(rows[low + k])]
        for k in range(count):
            slot, g, h = scan.read(buffer, k)
            scan.visit(state, slot * scan.WIDTH, g, h, float(values[low + k]), 0, rule, bounds, 0)


def _prefetch(rows, values, first, last, words, state, rule, bounds):  # type: ignore[no-untyped-def]
    scan.scan_complete(rows, values, first, last, words, state, 0, rule, bounds, 0)


FORMS = {"naive": _naive, "buffer": _buffer, "prefetch": _prefetch}


@kernel
def block_histogram(rows, values, first, last, words, cuts, sums):  # type: ignore[no-untyped-def]
    """Adds a block's column to sums (bins, nodes, 2): a merge of its sorted values with the cuts (§2.3.1)."""
    code, final = np.uint64(0), np.uint64(len(cuts))
    for j in range(np.uint64(first), np.uint64(last)):
        while code < final and cuts[code] <= values[j]:
            code += np.uint64(1)
        word = words[np.uint64(rows[j])]
        slot = np.uint64(word & 0xFFFF)
        sums[code, slot, np.uint64(0)] += word >> 40
        sums[code, slot, np.uint64(1)] += (word << 24) >> 40
