"""Every graph pass: what it turns small graphs into, and that their values stay."""

from collections.abc import Callable

import numpy as np
import pytest

from burnish.graph import Graph, GraphBuilder
from burnish.graph.affine import fold_affine
from burnish.graph.canonical import canonicalize
from burnish.graph.eliminate import eliminate
from burnish.graph.evaluate import evaluate
from burnish.graph.fold import fold
from burnish.graph.graph import Attribute
from burnish.graph.passes import optimize
from burnish.graph.unit_axes import keep_unit_axes
from burnish.graph.verify import verify

RANDOM = np.random.default_rng(1)


def array(*shape: int, low: float = -1.0, high: float = 1.0) -> np.ndarray:
    return RANDOM.uniform(low, high, shape).astype(np.float32)


def applied(apply: Callable[[Graph], Graph], graph: Graph, tolerance: float = 1e-5) -> Graph:
    """The graph after a pass, verified and found to compute the same from random inputs."""
    verify(graph)
    after = apply(graph)
    verify(after)
    assert (after.inputs, after.outputs) == (graph.inputs, graph.outputs)
    feeds = {n: array(*graph.types[n].shape, low=0.1).astype(graph.types[n].dtype) for n in graph.inputs}
    before, now = evaluate(graph, feeds), evaluate(after, feeds)
    for name in graph.outputs:
        np.testing.assert_allclose(now[name], before[name], rtol=tolerance, atol=tolerance)
    return after


def ops(graph: Graph) -> list[str]:
    return [node.op for node in graph.nodes]


def one(op: str, shape: tuple[int, ...], /, *constants: np.ndarray, **attrs: object) -> Graph:
    """The graph y = op(x, constants)."""
    g = GraphBuilder()
    x = g.input("x", shape)
    names = [g.constant(c, f"c{i}") for i, c in enumerate(constants)]
    return g.build(g.add(op, x, *names, name="y", **attrs))  # type: ignore[arg-type]


# --- fold -------------------------------------------------------------------------------------------------------------


def test_constant_expressions_become_constants() -> None:
    g = GraphBuilder()
    x = g.input("x", (3,))
    two = g.add("add", g.constant(1.0), g.constant(1.0))
    graph = g.build(g.add("mul", x, g.add("exp", two), name="y"))
    after = applied(fold, graph)
    assert ops(after) == ["mul"]
    assert after.constants[after.nodes[0].inputs[1]] == np.exp(np.float32(2))


def test_an_output_that_is_constant_is_a_constant() -> None:
    g = GraphBuilder()
    g.input("x", (1,))
    after = applied(fold, g.build(g.add("neg", g.constant(array(2)), name="y")))
    assert ops(after) == []
    assert list(after.constants) == ["y"]


def test_tensors_without_elements_are_known() -> None:
    g = GraphBuilder()
    nothing = g.add("matmul", g.input("x", (0, 4)), g.constant(array(4, 5)), name="nothing")
    zeros = g.add("reduce_sum", g.add("relu", g.input("z", (3, 0))), axes=(1,), name="zeros")
    after = applied(fold, g.build(nothing, zeros))
    assert ops(after) == []
    assert after.constants["nothing"].shape == (0, 5)
    np.testing.assert_array_equal(after.constants["zeros"], np.zeros((3, 1)))


def test_folding_does_not_bloat() -> None:
    g = GraphBuilder()
    x = g.input("x", (1,))
    big = g.add("expand", g.constant(array(1)), shape=(1 << 19,))
    graph = g.build(g.add("add", x, big, name="y"))
    assert ops(applied(fold, graph)) == ["expand", "add"]


def test_views_of_constants_share_their_memory() -> None:
    g = GraphBuilder()
    x, w = g.input("x", (4, 3)), array(2, 6)
    moved = g.add("transpose", g.add("reshape", g.constant(w), shape=(4, 3)), perm=(1, 0))
    after = applied(fold, g.build(g.add("matmul", x, moved, name="y")))
    assert ops(after) == ["matmul"]
    assert np.shares_memory(after.constants[after.nodes[0].inputs[1]], w)


# --- eliminate --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "graph",
    [
        one("identity", (2, 3)),
        one("cast", (2, 3), to="float32"),
        one("reshape", (2, 3), shape=(2, 3)),
        one("transpose", (2, 3), perm=(0, 1)),
        one("expand", (2, 3), shape=(1, 3)),
        one("slice", (2, 3), starts=(0, 0), extents=(2, 3)),
        one("pad", (2, 3), pads=(0, 0, 0, 0)),
        one("concat", (2, 3), axis=0),
        one("tile", (2, 3), repeats=(1, 1)),
        one("add", (2, 3), np.full((1, 3), -0.0, np.float32)),
        one("mul", (2, 3), np.ones((), np.float32)),
        one("sub", (2, 3), np.zeros((3,), np.float32)),
        one("div", (2, 3), np.ones((2, 3), np.float32)),
    ],
    ids=lambda graph: graph.nodes[0].op,
)
def test_nodes_that_change_nothing_vanish(graph: Graph) -> None:
    g = GraphBuilder()
    x = g.input("x", (2, 3))
    for name, value in graph.constants.items():
        g.constant(value, name)
    node = graph.nodes[0]
    middle = g.add(node.op, x, *node.inputs[1:], **node.attrs)
    after = applied(eliminate, g.build(g.add("relu", middle, name="y")))
    assert ops(after) == ["relu"]
    assert ops(applied(eliminate, graph)) == ["identity"]  # the graph's output keeps its name


@pytest.mark.parametrize(
    "graph",
    [
        one("cast", (2, 3), to="float64"),
        one("reshape", (2, 3), shape=(3, 2)),
        one("transpose", (3, 3), perm=(1, 0)),
        one("slice", (2, 3), starts=(0, 2), extents=(2, 3), steps=(1, -1)),
        one("pad", (2, 3), pads=(0, 1, 0, -1)),
        one("add", (1, 3), np.zeros((2, 3), np.float32)),
        one("add", (2, 3), np.zeros((1, 3), np.float32)),  # 0.0 of -0.0
        one("sub", (2, 3), np.full((3,), -0.0, np.float32)),
        one("mul", (2, 3), np.zeros((), np.float32)),
        one("relu", (2, 3)),
    ],
    ids=lambda graph: graph.nodes[0].op,
)
def test_nodes_that_change_something_stay(graph: Graph) -> None:
    assert ops(applied(eliminate, graph)) == [graph.nodes[0].op]


@pytest.mark.parametrize("op", ["add", "sub"])
def test_integers_without_a_sign_of_zero_lose_all_additions_of_nothing(op: str) -> None:
    g = GraphBuilder()
    y = g.add(op, g.input("x", (3,), "int32"), g.constant(np.zeros(3, np.int32)), name="y")
    assert ops(applied(eliminate, g.build(y))) == ["identity"]


def test_subtraction_from_zero_and_division_of_one_stay() -> None:
    g = GraphBuilder()
    x = g.input("x", (3,))
    zero, unit = g.constant(np.zeros(3, np.float32)), g.constant(np.ones(3, np.float32))
    graph = g.build(g.add("div", unit, g.add("sub", zero, x), name="y"))
    assert ops(applied(eliminate, graph)) == ["sub", "div"]


def test_views_of_views_become_one_or_none() -> None:
    g = GraphBuilder()
    x = g.input("x", (2, 3, 4))
    back = g.add("transpose", g.add("transpose", x, perm=(1, 2, 0)), perm=(2, 0, 1))
    flat = g.add("reshape", g.add("reshape", back, shape=(6, 4)), shape=(24,))
    after = applied(eliminate, g.build(g.add("relu", flat, name="y")))
    assert [(n.op, dict(n.attrs)) for n in after.nodes] == [("reshape", {"shape": (24,)}), ("relu", {})]


def test_equal_computations_are_done_once() -> None:
    g = GraphBuilder()
    x = g.input("x", (3,))
    a, b = g.add("exp", x), g.add("exp", x)
    graph = g.build(g.add("add", g.add("clip", a, min=0.0), g.add("clip", b, min=0.5), name="y"))
    assert ops(applied(eliminate, graph)) == ["exp", "clip", "clip", "add"]


def test_dead_nodes_vanish() -> None:
    g = GraphBuilder()
    x = g.input("x", (3,))
    g.add("exp", g.add("neg", x))
    assert ops(applied(eliminate, g.build(g.add("relu", x, name="y")))) == ["relu"]


def test_outputs_keep_their_names_when_two_become_one() -> None:
    g = GraphBuilder()
    x = g.input("x", (3,))
    graph = g.build(g.add("exp", x, name="a"), g.add("exp", x, name="b"), g.add("identity", x, name="c"))
    after = applied(eliminate, graph)
    assert [str(n) for n in after.nodes] == ["a = exp(x)", "b = identity(a)", "c = identity(x)"]


# --- affine -----------------------------------------------------------------------------------------------------------


def statistics(channels: int) -> list[np.ndarray]:
    return [array(channels), array(channels), array(channels), array(channels, low=0.5, high=2.0)]


@pytest.mark.parametrize(
    ("op", "weight", "attrs"),
    [
        ("conv2d", (6, 2, 3, 3), {"groups": 2}),
        ("conv2d", (6, 4, 1, 1), {}),
        ("conv2d_transpose", (4, 6, 2, 2), {"strides": (2, 2)}),
        ("conv2d_transpose", (4, 3, 2, 2), {"groups": 2}),
    ],
)
def test_batch_norm_goes_into_convolutions(op: str, weight: tuple[int, ...], attrs: dict[str, object]) -> None:
    g = GraphBuilder()
    y = g.add(op, g.input("x", (1, 4, 5, 6)), g.constant(array(*weight)), **attrs)  # type: ignore[arg-type]
    y = g.add("add", y, g.constant(array(6, 1, 1)))
    graph = g.build(g.add("batch_norm", y, *(g.constant(p) for p in statistics(6)), name="y"))
    assert ops(applied(fold_affine, graph)) == [op, "add"]


def test_batch_norm_without_a_product_is_a_scale_and_a_shift() -> None:
    g = GraphBuilder()
    x = g.input("x", (2, 3, 4))
    graph = g.build(g.add("batch_norm", x, *(g.constant(p) for p in statistics(3)), epsilon=0.1, name="y"))
    assert ops(applied(fold_affine, graph)) == ["mul", "add"]


def test_consecutive_scales_and_shifts_merge() -> None:
    g = GraphBuilder()
    y = g.input("x", (2, 3, 4, 5))
    for _ in range(3):
        y = g.add("add", g.add("mul", y, g.constant(array(3, 1, 1))), g.constant(array(3, 1, 1)))
    graph = g.build(g.add("relu", y, name="y"))
    assert ops(applied(fold_affine, graph)) == ["mul", "add", "relu"]


@pytest.mark.parametrize(
    ("first", "a", "second", "b"),
    [("mul", 1e30, "mul", 1e30), ("mul", 1e-30, "mul", 1e-30), ("add", 3e38, "add", 3e38), ("add", 1e30, "mul", 1e20)],
)
def test_constants_whose_product_or_sum_is_out_of_range_do_not_merge(
    first: str, a: float, second: str, b: float
) -> None:
    g = GraphBuilder()
    x = g.input("x", (2, 3))
    y = g.add("matmul", x, g.constant(array(3, 4))) if second != first else x
    y = g.add(second, g.add(first, y, g.constant(np.float32(a))), g.constant(np.float32(b)))
    graph = g.build(g.add("identity", y, name="y"))
    assert ops(fold_affine(graph)) == ops(graph)


@pytest.mark.parametrize(("scale", "left"), [(1e10, ["matmul", "mul"]), (1e-10, ["matmul"])])
def test_a_scale_that_makes_weights_infinite_stays(scale: float, left: list[str]) -> None:
    g = GraphBuilder()
    y = g.add("matmul", g.input("x", (2, 3)), g.constant(np.full((3, 4), 1e30, np.float32)))
    assert ops(fold_affine(g.build(g.add("mul", y, g.constant(np.float32(scale)), name="y")))) == left


@pytest.mark.parametrize("transpose_b", [False, True])
def test_scales_go_into_matrix_products(transpose_b: bool) -> None:
    g = GraphBuilder()
    weight = g.constant(array(5, 4) if transpose_b else array(4, 5))
    y = g.add("matmul", g.input("x", (2, 3, 4)), weight, transpose_b=transpose_b)
    graph = g.build(g.add("mul", y, g.constant(array(5)), name="y"))
    assert ops(applied(fold_affine, graph)) == ["matmul"]


def test_a_result_that_is_used_elsewhere_is_not_scaled() -> None:
    g = GraphBuilder()
    y = g.add("conv2d", g.input("x", (1, 4, 5, 6)), g.constant(array(6, 4, 1, 1)))
    scaled = g.add("mul", y, g.constant(array(6, 1, 1)))
    assert ops(applied(fold_affine, g.build(g.add("add", y, scaled, name="y")))) == ["conv2d", "mul", "add"]


def test_a_scale_along_another_dimension_stays() -> None:
    g = GraphBuilder()
    y = g.add("conv2d", g.input("x", (1, 4, 5, 6)), g.constant(array(6, 4, 1, 1)))
    graph = g.build(g.add("mul", y, g.constant(array(6)), name="y"))  # one factor a column, and as many as channels
    assert ops(applied(fold_affine, graph)) == ["conv2d", "mul"]


# --- extents of one ---


def test_element_wise_nodes_and_batch_norms_come_in_front_of_reshapes_that_drop_extents_of_one() -> None:
    g = GraphBuilder()
    y = g.add("conv2d", g.input("x", (1, 3, 1, 9)), g.constant(array(4, 3, 1, 3)), pads=(0, 1, 0, 1))
    y = g.add("reshape", y, shape=(1, 4, 9))
    y = g.add("batch_norm", y, *(g.constant(array(4, low=0.1)) for _ in range(4)))
    y = g.add("mul", g.add("relu", y), g.constant(array(4, 1)))
    y = g.add("add", g.add("clip", y, min=0.1), g.input("z", (9,)))
    y = g.add("conv2d", g.add("reshape", y, shape=(1, 4, 1, 9)), g.constant(array(3, 4, 1, 3)))
    graph = g.build(g.add("reshape", y, shape=(1, 3, 7), name="y"))
    moved = eliminate(fold(eliminate(applied(keep_unit_axes, graph))))
    own = ["conv2d", "batch_norm", "relu", "mul", "clip", "reshape", "add", "conv2d", "reshape"]
    assert ops(moved) == own, "the reshape within is that of the input z"
    assert {len(moved.types[node.outputs[0]].shape) for node in moved.nodes[:-1]} == {4}


@pytest.mark.parametrize(
    ("op", "wide", "narrow", "attrs"),
    [
        ("relu", (1, 4, 3, 3), (1, 4, 9), {}),  # extents are joined
        ("relu", (4, 9), (1, 4, 9), {}),  # one is added
        ("relu", (1, 4, 1, 1), (4,), {}),  # statistics of channels
        ("relu", (1, 4, 1, 1), (1, 4), {}),
        ("softmax", (1, 4, 1, 9), (1, 4, 9), {"axis": 1}),
        ("batch_norm", (1, 4, 9), (4, 9), {}),  # of other channels
    ],
)
def test_other_reshapes_and_nodes_stay_where_they_are(
    op: str, wide: tuple[int, ...], narrow: tuple[int, ...], attrs: dict[str, Attribute]
) -> None:
    g = GraphBuilder()
    y = g.add("reshape", g.add("exp", g.input("x", wide)), shape=narrow)
    parameters = [g.constant(array(9, low=0.1)) for _ in range(4)] if op == "batch_norm" else []
    graph = g.build(g.add(op, y, *parameters, **attrs))
    assert ops(applied(keep_unit_axes, graph)) == ops(graph)


# --- canonical --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        (one("conv2d", (1, 3, 5, 5), array(4, 3, 3, 3), array(4)), ["conv2d", "add"]),
        (one("conv2d_transpose", (1, 3, 5, 5), array(3, 4, 3, 3), array(4)), ["conv2d_transpose", "add"]),
        (one("avg_pool2d", (1, 3, 5, 4), kernel=(5, 4)), ["reduce_mean"]),
        (one("max_pool2d", (1, 3, 5, 4), kernel=(5, 4)), ["reduce_max"]),
        (one("max_pool2d", (1, 3, 5, 4), kernel=(5, 3)), ["max_pool2d"]),
        (one("matmul", (2, 4), array(3, 4), transpose_b=True), ["matmul"]),
        (one("div", (3,), np.float32(3.0)), ["mul"]),
        (one("div", (3,), np.float32(0.0)), ["div"]),
        (one("div", (3,), np.float32(2e38)), ["div"]),  # 1 / 2e38 has fewer digits
        (one("div", (3,), np.float32(1e-40)), ["div"]),  # and 1 / 1e-40 is infinite
        (one("sub", (3,), array(3)), ["add"]),
        (one("pow", (3,), np.float32(2.0)), ["mul"]),
        (one("pow", (3,), np.float32(0.5)), ["sqrt"]),
        (one("pow", (3,), np.float32(3.0)), ["pow"]),
        (one("transpose", (2, 1, 4), perm=(1, 0, 2)), ["reshape"]),
        (one("transpose", (2, 1, 4), perm=(2, 1, 0)), ["transpose"]),
    ],
    ids=str,
)
def test_canonical_forms(graph: Graph, expected: list[str]) -> None:
    assert ops(applied(canonicalize, graph)) == expected


LAST, BACK = (0, 2, 3, 1), (0, 3, 1, 2)  # channels last, and back


@pytest.mark.parametrize(
    ("op", "parameters", "attrs", "there", "back", "stored"),
    [
        ("layer_norm", [3, 3], {}, LAST, BACK, {"axis": 1, "trailing": 2}),
        ("rms_norm", [3], {}, LAST, BACK, {"axis": 1, "trailing": 2}),
        ("layer_norm", [(4, 5, 3)], {"axis": 1}, LAST, BACK, None),  # in another order than they are stored
        ("layer_norm", [(4, 5)], {"axis": 2}, (1, 0, 2, 3), (1, 0, 2, 3), {"axis": 2, "trailing": 0}),
        ("softmax", [], {"axis": 3}, LAST, BACK, {"axis": 1}),
        ("log_softmax", [], {"axis": -2}, LAST, BACK, {"axis": 3}),
    ],
)
def test_normalizations_between_transposes_are_of_dimensions_as_they_are_stored(
    op: str,
    parameters: list[tuple[int, ...] | int],
    attrs: dict[str, Attribute],
    there: tuple[int, ...],
    back: tuple[int, ...],
    stored: dict[str, int] | None,
) -> None:
    g = GraphBuilder()
    y = g.add("transpose", g.input("x", (2, 3, 4, 5)), perm=there)
    y = g.add(op, y, *(g.constant(array(*np.atleast_1d(shape))) for shape in parameters), **attrs)
    graph = g.build(g.add("transpose", y, perm=back, name="y"))
    found = eliminate(applied(canonicalize, graph)).nodes
    if stored is None:
        assert [node.op for node in found] == ["transpose", op, "transpose"]
    else:
        assert [node.op for node in found] == [op]
        assert {key: found[0].attrs[key] for key in stored} == stored


def test_a_normalization_whose_result_is_read_as_it_is_stays_behind_the_transpose() -> None:
    g = GraphBuilder()
    y = g.add("softmax", g.add("transpose", g.input("x", (2, 3, 4)), perm=(0, 2, 1)))
    graph = g.build(g.add("transpose", y, perm=(0, 2, 1)), g.add("relu", y))
    assert ops(applied(canonicalize, graph)) == ["transpose", "softmax", "transpose", "relu"]


def test_exact_forbids_inexact_reciprocals() -> None:
    def exactly(graph: Graph) -> Graph:
        return canonicalize(graph, exact=True)

    assert ops(applied(exactly, one("div", (3,), np.float32(3.0)), 0.0)) == ["div"]
    assert ops(applied(exactly, one("div", (3,), np.float32(8.0)), 0.0)) == ["mul"]


def test_exact_keeps_the_power_that_is_no_root_of_minus_infinity() -> None:
    assert ops(canonicalize(one("pow", (3,), np.float32(0.5)), exact=True)) == ["pow"]
    assert ops(canonicalize(one("pow", (3,), np.float32(2.0)), exact=True)) == ["mul"]


def test_transposed_constants_are_views() -> None:
    w = array(3, 4)
    after = applied(canonicalize, one("matmul", (2, 4), w, transpose_b=True))
    assert np.shares_memory(after.constants[after.nodes[0].inputs[1]], w)
    assert after.nodes[0].attrs["transpose_b"] is False


@pytest.mark.parametrize(
    ("pads", "expected"), [((0, 0, 1, 2, 0, 0, 3, 0), ["conv2d"]), ((0, 1, 0, 0, 0, 0, 0, 0), ["pad", "conv2d"])]
)
def test_zero_padding_goes_into_the_convolution(pads: tuple[int, ...], expected: list[str]) -> None:
    g = GraphBuilder()
    padded = g.add("pad", g.input("x", (1, 3, 5, 5)), pads=pads)
    weight = g.constant(array(4, 3 + pads[1], 3, 3))
    assert ops(applied(canonicalize, g.build(g.add("conv2d", padded, weight, pads=(1, 1, 1, 1), name="y")))) == expected


# --- all of them ------------------------------------------------------------------------------------------------------


def test_the_pipeline_leaves_a_convolution_with_its_epilogue() -> None:
    g = GraphBuilder()
    y = g.add("conv2d", g.input("x", (1, 3, 8, 8)), g.constant(array(4, 3, 3, 3)), g.constant(array(4)))
    y = g.add("batch_norm", g.add("identity", y), *(g.constant(p) for p in statistics(4)))
    y = g.add("mul", y, g.add("reshape", g.constant(array(4)), shape=(4, 1, 1)))
    graph = g.build(g.add("relu", g.add("div", y, g.constant(3.0)), name="y"))
    after = applied(optimize, graph)
    assert ops(after) == ["conv2d", "add", "relu"]
    assert optimize(after).nodes == after.nodes


@pytest.mark.parametrize(
    "steps", [("round",), ("add", "floor"), ("clip", "cast"), ("neg", "greater"), ("reshape", "ceil")]
)
def test_a_quotient_that_is_rounded_stays_one(steps: tuple[str, ...]) -> None:
    def rounded(divisor: float) -> Graph:
        g = GraphBuilder()
        y = g.add("div", g.input("x", (4,)), g.constant(np.array(divisor, np.float32)))
        given: dict[str, dict[str, object]] = {
            "clip": {"min": -8.0, "max": 7.0}, "cast": {"to": "int8"}, "reshape": {"shape": (2, 2)},
        }  # fmt: skip
        for op in steps:
            others = [g.constant(np.array(0.5, np.float32))] if op in ("add", "greater") else []
            y = g.add(op, y, *others, **given.get(op, {}))  # type: ignore[arg-type]
        return g.build(y)

    assert ops(canonicalize(rounded(0.3)))[0] == "div"
    assert ops(canonicalize(rounded(0.25)))[0] == "mul"


def test_a_quotient_that_is_summed_is_a_product_even_before_rounding() -> None:
    g = GraphBuilder()
    x = g.add("div", g.input("x", (4, 4)), g.constant(np.array(0.3, np.float32)))
    assert ops(canonicalize(g.build(g.add("round", g.add("reduce_sum", x, axes=(1,))))))[0] == "mul"


def test_quotients_of_halves_stay_quotients() -> None:
    g = GraphBuilder()
    half = g.build(g.add("div", g.input("x", (4,), "float16"), g.constant(np.array(3, np.float16))))
    assert ops(canonicalize(half)) == ["div"]
