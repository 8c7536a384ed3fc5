"""Metrics: how good predictions are, with the names and definitions of XGBoost; sums are exact, in any order."""

import difflib
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnish.boost import scores
from burnish.boost.data import Dataset
from burnish.boost.losses.reduction import Reduction
from burnish.boost.losses.survival import bounds_of, failure_losses
from burnish.boost.params import Params
from burnish.errors import DataError, ParameterError

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
LEAST_PROBABILITY = 1e-16

# For each metric (prediction (outputs, rows), dataset, reduction, params) -> value
Function = Callable[[Floats, Dataset, Reduction, Params], float]


@dataclass(frozen=True)
class Metric:
    """One number for predictions on a dataset, of which the best is the largest or the least."""

    name: str
    maximize: bool
    function: Function
    own: bool = False  # whether it is a function of the user's

    def __call__(self, prediction: Floats, dataset: Dataset, reduction: Reduction, params: Params) -> float:
        """The metric's value. Raises DataError if the dataset lacks what it needs."""
        return float(self.function(prediction, dataset, reduction, params))

    def improves(self, value: float, best: float) -> bool:
        """Whether a value is better than the best before, NaN of none. NaN itself is no improvement."""
        if math.isnan(best):
            return not math.isnan(value)
        return value > best if self.maximize else value < best


def warn_nan(metric: str, where: str, number: int) -> None:
    """Warns of a metric that early stopping goes by, and that is NaN."""
    warnings.warn(
        f"early stopping: {metric} of {where} is NaN in round {number}, which counts as no improvement; usual reasons: "
        "margins that diverge, labels that the metric is not defined for",
        RuntimeWarning,
        stacklevel=3,
    )


def metric_of(name: Any, maximize: bool | None = None) -> Metric:
    """The metric of a name such as "auc" or "ndcg@10", or a user's function (prediction, dataset) -> float.

    A function gets (rows,), or (rows, outputs) of several outputs; it is minimised unless it has a true attribute
    `maximize`. Raises ParameterError for an unknown name.
    """
    if callable(name):
        title = getattr(name, "__name__", "custom")

        def own(prediction: Floats, dataset: Dataset, reduction: Reduction, params: Params) -> float:
            value = name(prediction[0] if len(prediction) == 1 else prediction.T, dataset)
            number = np.asarray(None if isinstance(value, (tuple, list)) else value)
            if number.size != 1 or number.dtype.kind not in "biuf":
                raise DataError(
                    f"eval_metric: the function {title!r} returned {value!r}; allowed: one number. Its name is that of "
                    "the function, and larger ones are better if the function has a true attribute 'maximize'"
                )
            return float(number.reshape(()))

        largest = getattr(name, "maximize", False) if maximize is None else maximize
        return Metric(title, bool(largest), own, own=True)
    base, _, cut = str(name).partition("@")
    base = _SYNONYMS.get(base, base)
    if base.removesuffix("-") in _LISTS:
        return _list_metric(str(name), base, cut)
    if base in _POWERS:
        return _power_metric(str(name), base, cut)
    if base not in _METRICS:
        known = [*_METRICS, *_LISTS, *_POWERS, *_SYNONYMS]
        near = difflib.get_close_matches(base, known, n=1, cutoff=0.6)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        listed = ", ".join(repr(known) for known in [*_METRICS, *_POWERS, "ndcg@k", "map@k"])
        raise ParameterError(f"parameter 'eval_metric': found {name!r}; allowed: {listed}{hint}")
    if cut and base != "error":
        raise ParameterError(f"parameter 'eval_metric': found {name!r}; allowed: {base!r}, which takes no number")
    if cut:
        try:
            threshold = float(cut)
        except ValueError:
            raise ParameterError(
                f"parameter 'eval_metric': found {name!r}; allowed: error@t with a threshold t"
            ) from None
        return Metric(f"error@{cut}", False, lambda p, d, r, _: _error(p, d, r, threshold))
    return Metric(base, base in ("auc", "aucpr", "interval-regression-accuracy"), _METRICS[base])


def _list_metric(name: str, base: str, cut: str) -> Metric:
    """A metric of lists: "ndcg@5" of the first 5 ranks; with "-" at the end, 0 for a query of nothing relevant."""
    empty = 0.0 if base.endswith("-") or cut.endswith("-") else 1.0
    base, cut = base.removesuffix("-"), cut.removesuffix("-")
    if cut and not (cut.isdigit() and int(cut) > 0):
        raise ParameterError(f"parameter 'eval_metric': found {name!r}; allowed: {base}@k with k of at least 1")
    label = (f"{base}@{cut}" if cut else base) + ("" if empty else "-")
    return Metric(label, True, _of_lists(_LISTS[base], int(cut) if cut else 0, empty))


def _power_metric(name: str, base: str, cut: str) -> Metric:
    """A metric of the Tweedie distribution: "tweedie-nloglik@1.5", or by the parameter `tweedie_variance_power`."""
    power = None
    if cut:
        try:
            power = float(cut)
        except ValueError:
            power = 0.0
        if not 1.0 < power < 2.0:
            raise ParameterError(f"parameter 'eval_metric': found {name!r}; allowed: {base}@p with p in (1, 2)")
    loss = _POWERS[base]
    return Metric(name, False, _row_wise(lambda p, y, q: loss(p, y, power or q.tweedie_variance_power)))


def distinct(metrics: Sequence[Metric]) -> list[Metric]:
    """The metrics under unique names: functions of one name, such as lambdas, are numbered."""
    distinct: dict[str, Metric] = {}
    for metric in metrics:
        name, number = metric.name, 2
        while name in distinct and metric.own:
            name, number = f"{metric.name}_{number}", number + 1
        distinct[name] = replace(metric, name=name)
    return list(distinct.values())


def _label(dataset: Dataset) -> Floats:
    if dataset.label is None:
        raise DataError("eval_metric: the data has no labels; allowed: one for each row")
    if dataset.label.ndim != 1:
        raise DataError(
            f"eval_metric: found labels of shape {dataset.label.shape}; this metric allows one for each row. Of a "
            "label matrix there are 'rmse', 'mae', 'logloss', 'error', 'auc' and others that are means of outputs"
        )
    return dataset.label


def _outputs(prediction: Floats, dataset: Dataset) -> tuple[Floats, Floats]:
    """Predictions and labels of every output, both (outputs, rows): of one, or of the columns of a label matrix."""
    if dataset.targets == 1:
        return _single(prediction)[None], _label(dataset)[None]
    assert dataset.label is not None
    if len(prediction) != dataset.targets:
        raise DataError(
            f"eval_metric: found predictions of {len(prediction)} outputs; allowed: {dataset.targets}, one for each "
            "column of the label"
        )
    return prediction, dataset.label.T


def _row_wise(loss: Callable[[Doubles, Doubles, Params], Doubles]) -> Function:
    """The weighted mean over rows and outputs of a loss of an output's prediction and label, as in XGBoost."""

    def function(prediction: Floats, dataset: Dataset, reduction: Reduction, params: Params) -> float:
        predicted, label = _outputs(prediction, dataset)
        values = loss(predicted.astype(np.float64), label.astype(np.float64), params)
        return reduction.mean(values.mean(axis=0), dataset.weight)

    return function


def _single(prediction: Floats) -> Floats:
    if len(prediction) != 1:
        raise DataError(f"eval_metric: found predictions of {len(prediction)} outputs; this metric allows 1")
    return prediction[0]


def _log_loss(p: Doubles, y: Doubles, params: Params) -> Doubles:
    """-y log p - (1 - y) log(1 - p), each logarithm of at least 1e-16."""
    return -y * np.log(np.maximum(p, LEAST_PROBABILITY)) - (1.0 - y) * np.log(np.maximum(1.0 - p, LEAST_PROBABILITY))


def _poisson(p: Doubles, y: Doubles, params: Params) -> Doubles:
    """log Γ(y + 1) + p - y log p."""
    p = np.maximum(p, LEAST_PROBABILITY)
    return _log_gamma(y + 1.0) + p - y * np.log(p)


def _log_gamma(x: Doubles) -> Doubles:
    """log Γ(x), x >= 1: Stirling's series after the argument is moved to 10 and more; to 1e-14 of the value."""
    product = np.ones_like(x)
    for _ in range(9):
        small = x < 10.0
        product = np.where(small, product * x, product)
        x = np.where(small, x + 1.0, x)
    inverse = 1.0 / x
    square = inverse * inverse
    series = inverse * (1 / 12 - square * (1 / 360 - square * (1 / 1260 - square * (1 / 1680 - square / 1188))))
    return (x - 0.5) * np.log(x) - x + 0.5 * np.log(2.0 * np.pi) + series - np.log(product)


def _pinball(prediction: Floats, dataset: Dataset, reduction: Reduction, params: Params) -> float:
    """The weighted mean of the pinball loss, over all quantiles."""
    alpha = params.quantile_alpha
    level = np.array(alpha if isinstance(alpha, tuple) else (alpha,))[:, None]
    prediction, label = _outputs(prediction, dataset) if len(level) == 1 else (prediction, _label(dataset))
    if len(level) > 1 and len(prediction) != len(level):
        raise DataError(f"eval_metric: found predictions of {len(prediction)} outputs; 'quantile' allows {len(level)}")
    p, y = prediction.astype(np.float64), label.astype(np.float64)
    losses = np.where(y >= p, level * (y - p), (1.0 - level) * (p - y))
    return reduction.mean(losses.mean(axis=0), dataset.weight)


def _cox(prediction: Floats, dataset: Dataset, reduction: Reduction, params: Params) -> float:
    """See `scores.cox_likelihood`; weights do not count, as in XGBoost."""
    hazard, label = reduction.gather(_single(prediction)), reduction.gather(_label(dataset))
    return scores.cox_likelihood(hazard.astype(np.float64), label)


def _failure(prediction: Floats, dataset: Dataset, reduction: Reduction, params: Params) -> float:
    """The negative log-likelihood of times, or intervals of times."""
    margin = np.log(np.maximum(_single(prediction), np.finfo(np.float32).tiny))
    distribution, scale = params.aft_loss_distribution, params.aft_loss_distribution_scale
    losses = failure_losses(margin, bounds_of(dataset, "eval_metric"), distribution, scale)
    return reduction.mean(losses, dataset.weight)


def _inside(prediction: Floats, dataset: Dataset, reduction: Reduction, params: Params) -> float:
    """The share of predicted times that lie within their bounds."""
    low, high = bounds_of(dataset, "eval_metric").T
    time = _single(prediction)
    return reduction.mean(((time >= low) & (time <= high)).astype(np.float64), dataset.weight)


def _rmse(prediction: Floats, dataset: Dataset, reduction: Reduction, params: Params) -> float:
    return float(np.sqrt(_row_wise(lambda p, y, _: (p - y) ** 2)(prediction, dataset, reduction, params)))


def _error(prediction: Floats, dataset: Dataset, reduction: Reduction, threshold: float = 0.5) -> float:
    """Share of rows on the wrong side of a threshold; a probability at the threshold says label 0."""
    predicted, label = _outputs(prediction, dataset)
    wrong = (predicted > threshold) != (label > 0.5)
    return reduction.mean(wrong.mean(axis=0), dataset.weight)


def _class_loss(prediction: Floats, dataset: Dataset, reduction: Reduction, params: Params) -> float:
    """-log of the probability of the row's class."""
    label, classes = _label(dataset), len(prediction)
    known = (label >= 0) & (label < classes) & (label == np.floor(label))
    if classes < 2:
        raise DataError("eval_metric: found predictions of 1 output; 'mlogloss' allows 2 and more, one for each class")
    if not known.all():
        row = int(np.argmin(known))
        raise DataError(f"eval_metric: label of row {row}: found {label[row]}; allowed: 0 to {classes - 1}")
    p = prediction[label.astype(np.int64), np.arange(prediction.shape[1])].astype(np.float64)
    return reduction.mean(-np.log(np.maximum(p, LEAST_PROBABILITY)), dataset.weight)


def _class_error(prediction: Floats, dataset: Dataset, reduction: Reduction, params: Params) -> float:
    """Share of rows whose most probable class is another."""
    return reduction.mean((prediction.argmax(axis=0) != _label(dataset)).astype(np.float64), dataset.weight)


def _auc(prediction: Floats, dataset: Dataset, reduction: Reduction, params: Params) -> float:
    """The weighted share of pairs of a positive and a negative row that are in order; ties count half.

    Of rows in queries, as in XGBoost, the mean over queries of 3 rows and more: see `scores.ordered_pairs`.
    """
    if dataset.group_start is not None and dataset.targets == len(prediction) == 1:
        score, label, start = _single(prediction), _label(dataset), dataset.group_start
        spans = [slice(a, b) for a, b in pairwise(start.tolist()) if b - a >= 3]
        total = reduction.sum(np.array([scores.ordered_pairs(score[span], label[span]) for span in spans]))
        count = reduction.count(len(spans))
        return total / count if count else float("nan")
    return _of_classes(area_under_curve, prediction, dataset, reduction, by_rows=True)


def _aucpr(prediction: Floats, dataset: Dataset, reduction: Reduction, params: Params) -> float:
    """See `scores.area_of_precision`."""
    return _of_classes(scores.area_of_precision, prediction, dataset, reduction, by_rows=False)


def _of_classes(
    area: Callable[[Floats, NDArray[np.bool_], Floats | None], float],
    prediction: Floats,
    dataset: Dataset,
    reduction: Reduction,
    by_rows: bool,
) -> float:
    """An area of positive rows by score; of several classes the mean of each against the rest, as in XGBoost.

    by_rows: a class counts by the weight of its rows. Of a label matrix the mean of the outputs.
    """
    weight = None if dataset.weight is None else reduction.gather(dataset.weight)
    if dataset.targets > 1:
        pairs = zip(*_outputs(prediction, dataset), strict=True)
        areas = [area(reduction.gather(own), reduction.gather(label) > 0.5, weight) for own, label in pairs]
        return float(np.mean(areas))
    score, label = reduction.gather(prediction), reduction.gather(_label(dataset))
    if len(score) == 1:
        return area(score[0], label > 0.5, weight)
    total = share = 0.0
    for number, own in enumerate(score):
        positive = label == number
        count = float(positive.sum() if weight is None else weight[positive].sum(dtype=np.float64))
        count = count if by_rows else 1.0
        total += count * area(own, positive, weight)
        share += count
    return total / share if share else float("nan")


def area_under_curve(score: Floats, positive: NDArray[np.bool_], weight: Floats | None = None) -> float:
    """Area under the ROC curve; NaN if one class is missing."""
    order = np.argsort(score, kind="stable")
    score, positive = score[order], positive[order]
    if weight is None:
        up = np.cumsum(positive).astype(np.float64)
        down = np.arange(1, len(score) + 1) - up
    else:
        ordered = weight[order].astype(np.float64)
        up, down = np.cumsum(ordered * positive), np.cumsum(ordered * ~positive)
    if not len(score) or up[-1] == 0.0 or down[-1] == 0.0:
        return float("nan")
    last = np.append(score[1:] != score[:-1], True)  # of rows with equal scores
    up, down = np.append(0.0, up[last]), np.append(0.0, down[last])
    below = (down[1:] + down[:-1]) / 2.0  # negative rows below a positive one, and half of those beside it
    return float(np.sum(np.diff(up) * below) / (up[-1] * down[-1]))


# For each list metric (labels by rank, labels in the best order, query, position, queries, k, params) -> (queries,)
ListFunction = Callable[[Floats, Floats, NDArray[np.int64], NDArray[np.int64], int, int, Params], Doubles]


def _of_lists(value: ListFunction, k: int, empty: float) -> Function:
    """The mean over queries of a metric of the first k ranks (0: all); a query weighs the mean of its rows' weights.

    empty: the value of a query without a relevant document.
    """
    from burnish.boost.losses.ranking import query_starts

    def function(prediction: Floats, dataset: Dataset, reduction: Reduction, params: Params) -> float:
        label, score = _label(dataset), _single(prediction)
        start = query_starts(dataset, "eval_metric")
        sizes = np.diff(start)
        query = np.repeat(np.arange(len(sizes)), sizes)
        position = np.arange(len(label)) - np.repeat(start[:-1], sizes)
        ranked = label[np.lexsort((-score, query))]
        ideal = label[np.lexsort((-label, query))]
        every = value(ranked, ideal, query, position, len(sizes), k or max(int(sizes.max(initial=1)), 1), params)
        if empty != 1.0:
            every = np.where(np.bincount(query, label > 0.0, len(sizes)) > 0, every, empty)
        some = sizes > 0
        weight = None
        if dataset.weight is not None:
            total = np.bincount(query, dataset.weight, len(sizes))
            weight = np.divide(total, sizes, out=np.zeros(len(sizes)), where=some).astype(np.float32)[some]
        return reduction.mean(every[some], weight)

    return function


def _ndcg(
    ranked: Floats, ideal: Floats, query: NDArray[np.int64], position: NDArray[np.int64], count: int, k: int,
    params: Params,
) -> Doubles:  # fmt: skip
    """Discounted gain over the best possible; 1 for a query without a relevant document, as in XGBoost."""
    from burnish.boost.losses.ranking import gains

    inside = position < k
    discount = 1.0 / np.log2(position[inside] + 2.0)

    def total(label: Floats) -> Doubles:
        parts = gains(label[inside], params.ndcg_exp_gain) * discount
        return np.bincount(query[inside], parts, count).astype(np.float64)

    best = total(ideal)
    return np.divide(total(ranked), best, out=np.ones(count), where=best > 0.0)


def _map(
    ranked: Floats, ideal: Floats, query: NDArray[np.int64], position: NDArray[np.int64], count: int, k: int,
    params: Params,
) -> Doubles:  # fmt: skip
    """Mean of the precision at each relevant document of the first k; 1 for a query without one, as in XGBoost."""
    relevant = ranked > 0.0
    running = np.cumsum(relevant)
    before = np.append(0, running)[np.arange(len(ranked)) - position]  # relevant ones in the queries before
    precision = (running - before) / (position + 1.0)
    total = np.bincount(query, np.where(relevant & (position < k), precision, 0.0), count)
    best = np.minimum(np.bincount(query, relevant, count), k)
    return np.divide(total, best, out=np.ones(count), where=best > 0)


_METRICS: dict[str, Function] = {
    "rmse": _rmse,
    "mae": _row_wise(lambda p, y, _: np.abs(p - y)),
    "logloss": _row_wise(_log_loss),
    "error": lambda p, d, r, _: _error(p, d, r),
    "auc": _auc,
    "mlogloss": _class_loss,
    "merror": _class_error,
    "poisson-nloglik": _row_wise(_poisson),
    "quantile": _pinball,
    "aucpr": _aucpr,
    "rmsle": lambda p, d, r, q: float(np.sqrt(_row_wise(scores.squared_log)(p, d, r, q))),
    "mape": _row_wise(scores.relative),
    "mphe": _row_wise(scores.pseudo_huber),
    "huber": _row_wise(scores.huber),
    "poisson-deviance": _row_wise(scores.poisson_deviance),
    "gamma-nloglik": _row_wise(scores.gamma_likelihood),
    "gamma-deviance": _row_wise(scores.gamma_deviance),
    "cox-nloglik": _cox,
    "aft-nloglik": _failure,
    "interval-regression-accuracy": _inside,
}
_POWERS: dict[str, Callable[[Doubles, Doubles, float], Doubles]] = {
    "tweedie-nloglik": scores.tweedie_likelihood,
    "tweedie-deviance": scores.tweedie_deviance,
}
_LISTS: dict[str, ListFunction] = {"ndcg": _ndcg, "map": _map}
_SYNONYMS = {
    "l2_root": "rmse", "root_mean_squared_error": "rmse", "l1": "mae", "mean_absolute_error": "mae",
    "binary_logloss": "logloss", "log_loss": "logloss", "binary_error": "error", "multi_logloss": "mlogloss",
    "multi_error": "merror", "gamma_deviance": "gamma-deviance", "poisson_deviance": "poisson-deviance",
    "mean_absolute_percentage_error": "mape", "mean_average_precision": "map",
}  # fmt: skip
