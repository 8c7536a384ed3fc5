"""Kernels of the objectives: gradient and Hessian of each row's loss by its margin, in float32, for a range of rows.

They add and multiply in one order for every row, without contraction: the same bits for any number of threads.
Arrays are C-contiguous and writable, so that each kernel has one specialisation.
Statistics have 20 significant bits: a row of weight 3 then counts exactly as much as three rows (`round20`).
"""

from typing import Any

import numpy as np

from burnish.boost.kernels import region
from burnish.boost.losses.elementary import exp32, round20, sigmoid32

LEAST_HESSIAN = np.float32(1e-16)  # as in XGBoost: rows that are certain still have one
BLOCK = 256  # rows of softmax at a time: they stay in the first cache for all classes


@region
def squared_error(
    margin: Any, label: Any, gradient: Any, hessian: Any, unused: Any, begin: int, end: int, thread: int
) -> None:
    """Squared error: (margin - label)² / 2."""
    for row in range(np.uint64(begin), np.uint64(end)):
        gradient[row] = round20(margin[row] - label[row])
        hessian[row] = np.float32(1.0)


@region
def logistic(
    margin: Any, label: Any, gradient: Any, hessian: Any, unused: Any, begin: int, end: int, thread: int
) -> None:
    """Logistic loss: -label log p - (1 - label) log(1 - p), p = 1 / (1 + e^-margin)."""
    for row in range(np.uint64(begin), np.uint64(end)):
        p = sigmoid32(margin[row])
        gradient[row] = round20(p - label[row])
        h = round20(p * (np.float32(1.0) - p))
        hessian[row] = h if h > LEAST_HESSIAN else LEAST_HESSIAN


@region
def poisson(margin: Any, label: Any, gradient: Any, hessian: Any, step: Any, begin: int, end: int, thread: int) -> None:
    """Poisson loss: e^margin - label · margin; the Hessian is the one at margin + step, the largest step of a leaf."""
    for row in range(np.uint64(begin), np.uint64(end)):
        gradient[row] = round20(exp32(margin[row]) - label[row])
        hessian[row] = round20(exp32(margin[row] + step))


@region
def quantile(
    margin: Any, label: Any, gradient: Any, hessian: Any, alpha: Any, begin: int, end: int, thread: int
) -> None:
    """Pinball loss: alpha · (label - margin) below, (1 - alpha) · (margin - label) above; Hessian 1."""
    for row in range(np.uint64(begin), np.uint64(end)):
        gradient[row] = round20(np.float32(1.0) - alpha if margin[row] >= label[row] else -alpha)
        hessian[row] = np.float32(1.0)


@region
def softmax(
    margin: Any, label: Any, gradient: Any, hessian: Any, scratch: Any, begin: int, end: int, thread: int
) -> None:
    """Softmax cross-entropy: -log p[label], p = e^margin / Σ e^margin.

    2 p (1 - p) bounds the Hessian's row sums, as in XGBoost. scratch: (threads, 2, BLOCK).
    """
    outputs = margin.shape[0]
    largest, total = scratch[thread, 0], scratch[thread, 1]
    first, last = np.uint64(begin), np.uint64(end)
    while first < last:
        count = min(np.uint64(BLOCK), last - first)
        for i in range(count):
            largest[i] = margin[0, first + i]
            total[i] = np.float32(0.0)
        for output in range(1, outputs):
            for i in range(count):
                m = margin[output, first + i]
                largest[i] = m if m > largest[i] else largest[i]
        for output in range(outputs):
            for i in range(count):
                e = exp32(margin[output, first + i] - largest[i])
                gradient[output, first + i] = e
                total[i] += e
        for i in range(count):
            total[i] = np.float32(1.0) / total[i]
        for output in range(outputs):
            for i in range(count):
                p = gradient[output, first + i] * total[i]
                gradient[output, first + i] = round20(p)
                h = round20(np.float32(2.0) * p * (np.float32(1.0) - p))
                hessian[output, first + i] = h if h > LEAST_HESSIAN else LEAST_HESSIAN
        for i in range(count):
            own = np.uint64(label[first + i])
            gradient[own, first + i] = round20(gradient[own, first + i] - np.float32(1.0))
        first += count


@region
def multiply(gradient: Any, hessian: Any, weight: Any, begin: int, end: int, thread: int) -> None:
    """Multiplies the statistics of each row, of every output, by its weight."""
    for output in range(gradient.shape[0]):
        for row in range(np.uint64(begin), np.uint64(end)):
            gradient[output, row] *= weight[row]
            hessian[output, row] *= weight[row]


@region
def add_leaves(margin: Any, leaf: Any, value: Any, begin: int, end: int, thread: int) -> None:
    """Adds to each row's margin the value of its leaf."""
    for row in range(np.uint64(begin), np.uint64(end)):
        margin[row] += value[np.uint64(leaf[row])]


@region
def sigmoid_of(margin: Any, out: Any, begin: int, end: int, thread: int) -> None:
    """Probabilities from margins, both (outputs, rows)."""
    for output in range(margin.shape[0]):
        for row in range(np.uint64(begin), np.uint64(end)):
            out[output, row] = sigmoid32(margin[output, row])


@region
def exponential_of(margin: Any, out: Any, begin: int, end: int, thread: int) -> None:
    """Means from logarithms, both (outputs, rows)."""
    for output in range(margin.shape[0]):
        for row in range(np.uint64(begin), np.uint64(end)):
            out[output, row] = exp32(margin[output, row])


@region
def softmax_of(margin: Any, out: Any, begin: int, end: int, thread: int) -> None:
    """Probabilities of classes from margins, both (outputs, rows)."""
    for row in range(np.uint64(begin), np.uint64(end)):
        largest = margin[0, row]
        for output in range(1, margin.shape[0]):
            m = margin[output, row]
            largest = m if m > largest else largest
        total = np.float32(0.0)
        for output in range(margin.shape[0]):
            e = exp32(margin[output, row] - largest)
            out[output, row] = e
            total += e
        for output in range(margin.shape[0]):
            out[output, row] /= total
