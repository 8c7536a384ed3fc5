"""Ranking with LambdaMART on data shaped like LETOR's, against xgboost: time per tree and held-out NDCG@10."""

import statistics
import time
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.boosting.report import Row, row
from burnish.boost.data import Dataset
from burnish.boost.losses.reduction import Reduction
from burnish.boost.metric import metric_of
from burnish.boost.params import Params
from burnish.boost.training import Training
from burnish.runtime.threads import Workers

THREADS = 2
PARAMS = {"objective": "rank:ndcg", "max_depth": 6, "eta": 0.1, "max_bin": 256, "lambdarank_num_pair_per_sample": 32}


class Queries(NamedTuple):
    """Documents in order of their queries."""

    features: NDArray[np.float32]  # (rows, features)
    grade: NDArray[np.float32]  # (rows,), 0 … 4
    sizes: NDArray[np.int64]  # (queries,), about 22 each

    @property
    def dataset(self) -> Dataset:
        """Burnish's data set of the queries."""
        return Dataset.of(self.features, label=self.grade, group=self.sizes)


def letor_like(rows: int = 470_000, features: int = 700, seed: int = 0) -> Queries:
    """Relevance grades 0 … 4 from features that differ between queries and between documents (Yahoo LTRC's shape)."""
    random, fixed = np.random.default_rng(seed), np.random.default_rng(2019)
    sizes = random.integers(5, 40, rows // 22 + rows // 100)
    sizes = sizes[: int(np.searchsorted(np.cumsum(sizes), rows))]
    sizes = np.append(sizes, rows - sizes.sum())
    x = random.standard_normal((rows, features), dtype=np.float32)
    x[:, 1::4] = np.round(x[:, 1::4] * 8) / 8  # some columns of few values
    x[:, 2::4] = np.maximum(x[:, 2::4], 0.0)  # some are often zero
    useful = fixed.choice(features, features // 8, replace=False)
    score = x[:, useful] @ fixed.standard_normal(len(useful)).astype(np.float32) * 0.2
    for first, second in fixed.choice(useful, (12, 2)):
        score += 0.7 * x[:, first] * (x[:, second] > 0)
    score += np.repeat(random.standard_normal(len(sizes)), sizes) + 0.7 * random.standard_normal(rows)
    edges = np.quantile(score, [0.5, 0.75, 0.9, 0.97])
    return Queries(x, np.digitize(score, edges).astype(np.float32), sizes)


def measure(quick: bool = False) -> list[Row]:
    """Rows of the table: time per tree, and held-out NDCG@10 after all rounds. `quick` takes few rows."""
    import xgboost

    rows, rounds = (10_000, 6) if quick else (470_000, 24)
    table, held = letor_like(rows), letor_like(rows // 10, seed=1)
    began = time.perf_counter()
    params, workers = Params.of(PARAMS), Workers(THREADS)
    ours = Training(params, table.dataset, workers)
    set_up = time.perf_counter() - began
    began = time.perf_counter()
    matrix = xgboost.QuantileDMatrix(table.features, table.grade, group=table.sizes, nthread=THREADS)
    peer = xgboost.Booster({**PARAMS, "nthread": THREADS, "tree_method": "hist"}, [matrix])
    peer_set_up = time.perf_counter() - began
    times: dict[str, list[float]] = {"ours": [], "xgboost": []}
    for number in range(rounds):
        began = time.perf_counter()
        ours.boost()
        times["ours"].append(time.perf_counter() - began)
        began = time.perf_counter()
        peer.update(matrix, number)
        times["xgboost"].append(time.perf_counter() - began)
    each = {name: statistics.median(values[2:]) for name, values in times.items()}
    dataset = held.dataset
    scores = {
        "ours": ours.model().predict_margin(dataset, workers),
        "xgboost": peer.inplace_predict(held.features, predict_type="margin").reshape(1, -1),
    }
    ndcg = {name: metric_of("ndcg@10")(score, dataset, Reduction(), params) for name, score in scores.items()}
    shape = f"ranking {rows // 1000}K × {table.features.shape[1]}, depth 6"
    note = f"set-up {set_up:.2f} s, xgboost {peer_set_up:.2f} s; {rounds} trees"
    difference = f"difference {ndcg['ours'] - ndcg['xgboost']:+.4f}"
    return [
        row(f"{shape}, s per tree", each["ours"], {"xgboost": each["xgboost"]}, "≤ 0.9", note),
        row(f"{shape}, NDCG@10", ndcg["ours"], {"xgboost": ndcg["xgboost"]}, "within 0.002", difference),
    ]
