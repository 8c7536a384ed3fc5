"""Windows of two steps: recurrent layers come to a few kernels, whose slices say which step runs backwards."""

from __future__ import annotations

import numpy as np
import pytest

from burnish.graph import Graph, GraphBuilder
from burnish.graph.evaluate import evaluate
from burnish.graph.recurrent_windows import pair_steps
from burnish.graph.verify import verify
from burnish.machines.target import target
from burnish.pipeline.kernel import task_key
from burnish.pipeline.plan import make_task, plan_kernels

HIDDEN = 8


def lstm(steps: int, batch: int = 1, rows: list[int] | None = None) -> Graph:
    """An LSTM over computed gates whose steps read these rows, by default one after the other."""
    rng = np.random.default_rng(0)
    g = GraphBuilder()
    x, w = g.input("x", (steps * batch, HIDDEN)), g.constant(rng.random((HIDDEN, 4 * HIDDEN), np.float32) - 0.5)
    gates = g.add("matmul", x, w, name="gates")
    r = g.constant(rng.random((4, HIDDEN, HIDDEN), np.float32) - 0.5)
    h, c = g.input("h", (batch, HIDDEN)), g.input("c", (batch, HIDDEN))
    hidden = []
    for row in [batch * step for step in range(steps)] if rows is None else rows:
        part = g.add("slice", gates, starts=(row, 0), extents=(batch, 4 * HIDDEN))
        h, c = g.add_many("lstm_cell", part, h, c, r)
        hidden.append(h)
    return g.build(g.add("concat", *hidden, axis=0, name="y"))


def cut(graph: Graph) -> list[tuple[int, int]]:
    """Of every step the first row that it sees, and which of its operand's rows that is."""
    windows = {n.outputs[0]: n.attrs["starts"][0] for n in graph.nodes if n.op == "slice"}  # type: ignore[index]
    parts = [node.inputs[0] for node in graph.nodes if node.op == "lstm_cell"]
    made = {node.outputs[0]: node for node in graph.nodes}
    return [(windows.get(made[part].inputs[0], 0), windows[part]) for part in parts]


@pytest.mark.parametrize("batch", [1, 2])
def test_every_step_is_cut_from_a_window_of_two(batch: int) -> None:
    for steps, expected in ((4, [(0, 0), (0, 1), (2, 0), (2, 1)]), (5, [(0, 0), (0, 1), (2, 0), (2, 1), (3, 1)])):
        graph = lstm(steps, batch)
        paired = pair_steps(graph)
        verify(paired)
        assert cut(paired) == [(batch * window, batch * row) for window, row in expected]
        feeds = {name: np.random.default_rng(1).random(graph.types[name].shape, np.float32) for name in graph.inputs}
        assert (evaluate(graph, feeds)["y"] == evaluate(paired, feeds)["y"]).all()


def test_a_single_step_and_rows_that_are_no_steps_stay() -> None:
    for graph in (lstm(1), lstm(3, batch=2, rows=[1, 3])):
        assert str(pair_steps(graph)) == str(graph)


def test_steps_share_their_kernels() -> None:
    made = plan_kernels(lstm(24), target("cpu"), exact=False)
    constants = dict(made.graph.constants)
    cells = [group for group in made.groups if group.anchor and group.anchor.op == "lstm_cell"]
    keys = [task_key(make_task(made, group, constants)[0], target("cpu")) for group in cells]
    assert len(keys) == 24 and all(made.computes(group) for group in cells)
    assert len(set(keys)) == 3, "even steps, odd ones, and the last, whose cell nobody reads"
    assert len(made.views) == 12
