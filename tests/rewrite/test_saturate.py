"""Saturation finds what the search finds, keeps the values, and never takes values that wait for each other."""

import numpy as np
import pytest

from benchmarks.rewriting.costs import GPU_LIKE
from burnish.graph.graph import Graph, GraphBuilder
from burnish.rewrite.search.backtracking import rewrite_graph
from burnish.rewrite.search.convert import read_graph, write_graph
from burnish.rewrite.search.moves import Moves
from burnish.rewrite.search.normal import NormalTable
from burnish.rewrite.search.saturate import _Classes, saturate
from burnish.rewrite.search.states import start
from burnish.search.budget import Budget
from tests.rewrite.rules import RULES, random_graph
from tests.rewrite.test_apply import assert_equal, begin


@pytest.mark.parametrize("seed", range(4))
def test_it_keeps_values_and_costs_no_more(seed: int) -> None:
    graph = random_graph(np.random.default_rng(seed))
    table, reading, moves, state = begin(graph, RULES)
    best = saturate(table, moves, state, 5.0)
    assert best.cost <= state.cost
    assert start(table, best.outputs()).cost == pytest.approx(best.cost)
    assert_equal(graph, write_graph(table, reading, best.outputs(), graph))


def branches(count: int) -> Graph:
    b = GraphBuilder()
    x = b.input("x", (2, 4))
    random = np.random.default_rng(0)
    weights = [b.constant((random.integers(-8, 9, (4, 3)) / 8).astype("float32")) for _ in range(count)]
    return b.build(*[b.add("matmul", x, w) for w in weights])


def test_it_finds_the_merge_of_all_and_tells_the_rule() -> None:
    table = NormalTable(GPU_LIKE)
    state, moves = start(table, read_graph(table, branches(3)).roots), Moves(table, RULES)
    best = saturate(table, moves, state, 5.0)
    assert best.cost < state.cost
    assert set(best.applied) == {"merge of products"}


def test_the_better_of_both_engines_wins() -> None:
    for seed in range(3):
        graph = random_graph(np.random.default_rng(seed))
        walked = rewrite_graph(graph, RULES, GPU_LIKE, Budget(trials=100))
        both = rewrite_graph(graph, RULES, GPU_LIKE, Budget(trials=100), integer_program=True)
        assert both.after <= walked.after * (1 + 1e-9)
        assert_equal(graph, both.graph)


def test_cycles_are_cut() -> None:
    """f(x) = a and g(y) = b with x equal to b's and y to a's class: the cheap pair is made of one another."""
    table = NormalTable(lambda operation: 1.0 if operation.op in ("sin", "cos") else 10.0)
    b = GraphBuilder()
    graph = b.build(b.add("exp", b.input("x", (2,))), b.add("tanh", b.input("y", (2,))))
    roots = read_graph(table, graph).roots
    first, second = roots
    classes = _Classes(table)
    classes.add(roots)
    around, back = table.make("sin", [second], {}), table.make("cos", [first], {})
    classes.join({first: around, second: back}, (around, back), "r")
    taken = classes.extract(roots, 5.0)
    assert taken is not None
    ops = sorted(table.labels[v].op for v in taken)
    assert ops in (["cos", "exp"], ["sin", "tanh"])
