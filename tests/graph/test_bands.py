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
        found = b.add("where", b.constant(mask[None]), scores, fill)
    elif op == "fill":
        found = b.add("where", b.constant(~mask), fill, scores)
    else:
        found = b.add("add", scores, b.constant(np.where(mask, 0, hidden).astype(dtype)))
    return b.build(found if hidden == -np.inf else b.add("softmax", found))


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
    kept = masked(CAUSAL, -3e38, "add")
    for graph in (masked(holes, -np.inf), masked(empty, -3e38), masked(CAUSAL, -5.0), kept):
        band = [node.op for node in optimize(graph, target=GPU).nodes] == ["band", "softmax"]
        assert band == (graph.nodes[0].op == "add")  # -3e38 counts for nothing beside the keys that each row sees
    assert [n.op for n in optimize(masked(empty, -np.inf), target=GPU).nodes] == ["band"]
    second = GraphBuilder()  # another mask may hide what the first one shows: then all finite numbers count
    scores = second.add(
        "where", second.constant(CAUSAL), second.input("x", CAUSAL.shape), second.constant(np.array(-3e38, "f4"))
    )
    more = second.build(second.add("softmax", second.add("add", scores, second.input("mask", (1, COLUMNS)))))
    assert "band" not in [n.op for n in optimize(more, target=GPU).nodes]


@pytest.mark.parametrize("op", ["where", "fill", "add"])
def test_masks_of_nan_hide_nothing(op: str) -> None:
    graph = masked(CAUSAL, np.nan, op)
    found = optimize(graph, target=GPU)
    assert "band" not in [node.op for node in found.nodes]
    (y,) = evaluate(found, {"x": np.zeros((2, ROWS, COLUMNS), "f4")}).values()
    assert np.isnan(y).any()


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


TOKENS, WIDE = 96, 16
TRI = np.tri(TOKENS, dtype=bool)


def normalized(mask: str, hidden: float = -1e4, dtype: str = "float32", scale: float = 0.5) -> Graph:
    """Attention of two heads behind a normalization, whose scores have a bound: with a constant causal mask, or one of
    a call for all rows, as numbers (``add``) or by a choice (``where``).
    """
    b, rng = GraphBuilder(), np.random.default_rng(0)

    def weight(*shape: int) -> str:
        return b.constant((rng.standard_normal(shape) * 0.3).astype(dtype))

    x = b.add("layer_norm", b.input("x", (3, TOKENS, WIDE), dtype), weight(WIDE), weight(WIDE))
    q, k = (
        b.add(
            "transpose", b.add("reshape", b.add("matmul", x, weight(WIDE, WIDE)), shape=(3, TOKENS, 2, 8)), perm=order
        )
        for order in ((0, 2, 1, 3), (0, 2, 3, 1))
    )
    scores = b.add("mul", b.add("matmul", q, k), b.constant(np.array(scale, dtype)))
    fill = b.constant(np.array(hidden, dtype))
    if mask == "causal add":
        scores = b.add("add", scores, b.constant(np.where(TRI, 0, hidden).astype(dtype)))
    elif mask == "causal where":
        scores = b.add("where", b.constant(TRI), scores, fill)
    else:
        shown = b.input("shown", (3, 1, 1, TOKENS), "int64")
        if mask == "where":
            scores = b.add("where", b.add("cast", shown, to="bool"), scores, fill)
        else:
            less = b.add("sub", b.constant(np.array(1, dtype)), b.add("cast", shown, to=dtype))
            scores = b.add("add", scores, b.add("mul", less, fill))
    return b.build(b.add("softmax", scores))


def given(graph: Graph) -> dict[str, np.ndarray]:
    """Values of inputs: three sequences, one of them whole and one of which nothing is shown."""
    rng = np.random.default_rng(1)
    shown = np.arange(TOKENS) < np.array([TOKENS, 17, 0])[:, None]
    feeds: dict[str, np.ndarray] = {"x": (30 * rng.standard_normal((3, TOKENS, WIDE))).astype("f4")}
    return {**feeds, "shown": shown[:, None, None].astype("i8")} if "shown" in graph.inputs else feeds


@pytest.mark.parametrize("hidden", [-1e4, -3e38])
@pytest.mark.parametrize("mask", ["causal add", "causal where", "add", "where"])
def test_masks_of_finite_numbers_hide_where_scores_have_a_bound(mask: str, hidden: float) -> None:
    graph = normalized(mask, hidden)
    found = optimize(graph, target=GPU)
    ops = [node.op for node in found.nodes]
    assert ops.count("band" if "causal" in mask else "interval") == 1
    assert ("reduce_max" in ops) == (mask == "add" and hidden == -1e4)  # the lowest float is so without a greatest one
    (y,), (wanted,) = (evaluate(g, given(graph)).values() for g in (found, graph))
    np.testing.assert_array_equal(y, wanted)  # what is hidden adds nothing to a sum


@pytest.mark.parametrize("mask", ["causal add", "causal where", "add", "where"])
def test_masks_of_finite_numbers_stay_where_scores_may_be_as_large(mask: str) -> None:
    for graph in (normalized(mask, -20.0), normalized(mask, scale=1e4), normalized(mask, -9e3)):
        found = optimize(graph, target=GPU)
        known = {"band", "interval"} & {node.op for node in found.nodes}
        assert known <= ({"interval"} if mask == "add" else set())  # what numbers hide is seen by those of a call
        (y,), (wanted,) = (evaluate(g, given(graph)).values() for g in (found, graph))
        np.testing.assert_array_equal(y, wanted)
    half = optimize(normalized(mask, dtype="bfloat16"), target=GPU)  # in which -10000 is -9984
    assert {"band", "interval"} & {node.op for node in half.nodes}


def test_numbers_of_a_mask_hide_what_is_far_below_the_greatest() -> None:
    """Of the numbers that a call brings those count which are near the greatest one, wherever that is."""
    graph = normalized("add")
    found = optimize(graph, target=GPU)
    (ends,) = (node for node in found.nodes if node.op == "true_interval")
    probe = found.with_nodes(found.nodes, outputs=(ends.outputs[0],))
    (intervals,) = evaluate(probe, given(graph)).values()
    assert intervals.reshape(3, 2).tolist() == [[0, TOKENS], [0, 17], [0, TOKENS]]
