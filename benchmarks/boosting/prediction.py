"""Prediction with the same trees on all sides: compiled to machine code, by the numba kernels, and in XGBoost."""

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import burnish
from benchmarks.boosting.datasets import higgs_like, wide
from benchmarks.boosting.report import Row, row
from burnish.base.optional import require
from burnish.boost.ensemble import Ensemble
from burnish.boost.formats.xgboost_format import loads_xgboost
from burnish.runtime.threads import Workers

THREADS = 2


def measure(quick: bool = False) -> list[Row]:
    """Rows of the table; `quick` takes fewer rows and trees."""
    rows, trees = (20_000, 100) if quick else (100_000, 500)
    return [*_many_trees(rows, trees), _as_the_tuner(rows, 50)]


def _many_trees(rows: int, trees: int) -> list[Row]:
    x = higgs_like(rows).features
    booster, model = _trained(higgs_like(20_000), trees)
    workers = Workers(THREADS)
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as cache:
        module = burnish.compile(model, threads=THREADS, cache_dir=cache, output="margin")
        compiled_in = time.perf_counter() - start
        module.save(Path(cache) / "trees.bn")
        start = time.perf_counter()
        burnish.load(Path(cache) / "trees.bn", threads=THREADS)
        loaded_in = time.perf_counter() - start
    expected = booster.inplace_predict(x, predict_type="margin")
    compiled = module(x)
    same = np.array_equal(compiled, model.predict_margin(x, workers)[0])
    difference = float(np.abs(compiled - expected).max())
    ours, numba, theirs = _alternately(
        lambda: module(x), lambda: model.predict_margin(x, workers), lambda: booster.inplace_predict(x)
    )
    single = x[:1]
    native = min(module.profile(single, repeat=200)[0].microseconds for _ in range(5))
    called, one = _alternately(lambda: module(single), lambda: booster.inplace_predict(single), repeat=200)
    name = f"{rows // 1000}K × 28, {trees} trees of depth 6"
    note = f"compiled and numba margins {'identical' if same else 'DIFFERENT'}; from XGBoost's at most {difference:.1e}"
    return [
        row(f"compiled: {name}, ms", ours * 1e3, {"xgboost": theirs * 1e3}, "≤ 0.25", note),
        row(f"numba: {name}, ms", numba * 1e3, {"xgboost": theirs * 1e3}, "", "no compilation"),
        row(
            f"compiled: one row, {trees} trees of depth 6, µs", native, {"xgboost": one * 1e6}, "≤ 5 µs",
            f"from machine code; {called * 1e6:.1f} µs from Python",
        ),
        row(f"compiling {trees} trees, s", compiled_in, {}, "", f"loading the artifact {loaded_in * 1e3:.1f} ms"),
    ]  # fmt: skip


def _as_the_tuner(rows: int, trees: int) -> Row:
    """The cost model's candidates: a new model of few trees on many features."""
    booster, model = _trained(wide(20_000, 160), trees)
    x = wide(rows, 160).features
    workers = Workers(THREADS)
    ours, theirs = _alternately(lambda: model.predict_margin(x, workers), lambda: booster.inplace_predict(x))
    name = f"numba: {rows // 1000}K × 160, {trees} trees of depth 6, ms"
    return row(name, ours * 1e3, {"xgboost": theirs * 1e3}, "≤ 20 ms", "")


def _trained(table: Any, trees: int) -> tuple[Any, Ensemble]:
    """A model of XGBoost, and the same here. Its nodes may hold single rows, so that nearly all trees are full."""
    xgboost = require("xgboost", "bench")
    params = {"max_depth": 6, "min_child_weight": 0.0, "eta": 0.1, "nthread": THREADS, "objective": "reg:squarederror"}
    booster = xgboost.train(params, xgboost.DMatrix(table.features, table.label), trees)
    return booster, loads_xgboost(bytes(booster.save_raw("json")))


def _alternately(*functions: Callable[[], object], repeat: int = 9) -> list[float]:
    """Median seconds of each, called in turn; the first round does not count."""
    times: list[list[float]] = [[] for _ in functions]
    for _ in range(repeat + 1):
        for function, spent in zip(functions, times, strict=True):
            start = time.perf_counter()
            function()
            spent.append(time.perf_counter() - start)
    return [statistics.median(spent[1:]) for spent in times]
