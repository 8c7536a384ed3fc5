"""Facts derived from definitions."""

import pytest

from burnish.loops.expr import math
from burnish.loops.tensor import compute, placeholder
from burnish.ops import OPERATORS
from burnish.ops.classify import (
    axis_inputs,
    elementwise_inputs,
    flops,
    fusion_class,
    is_elementwise,
    is_view,
    traffic,
)
from burnish.ops.reads import accesses


def define(name, *shapes, **attrs):
    dtypes = attrs.pop("dtypes", ["float32"] * len(shapes))
    inputs = [placeholder(s, d, f"x{i}") for i, (s, d) in enumerate(zip(shapes, dtypes, strict=True))]
    return OPERATORS[name].define("y", inputs, attrs)


IMAGE, KERNEL = (2, 4, 8, 8), (6, 4, 3, 3)


@pytest.mark.parametrize(
    ("outputs", "expected"),
    [
        (define("relu", (2, 3)), "injective"),
        (define("add", (2, 3), (3,)), "injective"),
        (define("concat", (2, 3), (2, 3), axis=0), "injective"),
        (define("gather", (5, 3), (2,), dtypes=["float32", "int64"]), "injective"),
        (define("batch_norm", IMAGE, (4,), (4,), (4,), (4,)), "injective"),
        (define("reduce_sum", (2, 3)), "reduction"),
        (define("reduce_sumsq", (2, 3)), "reduction"),
        (define("softmax", (2, 3)), "reduction"),
        (define("layer_norm", (2, 3), (3,), (3,)), "reduction"),
        (define("max_pool2d", IMAGE, kernel=(2, 2)), "reduction"),
        (define("avg_pool2d", IMAGE, kernel=(2, 2)), "reduction"),
        (define("argmax", (2, 3)), "reduction"),
        (define("matmul", (2, 3), (3, 4)), "complex"),
        (define("conv2d", IMAGE, KERNEL), "complex"),
        (define("conv2d", IMAGE, KERNEL, (6,), pads=(1, 1, 1, 1)), "complex"),
        (define("conv2d", IMAGE, (4, 1, 3, 3), groups=4), "complex"),
        (define("conv2d_transpose", IMAGE, (4, 2, 4, 4), strides=(2, 2)), "complex"),
        (define("matmul", (2, 3), (3, 4), dtypes=["float16"] * 2), "complex"),
        (define("lstm_cell", (2, 16), (2, 4), (2, 4), (4, 4, 4)), "opaque"),
    ],
)
def test_fusion_class(outputs, expected):
    assert fusion_class(outputs) == expected


@pytest.mark.parametrize(
    ("outputs", "view", "elementwise"),
    [
        (define("relu", (2, 3)), False, True),
        (define("add", (2, 3), (3,)), False, True),
        (define("add", (2, 1), (1, 3)), False, False),  # neither operand has the output's shape
        (define("batch_norm", IMAGE, (4,), (4,), (4,), (4,)), False, False),
        (define("where", (2, 3), (2, 3), (2, 3), dtypes=["bool", "float32", "float32"]), False, True),
        (define("trilu", (2, 3)), False, False),  # what an element is depends on where it stands
        (define("reshape", (2, 6), shape=(3, 4)), True, False),
        (define("transpose", (2, 6)), True, False),
        (define("slice", (8,), starts=(2,), extents=(3,)), True, False),
        (define("depth_to_space", (1, 4, 2, 2), block=2), True, False),
        (define("concat", (2, 3), (2, 3), axis=0), False, False),
        (define("gather", (5, 3), (2,), dtypes=["float32", "int64"]), False, False),
        (define("matmul", (2, 3), (3, 4)), False, False),
    ],
)
def test_views_and_elementwise_definitions(outputs, view, elementwise):
    assert is_view(outputs) == view
    assert is_elementwise(outputs) == elementwise


def test_elementwise_inputs_of_a_product_are_those_of_its_epilogue():
    x, w, r = placeholder((4, 5), name="x"), placeholder((5, 6), name="w"), placeholder((4, 6), name="r")
    (product,) = OPERATORS["matmul"].define("p", [x, w])
    total = compute((4, 6), lambda i, j: math("tanh", product[i, j] + r[i, j]), "t")
    assert elementwise_inputs([total]) == {"r"}


def test_accesses_see_through_stages():
    (y,) = define("softmax", (2, 3))
    found = {tuple(map(str, a.indices)) for a in accesses(y)}
    assert found == {("i0", "i1"), ("i0", "y.sum.k0"), ("i0", "y.max.k0")}
    (y,) = define("conv2d", (1, 2, 5, 5), (2, 2, 3, 3), pads=(1, 1, 1, 1))
    assert [str(a.indices[2]) for a in accesses(y) if a.source.name == "x0"] == ["((oh + y.kh) - 1)"]


def test_flops():
    assert flops(define("matmul", (2, 3), (3, 4))) == 2 * 2 * 3 * 4
    assert flops(define("conv2d", IMAGE, KERNEL, (6,))) == 2 * 6 * 6 * 6 * (2 * 4 * 3 * 3 + 1)
    assert flops(define("relu", (2, 3))) == 6
    assert flops(define("transpose", (2, 3))) == 0
    assert flops(define("softmax", (2, 3))) == 6 + 2 * 6 + 6 + 2 + 6  # max; subtract and exp; sum; reciprocal; scale


def test_traffic_counts_only_what_is_read():
    assert traffic(define("matmul", (2, 3), (3, 4))) == 4 * (6 + 12 + 8)
    assert traffic(define("gather", (1000, 8), (2,), dtypes=["float32", "int64"])) == 4 * 16 + 8 * 2 + 4 * 16
    assert traffic(define("slice", (100,), starts=(2,), extents=(3,))) == 4 * (3 + 3)
    assert traffic(define("add", (2, 3), (3,))) == 4 * (6 + 3 + 6)


def test_axis_inputs():
    (y,) = define("matmul", (5, 2, 3), (3, 4))
    assert axis_inputs(y) == ({"x0"}, {"x0"}, {"x1"})


def test_one_contraction_alone_is_complex():
    """Beside a second one, or beside another reduction, it is not: an epilogue cannot be fused behind both."""
    x, w, v = (placeholder((4, 4), name=name) for name in "xwv")
    (first,) = OPERATORS["matmul"].define("first", [x, w])
    assert fusion_class([first]) == "complex"
    assert fusion_class(OPERATORS["matmul"].define("second", [first, v])) == "reduction"
    assert fusion_class(OPERATORS["reduce_sum"].define("total", [first], {"axes": (1,)})) == "reduction"
    (total,) = OPERATORS["reduce_sum"].define("total", [x], {"axes": (1,), "keepdims": False})
    assert fusion_class(OPERATORS["matmul"].define("first", [total, w])) == "reduction"
