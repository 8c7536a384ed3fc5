"""Every application of a rule keeps the graph's values, names and types; one that would make a cycle is refused."""

import numpy as np
import pytest

from burnish.graph.evaluate import evaluate
from burnish.graph.graph import Graph, GraphBuilder
from burnish.graph.verify import verify
from burnish.rewrite.apply import CycleError, Replacement, State, consumers, start
from burnish.rewrite.convert import Reading, read_graph, write_graph
from burnish.rewrite.moves import Moves
from burnish.rewrite.normal import NormalTable
from burnish.rewrite.table import Operation
from tests.rewrite.rules import RULES, random_graph, rule


def cost(operation: Operation) -> float:
    """Something that differs between operators and sizes."""
    return len(operation.op) + sum(t.size for t in operation.outputs)


def begin(graph: Graph, rules: list) -> tuple[NormalTable, Reading, Moves, State]:
    table = NormalTable(cost)
    reading = read_graph(table, graph)
    return table, reading, Moves(table, rules), start(table, reading.roots)


def feeds(graph: Graph) -> dict[str, np.ndarray]:
    random = np.random.default_rng(7)
    return {n: random.standard_normal(graph.types[n].shape).astype(graph.types[n].dtype) for n in graph.inputs}


def assert_equal(graph: Graph, other: Graph) -> None:
    """The same signature, and the same values in float64."""
    verify(other)
    assert other.outputs == graph.outputs and other.inputs == graph.inputs
    assert [other.types[n] for n in other.outputs] == [graph.types[n] for n in graph.outputs]
    values, others = (evaluate(g, feeds(graph), "float64") for g in (graph, other))
    for name in graph.outputs:
        np.testing.assert_allclose(others[name], values[name], rtol=0, atol=1e-10 * np.abs(values[name]).max())


@pytest.mark.parametrize("seed", range(12))
def test_every_step_keeps_values_and_counts(seed: int) -> None:
    graph = random_graph(np.random.default_rng(seed))
    table, reading, moves, state = begin(graph, RULES)
    assert_equal(graph, write_graph(table, reading, state.roots, graph))
    used = set()
    for _ in range(4):
        children = []
        for replacement, applied in moves.replacements(state):
            child = replacement.state_after(applied)
            again = start(table, child.roots)
            assert child.uses == again.uses
            assert child.cost == pytest.approx(again.cost)
            assert_equal(graph, write_graph(table, reading, child.roots, graph))
            used.update(applied)
            children.append(child)
        if not children:
            break
        state = children[seed % len(children)]
    if seed == 0:
        assert used


def test_the_random_graphs_meet_every_rule() -> None:
    met: set[str] = set()
    for seed in range(60):
        _, _, moves, state = begin(random_graph(np.random.default_rng(seed), 16), RULES)
        for _, applied in moves.replacements(state):
            met.update(applied)
    assert met == {r.name for r in RULES} - {"swap of a product"}  # random graphs transpose weights alone


def relu_between() -> Graph:
    """A @ relu(A @ B), figure 2.6 of the thesis: merging both products would make a cycle."""
    b = GraphBuilder()
    a = b.input("a", (4, 4))
    inner = b.add("relu", b.add("matmul", a, b.input("b", (4, 4))))
    return b.build(b.add("matmul", a, inner))


def test_a_merge_of_what_depends_on_each_other_is_refused() -> None:
    _, _, moves, state = begin(relu_between(), rule("merge of products"))
    assert list(moves.replacements(state)) == []


def test_a_replacement_that_contains_what_it_replaces_is_a_cycle() -> None:
    graph = relu_between()
    table, _, _, state = begin(graph, [])
    first = next(v for v in state.uses if table.labels[v].op == "matmul")
    around = table.make("relu", [table.make("neg", [first], {})], {})
    with pytest.raises(CycleError, match="depends on its own replacement"):
        Replacement(table, state, consumers(table, state), {first: around})


def test_two_replacements_that_wait_for_each_other_are_a_cycle() -> None:
    b = GraphBuilder()
    x = b.input("x", (4, 4))
    graph = b.build(b.add("exp", b.add("neg", x)), b.add("sin", b.add("cos", x)))
    table, _, _, state = begin(graph, [])
    value = {table.labels[v].op: v for v in state.uses}
    crossed = (("neg", "tanh", "sin"), ("cos", "abs", "exp"))
    replaced = {value[old]: table.make(op, [value[of]], {}) for old, op, of in crossed}
    with pytest.raises(CycleError):
        Replacement(table, state, consumers(table, state), replaced)


def test_many_products_merge_in_one_step() -> None:
    b = GraphBuilder()
    x = b.input("x", (2, 4))
    random = np.random.default_rng(0)
    widths = (3, 5, 2, 4, 6)
    weights = [b.constant((random.integers(-8, 9, (4, n)) / 8).astype("float32")) for n in widths]
    graph = b.build(*[b.add("matmul", x, w) for w in weights])
    table, reading, moves, state = begin(graph, rule("merge of products"))
    (after,) = [r for r, _ in moves.replacements(state)]
    merged = write_graph(table, reading, after.roots, graph)
    assert [n.op for n in merged.nodes].count("matmul") == 1
    assert_equal(graph, merged)


def test_places_that_look_alike_are_taken_together() -> None:
    b = GraphBuilder()
    graph = b.build(*[
        b.add("matmul", b.add("matmul", b.input(f"x{i}", (1, 8)), b.input(f"a{i}", (8, 8))), b.input(f"b{i}", (8, 8)))
        for i in range(3)
    ])  # fmt: skip
    table, reading, moves, state = begin(graph, rule("product is associative"))
    ((after, applied),) = moves.replacements(state)
    assert applied == ("product is associative",) * 3
    assert_equal(graph, write_graph(table, reading, after.roots, graph))
