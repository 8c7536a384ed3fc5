"""The histogram method against XGBoost's `hist` and LightGBM: time per tree, binning, AUC; dense, sparse, wide, few."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.boosting.datasets import Table, higgs_like, one_hot, wide
from benchmarks.boosting.report import Row, row
from burnish.base.optional import require
from burnish.boost.binning import Cuts
from burnish.boost.data import Dataset, Sparse
from burnish.boost.grower import HistGrower
from burnish.boost.growth.bins import DenseBins
from burnish.boost.params import Params
from burnish.boost.sampling import EVERY_COLUMN
from burnish.runtime.threads import Workers

THREADS = 2


class _Ours:
    """Boosting of the logistic loss by `HistGrower`: as the booster does it, less its conveniences."""

    def __init__(self, dataset: Dataset, label: NDArray[np.float32], **params: Any) -> None:
        self._grower = HistGrower(dataset, Params(**params), Workers(THREADS))
        self._margin = np.zeros(len(label), np.float32)
        self._label = label

    def round(self) -> None:
        """One tree, with its gradients and the update of the margins."""
        probability = np.exp(-self._margin)
        probability += 1
        np.reciprocal(probability, out=probability)
        hessian = probability * (1 - probability)
        probability -= self._label
        tree, leaf = self._grower.grow(probability, hessian, EVERY_COLUMN)
        self._margin += tree.value[leaf]


class _XGBoost:
    def __init__(self, x: Any, label: NDArray[np.float32], depth: int, bins: int = 256) -> None:
        xgboost = require("xgboost", "bench")
        self._data = xgboost.QuantileDMatrix(x, label, max_bin=bins, nthread=THREADS)
        params = {
            "max_depth": depth, "eta": 0.1, "tree_method": "hist", "max_bin": bins, "nthread": THREADS,
            "objective": "binary:logistic", "base_score": 0.5,
        }  # fmt: skip
        self._booster = xgboost.Booster(params, [self._data])
        self._rounds = 0

    def round(self) -> None:
        """One tree."""
        self._booster.update(self._data, self._rounds)
        self._rounds += 1


class _LightGBM:
    def __init__(self, x: Any, label: NDArray[np.float32], depth: int, bins: int = 255) -> None:
        lightgbm = require("lightgbm", "bench")
        params = {
            "max_depth": depth, "num_leaves": 1 << depth, "learning_rate": 0.1, "max_bin": bins, "verbose": -1,
            "objective": "binary", "num_threads": THREADS, "min_data_in_leaf": 1, "lambda_l2": 1.0,
            "min_sum_hessian_in_leaf": 1.0,
        }  # fmt: skip
        data = lightgbm.Dataset(x, label, params=params)
        self._booster = lightgbm.Booster(params, data.construct())

    def round(self) -> None:
        """One tree."""
        self._booster.update()


def alternately(rounds: int, **functions: Callable[[], object]) -> dict[str, float]:
    """Median milliseconds of each function, the functions taking turns; each is called once before that."""
    for function in functions.values():
        function()
    times: dict[str, list[float]] = {name: [] for name in functions}
    for turn in range(rounds):
        for name in list(functions) if turn % 2 == 0 else reversed(functions):
            begin = time.perf_counter()
            functions[name]()
            times[name].append((time.perf_counter() - begin) * 1e3)
    return {name: statistics.median(values) for name, values in times.items()}


def _row(name: str, times: dict[str, float], asked: str, note: str = "") -> Row:
    peers = {side: value for side, value in times.items() if side != "ours"}
    return row(name, times["ours"], peers, asked, note)


def dense(quick: bool) -> list[Row]:
    """Higgs-like: 1M × 28, depth 8."""
    table = higgs_like(50_000 if quick else 1_000_000)
    dataset = Dataset(table.features, *table.features.shape)
    workers = Workers(THREADS)
    sides: dict[str, Any] = {}

    def ours() -> None:
        DenseBins.of(table.features, Cuts.of(dataset, 256, workers), workers)

    def xgb() -> None:
        sides["xgboost"] = _XGBoost(table.features, table.label, 8)

    def lgb() -> None:
        sides["lightgbm"] = _LightGBM(table.features, table.label, 8)

    binning = alternately(1 if quick else 3, ours=ours, xgboost=xgb, lightgbm=lgb)
    sides["ours"] = _Ours(dataset, table.label, max_depth=8, learning_rate=0.1)
    trees = alternately(5 if quick else 30, **{name: side.round for name, side in sides.items()})
    name = f"hist {len(table.label):,} × 28, depth 8"
    return [
        _row(f"{name}, ms a tree", trees, "≤ 0.75"),
        _row(f"{name}: binning, ms", binning, "≤ 0.2", "cuts, rows, columns"),
    ]


def accuracy(quick: bool) -> Row:
    """Held-out AUC after 100 trees of depth 8; mean of three seeds."""
    scores: dict[str, list[float]] = {"ours": [], "xgboost": []}
    rows, trees = (20_000, 20) if quick else (500_000, 100)
    for seed in range(1 if quick else 3):
        train, test = higgs_like(rows, seed=2 * seed), higgs_like(200_000, seed=2 * seed + 1)
        scores["ours"].append(area(test.label, _our_margin(train, test, trees)))
        xgboost = require("xgboost", "bench")
        params = {"max_depth": 8, "eta": 0.1, "tree_method": "hist", "nthread": THREADS, "objective": "binary:logistic"}
        booster = xgboost.train(params, xgboost.QuantileDMatrix(train.features, train.label), trees)
        scores["xgboost"].append(area(test.label, booster.inplace_predict(test.features)))
    means = {name: statistics.mean(values) for name, values in scores.items()}
    difference = means["ours"] - means["xgboost"]
    name = f"hist: held-out AUC after {trees} trees, mean of {len(scores['ours'])} seeds"
    return row(name, means["ours"], {"xgboost": means["xgboost"]}, "within 0.001", f"difference {difference:+.4f}")


def _our_margin(train: Table, test: Table, trees: int) -> NDArray[np.float32]:
    from burnish.boost import predict
    from burnish.boost import train as fit

    params = {"objective": "logistic", "max_depth": 8, "learning_rate": 0.1}
    model = fit(params, Dataset.of(train.features, train.label), trees)
    return np.asarray(predict(model, test.features), np.float32)


def area(label: NDArray[np.float32], score: NDArray[np.float32]) -> float:
    """Area under the ROC curve, by ranks; ties count half."""
    _, inverse, count = np.unique(score, return_inverse=True, return_counts=True)
    rank = np.cumsum(count) - (count - 1) / 2
    positive = label > 0
    ones, zeros = int(positive.sum()), int((~positive).sum())
    return float((rank[inverse][positive].sum() - ones * (ones + 1) / 2) / (ones * zeros))


def sparse(quick: bool) -> list[Row]:
    """One-hot rows × 4227 at 1 %, depth 8."""
    scipy_sparse = require("scipy.sparse", "bench")
    found = []
    for rows in (10_000,) if quick else (10_000, 100_000, 1_000_000):
        made = one_hot(rows)
        csr = scipy_sparse.csr_matrix((made.values, made.columns, made.start), (rows, 4227))
        dataset = Dataset(Sparse(made.start, made.columns, made.values), rows, 4227)
        sides: dict[str, Any] = {
            "ours": _Ours(dataset, made.label, max_depth=8, learning_rate=0.1),
            "xgboost": _XGBoost(csr, made.label, 8),
        }
        turns = 5 if quick or rows >= 1_000_000 else 15
        times = alternately(turns, **{name: side.round for name, side in sides.items()})
        found.append(_row(f"sparse hist {rows:,} × 4,227 at 1 %, depth 8, ms a tree", times, "≤ 0.8"))
    return found


def many_features(quick: bool) -> Row:
    """Wide: 200K × 704, depth 6."""
    table = wide(5_000 if quick else 200_000)
    dataset = Dataset(table.features, *table.features.shape)
    sides: dict[str, Any] = {
        "ours": _Ours(dataset, table.label, max_depth=6, learning_rate=0.1),
        "xgboost": _XGBoost(table.features, table.label, 6),
    }
    times = alternately(5, **{name: side.round for name, side in sides.items()})
    return _row(f"wide hist {len(table.label):,} × 704, depth 6, ms a tree", times, "≤ 0.8")


def small(quick: bool) -> Row:
    """Data of the tuner's size: 4,000 × 160, 64 bins, depth 6, 50 trees with their set-up (logistic loss here)."""
    random = np.random.default_rng(0)
    x = random.standard_normal((4000, 160)).astype(np.float32)
    label = (x[:, :20].sum(axis=1) + random.standard_normal(4000) > 0).astype(np.float32)
    dataset = Dataset(x, 4000, 160)

    def fifty(make: Callable[[], Any]) -> Callable[[], None]:
        def run() -> None:
            side = make()
            for _ in range(50):
                side.round()

        return run

    times = alternately(
        1 if quick else 7,
        ours=fifty(lambda: _Ours(dataset, label, max_depth=6, max_bin=64, learning_rate=0.1)),
        xgboost=fifty(lambda: _XGBoost(x, label, 6, 64)),
        lightgbm=fifty(lambda: _LightGBM(x, label, 6, 63)),
    )
    return _row("tuner: 4,000 × 160, 64 bins, 50 trees, ms in all", times, "≤ 200 ms")


def measure(quick: bool = False) -> list[Row]:
    """All rows of this section."""
    return [*dense(quick), *sparse(quick), many_features(quick), small(quick), accuracy(quick)]
