"""Sums and products of halves: float32 until they are complete, whoever adds them up."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from burnish.graph.graph import GraphBuilder
from burnish.loops.expr import Reduce
from burnish.loops.numeric import numpy_dtype
from burnish.loops.tensor import compute, placeholder, reduce_axis, stages
from burnish.loops.tensor import prod as product_over
from burnish.loops.tensor import sum as sum_over
from burnish.ops import OPERATORS

RANDOM = np.random.default_rng(7)
ROUNDING = {"float16": 2**-11, "bfloat16": 2**-8}  # of one rounding, relative

CASES: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "conv2d": ([(1, 64, 6, 6), (8, 64, 3, 3)], {}),
    "conv2d_transpose": ([(1, 64, 6, 6), (64, 8, 3, 3)], {}),
    "matmul": ([(8, 300), (300, 4)], {}),
    "cumsum": ([(2, 400)], {"axis": 1}),
    "cumprod": ([(2, 60)], {"axis": 1}),
    "reduce_sum": ([(2, 3000)], {"axes": (1,)}),
    "reduce_mean": ([(2, 3000)], {"axes": (1,)}),
    "avg_pool2d": ([(1, 2, 32, 32)], {"kernel": (32, 32)}),
    "scatter_elements": ([(4, 3), RANDOM.integers(0, 4, (400, 3)), (400, 3)], {"reduction": "add"}),
    "scatter_nd": ([(4, 3), RANDOM.integers(0, 4, (400, 1)), (400, 3)], {"reduction": "add"}),
    "segment_reduce": ([(400, 3), np.sort(RANDOM.integers(0, 4, 400))], {"extent": 4}),
    "fold_windows": (
        [(1, 50, 36)],
        {"size": (10, 10), "block": (5, 5), "strides": (1, 1), "pads": (0,) * 4, "dilations": (1, 1)},
    ),
}


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("op", CASES)
def test_many_halves_add_up_with_one_rounding(op: str, dtype: str) -> None:
    from burnish.graph.evaluate import evaluate

    given, attrs = CASES[op]
    g, feeds = GraphBuilder(), {}
    for i, form in enumerate(given):
        array = form if isinstance(form, np.ndarray) else (RANDOM.random(form) * 0.2 + 0.9).astype(numpy_dtype(dtype))
        feeds[g.input(f"x{i}", array.shape, str(array.dtype))] = array
    graph = g.build(*g.add_many(op, *feeds, **attrs))
    (found,) = (v.astype(np.float64) for v in evaluate(graph, feeds).values())
    wide = {n: a.astype(np.float64) if a.dtype.kind not in "iu" else a for n, a in feeds.items()}
    operator = OPERATORS[op]
    if operator.extern is not None:
        expected = operator.extern(*wide.values(), **operator.complete(attrs))
    else:
        (expected,) = evaluate(graph, feeds, "float64").values()
    assert np.abs(found / expected - 1).max() <= 1.1 * ROUNDING[dtype]


@pytest.mark.parametrize("total", [sum_over, product_over])
@pytest.mark.parametrize("dtype", ROUNDING)
def test_no_definition_can_add_up_halves(dtype: str, total: Any) -> None:
    x, k = placeholder((5, 3), dtype, "x"), reduce_axis(3)
    y = compute((5,), lambda i: total(x[i, k.var] * x[i, k.var], k), "y")
    assert (y.name, y.dtype) == ("y", dtype)
    (reducing,) = (t for t in stages([y]) if isinstance(t.body, Reduce))
    assert (reducing.name, reducing.dtype) == ("y.wide", "float32")
    assert "float32(x[" in str(reducing.body) and str(reducing.body).count("float32(") == 2, "exact factors"
