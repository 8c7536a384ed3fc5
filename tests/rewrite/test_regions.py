"""Regions: where graphs are cut, that equal blocks are one region, and that the pieces make the graph again."""

import numpy as np

from benchmarks.rewriting.costs import GPU_LIKE
from burnish.graph.evaluate import evaluate
from burnish.graph.graph import Graph, GraphBuilder
from burnish.rewrite.proofs.verify import read_rules
from burnish.rewrite.search.backtracking import rewrite_graph
from burnish.rewrite.search.convert import read_graph, write_graph
from burnish.rewrite.search.normal import NormalTable
from burnish.rewrite.search.regions import cuts, independent, placed, regions
from burnish.search.budget import Budget
from tests.rewrite.rules import RULES
from tests.rewrite.test_apply import assert_equal


def blocks(count: int) -> Graph:
    """Blocks of ten operators, three products of one tensor in each, with a residual connection inside."""
    b = GraphBuilder()
    random = np.random.default_rng(0)
    x = b.add("relu", b.input("x", (2, 4)))
    for _ in range(count):
        weights = [b.constant((random.integers(-8, 9, (4, 4)) / 8).astype("float32")) for _ in range(3)]
        p, q, r = (b.add("relu", b.add("matmul", x, w)) for w in weights)
        x = b.add("tanh", b.add("add", x, b.add("mul", b.add("mul", p, q), r)))
    return b.build(x)


def test_cuts_are_where_one_tensor_is_all_that_is_needed() -> None:
    graph = blocks(4)
    table = NormalTable()
    reading = read_graph(table, graph)
    found = [table.labels[v].op for v in cuts(table, reading.roots)]
    assert found == ["tanh"] * 4  # behind what is computed with the end of the residual connection


def test_equal_blocks_are_one_region_whatever_their_weights() -> None:
    table = NormalTable()
    found = regions(table, read_graph(table, blocks(5)).roots)
    roots = [r.root for r in found]
    assert len(roots) == 5
    assert len(set(roots[1:])) == 1
    assert len(set(roots)) == 2  # the first has an operator more


def test_regions_make_the_graph_again() -> None:
    graph = blocks(3)
    table = NormalTable()
    reading = read_graph(table, graph)
    moved: dict[int, int] = {}
    for region in regions(table, reading.roots):
        leaves = {leaf: moved.get(value, value) for leaf, value in region.leaves.items()}
        moved[region.end] = placed(table, region.root, leaves)
    roots = [moved[r] for r in reading.roots]
    assert roots == list(reading.roots)
    assert_equal(graph, write_graph(table, reading, roots, graph))


def test_regions_that_share_only_their_borders_are_independent() -> None:
    table = NormalTable()
    roots = read_graph(table, blocks(4)).roots
    assert independent(regions(table, roots))
    assert independent(regions(table, roots, cuts(table, roots)[1::2]))
    b = GraphBuilder()
    x, weight = b.input("x", (2, 4)), b.input("w", (4, 4))
    for _ in range(3):
        for _ in range(5):
            x = b.add("tanh", b.add("matmul", x, weight))
    assert not independent(regions(table, read_graph(table, b.build(x)).roots))


def test_a_rule_is_applied_across_a_cut() -> None:
    """Products of weights, one behind the other: wherever it is cut, no two of them are left."""
    b = GraphBuilder()
    x = b.input("x", (1, 8))
    for _ in range(24):
        x = b.add("matmul", x, b.constant(np.eye(8, dtype=np.float32)))
    graph = b.build(x)
    associative = [r for r in RULES if r.name == "product is associative"]
    found = rewrite_graph(graph, associative, GPU_LIKE, Budget(trials=2000))
    assert [n.op for n in found.graph.nodes] == ["matmul"]
    assert found.stop_reason == "exhausted"


def test_a_rule_is_applied_in_every_block() -> None:
    graph = blocks(4)
    found = rewrite_graph(graph, RULES, GPU_LIKE, Budget(trials=60))
    assert [n.op for n in found.graph.nodes].count("matmul") == 4
    assert abs(found.before - found.after - sum(s.saved for s in found.applied)) < 1e-9
    assert_equal(graph, found.graph)


def test_a_search_is_repeated_by_its_walks() -> None:
    graph = blocks(4)
    found = rewrite_graph(graph, RULES, GPU_LIKE, Budget(trials=60))
    again = rewrite_graph(graph, RULES, GPU_LIKE, Budget(seconds=1e-9), walks=found.walks)
    assert str(again.graph) == str(found.graph)
    assert again.after == found.after < found.before
    assert again.graphs <= found.graphs


def test_weights_that_are_not_folded_are_exact_in_float64() -> None:
    b = GraphBuilder()
    random = np.random.default_rng(0)
    x = b.input("x", (1, 8, 5, 5))
    three, one = (b.constant(random.standard_normal((8, 8, k, k), dtype=np.float32)) for k in (3, 1))
    b.add("add", b.add("conv2d", x, three, pads=(1, 1, 1, 1)), b.add("conv2d", x, one), name="y")
    graph = b.build("y")
    rules = read_rules("substitutions.txt")
    folded, exact = (
        rewrite_graph(graph, rules, GPU_LIKE, Budget(trials=20), fold=fold).graph for fold in (True, False)
    )
    assert [n.op for n in folded.nodes] == ["conv2d"]
    feeds = {"x": random.standard_normal((1, 8, 5, 5), dtype=np.float32)}
    before, after, rounded = (evaluate(g, feeds, "float64")["y"] for g in (graph, exact, folded))
    assert np.abs(after - before).max() < 1e-13 < np.abs(rounded - before).max()
