"""Small tasks of tree boosting: each compiles the kernels of some of its features, as users would call them."""

from __future__ import annotations

import tempfile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnish.boost.booster import train
from burnish.boost.data import Dataset, Sparse
from burnish.boost.external import train_external
from burnish.boost.model import Model
from burnish.boost.prediction import predict
from burnish.boost.shap import contributions, interactions

ROWS, FEATURES, ROUNDS = 3000, 8, 2
SIZES = (1000, 8), (1000, 30), (3000, 8), (3000, 30)  # rows and features between which kernels differ
MANY = 30_000, 70  # rows and features, enough for multithreaded level-wise tree growth
METRICS = ("logloss", "error", "auc", "aucpr")


def _table(
    missing: bool = False, categories: bool = False, size: tuple[int, int] = (ROWS, FEATURES)
) -> NDArray[np.float32]:
    draw = np.random.default_rng(0)
    rows, features = size
    table = draw.normal(size=(rows, features)).astype(np.float32)
    table[:, 2] = draw.integers(0, 3, rows)  # few values: small bins
    if categories:
        table[:, 0], table[:, 1] = draw.integers(0, 40, rows), draw.integers(0, 3, rows)
    if missing:
        table[draw.random(table.shape) < 0.1] = np.nan
    return table


def _label(table: NDArray[np.float32]) -> NDArray[np.float32]:
    values = table[:, 3] + table[:, 4] * table[:, 5] + table[:, 2] + np.sin(9 * table[:, 0]) + (table[:, 1] == 1)
    return np.asarray(np.nan_to_num(values), np.float32)


def _dataset(**options: Any) -> Dataset:
    table = _table(**options)
    return Dataset.of(table, _label(table), categorical=(0, 1) if options.get("categories") else ())


def _used(params: dict[str, Any], data: Dataset, validation_data: bool = False, **options: Any) -> Model:
    """A model, with what is done with it next: metrics of another set, and predictions."""
    sets = {"valid": data} if validation_data else {}
    model = train(params, data, ROUNDS, validation_data=sets, **options)
    predict(model, data)
    return model


def common() -> None:
    """Regression, two classes and several, with metrics and early stopping; missing values; leaves; one thread."""
    for size in SIZES:
        _used({}, _dataset(size=size), validation_data=True)
    for missing in (False, True):
        data = _dataset(missing=missing)
        _used({"threads": 1, "max_depth": 9}, data)
    positive = _relabelled(data, _label(_table()) > 0)
    model = _used({"objective": "logistic", "eval_metric": METRICS}, positive, validation_data=True)
    for output in ("class", "margin", "leaf"):
        predict(model, positive, output=output)
    classes = _relabelled(data, np.digitize(_label(_table()), (-1, 1)))
    model = _used({"objective": "softmax", "num_class": 3}, classes, validation_data=True)
    predict(model, classes, output="class")


def _relabelled(data: Dataset, label: Any, **options: Any) -> Dataset:
    return Dataset.of(data.table, np.asarray(label, np.float32), **options)


def large() -> None:
    """Tables of many rows, dense, with missing values, categories, samples."""
    for options in ({}, {"missing": True}, {"missing": True, "categories": True}):
        data = _dataset(size=MANY, **options)
        _used({"max_depth": 8, "threads": 2}, data)
        _used({"subsample": 0.5, "threads": 2, "min_data_in_leaf": 5}, data)


def shapes() -> None:
    """Options of growth: leaves first, samples of rows and columns, weights, constraints, several trees a round."""
    data = _dataset(missing=True)
    weighted = Dataset.of(data.table, data.label, np.random.default_rng(1).random(ROWS))
    _used({"max_leaves": 15, "grow_policy": "lossguide", "max_depth": 0}, data)
    _used({"max_leaves": 15}, data)
    _used({"subsample": 0.7, "colsample_bytree": 0.7, "colsample_bylevel": 0.7, "colsample_bynode": 0.7}, data)
    _used({"reg_alpha": 0.1, "gamma": 0.1, "max_delta_step": 1.0, "min_data_in_leaf": 5}, weighted)
    _used({"monotone_constraints": (1, -1, 0, 0, 0, 0, 0, 0)}, data)
    _used({"interaction_constraints": ((0, 1), (2, 3, 4))}, data)
    _used({"num_parallel_tree": 2, "max_bin": 1000, "max_depth": 12}, data)
    _used({"booster": "dart", "rate_drop": 0.5}, data)


def methods() -> None:
    """The exact and the approximate search of splits."""
    for missing in (False, True):
        data = _dataset(missing=missing)
        _used({"tree_method": "exact"}, data)
        _used({"tree_method": "approx"}, data)
        _used({"tree_method": "approx", "proposal": "local"}, data)


def categories() -> None:
    """Categorical features, by all methods."""
    _used({}, _dataset(categories=True, size=SIZES[0]))
    data = _dataset(missing=True, categories=True)
    for method in ("hist", "approx"):
        _used({"tree_method": method, "max_cat_to_onehot": 5}, data)
        _used({"tree_method": method, "min_data_in_leaf": 5}, data)


def objectives() -> None:
    """Less common losses."""
    data = _dataset()
    positive = _relabelled(data, np.exp(_label(_table()) / 4))
    for name in ("reg:absoluteerror", "reg:pseudohubererror", "huber", "quantile"):
        _used({"objective": name}, data, validation_data=True)
    for name in ("poisson", "reg:gamma", "reg:tweedie", "survival:cox"):
        _used({"objective": name}, positive, validation_data=True)
    for noise in ("normal", "logistic", "extreme"):
        upper = np.full(ROWS, np.inf)
        bounded = Dataset.of(data.table, label_lower_bound=positive.label, label_upper_bound=upper)
        _used({"objective": "survival:aft", "aft_loss_distribution": noise}, bounded, validation_data=True)
    label = _label(_table())
    _used({}, Dataset.of(data.table, np.stack([label, -label], 1)))


def ranking() -> None:
    """Queries and their documents."""
    data = _dataset()
    relevance = np.digitize(_label(_table()), (-1, 0, 1))
    for name, label in (("rank_ndcg", relevance), ("rank_pairwise", relevance), ("rank_map", relevance > 1)):
        queries = _relabelled(data, label, group=[20] * (ROWS // 20))
        _used({"objective": name}, queries, validation_data=True)
        _used({"objective": name, "lambdarank_pair_method": "mean"}, queries)


def sparse() -> None:
    """Tables of which most is absent, and features of which no two are there at once, in bundles."""
    draw = np.random.default_rng(0)
    full = np.where(draw.random((ROWS, 20)) < 0.1, draw.normal(size=(ROWS, 20)), np.nan).astype(np.float32)
    label = np.nansum(full, 1)
    data = _sparse_rows(label, full)
    for method in ("hist", "approx", "exact"):
        _used({"tree_method": method}, data)
    contributions(train({}, data, ROUNDS), data)
    _used({}, Dataset.of(np.nan_to_num(full), label))
    ones = Dataset.of(np.where(np.isnan(full), np.nan, 1), label)
    for method in ("hist", "exact"):
        _used({"tree_method": method}, ones)


def explained() -> None:
    """Contributions of features to predictions."""
    data = _dataset(missing=True)
    model = train({}, data, ROUNDS)
    contributions(model, data)
    interactions(model, data)


def files() -> None:
    """Training out of core, on a dense table and a sparse one."""
    table = _table(missing=True)
    label = _label(table)
    for data in (Dataset.of(table, label), _sparse_rows(label, table)):
        with tempfile.TemporaryDirectory() as folder:
            train_external({}, [data], ROUNDS, folders=folder, memory_budget=1 << 28)


def _sparse_rows(label: NDArray[np.float32], table: NDArray[np.float32]) -> Dataset:
    """The rows as a LibSVM file gives them."""
    there = ~np.isnan(table)
    start = np.concatenate([[0], np.cumsum(there.sum(1))]).astype(np.int64)
    rows = Sparse(start, np.nonzero(there)[1].astype(np.int32), table[there])
    return Dataset(rows, len(table), table.shape[1], np.asarray(label, np.float32))
