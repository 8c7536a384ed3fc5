"""Layouts in the search: products by rows or columns, conversions that are paid for, and outputs stored by rows."""

import numpy as np
import pytest

from burnish.graph.graph import Graph, GraphBuilder
from burnish.machines.target import target
from burnish.rewrite.proofs.verify import read_rules
from burnish.rewrite.search.backtracking import rewrite_graph
from burnish.rewrite.search.convert import read_graph
from burnish.rewrite.search.cost import TargetCost
from burnish.rewrite.search.measured import operator_key
from burnish.rewrite.search.normal import NormalTable
from burnish.rewrite.search.table import CostedOperator
from burnish.search.budget import Budget
from tests.rewrite.test_apply import assert_equal

RULES = read_rules("substitutions.txt")


def two_products() -> Graph:
    b = GraphBuilder()
    random = np.random.default_rng(0)
    weights = [b.constant((random.integers(-8, 9, s) / 8).astype("float32")) for s in ((4, 6), (6,), (6, 5))]
    hidden = b.add("relu", b.add("add", b.add("matmul", b.input("x", (1, 3, 4)), weights[0]), weights[1]))
    return b.build(b.add("matmul", hidden, weights[2]))


def stored(conversion: float) -> Graph:
    """Two products by weights, rewritten where one by columns takes half as long as one by rows."""

    def cost(operation: CostedOperator) -> float:
        if operation.op == "matmul":
            return 1.0 if operation.fixed[0] else 2.0
        return conversion if operation.op != "swap" and "swap" in operation.makers else 0.0

    graph = two_products()
    found = rewrite_graph(graph, RULES, cost, Budget(trials=200))
    assert found.before == 4.0
    assert_equal(graph, found.graph)
    assert found.after == min(2.0 + conversion, 3.0)
    assert found.before - found.after == pytest.approx(sum(s.saved for s in found.applied))
    return found.graph


def test_products_are_stored_by_columns_where_that_pays_for_conversions() -> None:
    ops = [node.op for node in stored(0.5).nodes]
    assert ops.count("transpose") == 1  # of the output alone: the bias and relu are computed by columns
    ops = [node.op for node in stored(1.5).nodes]
    assert "transpose" not in ops  # the second product reads columns and writes rows


def test_layouts_that_save_nothing_are_no_steps() -> None:
    found = rewrite_graph(two_products(), RULES, lambda operation: float(operation.op == "matmul"), Budget(trials=200))
    assert found.graphs < 5


def test_what_is_no_product_converts_what_is_stored_by_columns() -> None:
    price = TargetCost(target("x86-64-v4"))
    b = GraphBuilder()
    x = b.input("x", (64, 64))
    y = b.add("transpose", b.add("matmul", x, x), perm=(1, 0))
    graph = b.build(b.add("softmax", y, axis=-1), b.add("matmul", y, x), y)
    table = NormalTable(price)
    roots = read_graph(table, graph).roots
    own, product, view = (table.operation(value) for value in roots)
    plain = CostedOperator(own.op, own.attrs, own.inputs, own.outputs, ("matmul",), own.fixed, own.facts)
    assert price(own) > price(plain)
    assert price(view) == 0.0 < table.output_cost(roots[2])
    assert table.output_cost(roots[0]) == table.output_cost(roots[1]) == 0.0
    by_rows = CostedOperator("matmul", product.attrs, product.inputs, product.outputs, ("matmul", "input"),
                             product.fixed, product.facts)  # fmt: skip
    assert operator_key(product) != operator_key(by_rows)
    assert price(product) == pytest.approx(price(by_rows), rel=0.1)
