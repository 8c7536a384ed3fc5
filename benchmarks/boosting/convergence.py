"""Held-out accuracy by trees: candidates by ε (Fig. 2.3), exact trees with sampled columns (Table 2.3), ranking (2.4).

A scale-down of the thesis' sizes; each side on one thread, a tree of each in turn, by CPU time.
"""

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.boosting.datasets import higgs_like
from benchmarks.boosting.hist import area
from benchmarks.boosting.ranking import Queries, letor_like
from benchmarks.boosting.report import Row, row
from burnish.base.optional import require
from burnish.boost.data import Dataset
from burnish.boost.losses.reduction import Reduction
from burnish.boost.metric import metric_of
from burnish.boost.params import Params
from burnish.boost.training import Training
from burnish.runtime.threads import Workers

EPSILONS: Mapping[str, Mapping[str, Any]] = {"exact": {"tree_method": "exact"}, **{
    f"{proposal} eps={epsilon}": {"tree_method": "approx", "proposal": proposal, "max_bin": round(1 / epsilon)}
    for proposal, epsilon in (("global", 0.3), ("local", 0.3), ("global", 0.05))
}}  # fmt: skip
EVERY = 5  # trees between two tests of a curve
Grown = tuple[Callable[[], object], Callable[[], NDArray[Any]]]  # one more tree; scores of the held-out rows


def measure(quick: bool = False) -> list[Row]:
    """Rows of the report, with the accuracy after every few trees as "curve"."""
    return [*_epsilons(quick), *_exact(quick), *_ranking(quick)]


def raced(sides: Mapping[str, Grown], rounds: int, score: Callable[[NDArray[Any]], float]) -> dict[str, Row]:
    """Median CPU seconds of a tree, the accuracy at the end, and its curve, of each side; trees in turn."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    curves: dict[str, list[tuple[int, float]]] = {name: [] for name in sides}
    for number in range(1, rounds + 1):
        for name, (grow, predicted) in sides.items():
            begin = time.process_time()
            grow()
            seconds[name].append(time.process_time() - begin)
            if number % EVERY == 0 or number == rounds:
                curves[name].append((number, score(predicted())))
    return {
        name: {"seconds": statistics.median(seconds[name][1:]), "score": curves[name][-1][1], "curve": curves[name]}
        for name in sides
    }


def grown(options: Mapping[str, Any], data: Dataset, held: Dataset) -> Grown:
    """Training of ours."""
    workers = Workers(1)
    training = Training(Params.of({**options, "threads": 1}), data, workers)
    return training.boost, lambda: training.model().predict_margin(held, workers)[0]


def peer(options: Mapping[str, Any], table: Any, held: Any) -> Grown:
    """Training of xgboost's, of (features, label) or queries."""
    xgboost = require("xgboost", "bench")
    group = {"group": table.sizes} if isinstance(table, Queries) else {}
    matrix = xgboost.DMatrix(table.features, table[1], nthread=1, **group)
    booster = xgboost.Booster({**options, "nthread": 1}, [matrix])
    done = [0]

    def grow() -> None:
        booster.update(matrix, done[0])
        done[0] += 1

    return grow, lambda: booster.inplace_predict(held.features, predict_type="margin")


def _epsilons(quick: bool) -> list[Row]:
    """Fig. 2.3: few candidates a tree lose accuracy, as few a node do not, and 20 a tree do not."""
    rows, rounds = (10_000, 10) if quick else (300_000, 50)
    table, held = higgs_like(rows), higgs_like(min(rows, 100_000), seed=1)
    data, test = Dataset.of(table.features, table.label), Dataset.of(held.features, held.label)
    options = {"objective": "logistic", "max_depth": 8, "learning_rate": 0.1}
    sides = {name: grown({**options, **own}, data, test) for name, own in EPSILONS.items()}
    found = raced(sides, rounds, lambda margin: area(held.label, margin))
    return [
        {**row(f"Fig. 2.3: {name}, {rows // 1000}K × 28, AUC after {rounds} trees", one["score"],
               {} if name == "exact" else {"exact": found["exact"]["score"]}, "shape",
               f"{one['seconds']:.3f} CPU s a tree"), "curve": one["curve"]}
        for name, one in found.items()
    ]  # fmt: skip


def _exact(quick: bool) -> list[Row]:
    """Table 2.3: exact trees, all columns or half of them a tree, against xgboost and scikit-learn."""
    rows, rounds = (5_000, 5) if quick else (100_000, 20)
    ensemble = require("sklearn.ensemble", "bench")
    table, held = higgs_like(rows), higgs_like(100_000, seed=1)
    data, test = Dataset.of(table.features, table.label), Dataset.of(held.features, held.label)
    options = {"max_depth": 8, "eta": 0.1, "tree_method": "exact", "objective": "binary:logistic"}
    half = {**options, "colsample_bytree": 0.5}
    forest = ensemble.GradientBoostingClassifier(
        n_estimators=1, max_depth=8, learning_rate=0.1, warm_start=True, random_state=0
    )

    def grow() -> None:
        if hasattr(forest, "estimators_"):
            forest.n_estimators += 1
        forest.fit(table.features, table.label)

    sides = {
        "ours": grown(options, data, test), "ours, half the columns": grown(half, data, test),
        "xgboost": peer(options, table, held), "xgboost, half the columns": peer(half, table, held),
        "scikit-learn": (grow, lambda: forest.decision_function(held.features)),
    }  # fmt: skip
    found = raced(sides, rounds, lambda margin: area(held.label, margin))
    return _table(f"Table 2.3: exact {rows // 1000}K × 28, depth 8", f"AUC after {rounds} trees", found)


def _ranking(quick: bool) -> list[Row]:
    """Table 2.4, Fig. 2.10: LambdaMART on exact trees, all columns or half of them, against approximate trees (pGBRT's
    kind) and xgboost; NDCG@10 by trees.
    """
    rows, rounds = (2_000, 5) if quick else (24_000, 40)
    table, held = letor_like(rows), letor_like(rows // 2, seed=1)
    data, test = table.dataset, held.dataset
    options: dict[str, Any] = {"objective": "rank:ndcg", "max_depth": 6, "eta": 0.1, "tree_method": "exact"}
    options["lambdarank_num_pair_per_sample"] = 32
    half, binned = {**options, "colsample_bytree": 0.5}, {**options, "tree_method": "approx"}
    sides = {
        "ours": grown(options, data, test), "ours, half the columns": grown(half, data, test),
        "ours, approximate": grown(binned, data, test), "xgboost": peer(options, table, held),
        "xgboost, half the columns": peer(half, table, held),
    }  # fmt: skip
    ndcg, params = metric_of("ndcg@10"), Params.of(options)
    found = raced(sides, rounds, lambda margin: ndcg(np.atleast_2d(margin), test, Reduction(), params))
    return _table(f"Table 2.4: ranking {rows // 1000}K × {table.features.shape[1]}, depth 6",
                  f"NDCG@10 after {rounds} trees", found)  # fmt: skip


def _table(name: str, metric: str, found: Mapping[str, Row]) -> list[Row]:
    """A row of each side: CPU seconds a tree, against those of the others, and accuracy."""
    own = found["ours"]["seconds"]
    return [
        {**row(f"{name}, {side}, CPU s a tree", one["seconds"], {} if side == "ours" else {"ours": own}, "",
               f"{metric} {one['score']:.4f}"), "score": one["score"], "curve": one["curve"]}
        for side, one in found.items()
    ]  # fmt: skip
