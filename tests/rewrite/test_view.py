"""Names and what is recalled of them: equal answers have equal results, other answers others."""

import pytest

from burnish.graph.graph import GraphBuilder, TensorType
from burnish.rewrite.language.terms import parse_rules
from burnish.rewrite.search.apply import replace
from burnish.rewrite.search.convert import read_graph
from burnish.rewrite.search.moves import Moves
from burnish.rewrite.search.normal import NormalTable
from burnish.rewrite.search.states import CycleError, start
from burnish.rewrite.search.view import GraphView, Recall, SearchKnowledge, Wiring


def wiring(**chosen: int) -> Wiring:
    """x0=3: the value 3 is chosen for the name 0, which nothing reads."""
    names = {int(name[1:]): value for name, value in chosen.items()}
    return Wiring(names, dict.fromkeys(names, ()), {}, {}, set())


def test_a_result_is_recalled_where_all_that_was_asked_is_answered_alike() -> None:
    recall = Recall()
    assert recall.get("sum", wiring(x0=0)) is None
    recall.keep("sum", {0: 0, 1: 1, ~1: ()}, "first")
    recall.keep("sum", {0: 5}, "second")
    recall.keep("sum", {0: 0, 1: None}, "third")
    assert recall.get("sum", wiring(x0=0, x1=1, x2=7)) == "first"
    assert recall.get("sum", wiring(x0=5, x1=9)) == "second"
    assert recall.get("sum", wiring(x0=0)) == "third"
    assert recall.get("sum", wiring(x0=0, x1=4)) is None
    assert recall.get("product", wiring(x0=5)) is None


def test_a_view_tells_what_it_has_seen_and_names_what_is_made_in_it() -> None:
    table = NormalTable()
    x = table.leaf("input", "x", TensorType((2, 6)))
    first = table.make("relu", (x,), {})
    root = table.make("exp", (first,), {})
    state = start(table, (root,))
    view = GraphView(state.walk, state.wiring())
    second = view.make("neg", (x,), {})
    state.walk.names[second] = first
    view.changed[first] = second
    assert view.operator(first).op == "neg" and view.operator(root).op == "exp"
    assert table.operator(first).op == "relu"
    assert view.name(second) == first
    again = view.make("exp", (second,), {})
    assert again == root
    other = view.make("sin", (root,), {})
    assert view.name(other) == other and view.changed[other] == other
    assert set(view.asked) == {x, root, other}


def test_keys_do_not_depend_on_the_run() -> None:
    first, second = SearchKnowledge(NormalTable()), SearchKnowledge(NormalTable())
    signs = [first.sign(value) for value in range(100)]
    assert signs == [second.sign(value) for value in range(100)] == [first.sign(value) for value in range(100)]
    assert len(set(signs)) == 100


def test_what_equals_a_value_of_the_graph_is_that_value() -> None:
    """exp(-(-x)) beside exp(x): after the step both are one."""
    b = GraphBuilder()
    x = b.input("x", (2, 3))
    graph = b.build(b.add("exp", b.add("neg", b.add("neg", x))), b.add("exp", x))
    table = NormalTable(lambda operation: 1.0)
    state = start(table, read_graph(table, graph).roots)
    moves = Moves(table, parse_rules("substitution r\n  for x: [m, n]\n  neg(neg(x)) = x\n"))
    ((change, applied),) = moves.changes(state)
    child = state.after(change, applied)
    assert child.roots == (state.roots[1],) * 2 and child.outputs() == child.roots
    assert sorted(table.labels[v].op for v in child.wiring().chosen.values()) == ["exp", "input"]
    assert (state.cost, child.cost) == (4.0, 1.0)


def test_two_values_cannot_each_become_the_other() -> None:
    b = GraphBuilder()
    x, y = b.input("x", (2, 3)), b.input("y", (2, 3))
    graph = b.build(b.add("sub", x, y), b.add("sub", y, x))
    table = NormalTable()
    first, second = read_graph(table, graph).roots
    state = start(table, (first, second))
    with pytest.raises(CycleError):
        replace(state, state.wiring(), {first: second, second: first}, {})
    assert replace(state, state.wiring(), {first: second}, {}).same == {first: second}
