"""Building blocks of metrics: losses of rows, the curve of precision and recall, Cox's partial likelihood."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnish.boost.losses.survival import tie_edges
from burnish.boost.params import Params

Doubles = NDArray[np.float64]
_LEAST = 1e-6  # of predictions and labels of the gamma distribution, as in XGBoost
_POSITIVE = 1e-16
_PAIR_ROWS = 256  # of a query that are compared with all others at once


def squared_log(p: Doubles, y: Doubles, params: Params) -> Doubles:
    """(log(1 + p) - log(1 + y))², p and y of at least -1."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray((np.log1p(p) - np.log1p(y)) ** 2)


def relative(p: Doubles, y: Doubles, params: Params) -> Doubles:
    """|p - y| / |y|, infinite where y alone is zero."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(p == y, 0.0, np.abs((p - y) / y))


def pseudo_huber(p: Doubles, y: Doubles, params: Params) -> Doubles:
    """slope² (√(1 + ((p - y) / slope)²) - 1)."""
    slope = params.huber_slope
    return np.asarray(slope**2 * (np.sqrt(1.0 + ((p - y) / slope) ** 2) - 1.0))


def huber(p: Doubles, y: Doubles, params: Params) -> Doubles:
    """(p - y)² / 2 within the slope, slope (|p - y| - slope / 2) beyond."""
    rest, slope = np.abs(p - y), params.huber_slope
    return np.where(rest <= slope, rest**2 / 2.0, slope * (rest - slope / 2.0))


def gamma_likelihood(p: Doubles, y: Doubles, params: Params) -> Doubles:
    """y / p + log p: the negative log-likelihood of shape 1."""
    p = np.maximum(p, _LEAST)
    return np.asarray(y / p + np.log(p))


def gamma_deviance(p: Doubles, y: Doubles, params: Params) -> Doubles:
    """2 (log(p / y) + y / p - 1)."""
    p, y = p + _LEAST, y + _LEAST
    return np.asarray(2.0 * (np.log(p / y) + y / p - 1.0))


def poisson_deviance(p: Doubles, y: Doubles, params: Params) -> Doubles:
    """2 (y log(y / p) - y + p)."""
    p = np.maximum(p, _POSITIVE)
    return np.asarray(2.0 * (y * np.log(np.where(y > 0.0, y, p) / p) - y + p))


def tweedie_likelihood(p: Doubles, y: Doubles, power: float) -> Doubles:
    """-y p^(1 - power) / (1 - power) + p^(2 - power) / (2 - power)."""
    p = np.maximum(p, _POSITIVE)
    return np.asarray(-y * p ** (1.0 - power) / (1.0 - power) + p ** (2.0 - power) / (2.0 - power))


def tweedie_deviance(p: Doubles, y: Doubles, power: float) -> Doubles:
    """Twice what the likelihood of p lacks of that of y."""
    own = y ** (2.0 - power) / ((1.0 - power) * (2.0 - power))
    return np.asarray(2.0 * (own + tweedie_likelihood(p, y, power)))


def area_of_precision(score: NDArray[Any], positive: NDArray[np.bool_], weight: NDArray[Any] | None = None) -> float:
    """Area under the curve of precision by recall, between whose points false rows grow evenly with true ones.

    Davis and Goadrich 2006, "The relationship between precision-recall and ROC curves"; as XGBoost. NaN if a class is
    missing.
    """
    order = np.argsort(-score, kind="stable")
    score, positive = score[order], positive[order]
    weighed = np.ones(len(score)) if weight is None else weight[order].astype(np.float64)
    last = np.append(score[1:] != score[:-1], True)[: len(score)]  # of rows with equal scores
    true = np.append(0.0, np.cumsum(weighed * positive)[last])
    false = np.append(0.0, np.cumsum(weighed * ~positive)[last])
    total = true[-1]
    if total == 0.0 or false[-1] == 0.0:
        return float("nan")
    grown = np.diff(true) > 0.0
    before, after, wrong = true[:-1][grown], true[1:][grown], false[:-1][grown]
    rate = (false[1:][grown] - wrong) / (after - before)
    a, b = rate + 1.0, (wrong - rate * before) / total
    low, high = before / total, after / total
    with np.errstate(divide="ignore", invalid="ignore"):
        bent = b / a * np.log((a * high + b) / (a * low + b))
    return float(np.sum((high - low - np.where(b != 0.0, bent, 0.0)) / a))


def ordered_pairs(score: NDArray[Any], grade: NDArray[Any]) -> float:
    """The share of pairs of a query's rows that scores order as grades do; equal scores count half.

    As XGBoost's auc of queries, all pairs count: rows of equal grades should keep the order in which they stand.
    """
    ranked = score[np.argsort(-grade, kind="stable")]
    count = len(ranked)
    total = 0.0
    for begin in range(0, count, _PAIR_ROWS):  # in parts, as a long query has many pairs
        first = ranked[begin : begin + _PAIR_ROWS, None]
        later = np.arange(begin, count)[None, :] > np.arange(begin, begin + len(first))[:, None]
        rest = ranked[None, begin:]
        total += float(((first > rest) & later).sum()) + float(((first == rest) & later).sum()) / 2.0
    return total / (count * (count - 1) / 2.0) if count > 1 else float("nan")


def cox_likelihood(hazard: Doubles, label: NDArray[Any]) -> float:
    """Mean over events of the negative logarithm of Cox's partial likelihood (ties as Breslow); NaN without events."""
    time = np.abs(label)
    order = np.argsort(time, kind="stable")
    hazard, event = hazard[order], (label > 0.0)[order]
    if not event.any():
        return float("nan")
    first, _ = tie_edges(time[order])
    at_risk = np.cumsum(hazard[::-1])[::-1][first]
    return float(np.mean(np.log(at_risk[event]) - np.log(hazard[event])))
