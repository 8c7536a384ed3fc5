"""Exact and approximate trees against xgboost, sparse data against a scan of all cells, and Fig. 2.7."""

import statistics
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.boosting import scans
from benchmarks.boosting.datasets import higgs_like, one_hot
from benchmarks.boosting.hist import area
from benchmarks.boosting.report import Row, row
from burnish.base.jit import njit
from burnish.base.optional import require
from burnish.boost.approx import ApproxGrower
from burnish.boost.blocks import column_block
from burnish.boost.booster import RoundProgress, train
from burnish.boost.data import Dataset, Sparse
from burnish.boost.exact import ExactGrower
from burnish.boost.growth.scan_state import RowRecords
from burnish.boost.params import Params
from burnish.boost.sampling import EVERY_COLUMN
from burnish.runtime.threads import Workers

_THREADS = 2


def measure(quick: bool = False) -> list[Row]:
    """Rows of the table; `quick` takes fewer and smaller ones."""
    rows = 100_000 if quick else 1_000_000
    rounds = 3 if quick else 10
    asked = {("exact", "global"): 0.3, ("approx", "global"): 0.2, ("approx", "local"): 0.5}
    return [
        *(_higgs(rows, rounds, *which, bar) for which, bar in asked.items()),
        *(_accuracy(quick, *which) for which in asked),
        *(_one_hot(n, rounds) for n in ((10_000,) if quick else (10_000, 100_000, 1_000_000))),
        _naive_dense(2_000 if quick else 10_000),
        *(_prefetch(n) for n in ((1 << 17,) if quick else (1 << 17, 1 << 20, 1 << 22, 10_000_000))),
    ]


def _higgs(rows: int, rounds: int, method: str, proposal: str, asked: float) -> Row:
    """Seconds per tree, a tree of ours and one of xgboost's in turn; AUC on rows that were held out."""
    xgboost = require("xgboost", "bench")
    auc = require("sklearn.metrics", "bench").roc_auc_score
    table, held_out = higgs_like(rows), higgs_like(min(rows, 200_000), seed=1)
    begin = time.perf_counter()
    matrix = xgboost.DMatrix(table.features, table.label, nthread=_THREADS)
    options = {"max_depth": 8, "eta": 0.1, "tree_method": method, "nthread": _THREADS, "max_bin": 256}
    booster = xgboost.Booster({**options, "objective": "binary:logistic"}, [matrix])
    booster.update(matrix, 0)
    peer_setup = time.perf_counter() - begin
    peer: list[float] = []
    ours: list[float] = []
    last = [0.0]

    def alternate(progress: RoundProgress) -> bool:
        now = time.perf_counter()
        ours.append(now - last[0])
        if progress.round > 1:
            booster.update(matrix, progress.round - 1)
            peer.append(time.perf_counter() - now)
        last[0] = time.perf_counter()
        return False

    params = Params(
        objective="logistic", max_depth=8, learning_rate=0.1, tree_method=method, proposal=proposal, threads=_THREADS,
        rounds=rounds,
    )  # fmt: skip
    train(Params(**{**vars(params), "rounds": 1}), _rows_of(table, 50_000))  # loads the compiled kernels
    last[0] = time.perf_counter()
    model = train(params, Dataset.of(table.features, table.label), callbacks=[alternate])
    score = auc(held_out.label, model.predict_margin(held_out.features)[0])
    peer_score = auc(held_out.label, booster.inplace_predict(held_out.features))
    return row(
        f"{method}{' ' + proposal if method == 'approx' else ''} {rows // 1000}K × 28, depth 8, s per tree",
        statistics.median(ours[1:]),
        {f"xgboost {method}": statistics.median(peer)},
        f"≤ {asked}",
        f"AUC {score:.4f} beside {peer_score:.4f}; set-up and first tree {ours[0]:.2f} s beside {peer_setup:.2f} s",
    )


def _accuracy(quick: bool, method: str, proposal: str) -> Row:
    """Held-out AUC, mean of three seeds, on tables like that of `_higgs`."""
    xgboost = require("xgboost", "bench")
    rows, rounds = (20_000, 10) if quick else (1_000_000, 10)
    scores: dict[str, list[float]] = {"ours": [], "xgboost": []}
    options = {"max_depth": 8, "eta": 0.1, "tree_method": method, "nthread": _THREADS, "max_bin": 256}
    params = Params(
        objective="logistic", max_depth=8, learning_rate=0.1, tree_method=method, proposal=proposal, threads=_THREADS,
        rounds=rounds,
    )  # fmt: skip
    for seed in range(1 if quick else 3):
        table, held_out = higgs_like(rows, seed=2 * seed), higgs_like(200_000, seed=2 * seed + 1)
        model = train(params, Dataset.of(table.features, table.label))
        scores["ours"].append(area(held_out.label, model.predict_margin(held_out.features)[0]))
        matrix = xgboost.DMatrix(table.features, table.label, nthread=_THREADS)
        booster = xgboost.train({**options, "objective": "binary:logistic"}, matrix, rounds)
        scores["xgboost"].append(area(held_out.label, booster.inplace_predict(held_out.features)))
    means = {name: statistics.mean(values) for name, values in scores.items()}
    difference = means["ours"] - means["xgboost"]
    name = f"{method}{' ' + proposal if method == 'approx' else ''} {rows // 1000}K × 28"
    return row(
        f"{name}, held-out AUC after {rounds} trees, mean of {len(scores['ours'])} seeds",
        means["ours"],
        {f"xgboost {method}": means["xgboost"]},
        "within 0.001",
        f"difference {difference:+.4f}",
    )


def _rows_of(table: Any, rows: int) -> Dataset:
    return Dataset.of(table.features[:rows], table.label[:rows])


def _one_hot(rows: int, rounds: int) -> Row:
    """Exact trees on one-hot data, in turn; the gradients of both are those of their own margins."""
    xgboost, scipy = require("xgboost", "bench"), require("scipy.sparse", "bench")
    table = one_hot(rows)
    begin = time.perf_counter()
    matrix = xgboost.DMatrix(
        scipy.csr_matrix((table.values, table.columns, table.start), (rows, 4227)), table.label, nthread=_THREADS
    )
    options = {"max_depth": 8, "eta": 0.1, "tree_method": "exact", "nthread": _THREADS}
    booster = xgboost.Booster({**options, "objective": "binary:logistic", "base_score": 0.5}, [matrix])
    booster.update(matrix, 0)
    peer_setup = time.perf_counter() - begin
    begin = time.perf_counter()
    grower = _sparse_grower(table)
    margin = np.zeros(rows, np.float32)
    _boost(grower, margin, table.label)
    setup = time.perf_counter() - begin
    ours, peer = [], []
    for number in range(1, rounds):
        ours.append(_boost(grower, margin, table.label))
        begin = time.perf_counter()
        booster.update(matrix, number)
        peer.append(time.perf_counter() - begin)
    losses = [_loss(m, table.label) for m in (margin, booster.predict(matrix, output_margin=True))]
    return row(
        f"exact one-hot {rows // 1000}K × 4227, depth 8, s per tree",
        statistics.median(ours),
        {"xgboost exact": statistics.median(peer)},
        "≤ 0.7",
        f"log loss {losses[0]:.5f} beside {losses[1]:.5f}; set-up, first tree {setup:.2f} s beside {peer_setup:.2f} s",
    )


def _sparse_grower(table: Any) -> ExactGrower:
    data = Dataset(Sparse(table.start, table.columns, table.values), len(table.label), 4227)
    return ExactGrower(data, Params(max_depth=8, learning_rate=0.1), Workers(_THREADS))


def _boost(grower: ExactGrower | ApproxGrower, margin: NDArray[np.float32], label: NDArray[np.float32]) -> float:
    """Adds a tree to the margins; the seconds that it took, gradients included."""
    begin = time.perf_counter()
    gradient, hessian = np.empty_like(margin), np.empty_like(margin)
    _logistic(margin, label, gradient, hessian)
    tree, leaf = grower.grow(gradient, hessian, EVERY_COLUMN)
    margin += tree.value[leaf]
    return time.perf_counter() - begin


@njit(cache=True, nogil=True)
def _logistic(margin, label, gradient, hessian):  # type: ignore[no-untyped-def]
    for i in range(len(margin)):
        probability = np.float32(1) / (np.float32(1) + np.exp(-margin[i]))
        gradient[i] = probability - label[i]
        hessian[i] = probability * (np.float32(1) - probability)


def _loss(margin: NDArray[np.float32], label: NDArray[np.float32]) -> float:
    return float(np.log1p(np.exp(-margin * (2 * label - 1))).mean())


def _naive_dense(rows: int) -> Row:
    """Fig. 2.5: a tree by visiting the present entries, and one by visiting every cell of the table in sorted order."""
    table = one_hot(rows)
    grower = _sparse_grower(table)
    zero = np.zeros(rows, np.float32)
    gradient, hessian = np.empty_like(zero), np.empty_like(zero)
    _logistic(zero, table.label, gradient, hessian)
    grown, leaf = grower.grow(gradient, hessian, EVERY_COLUMN)
    ours = statistics.median(_boost(grower, zero.copy(), table.label) for _ in range(5))
    dense = np.zeros((rows, 4227), np.float32)
    dense[np.repeat(np.arange(rows), np.diff(table.start)), table.columns] = 1
    naive = scans.NaiveTrees(dense)
    naive.grow(gradient, hessian, 1)  # loads the compiled kernel
    begin = time.perf_counter()
    value = naive.grow(gradient, hessian, 8)
    seconds = time.perf_counter() - begin
    other = int((np.abs(value - grown.value[leaf] / 0.1) > 1e-3).sum())
    return row(
        f"Fig. 2.5: one-hot {rows / 1000:g}K × 4227, depth 8, s per tree, sparsity-aware",
        ours,
        {"all cells": seconds},
        "≤ 0.02",
        f"{seconds / ours:.0f} times faster, on {_THREADS} threads and 1; {other} rows in other leaves",
    )


def _prefetch(rows: int) -> Row:
    """Fig. 2.7: a scan of columns for the splits of 64 nodes; ns per entry on one thread."""
    random = np.random.default_rng(0)
    columns = 2
    table = random.standard_normal((rows, columns), dtype=np.float32)
    workers = Workers(_THREADS)
    block = column_block(Dataset(table, rows, columns), workers)
    records = RowRecords(rows, workers)
    records.load(random.standard_normal(rows, dtype=np.float32), random.random(rows, dtype=np.float32))
    position = random.integers(0, 64, rows).astype(np.int32)
    records.assign(position, np.arange(64), 64)
    words = scans.narrow(records)
    results: dict[str, list[float]] = {name: [] for name in scans.FORMS}
    for repeat in range(4):
        for name, form in scans.FORMS.items():
            state, rule = scans.state_of(words, 64)
            bounds = np.zeros((65, 2))
            begin = time.perf_counter()
            for column in range(columns):
                entries = block.rows, block.values, block.start[column], block.start[column + 1], words, state
                form(*entries, rule, bounds)
            if repeat:  # the first loads the compiled kernel
                results[name].append((time.perf_counter() - begin) / columns / rows * 1e9)
    found = {name: statistics.median(times) for name, times in results.items()}
    return row(
        f"Fig. 2.7: exact scan, {rows / 1e6:.2g}M rows, ns per entry, prefetch instruction",
        found.pop("prefetch"),
        found,
        "shape",
        f"naive / buffer {found['naive'] / found['buffer']:.2f}",
    )
