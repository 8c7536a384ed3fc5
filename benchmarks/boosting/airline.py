"""A table of categories, shaped like the airline data of public benchmarks: native categories, and one-hot columns.

`python -m benchmarks.boosting.airline [--rows N] [--repeats N] [--form native|one-hot] [--cpu] [--json]`

Depth 10, 100 trees, two threads. Contenders train in turns, every time on another sample; times are medians, binning
included. AUC is of held-out rows, at 20 trees and at all, the mean of the samples: from one to the next, contenders
change places by 0.001, so that fewer than five say little. On a machine that does other work, two threads that wait for
each other say little; --cpu tells CPU seconds of one thread.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.boosting.datasets import FIELDS, Flights, flights
from benchmarks.boosting.hist import area
from benchmarks.boosting.report import Row, row
from benchmarks.provenance import stored
from burnish.base.optional import require

THREADS, DEPTH, TREES, FEW = 2, 10, 100, 20
FORMS = "native", "one-hot"
_TEST_ROWS = 200_000

# Trains, with binning, and returns a function from a number of trees to scores of the held-out rows.
Contender = Callable[[], Callable[[int], NDArray[Any]]]


def native(table: Flights) -> NDArray[np.float32]:
    """Codes of categories, then the numbers, as one array (rows, 8)."""
    return np.concatenate([table.codes.astype(np.float32), table.numbers], axis=1)


def one_hot(table: Flights) -> Any:
    """One column of ones for each category, then the numbers, as a SciPy CSR matrix (rows, 674)."""
    sparse = require("scipy.sparse", "bench")
    rows, first = len(table.label), np.cumsum([0, *FIELDS.values()])
    columns = np.concatenate([table.codes + first[:-1], np.tile(first[-1] + np.arange(2), (rows, 1))], axis=1)
    values = np.concatenate([np.ones(table.codes.shape, np.float32), table.numbers], axis=1)
    start = np.arange(rows + 1, dtype=np.int64) * columns.shape[1]
    return sparse.csr_matrix((values.ravel(), columns.ravel().astype(np.int32), start), (rows, int(first[-1]) + 2))


def contenders(form: str, train: Flights, test: Flights, trees: int, threads: int = THREADS) -> dict[str, Contender]:
    """Contenders, by name: depth 10, learning rate 0.1, 256 bins, the other parameters at their defaults or alike."""
    x, held = (native(train), native(test)) if form == "native" else (one_hot(train), one_hot(test))
    kinds = ["c"] * len(FIELDS) + ["q"] * 2
    label = train.label

    def ours() -> Callable[[int], NDArray[Any]]:
        from burnish import boost

        fields = range(len(FIELDS)) if form == "native" else ()
        data = boost.Dataset.of(x, label, categorical=fields, policy="missing")
        params = {"objective": "logistic", "max_depth": DEPTH, "learning_rate": 0.1, "threads": threads}
        model = boost.train(params, data, trees)
        return lambda count: boost.predict(model, held, rounds=(0, count), threads=threads)

    def xgb() -> Callable[[int], NDArray[Any]]:
        xgboost = require("xgboost", "bench")
        more = {"feature_types": kinds, "enable_categorical": True} if form == "native" else {}
        data = xgboost.QuantileDMatrix(x, label, nthread=threads, max_bin=256, **more)
        params = {
            "objective": "binary:logistic", "max_depth": DEPTH, "eta": 0.1, "tree_method": "hist", "nthread": threads,
        }  # fmt: skip
        booster = xgboost.train(params, data, trees)
        test_data = xgboost.DMatrix(held, **more)
        return lambda count: booster.predict(test_data, iteration_range=(0, count))

    def lgb() -> Callable[[int], NDArray[Any]]:
        lightgbm = require("lightgbm", "bench")
        params = {
            "objective": "binary", "max_depth": DEPTH, "num_leaves": 1 << DEPTH, "learning_rate": 0.1,
            "num_threads": threads, "verbose": -1,
        }  # fmt: skip
        fields = list(range(len(FIELDS))) if form == "native" else "auto"
        booster = lightgbm.train(params, lightgbm.Dataset(x, label, categorical_feature=fields, params=params), trees)
        return lambda count: booster.predict(held, num_iteration=count)

    return {"ours": ours, "xgboost": xgb, "lightgbm": lgb}


def compare(form: str, rows: int, repeats: int, trees: int = TREES, cpu: bool = False) -> list[Row]:
    """Rows of one form of the table: seconds (`cpu`: CPU seconds of one thread), and held-out AUC."""
    test, few = flights(_TEST_ROWS, seed=1), flights(20_000)
    threads, clock = (1, time.process_time) if cpu else (THREADS, time.perf_counter)
    for side in contenders(form, few, few, 2, threads).values():  # kernels are compiled or loaded
        side()
    times: dict[str, list[float]] = {}
    areas: dict[int, dict[str, list[float]]] = {min(FEW, trees): {}, trees: {}}
    for turn in range(repeats):
        sides = contenders(form, flights(rows, seed=2 * turn), test, trees, threads)
        for name in list(sides) if turn % 2 == 0 else list(reversed(sides)):
            begin = clock()
            predict = sides[name]()
            times.setdefault(name, []).append(clock() - begin)
            for count, found in areas.items():
                found.setdefault(name, []).append(area(test.label, predict(count).astype(np.float32)))
    scores = {count: {name: statistics.mean(own) for name, own in found.items()} for count, found in areas.items()}
    seconds = {name: statistics.median(values) for name, values in times.items()}
    name = f"airline {rows:,} × {'8' if form == 'native' else '674'}, {form}, depth {DEPTH}, {trees} trees"
    result = [row(f"{name}, {'CPU s of one thread' if cpu else 's'}", seconds.pop("ours"), seconds, "≤ 1")]
    for count, score in scores.items():
        own, best = score.pop("ours"), max(score.values())
        asked = "no more than 0.0005 below the better"
        result.append(row(f"{name}: AUC at {count}", own, score, asked, f"difference {own - best:+.4f}"))
        result[-1]["ratio"] = None
    return result


def measure(quick: bool = False) -> list[Row]:
    """All rows of this section."""
    rows, repeats, trees = (5_000, 1, 5) if quick else (1_000_000, 5, TREES)
    return [found for form in FORMS for found in compare(form, rows, repeats, trees)]


def main() -> None:
    from benchmarks.boost import shown

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--form", choices=FORMS, action="append")
    parser.add_argument("--cpu", action="store_true", help="CPU seconds of one thread instead of seconds of two")
    parser.add_argument("--json", action="store_true", help="print one JSON list")
    arguments = parser.parse_args()
    forms, size = arguments.form or FORMS, (arguments.rows, arguments.repeats)
    found = [r for form in forms for r in compare(form, *size, cpu=arguments.cpu)]
    if arguments.json:
        print(stored(found, indent=2, default=float))
        return
    for r in found:
        ratio = "" if r["ratio"] is None else f"ratio {r['ratio']:.2f}"
        digits = "{:.4f}".format if "AUC" in r["name"] else shown
        peers = ", ".join(f"{name} {digits(value)}" for name, value in r["peers"].items())
        print(f"{r['name']}: {digits(r['ours'])} ({peers}) {ratio} {r['note']}")


if __name__ == "__main__":
    main()
