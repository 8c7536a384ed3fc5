"""Boosting as the kernel tuner uses it: a ranking model of 4,000 rows in a fraction of a second, then 100,000 rows."""

import statistics
import time

import numpy as np

from benchmarks.boosting.report import Row, row
from burnish.boost.booster import train
from burnish.boost.data import Dataset
from burnish.boost.prediction import predict

ROUNDS, BINS, PAIRS = 50, 64, 8
PARAMS = {
    "objective": "rank:pairwise", "lambdarank_pair_method": "mean", "lambdarank_num_pair_per_sample": PAIRS,
    "max_bin": BINS, "max_depth": 6, "eta": 0.3,
}  # fmt: skip


def measure(quick: bool = False) -> list[Row]:
    """Rows of the table; both sides start from float32 arrays, so binning is included."""
    import xgboost

    random = np.random.default_rng(0)
    x = random.standard_normal((4000, 160), dtype=np.float32)
    x[:, ::2] = np.round(x[:, ::2] * 2)  # knobs take few values
    cost = x[:, 0] + np.abs(x[:, 1]) * x[:, 2] + 0.3 * x[:, 3:20].sum(axis=1) + 0.1 * random.standard_normal(4000)
    y = np.floor(np.argsort(np.argsort(-cost)) / 125).astype(np.float32)  # 32 grades of speed
    many = random.standard_normal((100_000, 160), dtype=np.float32)

    times: dict[str, list[float]] = {name: [] for name in ("ours", "xgboost", "our predict", "xgboost predict")}
    for _ in range(4 if quick else 9):
        began = time.perf_counter()
        model = train(PARAMS, Dataset.of(x, label=y, group=[len(y)]), ROUNDS, threads=2)
        times["ours"].append(time.perf_counter() - began)
        began = time.perf_counter()
        predict(model, many, threads=2)
        times["our predict"].append(time.perf_counter() - began)
        began = time.perf_counter()
        matrix = xgboost.QuantileDMatrix(x, y, group=[len(y)], max_bin=BINS, nthread=2)
        peer = xgboost.train({**PARAMS, "nthread": 2}, matrix, ROUNDS)
        times["xgboost"].append(time.perf_counter() - began)
        began = time.perf_counter()
        peer.inplace_predict(many)
        times["xgboost predict"].append(time.perf_counter() - began)
    each = {name: statistics.median(values[1:]) for name, values in times.items()}
    trained, predicted = ({"xgboost": each[name]} for name in ("xgboost", "xgboost predict"))
    return [
        row(
            f"tuner: train 4,000 × 160, {ROUNDS} rounds, {BINS} bins, {PAIRS} pairs, s",
            each["ours"], trained, "≤ 0.2 s", "binning and set-up included",
        ),
        row(f"tuner: predict 100,000 × 160, {ROUNDS} trees, s", each["our predict"], predicted, "≤ 0.02 s"),
    ]  # fmt: skip
