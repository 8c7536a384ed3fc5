"""Every application of a rule keeps the graph's values, names and types; one that would make a cycle is refused."""

import numpy as np
import pytest

from benchmarks.rewriting.costs import GPU_LIKE
from benchmarks.rewriting.networks import nasnet, nasrnn
from burnish.driver.rewritten import shipped_rules
from burnish.graph.evaluate import evaluate
from burnish.graph.graph import Graph, GraphBuilder
from burnish.graph.verify import verify
from burnish.rewrite.search.apply import replace
from burnish.rewrite.search.convert import Reading, read_graph, write_graph
from burnish.rewrite.search.moves import Moves
from burnish.rewrite.search.normal import NormalTable
from burnish.rewrite.search.states import CycleError, SearchState, order_of, start
from burnish.rewrite.search.table import CostedOperator
from burnish.rewrite.search.view import ROOT, Wiring
from tests.rewrite.rules import RULES, random_graph, rule


def cost(operation: CostedOperator) -> float:
    """Something that differs between operators and sizes."""
    return len(operation.op) + sum(t.size for t in operation.outputs)


def begin(graph: Graph, rules: list) -> tuple[NormalTable, Reading, Moves, SearchState]:
    table = NormalTable(cost)
    reading = read_graph(table, graph)
    return table, reading, Moves(table, rules), start(table, reading.roots)


def children(moves: Moves, state: SearchState) -> list[SearchState]:
    """The states that one step leads to."""
    return [state.after(change, applied) for change, applied in moves.changes(state)]


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


def entries(wiring: Wiring) -> tuple[dict[int, int], dict[int, set[int]]]:
    return wiring.chosen, {name: set(readers) for name, readers in wiring.readers.items()}


def from_nothing(state: SearchState) -> tuple[dict[int, int], dict[int, set[int]], float]:
    """What a state's wiring and cost should be, from its outputs and its chosen values alone."""
    table, chosen = state.walk.table, state.wiring().chosen
    live: dict[int, int] = {}
    readers: dict[int, set[int]] = {}
    stack = [(root, ROOT) for root in state.roots]
    while stack:
        name, reader = stack.pop()
        if table.fixed[name]:
            continue
        readers.setdefault(name, set()).add(reader)
        if name not in live:
            live[name] = chosen[name]
            stack.extend((a, name) for a in table.args[chosen[name]])
    return live, readers, start(table, state.outputs()).cost


@pytest.mark.parametrize("seed", range(12))
def test_every_step_keeps_values_and_counts(seed: int) -> None:
    graph = random_graph(np.random.default_rng(seed))
    table, reading, moves, state = begin(graph, RULES)
    assert_equal(graph, write_graph(table, reading, state.outputs(), graph))
    used = set()
    for _ in range(4):
        after = children(moves, state)
        for child in after:
            live, readers, seconds = from_nothing(child)
            assert entries(child.wiring()) == (live, readers)
            assert child.cost == pytest.approx(seconds)
            assert_equal(graph, write_graph(table, reading, child.outputs(), graph))
            used.update(child.applied)
        if not after:
            break
        state = after[seed % len(after)]
    if seed == 0:
        assert used


@pytest.mark.parametrize("seed", range(6))
def test_what_is_recalled_is_what_would_be_found_anew(seed: int) -> None:
    """States met in one walk, and the same graphs as first states of walks of their own, have equal steps."""
    table, _, moves, state = begin(random_graph(np.random.default_rng(seed), 16), RULES)
    for _ in range(4):
        after = children(moves, state)
        own = start(table, state.outputs())
        again = children(Moves(table, RULES), own)
        assert sorted(c.applied for c in after) == sorted(c.applied for c in again)
        assert {c.outputs() for c in after} == {c.outputs() for c in again}
        if not after:
            break
        state = after[-1]


def test_equal_graphs_have_equal_keys_and_others_others() -> None:
    """Two steps lead to one graph in either order; keys are equal where graphs are, and only there."""
    for seed in range(6):
        _, _, moves, state = begin(random_graph(np.random.default_rng(seed), 16), RULES)
        graphs: dict[int, tuple[int, ...]] = {}
        met = 0
        for child in children(moves, state):
            for other in children(moves, child):
                outputs = other.outputs()
                assert graphs.setdefault(other.key, outputs) == outputs
                met += 1
        assert len(set(graphs.values())) == len(graphs)
        assert met > len(graphs) or met < 2


@pytest.mark.parametrize("network", [nasrnn(steps=2, width=8), nasnet(cells=1)], ids=["nasrnn", "nasnet"])
def test_states_of_networks_are_what_they_would_be_made_from_nothing(network: Graph) -> None:
    """Wirings, costs, orders and keys, with all shipped rules."""
    table = NormalTable(GPU_LIKE)
    state, moves = start(table, read_graph(table, network).roots), Moves(table, shipped_rules())
    keys: dict[int, tuple[int, ...]] = {}
    for turn in range(6):
        after = children(moves, state)
        for child in after:
            live, readers, seconds = from_nothing(child)
            wiring = child.wiring()
            assert entries(wiring) == (live, readers)
            assert child.cost == pytest.approx(seconds)
            assert keys.setdefault(child.key, child.outputs()) == child.outputs()
            order = order_of(table, wiring)
            assert all(order[a] < order[n] for n, v in live.items() for a in table.args[v] if a in live)
        state = after[7 * turn % len(after)]
    assert len(set(keys.values())) == len(keys) > 20


def test_the_random_graphs_meet_every_rule() -> None:
    met: set[str] = set()
    for seed in range(60):
        _, _, moves, state = begin(random_graph(np.random.default_rng(seed), 16), RULES)
        for child in children(moves, state):
            met.update(child.applied)
    assert met == {r.name for r in RULES} - {"swap of a product"}  # random graphs transpose weights alone


def relu_between() -> Graph:
    """A @ relu(A @ B), figure 2.6 of the thesis: merging both products would make a cycle."""
    b = GraphBuilder()
    a = b.input("a", (4, 4))
    inner = b.add("relu", b.add("matmul", a, b.input("b", (4, 4))))
    return b.build(b.add("matmul", a, inner))


def test_a_merge_of_what_depends_on_each_other_is_refused() -> None:
    _, _, moves, state = begin(relu_between(), rule("merge of products"))
    assert children(moves, state) == []


def test_a_replacement_that_contains_what_it_replaces_is_a_cycle() -> None:
    graph = relu_between()
    table, _, _, state = begin(graph, [])
    wiring = state.wiring()
    first = next(v for v in wiring.chosen if table.labels[v].op == "matmul")
    around = table.make("relu", [table.make("neg", [first], {})], {})
    made = {table.args[around][0]: table.args[around][0]}
    with pytest.raises(CycleError, match="depends on its own replacement"):
        replace(state, wiring, {first: around}, made)


def test_two_replacements_that_wait_for_each_other_are_a_cycle() -> None:
    b = GraphBuilder()
    x = b.input("x", (4, 4))
    graph = b.build(b.add("exp", b.add("neg", x)), b.add("sin", b.add("cos", x)))
    table, _, _, state = begin(graph, [])
    value = {table.labels[v].op: v for v in state.wiring().chosen}
    crossed = (("neg", "tanh", "sin"), ("cos", "abs", "exp"))
    replaced = {value[old]: table.make(op, [value[of]], {}) for old, op, of in crossed}
    with pytest.raises(CycleError):
        replace(state, state.wiring(), replaced, {})


def test_many_products_merge_in_one_step() -> None:
    b = GraphBuilder()
    x = b.input("x", (2, 4))
    random = np.random.default_rng(0)
    widths = (3, 5, 2, 4, 6)
    weights = [b.constant((random.integers(-8, 9, (4, n)) / 8).astype("float32")) for n in widths]
    graph = b.build(*[b.add("matmul", x, w) for w in weights])
    table, reading, moves, state = begin(graph, rule("merge of products"))
    (after,) = children(moves, state)
    merged = write_graph(table, reading, after.outputs(), graph)
    assert [n.op for n in merged.nodes].count("matmul") == 1
    assert_equal(graph, merged)


def test_places_that_look_alike_are_taken_together() -> None:
    b = GraphBuilder()
    graph = b.build(*[
        b.add("matmul", b.add("matmul", b.input(f"x{i}", (1, 8)), b.input(f"a{i}", (8, 8))), b.input(f"b{i}", (8, 8)))
        for i in range(3)
    ])  # fmt: skip
    table, reading, moves, state = begin(graph, rule("product is associative"))
    (after,) = children(moves, state)
    assert after.applied == ("product is associative",) * 3
    assert_equal(graph, write_graph(table, reading, after.outputs(), graph))
