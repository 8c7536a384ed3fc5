"""Definitions in the order of memory: the same elements as those of the logical ones, at permuted or merged places."""

from __future__ import annotations

import numpy as np
import pytest

from burnish.loops.arrange import factor_orders, in_memory_order, with_digits, with_rows
from burnish.loops.evaluate import evaluate
from burnish.loops.layout import layout
from burnish.loops.tensor import Tensor, placeholder
from burnish.ops import OPERATORS

LAST = layout("ACDB")


def defined(op: str, x: tuple[int, ...], w: tuple[int, ...], **attrs: object) -> tuple[list[Tensor], list[Tensor]]:
    inputs = [placeholder(x, name="x"), placeholder(w, name="w")]
    found = OPERATORS[op].define("y", inputs, attrs)
    return inputs, [*OPERATORS["relu"].define("z", [*found], {})]


CASES = {
    "padded": ("conv2d", (2, 3, 5, 6), (4, 3, 3, 3), {"pads": (1, 1, 1, 1)}),
    "strided": ("conv2d", (2, 4, 7, 7), (6, 4, 3, 3), {"strides": (2, 2)}),
    "grouped": ("conv2d", (1, 4, 5, 5), (6, 2, 3, 3), {"groups": 2}),
    "depthwise": ("conv2d", (1, 4, 5, 5), (4, 1, 3, 3), {"groups": 4}),
    "pointwise": ("conv2d", (2, 4, 3, 5), (6, 4, 1, 1), {}),
    "phases": ("conv2d_transpose", (2, 4, 3, 3), (4, 40, 4, 4), {"strides": (2, 2), "pads": (1, 1, 1, 1)}),
}


@pytest.mark.parametrize("name", CASES)
def test_elements_are_the_same_at_other_places(name: str) -> None:
    op, x, w, attrs = CASES[name]
    inputs, outputs = defined(op, x, w, **attrs)
    rng = np.random.default_rng(0)
    feeds = {"x": rng.standard_normal(x, "f4"), "w": rng.standard_normal(w, "f4")}
    (expected,) = evaluate(outputs, feeds)
    moved = in_memory_order(inputs, outputs, {"x": LAST, "z": LAST})
    orders = factor_orders(moved[1], {"w"})
    ready = with_rows(*with_digits(*in_memory_order(*moved, orders, between=False)))
    shapes = {t.name: t.shape for t in ready[0]}
    stored = {"x": LAST.pack(feeds["x"]), "w": orders["w"].pack(feeds["w"]) if "w" in orders else feeds["w"]}
    (found,) = evaluate(ready[1], {n: a.reshape(shapes[n]) for n, a in stored.items()})
    np.testing.assert_allclose(found.reshape(LAST.physical_shape(expected.shape)), LAST.pack(expected), rtol=1e-5)


def test_rows_groups_and_phases_are_dimensions() -> None:
    shapes = {}
    for name, (op, x, w, attrs) in CASES.items():
        moved = in_memory_order(*defined(op, x, w, **attrs), {"x": LAST, "z": LAST})
        shapes[name] = with_rows(*with_digits(*moved))[1][0].shape
    assert shapes["padded"] == (2 * 5 * 6, 4) and shapes["pointwise"] == (2 * 3 * 5, 6)
    assert shapes["grouped"] == (3 * 3, 2, 3)
    assert shapes["phases"] == (2, 3, 2, 3, 2, 40)
    assert shapes["depthwise"] == (1, 3, 3, 4), "windows keep rows and columns"


def test_weights_are_stored_as_their_products_read_them() -> None:
    orders = {}
    for name in ("padded", "depthwise"):
        op, x, w, attrs = CASES[name]
        moved = in_memory_order(*defined(op, x, w, **attrs), {"x": LAST, "z": LAST})
        orders[name] = str(factor_orders(moved[1], {"w"})["w"])
    assert orders == {"padded": "ACDB", "depthwise": "BCDA"}
    a, b = placeholder((4, 8), name="a"), placeholder((8, 6), name="b")
    product = OPERATORS["matmul"].define("y", [a, b], {})
    assert str(factor_orders([*product], {"b"})["b"]) == "BA" and not factor_orders([*product], {"a"})
