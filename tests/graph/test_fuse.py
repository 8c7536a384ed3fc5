"""Fusion: golden groups of small networks, and that composed groups compute what their nodes do."""

import numpy as np
import pytest

from burnish.graph import Graph, GraphBuilder
from burnish.graph.compose import _form, _overwritable, overwritable, tensors
from burnish.graph.evaluate import evaluate
from burnish.graph.fuse import MOST_DEPTH, MOST_PLACES, Group, fuse
from burnish.graph.passes import optimize
from burnish.loops.evaluate import evaluate as evaluate_tensors
from burnish.loops.expr import Load
from burnish.loops.tensor import Tensor, create_program
from burnish.loops.traverse import walk
from burnish.ops.reads import accesses

RANDOM = np.random.default_rng(2)


def array(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape, dtype=np.float32)


def fused(graph: Graph) -> list[Group]:
    """The groups, after checking that they cover the graph in order and compute the same."""
    groups = fuse(graph)
    assert sorted(n.outputs for g in groups for n in g.nodes) == sorted(n.outputs for n in graph.nodes)
    feeds = {n: array(*graph.types[n].shape) for n in graph.inputs}
    values = {**feeds, **graph.constants}
    for group in groups:
        assert set(group.inputs) <= set(values), "groups are in topological order"
        inputs, outputs = tensors(graph, group)
        create_program("p", inputs, outputs)  # refuses repeated stage names
        arrays = {t.name: values[n] for t, n in zip(inputs, group.inputs, strict=True)}
        values.update(zip(group.outputs, evaluate_tensors(outputs, arrays), strict=True))
    for name, expected in evaluate(graph, feeds).items():
        np.testing.assert_allclose(values[name], expected, rtol=1e-5, atol=1e-5)
    return groups


def text(groups: list[Group]) -> list[str]:
    """The operators of each group, its anchor in brackets."""
    return [str(g).partition(" = ")[2].partition(" (")[0] if not g.alias else f"alias {g.nodes[0].op}" for g in groups]


def linear(g: GraphBuilder, x: str, width: int) -> str:
    y = g.add("matmul", x, g.constant(array(g.types[x].shape[-1], width)))
    return g.add("add", y, g.constant(array(width)))


def convolution(g: GraphBuilder, x: str, channels: int, size: int, **attrs: object) -> str:
    weight, bias = g.constant(array(channels, g.types[x].shape[1], size, size)), g.constant(array(channels))
    y = g.add("conv2d", x, weight, bias, **attrs)  # type: ignore[arg-type]
    return g.add("batch_norm", y, *(g.constant(np.abs(array(channels)) + 0.1) for _ in range(4)))


def test_residual_block() -> None:
    g = GraphBuilder()
    x = g.add("relu", convolution(g, g.input("x", (1, 3, 12, 12)), 8, 3, pads=(1, 1, 1, 1)))
    y = g.add("relu", convolution(g, x, 8, 3, pads=(1, 1, 1, 1)))
    x = g.add("relu", g.add("add", convolution(g, y, 8, 3, pads=(1, 1, 1, 1)), x))
    y = g.add("relu", convolution(g, x, 16, 3, pads=(1, 1, 1, 1), strides=(2, 2)))
    y = g.add("add", convolution(g, y, 16, 3, pads=(1, 1, 1, 1)), convolution(g, x, 16, 1, strides=(2, 2)))
    y = g.add("avg_pool2d", g.add("relu", y), kernel=(6, 6))
    y = linear(g, g.add("reshape", y, shape=(1, 16)), 5)
    groups = fused(optimize(g.build(y)))
    assert sorted(text(groups)) == sorted([
        "[conv2d] add relu", "[conv2d] add relu", "[conv2d] add add relu", "[conv2d] add relu", "[conv2d] add",
        "[conv2d] add add relu", "[reduce_mean]", "alias reshape", "[matmul] add",
    ])  # fmt: skip


def heads(g: GraphBuilder, x: str) -> str:
    return g.add("transpose", g.add("reshape", x, shape=(1, 6, 2, 4)), perm=(0, 2, 1, 3))


def gelu(g: GraphBuilder, x: str) -> str:
    """x * 0.5 * (1 + erf(x / sqrt 2)), written out as exporters do: x is read twice."""
    e = g.add("erf", g.add("div", x, g.constant(np.float32(np.sqrt(2)))))
    return g.add("mul", g.add("mul", x, g.add("add", e, g.constant(1.0))), g.constant(0.5))


def test_transformer_block() -> None:
    g = GraphBuilder()
    ids = g.constant(np.array([[3, 1, 4, 1, 5, 0]]), "ids")
    x = g.add("gather", g.input("table", (7, 8)), ids)
    x = g.add("layer_norm", g.add("add", x, g.constant(array(6, 8))), g.constant(array(8)), g.constant(array(8)))
    q, k, v = (heads(g, linear(g, x, 8)) for _ in range(3))
    scores = g.add("matmul", q, g.add("transpose", k, perm=(0, 1, 3, 2)))
    mixed = g.add("matmul", g.add("softmax", g.add("div", scores, g.constant(2.0))), v)
    mixed = g.add("reshape", g.add("transpose", mixed, perm=(0, 2, 1, 3)), shape=(1, 6, 8))
    x = g.add("layer_norm", g.add("add", linear(g, mixed, 8), x), g.constant(array(8)), g.constant(array(8)))
    y = linear(g, gelu(g, linear(g, x, 32)), 8)
    y = g.add("layer_norm", g.add("add", y, x), g.constant(array(8)), g.constant(array(8)))
    assert text(fused(optimize(g.build(y)))) == [
        "gather add [layer_norm]",
        "[matmul] add reshape transpose",
        "[matmul] add reshape transpose",
        "[matmul] add reshape transpose",
        "[matmul] mul",
        "[softmax]",
        "[matmul] transpose",
        "alias reshape",
        "[matmul] add add",
        "[layer_norm]",
        "[matmul] add mul erf add mul mul",
        "[matmul] add add",
        "[layer_norm]",
    ]


def test_softmax_takes_what_only_feeds_it_and_what_follows() -> None:
    g = GraphBuilder()
    x, mask = g.input("x", (2, 5)), g.input("mask", (5,))
    y = g.add("softmax", g.add("add", g.add("mul", x, g.constant(0.25)), mask))
    graph = g.build(g.add("mul", g.add("clip", y, min=0.1), x, name="y"))
    (group,) = fused(graph)
    assert str(group) == "y = mul add [softmax] clip mul (x, mask)"


def test_injective_nodes_merge_into_chains() -> None:
    g = GraphBuilder()
    x = g.input("x", (2, 3, 4))
    y = g.add("transpose", g.add("exp", x), perm=(2, 0, 1))
    y = g.add("tanh", g.add("reshape", g.add("neg", y), shape=(4, 6)))
    assert text(fused(g.build(y))) == ["exp transpose neg reshape tanh"]


def test_a_result_needed_twice_ends_its_group() -> None:
    g = GraphBuilder()
    y = g.add("conv2d", g.input("x", (1, 3, 6, 6)), g.constant(array(4, 3, 1, 1)))
    y = g.add("relu", y)
    a, b = (g.add("max_pool2d", y, kernel=(2, 2), strides=s) for s in ((1, 1), (2, 2)))
    assert text(fused(g.build(g.add("exp", a), b))) == ["[conv2d] relu", "[max_pool2d]", "[max_pool2d] exp"]


def test_a_graph_output_ends_its_group() -> None:
    g = GraphBuilder()
    y = g.add("matmul", g.input("x", (1, 2, 3)), g.constant(array(3, 4)))
    z = g.add("relu", y)
    assert text(fused(g.build(y, z))) == ["[matmul]", "relu"]


def test_broadcasting_a_result_ends_its_group() -> None:
    g = GraphBuilder()
    y = g.add("exp", g.input("x", (1, 3)))
    y = g.add("add", y, g.input("z", (4, 3)))  # fused, exp would be computed four times
    y = g.add("matmul", g.add("mul", y, y), g.constant(array(3, 1)))
    assert text(fused(g.build(g.add("add", y, g.input("w", (4, 5)))))) == ["exp", "add mul", "[matmul]", "add"]


def test_overlapping_windows_do_not_recompute_their_input() -> None:
    g = GraphBuilder()
    x = g.add("exp", g.input("x", (1, 2, 6, 6)))
    assert text(fused(g.build(g.add("max_pool2d", x, kernel=(3, 3))))) == ["exp", "[max_pool2d]"]
    g = GraphBuilder()
    x = g.add("exp", g.input("x", (1, 2, 6, 6)))
    assert text(fused(g.build(g.add("max_pool2d", x, kernel=(3, 3), strides=(3, 3))))) == ["exp [max_pool2d]"]


def test_concat_takes_elementwise_neighbours_but_no_convolutions() -> None:
    g = GraphBuilder()
    x = g.input("x", (1, 3, 4, 4))
    parts = [g.add("relu", g.add("conv2d", x, g.constant(array(c, 3, 1, 1)))) for c in (2, 5)]
    y = g.add("relu", g.add("concat", *parts, g.add("neg", x), axis=1))
    assert sorted(text(fused(g.build(y)))) == ["[conv2d] relu", "[conv2d] relu", "neg concat relu"]


def test_views_that_only_feed_a_product_are_read_through() -> None:
    g = GraphBuilder()
    a, b = g.input("a", (4, 6)), g.input("b", (5, 8))
    left = g.add("transpose", a, perm=(1, 0))
    right = g.add("slice", b, starts=(1, 0), extents=(4, 8))
    assert text(fused(g.build(g.add("matmul", left, right)))) == ["transpose slice [matmul]"]


@pytest.mark.parametrize(
    ("before", "after"), [((2, 3, 4, 5), (2, 60)), ((2, 60), (2, 3, 4, 5)), ((24, 1), (1, 24)), ((6, 4), (8, 3))]
)
def test_reshapes_share_memory_and_transposes_do_not(before: tuple[int, ...], after: tuple[int, ...]) -> None:
    g = GraphBuilder()
    y = g.add("reshape", g.input("x", before), shape=after)
    z = g.add("transpose", g.input("z", (2, 3)), perm=(1, 0))
    assert [group.alias for group in fuse(g.build(y, z))] == [True, False]


def test_a_view_that_no_store_can_follow_stays_outside() -> None:
    g = GraphBuilder()
    y = g.add("matmul", g.input("x", (6, 3)), g.constant(array(3, 4)))
    y = g.add("transpose", g.add("reshape", y, shape=(8, 3)), perm=(1, 0))
    assert text(fused(g.build(y))) == ["[matmul]", "alias reshape", "transpose"]


def test_recurrent_cells_stay_alone_but_read_through_slices() -> None:
    g = GraphBuilder()
    x, r = g.input("x", (4, 5)), g.constant(array(4, 3, 3))
    gates = g.add("matmul", x, g.constant(array(5, 12)))  # of all steps at once
    state = g.constant(array(2, 3)), g.constant(array(2, 3))
    for t in range(2):
        part = g.add("slice", gates, starts=(2 * t, 0), extents=(2, 12))
        state = g.add_many("lstm_cell", part, *state, r)  # type: ignore[assignment]
    y = g.add("relu", state[0])
    groups = fused(g.build(y))
    assert text(groups) == ["[matmul]", "slice [lstm_cell]", "slice [lstm_cell]", "relu"]
    assert [len(group.outputs) for group in groups] == [1, 2, 1, 1]


def test_scalars_become_literals() -> None:
    g = GraphBuilder()
    x = g.input("weird/name:0", (3,))
    y = g.add("add", g.add("mul", x, g.constant(np.float32([2.5]))), g.constant(array(3), "b"), name="weird.name_0")
    graph = g.build(g.add("relu", y, name="weird/name.0"))
    (group,) = fused(graph)
    inputs, (output,) = tensors(graph, group)
    assert group.inputs == ("weird/name:0", "b")
    assert [t.name for t in inputs] == ["weird_name_0", "b"]
    assert output.name == "weird_name_0_2"
    (added,) = output.inputs
    (scaled,) = [t for t in added.inputs if t.body is not None]
    assert str(scaled.body) == "(weird_name_0[i0] * 2.5)"


def test_a_scalar_operand_of_a_product_stays_a_tensor() -> None:
    g = GraphBuilder()
    graph = g.build(g.add("conv2d", g.input("x", (1, 1, 3, 3)), g.constant(array(1, 1, 1, 1), "w")))
    (group,) = fused(graph)
    _, (output,) = tensors(graph, group)
    assert group.inputs == ("x", "w")
    assert output.body is not None
    assert sum(isinstance(e, Load) for e in walk(output.body)) == 2


def test_inputs_that_a_result_may_overwrite() -> None:
    g = GraphBuilder()
    x, r = g.input("x", (1, 4, 5, 5)), g.input("r", (1, 4, 5, 5))
    y = g.add("add", g.add("conv2d", x, g.constant(array(4, 4, 1, 1))), g.constant(array(4, 1, 1)))
    y = g.add("softmax", g.add("mul", g.add("add", y, r, name="sum"), g.input("s", (4, 1, 1))), axis=1)
    y = g.add("exp", g.add("transpose", y, perm=(0, 1, 3, 2)))
    graph = g.build(g.add("sub", y, x, name="y"))
    groups = fused(graph)
    assert text(groups) == ["[conv2d] add add mul", "[softmax]", "transpose exp sub"]
    assert [overwritable(graph, group) for group in groups] == [("r",), (), ("x",)]


def test_what_may_be_overwritten_is_found_once_for_layers_that_are_alike() -> None:
    """Names do not matter; constants of one element, attributes and types do."""
    g = GraphBuilder()
    x = g.input("x", (2, 6))
    for _ in range(20):
        x = g.add("softmax", g.add("mul", g.add("relu", x), g.constant(0.9)), axis=1)
    for axis, factor in ((0, 0.9), (1, 0.8)):
        x = g.add("softmax", g.add("mul", g.add("relu", x), g.constant(factor)), axis=axis)
    graph = g.build(g.add("softmax", g.add("add", x, x), axis=1))
    _overwritable.cache_clear()
    found = [overwritable(graph, group) for group in fused(graph)]
    alone = [_overwritable.__wrapped__(_form(graph, group), 0) for group in fused(graph)]
    assert found == [tuple(group.inputs[i] for i in places) for group, places in zip(fused(graph), alone, strict=True)]
    assert _overwritable.cache_info().misses == 5  # relu and mul with two factors, softmax of two axes, add


def momentum(read_again: bool = False, states: bool = True) -> Graph:
    """The update of a weight by its gradient, a product: the new velocity is a result too."""
    g = GraphBuilder()
    x, dy = g.input("x", (6, 4)), g.input("y", (6, 5))
    v, w = (g.state(n, array(4, 5)) if states else g.input(n, (4, 5)) for n in "vw")
    new = g.add("add", g.add("mul", v, g.constant(0.9)), g.add("matmul", x, dy, transpose_a=True), name="new")
    moved = g.add("sub", w, g.add("mul", new, g.input("rate", ())), name="moved")
    more = [g.add("relu", new)] if read_again else []
    if not states:
        return g.build(new, moved, *more)
    g.update("v", new)
    g.update("w", moved)
    return g.build(*more)


def test_a_product_takes_in_the_update_of_a_weight() -> None:
    graph = momentum()
    (group,) = fused(graph)
    assert group.outputs == ("new", "moved") and set(group.inputs) == {"x", "y", "v", "w", "rate"}
    assert overwritable(graph, group) == overwritable(graph, group, "new") == ("v",)
    assert set(overwritable(graph, group, "moved")) == {"v", "w"}
    groups = fused(momentum(read_again=True))
    assert [group.outputs[0] for group in groups] == ["new", "moved", "relu"]
    groups = fused(momentum(states=False))  # another output may be sent, and what is computed of it wait for the answer
    assert [group.outputs for group in groups] == [("new",), ("moved",)]


@pytest.mark.parametrize("seed", range(20))
def test_random_graphs_keep_their_values(seed: int) -> None:
    random = np.random.default_rng(seed)
    g = GraphBuilder()
    pool = [g.input("a", (4, 4)), g.input("b", (4, 4))]
    for _ in range(14):
        op = random.choice(["relu", "tanh", "add", "mul", "matmul", "softmax", "transpose", "reshape"])
        x, y = (str(v) for v in random.choice(pool[-5:], 2))
        match op:
            case "add" | "mul" | "matmul":
                pool.append(g.add(op, x, y))
            case "transpose":
                pool.append(g.add(op, x, perm=(1, 0)))
            case "reshape":
                pool.append(g.add("reshape", g.add(op, x, shape=(2, 8)), shape=(4, 4)))
            case _:
                pool.append(g.add(str(op), x))
    fused(optimize(g.build(*pool[-2:])))


@pytest.mark.parametrize("channels", [(32, 20), (20, 32)])
def test_joins_in_place_stand_alone(channels: tuple[int, int]) -> None:
    g = GraphBuilder()
    x = g.input("x", (1, 3, 16, 16))
    parts = [g.add("conv2d", x, g.constant(array(c, 3, 1, 1))) for c in channels]
    y = g.add("relu", g.add("concat", parts[0], g.add("relu", parts[1]), axis=1))
    groups = sorted(text(fuse(g.build(g.add("neg", parts[1]), y), 16)))
    if channels == (32, 20):
        assert groups == ["[conv2d]", "[conv2d]", "concat", "neg", "relu", "relu"]
    else:  # the second part would begin inside of a block
        assert groups == ["[conv2d]", "[conv2d]", "neg", "relu concat relu"]


def test_elementwise_nodes_that_only_feed_a_map_join_it() -> None:
    g = GraphBuilder()
    a, b = g.input("a", (4, 6)), g.input("b", (4, 6))
    g.add("mul", g.add("tanh", g.add("neg", a)), g.add("sigmoid", g.add("exp", b)), name="y")
    assert text(fused(g.build("y"))) == ["neg tanh exp sigmoid mul"]


def alternating(count: int, moved: bool) -> Graph:
    """``x * sigmoid(x)``, or ``sigmoid(x + transpose(x))``, so many times in a row."""
    g = GraphBuilder()
    x = g.input("x", (4, 4))
    for _ in range(count):
        x = g.add("sigmoid", g.add("add", x, g.add("transpose", x))) if moved else g.add("mul", x, g.add("sigmoid", x))
    return g.build(x)


def test_a_long_chain_is_several_groups_of_bounded_depth() -> None:
    groups = fused(alternating(100, moved=False))
    assert 1 < len(groups) <= 10
    assert max(len(group.nodes) for group in groups) <= MOST_DEPTH


def test_a_group_computes_no_member_at_many_places() -> None:
    graph = alternating(12, moved=True)
    groups = fused(graph)
    assert len(groups) > 1
    for group in groups:
        _, (out,) = tensors(graph, group)
        assert len(accesses(out)) <= 4 * MOST_PLACES


def test_a_shuffle_of_channels_is_one_kernel_and_other_reshapes_are_none() -> None:
    b = GraphBuilder()
    x = b.input("x", (1, 12, 4, 5))
    split = b.add("reshape", b.add("relu", x), shape=(1, 3, 4, 4, 5))
    moved = b.add("reshape", b.add("transpose", split, perm=(0, 2, 1, 3, 4)), shape=(1, 12, 4, 5))
    flat = b.add("reshape", moved, shape=(1, 12, 20))
    groups = fused(b.build(moved, flat))
    assert [[node.op for node in g.nodes] for g in groups] == [["relu", "reshape", "transpose", "reshape"], ["reshape"]]
    assert [g.alias for g in groups] == [False, True]


def test_equal_groups_share_their_tensors() -> None:
    """Also of two graphs; groups whose numbers are equal but not the same (0.0 and -0.0) do not."""

    def scaled(number: float) -> tuple[list[Tensor], list[Tensor]]:
        g = GraphBuilder()
        graph = g.build(g.add("mul", g.input("x", (3, 5)), g.constant(number), name="y"))
        (group,) = fuse(graph)
        return tensors(graph, group)

    once, again, negative = scaled(0.0), scaled(0.0), scaled(-0.0)
    assert once[0][0] is again[0][0] and once[1][0] is again[1][0]
    (found,) = evaluate_tensors(negative[1], {negative[0][0].name: np.ones((3, 5), np.float32)})
    assert np.signbit(found).all()
