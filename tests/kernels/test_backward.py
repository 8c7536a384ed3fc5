"""Backward kernels by forward templates: pools in channel blocks, products of variable factors, packed weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import burnish as bn
from burnish.graph.graph import Graph, GraphBuilder
from burnish.kernels.cpu.generic import GENERIC
from burnish.kernels.cpu.matmul import MATMUL
from burnish.kernels.task import KernelTask
from burnish.loops.layout import layout
from burnish.loops.program import For, walk_stmt
from burnish.loops.tensor import Tensor, placeholder, stages
from burnish.machines.target import host
from burnish.ops import OPERATORS

LANES = host().lanes


def pool_gradient(shape: tuple[int, ...], **attrs: Any) -> Tensor:
    """The gradient of max pooling, of placeholders x, value and seed."""
    (y,) = OPERATORS["max_pool2d"].define("y", [placeholder(shape)], attrs)
    given = [placeholder(shape, name="x"), placeholder(y.shape, name="value"), placeholder(y.shape, name="seed")]
    own = {
        "operator": "max_pool2d", "attributes": tuple(sorted(attrs.items())), "types": ((shape, "float32"),), "wrt": 0,
        "seeded": (0,), "reads": (0, 1, 2),
    }  # fmt: skip
    (dx,) = OPERATORS["adjoint"].define("dx", given, own)
    return dx


@pytest.mark.parametrize(("channels", "size"), [(LANES, 9), (2 * LANES, 12), (2 * LANES + 5, 7)])
def test_a_pool_passes_its_adjoint_on_in_channel_blocks(check: Callable[..., object], channels: int, size: int) -> None:
    dx = pool_gradient((2, channels, size, size), kernel=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1))
    layouts = dict.fromkeys(("x", "value", "seed", "dx"), f"ABCD{LANES}b")
    check(GENERIC, "adjoint", [dx], layouts=layouts)


def test_the_stages_of_a_blocked_image_are_vectors() -> None:
    dx = pool_gradient((2, 2 * LANES, 8, 8), kernel=(2, 2), strides=(2, 2))
    inputs = tuple(t for t in stages([dx]) if t.body is None)
    blocked = {t.name: layout(f"ABCD{LANES}b") for t in (*inputs, dx)}
    match = GENERIC.match(KernelTask("kernel", inputs, (dx,), "", blocked, frozenset()), host())
    assert match is not None
    program = match.apply(match.space.default).program
    every = [s for s in walk_stmt(program.body) if isinstance(s, For)]
    innermost = [loop for loop in every if not any(isinstance(s, For) for s in walk_stmt(loop.body))]
    assert {loop.kind for loop in innermost} == {"vectorize"}


PRODUCTS = [
    ((13, 24), (24, 3 * 16), False, False), ((24, 13), (24, 49 * 16), True, False), ((7, 64), (40, 64), False, True),
    ((33, 50), (50, 21), False, False), ((16, 1024), (1024, 48), False, False),
]  # fmt: skip


@pytest.mark.parametrize("edge", ["start", "end"])
@pytest.mark.parametrize(("a", "b", "ta", "tb"), PRODUCTS)
@pytest.mark.parametrize("choice", [{}, {"outer": "rows", "depth": 0}, {"tile": 3, "vectors": 1, "outer": "rows"}])
def test_products_of_two_variable_factors(
    check: Callable[..., object],
    a: tuple[int, int],
    b: tuple[int, int],
    ta: bool,
    tb: bool,
    choice: dict[str, Any],
    edge: str,
) -> None:
    attrs = {"transpose_a": ta, "transpose_b": tb}
    (y,) = OPERATORS["matmul"].define("y", [placeholder(a, name="a"), placeholder(b, name="b")], attrs)
    check(MATMUL, "matmul", [y], choice={**choice, **({"depth": 0} if choice else {})}, edge=edge)


def test_passes_over_a_factor_that_is_read_in_place(check: Callable[..., object]) -> None:
    (y,) = OPERATORS["matmul"].define("y", [placeholder((40, 96), name="a"), placeholder((96, 64), name="b")], {})
    check(MATMUL, "matmul", [y], choice={"depth": 24, "outer": "columns", "tile": 6, "vectors": 2})


OWN_PANELS = [
    ((130, 96), (96, 80), False, False),
    ((130, 96), (70, 96), False, True),
    ((96, 260), (96, 72), True, False),
]


@pytest.mark.parametrize("edge", ["start", "end"])
@pytest.mark.parametrize(("a", "b", "ta", "tb"), OWN_PANELS)
@pytest.mark.parametrize("vectors", [1, 2, 3])
def test_the_loop_over_panels_copies_what_is_known_at_a_call_only(
    check: Callable[..., object],
    a: tuple[int, int],
    b: tuple[int, int],
    ta: bool,
    tb: bool,
    vectors: int,
    edge: str,
) -> None:
    attrs = {"transpose_a": ta, "transpose_b": tb}
    (y,) = OPERATORS["matmul"].define("y", [placeholder(a, name="a"), placeholder(b, name="b")], attrs)
    choice = {"tile": 5, "vectors": vectors, "outer": "columns", "depth": 0, "unroll": 1}
    check(MATMUL, "matmul", [y], choice=choice, edge=edge, packed_at_call=("b",))
    task = KernelTask("kernel", tuple(y.inputs), (y,), "matmul", {}, frozenset(), frozenset({"b"}))
    made = MATMUL.on(task, host()).apply(choice)
    assert ("transform_layout", "b") not in {(name, args[0]) for name, args in made.trace}, "nothing packs it before"
    assert "prefetch(b[" in str(made.program), "of the next panel, shared out among the tiles of rows"


def test_a_product_hints_at_the_weights_that_it_updates() -> None:
    """One tile of rows ahead; the last tile, which is cut off, at no element beyond the last."""
    b = GraphBuilder()
    x, seed = b.input("x", (64, 1030)), b.input("seed", (64, 1024))
    w = b.state("w", np.zeros((1024, 1030), "f4"))
    gradient = b.add("matmul", seed, x, transpose_a=True)
    b.update(w, b.add("sub", w, b.add("mul", gradient, b.constant(np.float32(0.1)))))
    module = bn.compile(b.build(b.add("reduce_sum", x, axes=(0, 1))), threads=2)
    rng = np.random.default_rng(0)
    feeds = {n: rng.normal(size=s).astype("f4") for n, s in (("x", (64, 1030)), ("seed", (64, 1024)))}
    module(feeds["x"], feeds["seed"])
    used = module.executable.info["kernels"]
    assert [k["template"] for k in used if "sub" in k["group"]] == ["matmul"], used
    np.testing.assert_allclose(module.state["w"], -0.1 * (feeds["seed"].T @ feeds["x"]), atol=1e-5)


def shared_factor(steps: int, rows: int, hidden: int) -> Graph:
    b = GraphBuilder()
    h, w = b.input("h", (rows, hidden)), b.input("w", (hidden, hidden))
    for _ in range(steps):
        h = b.add("tanh", b.add("matmul", h, w, transpose_b=True))
    return b.build(h)


def test_a_factor_that_several_products_read_is_packed_once_and_threads_do_not_change_bits() -> None:
    graph, rng = shared_factor(3, 5, 50), np.random.default_rng(0)
    h, w = rng.normal(size=(5, 50)).astype("f4"), rng.normal(size=(50, 50)).astype("f4") / 7
    one, three = (bn.compile(graph, threads=n) for n in (1, 3))
    assert [k["template"] for k in three.executable.info["kernels"]].count("pack") == 1
    assert [k["template"] for k in one.executable.info["kernels"]] == ["transpose", *["matmul"] * 3]  # one panel
    found = one(h, w)
    for _ in range(3):
        h = np.tanh(h @ w.T)
    np.testing.assert_allclose(found, h, atol=1e-5)
    first = rng.normal(size=(5, 50)).astype("f4")
    assert np.array_equal(one(first, w), three(first, w))


def test_a_recurrent_weight_that_is_no_constant_is_packed_once() -> None:
    b, rng, hidden = GraphBuilder(), np.random.default_rng(0), 40
    gates, w = b.input("gates", (6, 4 * hidden)), b.input("w", (4, hidden, hidden))
    h, c = (b.constant(np.zeros((2, hidden), "f4")) for _ in range(2))
    for t in range(3):
        part = b.add("slice", gates, starts=(2 * t, 0), extents=(2, 4 * hidden))
        h, c = b.add_many("lstm_cell", part, h, c, w)
    module = bn.compile(b.build(h), threads=2)
    used = [k["template"] for k in module.executable.info["kernels"]]
    assert used.count("recurrent") == 3 and used.count("pack") == 1
    x, v = rng.normal(size=(6, 4 * hidden)).astype("f4"), rng.normal(size=(4, hidden, hidden)).astype("f4") / 6
    h_, c_ = np.zeros((2, hidden)), np.zeros((2, hidden))
    for t in range(3):
        s = x[2 * t : 2 * t + 2].reshape(2, 4, hidden) + np.einsum("bk,gjk->bgj", h_, v)
        entry, output, forget = (1 / (1 + np.exp(-s[:, g])) for g in range(3))
        c_ = forget * c_ + entry * np.tanh(s[:, 3])
        h_ = output * np.tanh(c_)
    np.testing.assert_allclose(module(x, v), h_, atol=1e-5)
