"""Constant masks that are bands: found on grids of threads alone, and only where they mean the same."""

from __future__ import annotations

import numpy as np
import pytest

from burnish.graph import GraphBuilder
from burnish.graph.bands import diagonals
from burnish.graph.evaluate import evaluate
from burnish.graph.graph import Graph
from burnish.graph.passes import optimize
from burnish.machines.target import target

GPU, CPU = target("cuda:sm_80"), target("cpu")
ROWS, COLUMNS = 6, 9
ROW, COLUMN = np.arange(ROWS)[:, None], np.arange(COLUMNS)
CAUSAL, WINDOW = COLUMN <= ROW + 3, (COLUMN <= ROW) & (COLUMN > ROW - 3)


def masked(mask: np.ndarray, hidden: float, op: str = "where", dtype: str = "float32") -> Graph:
    """Scores with a mask of bools or of numbers."""
    b = GraphBuilder()
    scores = b.input("x", (2, ROWS, COLUMNS), dtype)
    fill = b.constant(np.array(hidden, dtype))
    if op == "where":
        return b.build(b.add("where", b.constant(mask[None]), scores, fill))
    if op == "fill":
        return b.build(b.add("where", b.constant(~mask), fill, scores))
    return b.build(b.add("add", scores, b.constant(np.where(mask, 0, hidden).astype(dtype))))


@pytest.mark.parametrize("mask", [CAUSAL, WINDOW], ids=["causal", "window"])
@pytest.mark.parametrize("op", ["where", "fill", "add"])
def test_bands_are_computed_on_grids(mask: np.ndarray, op: str) -> None:
    graph = masked(mask, -np.inf, op)
    found = optimize(graph, target=GPU)
    assert [node.op for node in found.nodes] == ["band"] and not found.constants
    assert "band" not in [node.op for node in optimize(graph, target=CPU).nodes]
    x = np.random.default_rng(0).standard_normal((2, ROWS, COLUMNS)).astype("float32")
    (y,), (wanted,) = (evaluate(g, {"x": x}).values() for g in (found, graph))
    np.testing.assert_array_equal(y, wanted)


def test_what_is_no_band_or_hides_a_whole_row_by_numbers_stays() -> None:
    holes, empty = CAUSAL & (COLUMN != 2), COLUMN <= ROW - 2
    for graph in (masked(holes, -np.inf), masked(empty, -3e38), masked(CAUSAL, -5.0), masked(CAUSAL, -3e38, "add")):
        band = [node.op for node in optimize(graph, target=GPU).nodes] == ["band"]
        assert band == (graph.nodes[0].op == "add")  # -3e38 counts for nothing beside the keys that each row sees
    assert [n.op for n in optimize(masked(empty, -np.inf), target=GPU).nodes] == ["band"]


def test_diagonals() -> None:
    assert diagonals(CAUSAL) == (1 - ROWS, 3) and diagonals(WINDOW) == (-2, 0)
    assert diagonals(np.ones((3, 3), bool)) is None and diagonals(np.zeros((3, 3), bool)) is None


def padded(fill: float, op: str = "where", causal: bool = False) -> Graph:
    """Attention of three sequences under a mask that a call brings, of bools or of numbers, copied for all rows."""
    b = GraphBuilder()
    q, k = b.input("q", (3, 2, ROWS, 8)), b.input("k", (3, 2, 96, 8))
    scores = b.add("matmul", q, k, transpose_b=True)
    hidden = b.constant(np.array(fill, "float32"))
    shown = b.add("expand", b.input("shown", (3, 1, 1, 96), "bool"), shape=(3, 1, ROWS, 96))
    if causal:
        shown = b.add("logical_and", shown, b.constant(np.tri(ROWS, 96, 80, dtype=bool)))
    if op == "add":
        scores = b.add("add", scores, b.add("where", shown, b.constant(np.array(0.0, "float32")), hidden))
    else:
        scores = b.add("where", shown, scores, hidden)
    return b.build(b.add("softmax", scores))


@pytest.mark.parametrize(
    ("fill", "op", "causal"),
    [(-np.inf, "where", False), (-3e38, "where", False), (-3e38, "add", False), (-np.inf, "where", True)],
)
def test_masks_of_a_call_say_which_keys_they_show(fill: float, op: str, causal: bool) -> None:
    graph = padded(fill, op, causal)
    found = optimize(graph, target=GPU)
    ops = [node.op for node in found.nodes]
    assert ops.count("interval") == ops.count("true_interval") == 1
    assert "interval" not in [node.op for node in optimize(graph, target=CPU).nodes]
    (ends,) = (n.inputs[0] for n in found.nodes if n.op == "true_interval")
    assert found.types[ends].shape == (3, 1, 1, 96), "of one row"
    rng = np.random.default_rng(0)
    shown = np.arange(96) < np.array([96, 17, 40])[:, None]
    shown[2, :9], shown[1] = False, shown[1] & (fill == -np.inf)  # nothing is shown of a sequence: all counts alike
    feeds = {n: rng.standard_normal(graph.types[n].shape, "f4") for n in "qk"}
    feeds["shown"] = shown[:, None, None]
    (y,), (wanted,) = (evaluate(g, feeds).values() for g in (found, graph))
    np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-7)


def test_masks_that_differ_by_rows_or_hide_little_stay() -> None:
    for graph in (padded(-5.0), padded(-3e38, causal=True)):
        assert "interval" not in [node.op for node in optimize(graph, target=GPU).nodes]
