"""Gathers against NumPy and ONNX's reference implementation."""

import numpy as np
import pytest

from burnish.errors import ModelError, VerificationError
from burnish.ops import infer


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("indices", [[[0, -1], [2, 1]], [1], 2])
@pytest.mark.parametrize("dtype", ["int64", "int32"])
def test_gather(axis, indices, dtype, apply, normal):
    x, positions = normal(3, 4, 5), np.array(indices, dtype)
    np.testing.assert_array_equal(apply("gather", x, positions, axis=axis)[0], np.take(x, positions, axis))


def test_gather_elements(apply, rng, normal):
    x, positions = normal(3, 4), rng.integers(-4, 4, (2, 6))
    y = apply("gather_elements", x, positions, axis=1)[0]
    np.testing.assert_array_equal(y, np.take_along_axis(x[:2], positions, 1))


@pytest.mark.parametrize(("shape", "batch_dims"), [((2, 3), 0), ((3, 2), 0), ((2, 1), 1), ((1,), 0)])
def test_gather_nd_matches_onnx(shape, batch_dims, apply, reference, rng, normal):
    x = normal(2, 2, 2)
    positions = rng.integers(0, 2, shape)
    expected = reference("GatherND", x, positions, batch_dims=batch_dims)[0]
    np.testing.assert_array_equal(apply("gather_nd", x, positions, batch_dims=batch_dims)[0], expected)


@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_one_hot_matches_onnx(axis, apply, reference):
    indices, values = np.array([[0, 2], [-1, 3]]), np.array([-1.0, 5.0], "float32")
    expected = reference("OneHot", indices, np.array(4), values, axis=axis)[0]
    np.testing.assert_array_equal(apply("one_hot", indices, values, depth=4, axis=axis)[0], expected)


def test_an_index_out_of_range_is_reported_by_the_interpreter(apply, normal):
    with pytest.raises(VerificationError, match="index 3 in dimension 0 is outside 0 to 2"):
        apply("gather", normal(3, 2), np.array([3]))


@pytest.mark.parametrize(
    ("name", "types", "attrs", "words"),
    [
        ("gather", [((3,), "float32"), ((2,), "float32")], {}, ["'indices'", "float32", "int64, int32"]),
        ("gather", [((3,), "float32"), ((2,), "int64")], {"axis": 1}, ["'axis'", "1", "-1 to 0"]),
        ("gather_elements", [((3, 2), "float32"), ((2,), "int64")], {}, ["'indices'", r"\[2\]", "2 dimensions"]),
        ("gather_nd", [((3, 2), "float32"), ((2, 3), "int64")], {}, ["'indices'", "tuples of 3", "at most 2"]),
        ("one_hot", [((3,), "int64"), ((3,), "float32")], {"depth": 2}, ["'values'", r"\[3\]", r"\[2\]"]),
    ],
)
def test_refusals(name, types, attrs, words):
    with pytest.raises(ModelError, match=".*".join([f"{name} 'y'", *words])):
        infer(name, types, attrs)
