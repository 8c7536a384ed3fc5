"""Groups divided: into single nodes, and with the views in front of an anchor apart."""

import numpy as np

from burnish.graph import Graph, GraphBuilder
from burnish.graph.fuse import Group, fuse
from burnish.graph.regroup import detached, fall_apart, fronts

RANDOM = np.random.default_rng(2)


def array(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape, dtype=np.float32)


def transposed_product(shared: bool) -> tuple[Graph, Group]:
    """relu(transpose(x) @ transpose(y)) as one group; ``shared``: x is y."""
    g = GraphBuilder()
    x = g.add("transpose", g.input("x", (2, 6, 8)), perm=(0, 2, 1))
    y = x if shared else g.add("transpose", g.input("y", (2, 8, 6)), perm=(0, 2, 1))
    graph = g.build(g.add("relu", g.add("matmul", x, y)))
    (group,) = fuse(graph)
    return graph, group


def test_a_group_falls_apart_into_its_nodes() -> None:
    g = GraphBuilder()
    x = g.add("conv2d", g.input("x", (1, 8, 6, 6)), g.constant(array(8, 8, 3, 3)))
    graph = g.build(g.add("mul", g.add("relu", x), g.constant(np.array([2.0], np.float32))))
    (group,) = fuse(graph)
    assert [str(part) for part in fall_apart(graph, group)] == [
        "conv2d = [conv2d] (x, const)", "relu = relu (conv2d)", "mul = mul (relu)"
    ]  # fmt: skip


def test_the_chains_in_front_of_an_anchor_are_one_for_each_operand_that_a_member_computes() -> None:
    _, group = transposed_product(shared=False)
    assert [[node.outputs[0] for node in chain] for chain in fronts(group)] == [["transpose"], ["transpose.1"]]
    g = GraphBuilder()
    graph = g.build(g.add("relu", g.add("matmul", g.input("x", (6, 8)), g.constant(array(8, 4)))))
    (plain,) = fuse(graph)
    assert fronts(plain) == []


def test_one_chain_or_all_of_them_become_groups_of_their_own() -> None:
    graph, group = transposed_product(shared=False)
    first, second = fronts(group)
    assert [str(part) for part in detached(graph, group, [second])] == [
        "transpose.1 = transpose (y)", "relu = transpose [matmul] relu (x, transpose.1)",
    ]  # fmt: skip
    assert [str(part) for part in detached(graph, group, [first, second])] == [
        "transpose = transpose (x)", "transpose.1 = transpose (y)", "relu = [matmul] relu (transpose, transpose.1)",
    ]  # fmt: skip
