"""Measured costs: what was measured is taken, a kernel's time shared, and estimates of the like are scaled."""

import numpy as np
import pytest

from burnish.graph.graph import Graph, GraphBuilder
from burnish.machines.target import target
from burnish.rewrite.search.backtracking import rewrite_graph
from burnish.rewrite.search.convert import read_graph
from burnish.rewrite.search.cost import FUSED, TargetCost
from burnish.rewrite.search.measured import MeasuredCost
from burnish.rewrite.search.normal import NormalTable
from burnish.rewrite.search.table import CostedOperator
from burnish.search.budget import Budget
from tests.rewrite.rules import rule

ESTIMATE = TargetCost(target("x86-64-v4"))


def products(*columns: int, rows: int = 64) -> Graph:
    """Products of one input by matrices with so many columns, each behind ReLU."""
    b = GraphBuilder()
    x = b.input("x", (rows, 256))
    return b.build(*[b.add("relu", b.add("matmul", x, b.constant(np.ones((256, n), np.float32)))) for n in columns])


def operators(graph: Graph) -> dict[str, CostedOperator]:
    """Tensor -> the operator that makes it."""
    table = NormalTable()
    reading = read_graph(table, graph)
    return {name: table.operation(value) for value, name in reading.names.items() if table.args[value]}


def test_nothing_measured_is_as_estimated() -> None:
    cost = MeasuredCost(ESTIMATE)
    assert all(cost(each) == ESTIMATE(each) for each in operators(products(64, 128)).values())


def test_a_kernel_is_shared_among_its_operators() -> None:
    graph = products(64)
    cost, found = MeasuredCost(ESTIMATE), operators(graph)
    cost = cost.learned(graph, [(("matmul", "relu"), 1e-3), (("of another graph",), 1.0)])
    assert cost(found["matmul"]) + cost(found["relu"]) == pytest.approx(1e-3)
    assert cost(found["relu"]) == pytest.approx(FUSED * 1e-3 / (ESTIMATE(found["matmul"]) + FUSED))


def test_of_equal_operators_the_mean_counts_and_the_last_measurement() -> None:
    graph = products(64, 64)
    cost, found = MeasuredCost(ESTIMATE), operators(graph)
    cost = cost.learned(graph, [(("matmul",), 1e-3), (("matmul.2",), 3e-3)])
    assert cost(found["matmul"]) == cost(found["matmul.2"]) == pytest.approx(2e-3)
    cost = cost.learned(graph, [(("matmul",), 5e-3)])
    assert cost(found["matmul"]) == 5e-3


def test_an_estimate_is_scaled_as_those_of_its_like() -> None:
    """By the factor of the nearest in size first; another sort of kernel by the mean of all."""
    small, large = products(16), products(1024, rows=1024)
    cost = MeasuredCost(ESTIMATE)
    for graph, wrong in ((small, 2.0), (large, 8.0)):
        cost = cost.learned(graph, [(("matmul",), wrong * ESTIMATE(operators(graph)["matmul"]))])
    near, far = operators(products(32))["matmul"], operators(products(1000, rows=1000))["matmul"]
    assert 2.0 < cost.factor(near) < 2.2 and 7.6 < cost.factor(far) < 8.0
    assert cost(near) == pytest.approx(ESTIMATE(near) * cost.factor(near))
    b = GraphBuilder()
    pool = operators(b.build(b.add("max_pool2d", b.input("x", (1, 16, 8, 8)), kernel=(2, 2))))["max_pool2d"]
    assert cost.factor(pool) == pytest.approx(4.0)


def test_what_needs_no_kernel_costs_nothing() -> None:
    b = GraphBuilder()
    graph = b.build(b.add("concat", b.input("x", (1, 3)), b.input("y", (1, 3)), axis=0))
    join = operators(graph)["concat"]
    cost = MeasuredCost(ESTIMATE)
    assert cost(join) > 0
    cost = cost.learned(graph, [(("concat",), 0.0)])
    assert cost(join) == 0


@pytest.mark.parametrize(("seconds", "merged"), [(1e-6, True), (1.0, False)])
def test_the_search_follows_what_was_measured(seconds: float, merged: bool) -> None:
    """The product of both matrices was measured: two products stay where that took longer than both of them."""
    graph = products(64, 64)
    cost = MeasuredCost(ESTIMATE)
    cost = cost.learned(graph, [(("matmul",), 1e-3), (("matmul.2",), 1e-3)])
    cost = cost.learned(products(128), [(("matmul",), seconds)])
    found = rewrite_graph(graph, rule("merge of products"), cost, Budget(trials=100)).graph
    assert [n.op for n in found.nodes].count("matmul") == (1 if merged else 2)
