"""Recurrences in segments of time: what is divided, in which order it is computed, and that it computes the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from burnish.graph.evaluate import evaluate
from burnish.graph.gradient import backpropagate
from burnish.graph.graph import Graph, GraphBuilder
from burnish.graph.recurrence import TimeSegments, in_segments, times
from burnish.graph.rounds import add_rounds
from burnish.graph.verify import verify
from burnish.loops.sizes import dim
from burnish.ops.scan import Operands

STEPS, ROWS, WIDTH = 16, 3, 5
LENGTH = 2  # half the root of the steps


def weight(b: GraphBuilder, name: str, *shape: int) -> str:
    return b.state(name, np.random.default_rng(len(name)).normal(size=shape).astype("f4") / 2)


def stacked(layers: int = 2, steps: int = STEPS, reverse: bool = False, dropped: bool = False) -> GraphBuilder:
    """Layers of ``h = tanh(x[t] @ w + h @ u)`` whose products with the input are one; the last tensor is their join."""
    b = GraphBuilder()
    x = b.input("x", (steps * ROWS, WIDTH))
    for layer in range(layers):
        w, u = weight(b, f"w{layer}", WIDTH, WIDTH), weight(b, f"u{layer}", WIDTH, WIDTH)
        if dropped and layer:
            x = b.add("dropout", x, b.constant(7), rate=0.5)
        gates = b.add("relu", b.add("matmul", x, w, name=f"gates{layer}"))
        h, hidden = b.constant(np.full((ROWS, WIDTH), 0.5, "f4")), [""] * steps
        for t in reversed(range(steps)) if reverse else range(steps):
            own = b.add("slice", gates, starts=(t * ROWS, 0), extents=(ROWS, WIDTH))
            h = hidden[t] = b.add("tanh", b.add("add", own, b.add("matmul", h, u)))
        x = b.add("concat", *hidden, axis=0, name=f"layer{layer}")
    return b


def with_loss(b: GraphBuilder, layers: int = 2) -> Graph:
    scores = b.add("matmul", f"layer{layers - 1}", weight(b, "head", WIDTH, 7))
    return b.build(b.add("reduce_sum", b.add("reduce_sumsq", scores, axes=(1,), keepdims=False), keepdims=False))


def same(graph: Graph, found: TimeSegments, feeds: Mapping[str, np.ndarray]) -> None:
    verify(found.graph)
    given = {**feeds, **{name: state.initial for name, state in graph.states.items()}}
    wanted, got = (evaluate(g, given, "float64")[g.outputs[0]] for g in (graph, found.graph))
    np.testing.assert_allclose(got, wanted, rtol=1e-12)
    assert found.graph.states.keys() == graph.states.keys()


def inputs(steps: int = STEPS) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(1).normal(size=(steps * ROWS, WIDTH)).astype("f4")}


def crossing(found: TimeSegments) -> list[set[str]]:
    """What later segments read of those before each of their begins, but for weights."""
    nodes = found.graph.nodes
    made = [{name for node in nodes[:begin] for name in node.outputs} for begin in found.begins]
    read = [{name for node in nodes[begin:] for name in node.inputs} for begin in found.begins]
    return [a & b for a, b in zip(made, read, strict=True)]


@pytest.mark.parametrize("steps", [STEPS, STEPS + 3])
@pytest.mark.parametrize("reverse", [False, True])
def test_only_states_cross_between_segments(steps: int, reverse: bool) -> None:
    graph = with_loss(stacked(steps=steps, reverse=reverse))
    found = in_segments(graph)
    assert found is not None and len(found.begins) + 1 == -(-steps // LENGTH)
    same(graph, found, inputs(steps))
    if not reverse:  # the second layer needs all of the first one, where only one of both goes backwards
        rows = [{*found.graph.types[name].shape} for names in crossing(found) for name in names]
        assert {ROWS, WIDTH} in rows and all({*shape} <= {ROWS, WIDTH, LENGTH * ROWS} for shape in rows)
        states = [sum(found.graph.types[name].shape == (ROWS, WIDTH) for name in names) for names in crossing(found)]
        assert max(states) == 2


def test_products_and_the_loss_are_divided_with_the_steps() -> None:
    found = in_segments(with_loss(stacked()))
    assert found is not None
    products = [n for n in found.graph.nodes if n.op == "matmul" and n.inputs[1] in ("w0", "w1", "head")]
    assert len(products) == 3 * STEPS // LENGTH
    assert {found.graph.types[n.outputs[0]].shape[0] for n in products} == {LENGTH * ROWS}
    sums = [n for n in found.graph.nodes if n.op == "reduce_sumsq"]
    assert {found.graph.types[n.outputs[0]].shape for n in sums} == {(LENGTH * ROWS,)}
    assert not [n for n in found.graph.nodes if n.op == "concat"]


def test_time_counts_the_reads_of_a_weight_on_a_path() -> None:
    graph = with_loss(stacked(layers=1), layers=1)
    found = times(graph)
    steps = [n.outputs[0] for n in graph.nodes if n.op == "tanh"]
    assert [found[name] for name in steps] == [*range(1, STEPS + 1)] and "gates0" not in found
    assert found["layer0"] == STEPS


def test_weights_that_no_path_reads_again_make_no_recurrence() -> None:
    b = GraphBuilder()
    w = weight(b, "w", WIDTH, WIDTH)
    found = [b.add("matmul", b.input(f"x{i}", (ROWS, WIDTH)), w) for i in range(9)]
    assert in_segments(b.build(b.add("reduce_sum", b.add("concat", *found, axis=0), keepdims=False))) is None


def test_layers_that_share_weights_are_a_recurrence() -> None:
    b = GraphBuilder()
    x, w = b.input("x", (ROWS, WIDTH)), weight(b, "w", WIDTH, WIDTH)
    for _ in range(16):
        x = b.add("tanh", b.add("matmul", x, w))
    graph = b.build(b.add("reduce_sum", x, keepdims=False))
    found = in_segments(graph)
    assert found is not None and len(found.begins) == 7
    same(graph, found, {"x": np.ones((ROWS, WIDTH), "f4")})


def test_parts_drop_the_elements_that_the_whole_drops() -> None:
    """Dropout between layers, whose mask is a function of positions."""
    graph = with_loss(stacked(dropped=True))
    found = in_segments(graph)
    assert found is not None
    same(graph, found, inputs())
    dropped = [n for n in found.graph.nodes if n.op == "dropout"]
    assert {found.graph.types[n.outputs[0]].shape for n in dropped} == {(LENGTH * ROWS, WIDTH)}


def test_what_depends_on_all_rows_stays_whole() -> None:
    b = stacked(layers=1)
    total = b.add("softmax", "layer0", axis=0)
    graph = b.build(b.add("reduce_sumsq", total, keepdims=False))
    found = in_segments(graph)
    assert found is not None and [n.op for n in found.graph.nodes].count("softmax") == 1
    same(graph, found, inputs())


def test_tables_are_read_for_all_steps_at_once() -> None:
    """The gradient of each part would be as large as the table."""
    b = GraphBuilder()
    tokens, table = b.input("x", (STEPS * ROWS,), "int64"), weight(b, "table", 11, WIDTH)
    u = weight(b, "u", WIDTH, WIDTH)
    rows = b.add("gather", table, tokens, axis=0)
    h = b.constant(np.full((ROWS, WIDTH), 0.5, "f4"))
    for t in range(STEPS):
        own = b.add("slice", rows, starts=(t * ROWS, 0), extents=(ROWS, WIDTH))
        h = b.add("tanh", b.add("add", own, b.add("matmul", h, u)))
    graph = b.build(b.add("reduce_sum", h, keepdims=False))
    found = in_segments(graph)
    assert found is not None and sum(n.op == "gather" for n in found.graph.nodes) == 1
    same(graph, found, {"x": np.arange(STEPS * ROWS) % 11})


def test_open_batches_are_ordered_but_not_divided() -> None:
    b = GraphBuilder()
    n = dim("n", 1, 8)
    u = weight(b, "u", WIDTH, WIDTH)
    h = b.input("h", (n, WIDTH))
    for t in range(STEPS):
        h = b.add("tanh", b.add("add", b.input(f"x{t}", (n, WIDTH)), b.add("matmul", h, u)))
    found = in_segments(b.build(b.add("reduce_sum", h, keepdims=False)))
    assert found is not None and len(found.begins) + 1 == STEPS // LENGTH


def with_rounds(layers: int = 2, steps: int = STEPS, reverse: bool = False, rows: int = ROWS) -> Graph:
    """The layers of ``stacked``, each one node whose rounds are the steps; results are all states and the last ones."""
    b = GraphBuilder()
    x, total = b.input("x", (steps, rows, WIDTH)), ""
    for layer in range(layers):
        w, u = weight(b, f"w{layer}", WIDTH, WIDTH), weight(b, f"u{layer}", WIDTH, WIDTH)
        product = b.add("matmul", b.add("reshape", x, shape=(steps * rows, WIDTH)), w, name=f"gates{layer}")
        gates = b.add("reshape", b.add("relu", product), shape=(steps, rows, WIDTH))

        def step(inner: GraphBuilder, names: Sequence[str]) -> Sequence[str]:
            h = inner.add("tanh", inner.add("add", names[2], inner.add("matmul", names[0], names[3])))
            return [h, inner.add("add", names[1], h)]

        first = b.add("expand", b.constant(0.5), shape=(rows, WIDTH))
        found = add_rounds(b, step, Operands((first, first), (gates,), (u,)), (0,), reverse)
        x, last = found[0], b.add("reduce_sumsq", found[1], keepdims=False)
        total = b.add("add", total, last) if total else last
    return b.build(b.add("add", total, b.add("reduce_sumsq", x, keepdims=False)))


@pytest.mark.parametrize("how", ["no weights", "constants", "in parts"])
def test_stacked_rounds_are_recurrences_of_their_own(how: str) -> None:
    """Rounds that read no weight, or constants alone: what the second layer has computed after t rounds, not 2 t."""
    b = GraphBuilder()
    x, given = b.input("x", (STEPS, ROWS, WIDTH)), ()
    if how == "constants":
        given = (b.constant(np.full((ROWS, WIDTH), 0.5, "f4")),)
    b.state("w", np.eye(WIDTH, dtype="f4"))  # the model has a weight

    def step(inner: GraphBuilder, names: Sequence[str]) -> Sequence[str]:
        return [inner.add("tanh", inner.add("add", names[0], inner.add("mul", names[1], names[-1])))]

    parts = 4 if how == "in parts" else 1
    for layer in range(2):
        state, found = b.add("expand", b.constant(0.5), shape=(ROWS, WIDTH)), []
        for k in range(parts):
            own = b.add("slice", x, starts=(k * STEPS // parts, 0, 0), extents=(STEPS // parts, ROWS, WIDTH))
            (results,) = add_rounds(b, step, Operands((state,), (own,), given), (0,), False)
            last = b.add("slice", results, starts=(STEPS // parts - 1, 0, 0), extents=(1, ROWS, WIDTH))
            state = b.add("reshape", last, shape=(ROWS, WIDTH))
            found.append(results)
        x = b.add("concat", *found, axis=0, name=f"layer{layer}")
    found = times(b.build(b.add("reduce_sum", b.add("matmul", x, "w"), keepdims=False)))
    assert (found["layer0"], found["layer1"]) == (STEPS, STEPS)


def test_rounds_that_share_a_weight_are_one_recurrence() -> None:
    """As the steps are that read it one by one, whatever else the bodies do or read."""
    b = GraphBuilder()
    x, u = b.input("x", (STEPS, ROWS, WIDTH)), weight(b, "u", WIDTH, WIDTH)
    for op, other in (("tanh", weight(b, "v", WIDTH)), ("sigmoid", weight(b, "w", WIDTH))):

        def step(inner: GraphBuilder, names: Sequence[str], op: str = op) -> Sequence[str]:
            product = inner.add("add", inner.add("matmul", names[0], names[2]), names[3])
            return [inner.add(op, inner.add("add", names[1], product))]

        first = b.add("expand", b.constant(0.5), shape=(ROWS, WIDTH))
        (x,) = add_rounds(b, step, Operands((first,), (x,), (u, other)), (0,), False)
    found = times(b.build(b.add("identity", x, name="y"), b.add("reduce_sum", x, keepdims=False)))
    assert found["y"] == 2 * STEPS


@pytest.mark.parametrize("steps", [STEPS, STEPS + 3])
@pytest.mark.parametrize("reverse", [False, True])
def test_rounds_of_a_body_are_divided(steps: int, reverse: bool) -> None:
    graph = with_rounds(steps=steps, reverse=reverse)
    found = in_segments(graph)
    assert found is not None and len(found.begins) + 1 >= steps // LENGTH
    same(graph, found, {"x": np.random.default_rng(1).normal(size=(steps, ROWS, WIDTH)).astype("f4")})
    assert [n.op for n in found.graph.nodes].count("scan") == 2 * (steps // LENGTH)
    products = [n for n in found.graph.nodes if n.op == "matmul" and n.inputs[1] in ("w0", "w1")]
    assert len(products) == 2 * (steps // LENGTH)
    if not reverse:
        shapes = [found.graph.types[name].shape for names in crossing(found) for name in names]
        assert {(ROWS, WIDTH), ()} >= {*shapes} and max(map(len, crossing(found))) <= 6


def test_rounds_over_an_open_batch_are_divided() -> None:
    graph = with_rounds(layers=1, rows=dim("n", 1, 8))
    found = in_segments(graph)
    assert found is not None and [n.op for n in found.graph.nodes].count("scan") == STEPS // LENGTH


def test_gradients_through_segments_of_rounds_are_those_of_the_whole() -> None:
    graph = with_rounds()
    found = in_segments(graph)
    assert found is not None
    feeds = {"x": np.random.default_rng(1).normal(size=(STEPS, ROWS, WIDTH)).astype("f4")}
    feeds |= {name: state.initial for name, state in graph.states.items()}
    names = ["w0", "u0", "w1", "u1"]
    wanted, got = [], []
    for which, each in ((wanted, graph), (got, found.graph)):
        b = GraphBuilder.of(each)
        b.segments = found.begins if each is found.graph else ()
        one = b.add("expand", b.constant(1.0), shape=b.types[each.outputs[0]].shape)
        results = backpropagate(b, {each.outputs[0]: one}, names)
        built = b.build(*results)
        values = evaluate(built, feeds, "float64")
        which += [values[name] for name in results]
    for a, e in zip(got, wanted, strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-5, atol=1e-5)
