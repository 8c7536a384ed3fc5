"""Objectives: nonsense is refused by name, weights and the price of a byte lead to other graphs."""

import math
from typing import Any

import numpy as np
import pytest

from burnish.errors import ParameterError
from burnish.graph.graph import Graph, GraphBuilder
from burnish.rewrite.search.backtracking import rewrite_graph
from burnish.rewrite.search.objective import RewriteObjective, objective, operations, stored, total
from burnish.rewrite.search.table import CostedOperator
from burnish.search.budget import Budget
from tests.rewrite.rules import rule

PEAK = 1e9


def launches(operation: CostedOperator) -> float:
    """A millisecond an operator."""
    return 1e-3


def residual() -> Graph:
    """x @ a @ b, whose matrices' product is larger than both: one operator or less arithmetic."""
    b = GraphBuilder()
    inner = b.add("matmul", b.input("x", (8, 100)), b.constant(np.ones((100, 10), np.float32)))
    return b.build(b.add("matmul", inner, b.constant(np.ones((10, 100), np.float32))))


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"time": -1.0}, "time=-1.0"),
        ({"flops": math.nan}, "flops=nan"),
        ({"time": "fast"}, "time='fast'"),
        ({"time": 0.0}, "both weigh 0"),
        ({"memory_limit": 0}, "memory_limit=0"),
        ({"memory_limit": 1.5}, "memory_limit=1.5"),
        ({"memory_limit": True}, "memory_limit=True"),
    ],
)
def test_nonsense_is_refused(given: dict[str, Any], named: str) -> None:
    with pytest.raises(ParameterError, match=named):
        RewriteObjective(**given)


def test_names_are_known() -> None:
    assert objective("time+flops", 1000) == RewriteObjective(1.0, 1.0, 1000)
    with pytest.raises(ParameterError, match=r"'speed' is unknown; known: time, flops, time\+flops"):
        objective("speed")


@pytest.mark.parametrize(
    ("asked", "pressure", "products"),
    [
        (RewriteObjective(), 0.0, 1),
        (RewriteObjective(time=0.0, flops=1.0), 0.0, 2),
        (RewriteObjective(flops=1.0), 0.0, 1),  # a millisecond less, and 0.13 ms of operations more
        (RewriteObjective(flops=100.0), 0.0, 2),
        (RewriteObjective(), 1.0, 2),  # the product of the matrices takes 40 KB, they themselves 8 KB
    ],
)
def test_weights_lead_to_other_graphs(asked: RewriteObjective, pressure: float, products: int) -> None:
    price = asked.cost(launches, PEAK, pressure)
    found = rewrite_graph(residual(), rule("product is associative"), price, Budget(trials=50)).graph
    assert len(found.nodes) == products


def test_operations_and_bytes_are_those_of_the_definitions() -> None:
    graph = residual()
    assert total(graph, operations) == 2 * 2 * 8 * 100 * 10
    assert total(graph, stored) == 4 * (2 * 1000 + 8 * 10 + 8 * 100)


def test_what_is_only_moved_is_no_arithmetic() -> None:
    b = GraphBuilder()
    x = b.input("x", (4, 4))
    graph = b.build(b.add("concat", b.add("transpose", x, perm=(1, 0)), b.add("exp", x), axis=0))
    assert total(graph, operations) == 16
