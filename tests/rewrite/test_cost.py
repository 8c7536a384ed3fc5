"""Costs: what is free, what is paid for, and that merging saves what is read twice."""

import numpy as np

from benchmarks.rewriting.costs import GPU_LIKE, RooflineCost
from burnish.graph.graph import GraphBuilder
from burnish.machines.target import target
from burnish.rewrite.search.convert import read_graph
from burnish.rewrite.search.cost import FUSED, TargetCost, arithmetic
from burnish.rewrite.search.normal import NormalTable
from burnish.rewrite.search.table import Cost

LAUNCHES = RooflineCost(1e30, 1e30, 1.0)
TARGET = TargetCost(target("x86-64-v4"))


def costs(cost: Cost, b: GraphBuilder, *outputs: str) -> dict[str, float]:
    """Operator -> its cost, of a graph with one of each."""
    table = NormalTable(cost)
    roots = read_graph(table, b.build(*outputs)).roots
    return {table.labels[v].op: table.cost(v) for v in table.reachable(roots)}


def image(b: GraphBuilder) -> str:
    weight = b.input("w", (32, 16, 3, 3))
    return b.add("conv2d", b.input("x", (1, 16, 8, 8)), weight, pads=(1, 1, 1, 1))


def test_launches_are_counted_and_views_are_free() -> None:
    b = GraphBuilder()
    y = b.add("relu", image(b))
    found = costs(LAUNCHES, b, b.add("exp", b.add("reshape", y, shape=(32, 64))))
    assert found == {"input": 0, "conv2d": 1, "relu": 0, "reshape": 0, "exp": 1}


def test_weights_that_are_moved_cost_nothing() -> None:
    b = GraphBuilder()
    a, c = (b.constant(np.ones((4, 3), np.float32)) for _ in range(2))
    found = costs(LAUNCHES, b, b.add("matmul", b.input("x", (2, 4)), b.add("concat", a, c, axis=1)))
    assert (found["concat"], found["matmul"]) == (0, 1)


def test_multiplications_and_additions_are_two_operations() -> None:
    b = GraphBuilder()
    image(b)
    table = NormalTable()
    (root,) = read_graph(table, b.build("conv2d")).roots
    assert arithmetic(table.operation(root)) == 2 * 32 * 64 * 16 * 9
    assert GPU_LIKE(table.operation(root)) == 8e-6 + 2 * 32 * 64 * 16 * 9 / 5e12


def test_fused_operators_and_joins_in_place_are_nearly_free_on_a_target() -> None:
    b = GraphBuilder()
    y = b.add("sigmoid", image(b))
    found = costs(TARGET, b, b.add("concat", y, y, axis=1))
    assert found["concat"] == 0 < found["sigmoid"] == FUSED < 0.05 * found["conv2d"]
    b = GraphBuilder()
    x = b.input("x", (1, 4, 8, 8))
    found = costs(TARGET, b, b.add("concat", b.add("sigmoid", x), x, axis=1))
    assert found["sigmoid"] > 0 and found["concat"] > 0  # an input is not computed: there is nothing to be fused with


def test_groups_that_fill_no_vector_are_dearer_than_twice_as_large_ones_that_do() -> None:
    def seconds(channels: int, size: int, groups: int) -> float:
        b = GraphBuilder()
        weight = b.constant(np.broadcast_to(np.float32(0), (channels, channels // groups, 3, 3)))
        image = b.input("x", (1, channels, size, size))
        return costs(TARGET, b, b.add("conv2d", image, weight, pads=(1, 1, 1, 1), groups=groups))["conv2d"]

    assert seconds(256, 28, 16) < seconds(256, 28, 32)  # 16 channels a group, and 8
    for channels, size in ((128, 56), (512, 14), (1024, 7)):  # 4 a group, whose doubles fill none; whole vectors
        assert seconds(channels, size, 32) < seconds(channels, size, 16)
