"""Contractions as templates and costs see them: factors, what they load, and maps by literals."""

from __future__ import annotations

from typing import Any

import pytest

from burnish.loops import tensor as te
from burnish.loops.contraction import contraction, is_contraction, is_sum_of_products, literal_factor
from burnish.loops.expr import cast, select, wrap
from burnish.loops.tensor import Tensor, compute, placeholder, reduce_axis, stages
from burnish.ops import OPERATORS


def stages_of(op: str, *shapes: tuple[int, ...], **attrs: Any) -> list[Tensor]:
    inputs = [placeholder(shape, name=f"x{i}") for i, shape in enumerate(shapes)]
    return [t for t in stages(OPERATORS[op].define("y", inputs, attrs)) if t.body is not None]


def test_a_product_of_halves_beside_padding() -> None:
    a, b = placeholder((3, 4), "bfloat16", "a"), placeholder((4, 5), name="b")
    k = reduce_axis(4, "k")
    inside = lambda i, j: select(k.var >= 1, b[k.var, j], wrap(0.0, "float32"))  # noqa: E731
    y = compute((3, 5), lambda i, j: te.sum(cast("float32", a[i, k.var]) * inside(i, j), k), "y")
    found = contraction(y)
    assert found is not None and found.depth == 4 and found.in_lanes and not found.words and found.literal is None
    assert found.operands[0] is not None and found.operands[0].dtype == "bfloat16" and found.operands[1] is None
    assert found.loads is not None and [x.buffer.name for x in found.loads] == ["a", "b"]
    assert is_contraction(y) and is_sum_of_products(y)


@pytest.mark.parametrize("op", ["reduce_sum", "reduce_max", "reduce_sumsq"])
def test_other_reductions_are_no_sums_of_products_of_two_tensors(op: str) -> None:
    (y,) = [t for t in stages_of(op, (3, 4), axes=(1,)) if t.name == "y"]
    assert not is_sum_of_products(y) and not is_contraction(y) and literal_factor(y) is None


def test_a_transform_is_a_map_by_literals() -> None:
    maps = stages_of("winograd_weight", (8, 4, 3, 3), m=2)
    assert len(maps) == 2 and all(literal_factor(t) is not None and not is_sum_of_products(t) for t in maps)
