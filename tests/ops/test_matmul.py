"""Matrix products against NumPy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.errors import ModelError
from burnish.loops.interpret import evaluate
from burnish.loops.tensor import placeholder
from burnish.ops import OPERATORS, infer


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((3, 4), (4, 5)), ((2, 3, 4), (4, 5)), ((2, 1, 3, 4), (5, 4, 2)), ((4,), (4, 5)), ((3, 4), (4,)), ((4,), (4,)),
        ((2, 3, 4), (4,)), ((4,), (2, 4, 3)),
    ],
)  # fmt: skip
def test_shapes_follow_numpy(left, right, apply, normal):
    a, b = normal(*left), normal(*right)
    np.testing.assert_allclose(apply("matmul", a, b)[0], np.matmul(a, b), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("transpose_a", "transpose_b"), [(True, False), (False, True), (True, True)])
def test_transposed_operands(transpose_a, transpose_b, apply, normal):
    a, b = normal(2, 3, 4), normal(4, 5)
    left = np.ascontiguousarray(a.swapaxes(1, 2)) if transpose_a else a
    right = np.ascontiguousarray(b.T) if transpose_b else b
    y = apply("matmul", left, right, transpose_a=transpose_a, transpose_b=transpose_b)[0]
    np.testing.assert_allclose(y, a @ b, rtol=1e-5, atol=1e-6)


def test_accumulators_are_wide_enough(apply):
    ones = np.ones((1, 4096), "float16")
    assert apply("matmul", ones, ones, transpose_b=True)[0].item() == 4096
    a, b = np.full((2, 300), 255, "uint8"), np.full((300, 2), -128, "int8")
    y = apply("matmul", a, b)[0]
    assert y.dtype == np.int32
    assert (y == -300 * 255 * 128).all()


@given(st.integers(0, 4), st.integers(1, 4), st.integers(0, 4))
@settings(max_examples=30, deadline=None)
def test_any_extents_even_zero(m, k, n):
    a, b = np.ones((m, k), "float32"), np.ones((k, n), "float32")
    outputs = OPERATORS["matmul"].define("y", [placeholder(a.shape, name="a"), placeholder(b.shape, name="b")])
    np.testing.assert_array_equal(evaluate(outputs, {"a": a, "b": b})[0], a @ b)


@pytest.mark.parametrize(
    ("left", "right", "words"),
    [
        (((3, 4), "float32"), ((5, 2), "float32"), ["input 'b'", "inner extent 5", "inner extent 4"]),
        (((), "float32"), ((5, 2), "float32"), ["input 'a'", "scalar"]),
        (((2, 3, 4), "float32"), ((3, 4, 2), "float32"), ["input 'b'", r"\[3\]", r"\[2\]"]),
        (((3, 4), "float32"), ((4, 2), "float64"), ["input 'b'", "float64", "float32"]),
    ],
)
def test_refusals(left, right, words):
    with pytest.raises(ModelError, match=".*".join(["matmul 'y'", *words])):
        infer("matmul", [left, right])
