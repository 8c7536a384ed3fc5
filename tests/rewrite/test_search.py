"""The search finds cheaper equal graphs: over plateaus, for repeated blocks at once, the same every time."""

import numpy as np
import pytest

from benchmarks.rewriting.costs import CPU_LIKE, GPU_LIKE
from burnish.graph.graph import Graph, GraphBuilder
from burnish.rewrite.proofs.verify import read_rules
from burnish.rewrite.search import view
from burnish.rewrite.search.backtracking import rewrite_graph
from burnish.rewrite.search.table import CostedOperator
from burnish.search.budget import Budget
from tests.rewrite.rules import RULES, random_graph, rule
from tests.rewrite.test_apply import assert_equal

TRIALS = Budget(trials=200)


def products(blocks: int) -> Graph:
    """(x @ a) @ b with one row of x: cheaper as it is; x @ (a @ b), of weights, cheaper still."""
    b = GraphBuilder()
    random = np.random.default_rng(0)
    x = b.input("x", (1, 8))
    for _ in range(blocks):
        a, c = (b.constant((random.integers(-8, 9, (8, 8)) / 8).astype("float32")) for _ in range(2))
        x = b.add("relu", b.add("matmul", b.add("matmul", x, a), c))
    return b.build(x)


def test_products_of_weights_are_computed_before() -> None:
    graph = products(3)
    found = rewrite_graph(graph, rule("product is associative"), GPU_LIKE, TRIALS)
    assert [n.op for n in found.graph.nodes] == ["matmul", "relu"] * 3
    assert sum(s.times for s in found.applied) == 3
    assert len(found.applied) == 2  # the first block reads an input, the others look alike
    assert found.before - found.after == pytest.approx(sum(s.saved for s in found.applied))
    assert found.before - found.after > 23e-6
    assert_equal(graph, found.graph)


def test_a_graph_that_nothing_matches_stays_as_it_is() -> None:
    b = GraphBuilder()
    graph = b.build(b.add("relu", b.input("x", (2, 3))))
    found = rewrite_graph(graph, RULES, GPU_LIKE, TRIALS)
    assert found.graph is graph
    assert found.applied == ()
    assert (found.graphs, found.stop_reason) == (1, "exhausted")


def test_a_rule_that_does_not_pay_is_not_applied() -> None:
    b = GraphBuilder()
    column = b.add("matmul", b.input("b", (64, 64)), b.input("c", (64, 1)))
    graph = b.build(b.add("matmul", b.input("a", (64, 64)), column))
    back = rewrite_graph(graph, rule("product is associative"), CPU_LIKE, TRIALS)
    assert back.graph is graph


def test_enlarged_kernels_merge_and_the_join_disappears() -> None:
    random = np.random.default_rng(0)
    b = GraphBuilder()
    x = b.input("x", (1, 3, 6, 6))
    branches = []
    for k in (1, 3):
        weight = b.constant((random.integers(-8, 9, (4, 3, k, k)) / 8).astype("float32"))
        branches.append(b.add("relu", b.add("conv2d", x, weight, pads=(k // 2,) * 4)))
    graph = b.build(b.add("concat", *branches, axis=1))
    found = rewrite_graph(graph, RULES, GPU_LIKE, TRIALS)
    assert [n.op for n in found.graph.nodes] == ["conv2d", "relu"]
    assert_equal(graph, found.graph)


@pytest.mark.parametrize(("dear", "groups", "count"), [("groups", [2], 1), ("outputs", [4, 4], 2)])
def test_groups_of_a_convolution_are_merged_or_split_as_costs_ask(dear: str, groups: list[int], count: int) -> None:
    random = np.random.default_rng(0)
    b = GraphBuilder()
    weight = b.constant((random.integers(-8, 9, (16, 2, 3, 3)) / 8).astype("float32"))
    graph = b.build(b.add("relu", b.add("conv2d", b.input("x", (1, 16, 5, 5)), weight, pads=(1, 1, 1, 1), groups=8)))

    def cost(operation: CostedOperator) -> float:
        if operation.op != "conv2d":
            return 0.0
        own = int(operation.attrs["groups"])  # type: ignore[arg-type]
        return 1 + abs(own - 2) if dear == "groups" else float(operation.outputs[0].shape[1] > 8)

    found = rewrite_graph(graph, read_rules("substitutions.txt"), cost, TRIALS)
    convolutions = [node for node in found.graph.nodes if node.op == "conv2d"]
    assert len(convolutions) == count
    assert [node.attrs["groups"] for node in convolutions] == groups
    assert_equal(graph, found.graph)


def test_gates_that_neighbours_read_become_one_and_share_a_join() -> None:
    b = GraphBuilder()
    gates, other = b.add("sigmoid", b.input("x", (1, 16))), b.add("tanh", b.input("h", (1, 8)))
    first, second, third, fourth = (b.add("slice", gates, starts=(0, i), extents=(1, 4)) for i in (0, 4, 8, 12))
    low, high = (b.add("slice", other, starts=(0, i), extents=(1, 4)) for i in (0, 4))
    y, z = b.input("y", (1, 4)), b.input("z", (1, 4))
    sums = [b.add("add", first, low), b.add("add", second, y)]
    graph = b.build(*sums, b.add("mul", third, high), b.add("mul", fourth, z))
    rules = [r for r in read_rules("substitutions.txt") if "part" in r.name and r.name.endswith("merged")]
    found = rewrite_graph(graph, rules, GPU_LIKE, TRIALS)
    names = [n.op for n in found.graph.nodes if n.op != "slice"]
    assert sorted(names) == ["add", "concat", "mul", "sigmoid", "tanh"]
    assert_equal(graph, found.graph)


def test_products_are_merged_in_the_order_in_which_they_are_read_alike() -> None:
    b = GraphBuilder()
    random = np.random.default_rng(0)
    x = b.input("x", (1, 4))
    gates = [
        b.add(op, b.add("matmul", x, b.constant((random.integers(-8, 9, (4, 4)) / 8).astype("float32"))))
        for op in ("tanh", "relu", "tanh", "relu")
    ]
    graph = b.build(*[b.add("neg", g) for g in gates])
    found = rewrite_graph(graph, rule("merge of products"), GPU_LIKE, TRIALS)
    starts = {n.outputs[0]: n.attrs["starts"][1] for n in found.graph.nodes if n.op == "slice"}
    (low, high), (least, most) = (sorted(starts[o] for o in graph.outputs[i::2]) for i in (0, 1))
    assert (high - low, most - least) == (4, 4)
    assert_equal(graph, found.graph)


def test_equal_searches_find_equal_graphs() -> None:
    for seed in range(3):
        graph = random_graph(np.random.default_rng(seed), 20)
        first, second = (rewrite_graph(graph, RULES, GPU_LIKE, TRIALS) for _ in range(2))
        assert str(first.graph) == str(second.graph)
        assert (first.graphs, first.applied) == (second.graphs, second.applied)
        assert first.after <= first.before
        assert_equal(graph, first.graph)


def test_graphs_that_were_out_of_use_are_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(3):
        graph = random_graph(np.random.default_rng(seed), 20)
        kept = rewrite_graph(graph, RULES, GPU_LIKE, TRIALS)
        monkeypatch.setattr(view, "RECENT", 1)
        again = rewrite_graph(graph, RULES, GPU_LIKE, TRIALS)
        monkeypatch.undo()
        assert (again.graphs, again.applied, str(again.graph)) == (kept.graphs, kept.applied, str(kept.graph))


def test_heads_of_merged_projections_are_parts_of_one_transpose() -> None:
    b = GraphBuilder()
    x = b.add("relu", b.input("x", (1, 8, 96)))
    heads = []
    for start, perm in ((0, (0, 2, 1, 3)), (32, (0, 2, 3, 1)), (64, (0, 2, 1, 3))):
        part = b.add("slice", x, starts=(0, 0, start), extents=(1, 8, 32))
        heads.append(b.add("transpose", b.add("reshape", part, shape=(1, 8, 4, 8)), perm=perm))
    query, key, value = heads
    graph = b.build(b.add("matmul", b.add("softmax", b.add("matmul", query, key)), value))
    rules = [rule for rule in read_rules("substitutions.txt") if "heads" in rule.name]
    found = rewrite_graph(graph, rules, GPU_LIKE, Budget(trials=30), slack=2.0)
    assert [n.op for n in found.graph.nodes].count("transpose") == 1
    assert_equal(graph, found.graph)


def test_halves_of_an_image_without_its_odd_pixels_and_without_its_even_ones_are_one_convolution() -> None:
    random = np.random.default_rng(0)
    b = GraphBuilder()
    x = b.input("x", (1, 3, 7, 9))
    shifted = b.add("pad", x, pads=(0, 0, 0, 0, 0, 0, 1, 1))
    for axis in (2, 3):
        starts = tuple(int(d == axis) for d in range(4))
        extents = tuple(e - s for e, s in zip(b.types[shifted].shape, starts, strict=True))
        shifted = b.add("slice", shifted, starts=starts, extents=extents)
    weights = [b.constant((random.integers(-8, 9, (4, 3, 1, 1)) / 8).astype("float32")) for _ in range(2)]
    halves = [b.add("conv2d", image, w, strides=(2, 2)) for image, w in zip((x, shifted), weights, strict=True)]
    graph = b.build(b.add("concat", *halves, axis=1))
    rules = [r for r in read_rules("substitutions.txt") if r.name.endswith("of one image and of its shift")]
    found = rewrite_graph(graph, rules, GPU_LIKE, TRIALS)
    (node,) = found.graph.nodes
    assert (node.op, node.attrs["pads"]) == ("conv2d", (0, 0, 1, 1))
    assert_equal(graph, found.graph)


def test_a_shortcut_with_bias_joins_the_convolution_that_it_is_added_to() -> None:
    random = np.random.default_rng(0)
    b = GraphBuilder()
    branches = []
    for name, channels in (("x", 3), ("y", 5)):
        weight, bias = ((random.integers(-8, 9, s) / 8).astype("float32") for s in ((4, channels, 1, 1), (4, 1, 1)))
        product = b.add("conv2d", b.add("relu", b.input(name, (1, channels, 6, 6))), b.constant(weight))
        branches.append(b.add("add", product, b.constant(bias)))
    graph = b.build(b.add("add", *branches))
    rules = [r for r in read_rules("substitutions.txt") if r.name == "sum of convolutions with bias as one"]
    found = rewrite_graph(graph, rules, GPU_LIKE, TRIALS)
    assert [n.op for n in found.graph.nodes] == ["relu", "relu", "concat", "conv2d", "add"]
    assert_equal(graph, found.graph)
