"""Cross-validation: a training for each fold, round by round, and the mean and spread of their metrics."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnish.base.arguments import check_count, typed
from burnish.boost.booster import EvaluationSets, workers_of
from burnish.boost.data import Dataset, Sparse
from burnish.boost.metric import warn_nan
from burnish.boost.params import Params
from burnish.boost.sampling import FOLDS, stream
from burnish.boost.training import Training, training_of
from burnish.errors import DataError, ParameterError

Rows = NDArray[np.int64]


@typed
def cv(
    params: Mapping[str, Any] | Params | None,
    dataset: Dataset,
    rounds: int | None = None,
    *,
    nfold: int = 3,
    stratified: bool = False,
    folds: Iterable[tuple[Any, Any]] | Any = None,
    metrics: Any = (),
    early_stopping_rounds: int | None = None,
    seed: int = 0,
    shuffle: bool = True,
    as_pandas: bool = True,
    threads: int | None = None,
) -> Any:
    """Cross-validates: a table of each round's metrics, of training and test rows, mean and standard deviation.

    Columns are named as XGBoost's: "train-rmse-mean", "train-rmse-std", "test-rmse-mean", "test-rmse-std". Folds take
    whole queries where the data has queries; `stratified` ones have each label's share of rows; or `folds` are pairs
    (training rows, test rows), or a splitter of scikit-learn. early_stopping_rounds: training ends when the mean of the
    last metric has not improved for n rounds, and the table ends at the best. Returns a pandas.DataFrame, or a
    dict of lists if pandas is not installed or `as_pandas` is false. Raises ParameterError and DataError.
    """
    check_count("seed", seed, 0)
    settled = Params.of(params, dataset.feature_names)
    if early_stopping_rounds is not None:
        check_count("early_stopping_rounds", early_stopping_rounds, 0)
    early = settled.early_stopping_rounds if early_stopping_rounds is None else early_stopping_rounds
    if metrics:
        names = (metrics,) if isinstance(metrics, str) or callable(metrics) else tuple(metrics)
        settled = replace(settled, eval_metric=names)
    settled = Params.of(replace(settled, early_stopping_rounds=0, rounds=settled.rounds if rounds is None else rounds))
    runs = [
        _Fold(settled, dataset, *pair, threads) for pair in _pairs(dataset, nfold, stratified, folds, seed, shuffle)
    ]
    table: dict[str, list[float]] = {}
    best, best_round = float("nan"), 0
    for number in range(settled.rounds):
        for run in runs:
            run.evaluation.add(run.training.boost())
        for part in ("train", "test"):
            for metric in runs[0].evaluation.scores[part]:
                values = [run.evaluation.scores[part][metric] for run in runs]
                table.setdefault(f"{part}-{metric}-mean", []).append(float(np.mean(values)))
                table.setdefault(f"{part}-{metric}-std", []).append(float(np.std(values)))
        last = runs[0].evaluation.last
        value = table[f"test-{last.name}-mean"][-1]
        if early and np.isnan(value) and not np.isnan(table[f"test-{last.name}-mean"][:-1]).any():
            warn_nan(last.name, "the test rows", number + 1)
        if number == 0 or last.improves(value, best):
            best, best_round = value, number
        if early and number - best_round >= early:
            break
    if early:
        table = {name: values[: best_round + 1] for name, values in table.items()}
    if as_pandas:
        try:
            import pandas
        except ImportError:
            return table
        return pandas.DataFrame(table)
    return table


class _Fold:
    """The training of one fold, with metrics of its training and its test rows."""

    def __init__(self, params: Params, dataset: Dataset, train: Rows, test: Rows, threads: int | None) -> None:
        own = take(dataset, train)
        workers = workers_of(threads or params.threads, own)
        self.training: Training = training_of(params)(params, own, workers)
        self.evaluation = EvaluationSets(self.training, {"train": own, "test": take(dataset, test)}, {})


def _pairs(
    dataset: Dataset, nfold: int, stratified: bool, folds: Any, seed: int, shuffle: bool
) -> list[tuple[Rows, Rows]]:
    """Training and test rows of each fold, ascending."""
    if folds is not None:
        if hasattr(folds, "split"):
            groups = None
            if dataset.group_start is not None:
                groups = np.repeat(np.arange(len(dataset.group_start) - 1), np.diff(dataset.group_start))
            folds = folds.split(np.zeros((dataset.rows, 1)), dataset.label, groups)
        pairs = [(_rows(train, dataset.rows), _rows(test, dataset.rows)) for train, test in folds]
        if not pairs:
            raise ParameterError("folds: found none; allowed: pairs of training rows and test rows")
        return pairs
    start = dataset.group_start
    units = dataset.rows if start is None else len(start) - 1
    if not 2 <= nfold <= units:
        raise ParameterError(f"nfold: found {nfold}; allowed: 2 to {units}, the number of rows (or queries)")
    order = np.arange(units)
    if shuffle:
        order = np.random.Generator(np.random.PCG64(int(stream(seed, FOLDS)))).permutation(units)
    if stratified:
        if start is not None or dataset.label is None or dataset.label.ndim != 1:
            raise ParameterError("stratified: found with queries, or without labels; allowed: False")
        order = order[np.argsort(dataset.label[order], kind="stable")]
    fold = np.empty(units, np.int64)
    fold[order] = np.arange(units) % nfold
    of_row = fold if start is None else np.repeat(fold, np.diff(start))
    return [(np.flatnonzero(of_row != k), np.flatnonzero(of_row == k)) for k in range(nfold)]


def _rows(rows: Any, count: int) -> Rows:
    found = np.asarray(rows)
    found = np.flatnonzero(found) if found.dtype == np.bool_ else found
    if found.ndim != 1 or found.dtype.kind not in "iu" or (len(found) and not 0 <= found.min() <= found.max() < count):
        raise ParameterError(f"folds: found {rows!r}; allowed: numbers of rows, 0 to {count - 1}")
    return np.unique(found.astype(np.int64))


def take(dataset: Dataset, rows: Rows) -> Dataset:
    """Some rows of a data set, ascending; whole queries. Raises DataError if they cut a query."""
    table: Any = dataset.table
    if isinstance(table, Sparse):
        sizes = np.diff(table.start)[rows]
        start = np.append(0, np.cumsum(sizes)).astype(np.int64)
        entries = np.repeat(table.start[rows] - start[:-1], sizes) + np.arange(start[-1])
        table = Sparse(start, table.columns[entries], table.values[entries])
    else:
        table = np.ascontiguousarray(table[rows])
    groups = dataset.group_start
    if groups is not None:
        counts = np.bincount(np.searchsorted(groups, rows, side="right") - 1, minlength=len(groups) - 1)
        if ((counts != 0) & (counts != np.diff(groups))).any():
            raise DataError("folds: a fold cuts a query; allowed: whole queries")
        groups = np.append(0, np.cumsum(counts[counts > 0])).astype(np.int64)
    return replace(
        dataset,
        table=table,
        rows=len(rows),
        label=None if dataset.label is None else dataset.label[rows],
        weight=None if dataset.weight is None else dataset.weight[rows],
        base_margin=None if dataset.base_margin is None else dataset.base_margin[rows],
        group_start=groups,
    )
