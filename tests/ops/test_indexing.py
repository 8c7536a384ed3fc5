"""Gathers against NumPy and ONNX's reference implementation."""

import numpy as np
import pytest

from burnish.errors import ModelError
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


FAR = [3, -4, 50, -50, 2**31 - 1, -(2**31), 2**62, -(2**63), 0, -1, 2]


@pytest.mark.parametrize("dtype", ["int64", "int32"])
def test_an_index_out_of_range_reads_the_nearer_end(dtype, apply, normal):
    x = normal(3, 2)
    far = np.array(FAR if dtype == "int64" else [i for i in FAR if abs(i) <= 2**31 and i != 2**31], dtype)
    near = np.clip(np.where(far < 0, far.astype(object) + 3, far).astype("float64"), 0, 2).astype("int64")
    np.testing.assert_array_equal(apply("gather", x, far)[0], x[near])
    both = np.stack([far, far[::-1]], 1)
    expected = np.take_along_axis(x, np.stack([near, near[::-1]], 1), 0)
    np.testing.assert_array_equal(apply("gather_elements", x, both)[0], expected)
    np.testing.assert_array_equal(apply("gather_nd", x, far[:, None])[0], x[near])


def test_a_one_of_no_class_is_not_hot(apply):
    values = np.array([-1.0, 5.0], "float32")
    found = apply("one_hot", np.array([3, -4, 2**62, -(2**63), -1, 2]), values, depth=3)[0]
    assert (found[:4] == -1).all() and (found[4:, 2] == 5).all()


@pytest.mark.parametrize(
    ("name", "data", "indices", "result"),
    [
        ("gather", (0, 3), (0,), (0, 3)), ("gather", (0, 0), (2,), (2, 0)), ("gather_elements", (0, 3), (0, 2), (0, 2)),
        ("gather_nd", (0, 3), (0, 1), (0, 3)), ("gather_nd", (0, 0), (4, 1), (4, 0)),
        ("gather_nd", (2, 0), (0, 2), (0,)),
    ],
)  # fmt: skip
def test_nothing_is_read_of_an_axis_without_elements(name, data, indices, result, apply):
    (y,) = apply(name, np.zeros(data, "float32"), np.zeros(indices, "int64"))
    assert y.shape == result


@pytest.mark.parametrize(
    ("name", "types", "attrs", "words"),
    [
        ("gather", [((3,), "float32"), ((2,), "float32")], {}, ["'indices'", "float32", "int64, int32"]),
        ("gather", [((3,), "float32"), ((2,), "int64")], {"axis": 1}, ["'axis'", "1", "-1 to 0"]),
        ("gather_elements", [((3, 2), "float32"), ((2,), "int64")], {}, ["'indices'", r"\[2\]", "2 dimensions"]),
        ("gather_nd", [((3, 2), "float32"), ((2, 3), "int64")], {}, ["'indices'", "tuples of 3", "at most 2"]),
        ("gather", [((0, 3), "float32"), ((2,), "int64")], {}, ["'data'", r"\[0, 3\]", r"\[2, 3\]", "an extent of 1"]),
        ("gather_elements", [((0, 3), "float32"), ((2, 3), "int64")], {}, ["'data'", r"\[0, 3\]", "an extent of 1"]),
        ("gather_nd", [((3, 0), "float32"), ((4, 2), "int64")], {}, ["'data'", r"\[3, 0\]", "an extent of 1"]),
        ("one_hot", [((3,), "int64"), ((3,), "float32")], {"depth": 2}, ["'values'", r"\[3\]", r"\[2\]"]),
    ],
)
def test_refusals(name, types, attrs, words):
    with pytest.raises(ModelError, match=".*".join([f"{name} 'y'", *words])):
        infer(name, types, attrs)
