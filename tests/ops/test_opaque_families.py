"""Opaque operators, and what they are compiled as, against plain loops over elements, also at edges.

Empty tensors, places outside, single elements.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

import burnish as bn
from burnish.errors import ModelError
from burnish.graph.graph import GraphBuilder
from burnish.ops import infer
from burnish.ops.trees import packed_trees


def run(op: str, *arrays: np.ndarray, **attrs: Any) -> np.ndarray:
    """One operator, compiled and called."""
    builder = GraphBuilder()
    feeds = {f"x{i}": array for i, array in enumerate(arrays)}
    for name, array in feeds.items():
        builder.input(name, array.shape, str(array.dtype))
    return bn.compile(builder.build(builder.add(op, *feeds, **attrs)), threads=1, rewrite=False)(**feeds)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


# --- scatter ----------------------------------------------------------------------------------------------------------

COMBINE = {"none": lambda a, b: b, "add": lambda a, b: a + b, "mul": lambda a, b: a * b, "max": max, "min": min}


@pytest.mark.parametrize("reduction", COMBINE)
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_scatter_elements(axis: int, reduction: str) -> None:
    data, updates = normal(4, 5), normal(2, 3, seed=1)
    indices = np.array([[0, -1, 2], [3, 0, 0]])
    expected = data.copy()
    for place in np.ndindex(*indices.shape):
        at = list(place)
        at[axis] = indices[place]
        expected[tuple(at)] = COMBINE[reduction](expected[tuple(at)], updates[place])
    found = run("scatter_elements", data, indices, updates, axis=axis, reduction=reduction)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("reduction", COMBINE)
@pytest.mark.parametrize("depth", [0, 1, 2, 3])
def test_scatter_nd(depth: int, reduction: str) -> None:
    data = normal(3, 4, 2)
    indices = np.array([[0, 3, 1], [-1, 0, 0], [0, 3, 1]])[:, :depth]
    updates = normal(3, *data.shape[depth:], seed=2)
    if depth == 0:
        indices, updates = indices[:1], updates[:1]
    expected = data.copy()
    combine = np.vectorize(COMBINE[reduction])
    for index, update in zip(indices, updates, strict=True):
        expected[tuple(index)] = combine(expected[tuple(index)], update)
    np.testing.assert_allclose(run("scatter_nd", data, indices, updates, reduction=reduction), expected, rtol=1e-6)


def test_scatters_of_nothing_and_out_of_range() -> None:
    data = normal(3, 2)
    empty = np.zeros((0, 2), np.int64)
    np.testing.assert_array_equal(run("scatter_elements", data, empty, normal(0, 2)), data)
    found = run("scatter_elements", data, np.array([[9, -9]]), np.array([[5.0, 6.0]], np.float32))
    np.testing.assert_array_equal(found, [[data[0, 0], 6.0], data[1], [5.0, data[2, 1]]])
    with pytest.raises(ModelError, match=r"scatter_nd.*'updates'"):
        infer("scatter_nd", [((3, 2), "float32"), ((1, 1), "int64"), ((2, 2), "float32")])


def test_rows_are_scattered_from_a_start_of_their_own_on() -> None:
    past, update = np.zeros((2, 4, 1), np.float32), np.array([[[1], [2]], [[3], [4]]], np.float32)
    found = run("scatter_rows", past, update, np.array([3, 1]), axis=1, circular=True)
    np.testing.assert_array_equal(found[..., 0], [[2, 0, 0, 1], [0, 3, 4, 0]])


def test_windows_fold_to_the_image_they_came_from() -> None:
    image = np.arange(30, dtype=np.float32).reshape(1, 1, 5, 6)
    strides, pads, dilations, block = (2, 1), (1, 0, 0, 1), (1, 2), (2, 3)
    whole = np.pad(image, ((0, 0), (0, 0), (1, 0), (0, 1)))
    rows, columns = (6 - 2) // 2 + 1, (7 - 5) // 1 + 1
    parts, count = np.zeros((1, 6, rows * columns), np.float32), np.zeros(whole.shape)
    for tap, (i, j) in enumerate(product(range(2), range(3))):
        for place, (r, s) in enumerate(product(range(rows), range(columns))):
            at = (0, 0, r * 2 + i, s + j * 2)
            parts[0, tap, place] = whole[at]
            count[at] += 1
    found = run("fold_windows", parts, size=(5, 6), block=block, strides=strides, pads=pads, dilations=dilations)
    np.testing.assert_array_equal(found, image * count[:, :, 1:, :-1])


def test_pooled_positions_put_the_greatest_elements_back() -> None:
    x = np.random.default_rng(5).permutation(2 * 3 * 6 * 4).reshape(2, 3, 6, 4).astype(np.float32)
    attrs = {"kernel": (2, 2), "strides": (2, 2), "pads": (0, 0), "dilations": (1, 1), "size": (3, 2)}
    indices = run("max_pool_indices", x, **attrs)
    pooled = x.reshape(2, 3, 3, 2, 2, 2).max((3, 5))
    np.testing.assert_array_equal(x.reshape(-1)[indices], pooled)
    back = run("max_unpool", pooled, indices, size=(6, 4))
    np.testing.assert_array_equal(back, np.where(np.isin(x, pooled), x, 0))


# --- sampling ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_a_grid_at_the_elements_gives_the_elements(mode: str, padding: str) -> None:
    x = normal(2, 3, 4, 5)
    rows, columns = np.meshgrid(np.linspace(-1, 1, 4), np.linspace(-1, 1, 5), indexing="ij")
    grid = np.stack([columns, rows], -1)[None].repeat(2, 0).astype(np.float32)
    found = run("grid_sample", x, grid, mode=mode, padding=padding, align_corners=True)
    np.testing.assert_allclose(found, x, atol=1e-5)


def test_places_outside_are_padding() -> None:
    x, grid = np.array([[[1.0, 2.0, 3.0]]], np.float32), np.array([[[-3.0], [2.0], [np.nan]]], np.float32)
    assert run("grid_sample", x, grid, mode="nearest")[0, 0].tolist() == [0, 0, 0]
    assert run("grid_sample", x, grid, mode="nearest", padding="border")[0, 0].tolist()[:2] == [1, 3]
    assert run("grid_sample", x, grid, mode="nearest", padding="reflection")[0, 0].tolist()[:2] == [3, 2]


@pytest.mark.parametrize("half_pixel", [True, False])
@pytest.mark.parametrize("mode", ["avg", "max"])
def test_regions_with_a_number_of_places_are_those_that_find_the_same_number(mode: str, half_pixel: bool) -> None:
    x, batch = normal(2, 3, 9, 11), np.array([1, 0, 1])
    rois = np.array([[-3.0, 1.0, 4.5, 7.6], [2.3, 2.1, 9.9, 8.9], [4.0, 4.0, 10.5, 10.5]], np.float32)
    attrs = {"size": (4, 4), "mode": mode, "half_pixel": half_pixel}
    own = run("roi_align", x, rois, batch, **attrs)  # bins of more than 1 and less than 2
    np.testing.assert_allclose(run("roi_align", x, rois, batch, sampling_ratio=2, **attrs), own, atol=1e-5)


def test_a_grid_reads_what_lies_between() -> None:
    x = np.array([[[0.0, 1.0, 4.0, 9.0]]], np.float32)
    grid = np.array([[[-0.5], [0.25], [1.0], [1.25], [np.inf]]], np.float32)  # at 0.5, 2, 3.5, 4 and nowhere
    assert run("grid_sample", x, grid)[0, 0].tolist() == [0.5, 4, 4.5, 0, 0]
    assert run("grid_sample", x, grid, padding="border")[0, 0].tolist()[:4] == [0.5, 4, 9, 9]
    assert run("grid_sample", x, grid, padding="reflection")[0, 0].tolist()[:4] == [0.5, 4, 9, 9]
    half = run("grid_sample", x.astype(np.float16), grid.astype(np.float16))
    assert half.dtype == np.float16 and half[0, 0, :3].tolist() == [0.5, 4, 4.5]


def test_regions_of_whole_bins_are_their_means() -> None:
    x = normal(2, 3, 8, 8)
    rois = np.array([[0, 0, 8, 8], [2, 2, 6, 6]], np.float32)
    found = run("roi_align", x, rois, np.array([1, 0]), size=(4, 4), sampling_ratio=2, half_pixel=True)
    np.testing.assert_allclose(found[0], x[1].reshape(3, 4, 2, 4, 2).mean((2, 4)), atol=1e-5)
    assert run("roi_align", x, rois[:0], np.zeros(0, np.int64), size=(4, 4)).shape == (0, 3, 4, 4)


def test_windows_that_are_not_moved_are_those_of_a_convolution() -> None:
    x, weight = normal(1, 4, 5, 6), normal(2, 4, 3, 3, seed=1)
    columns = run("deformed_columns", x, np.zeros((1, 18, 3, 4), np.float32), kernel=(3, 3))
    found = weight.reshape(2, -1) @ columns.reshape(36, 12)
    np.testing.assert_allclose(found.reshape(1, 2, 3, 4), run("conv2d", x, weight), rtol=1e-4, atol=1e-5)


# --- numbers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("to", ["int4", "uint4", "int2", "uint2"])
def test_integers_wrap_in_narrow_types_and_come_back(to: str) -> None:
    bits = int(to[-1])
    x = np.arange(-40, 40, dtype=np.int32)
    low = x % (1 << bits)
    want = np.where(low >> (bits - 1), low - (1 << bits), low) if to.startswith("int") else low
    narrow = run("convert", x, to=to)
    assert str(narrow.dtype) == to
    np.testing.assert_array_equal(run("convert", narrow, to="int32"), want)


@pytest.mark.parametrize("to", ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"])
def test_floats_of_8_bits_saturate_or_do_not(to: str) -> None:
    import ml_dtypes

    most = float(ml_dtypes.finfo(to).max)
    x = np.array([1.0, -0.5, 1e9, -np.inf, np.nan], np.float32)
    back = run("convert", run("convert", x, to=to), to="float32")
    np.testing.assert_array_equal(back, [1.0, -0.5, most, -most, np.nan])
    back = run("convert", run("convert", x, to=to, saturate=False), to="float32")
    assert not np.isfinite(back[2:]).any()


def test_bits_are_taken_as_another_type() -> None:
    x = np.array([1.0, -2.0], np.float32)
    np.testing.assert_array_equal(run("bitcast", x, to="int32"), x.view(np.int32))
    with pytest.raises(ModelError, match=r"bitcast.*'to': found int64"):
        infer("bitcast", [((2,), "float32")], {"to": "int64"})


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint64"])
@pytest.mark.parametrize("op", ["shift_left", "shift_right"])
def test_shifts_by_any_number(op: str, dtype: str) -> None:
    bits = 8 * np.dtype(dtype).itemsize
    info = np.iinfo(dtype)
    x = np.array([info.min, info.max, 1, 5, 0] * 6, dtype)
    by = np.repeat(np.array([0, 1, bits - 1, bits, info.max, 3], dtype), 5)
    want = []
    for a, b in zip(x.tolist(), by.tolist(), strict=True):
        shifted = a << b if op == "shift_left" and b < bits else 0 if op == "shift_left" else a >> min(b, bits)
        want.append(shifted & ((1 << bits) - 1))
    found = [v & ((1 << bits) - 1) for v in run(op, x, by).tolist()]
    assert found == want


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("op", ["asin", "acos", "atan", "asinh", "acosh", "atanh"])
def test_inverse_functions(op: str, dtype: str) -> None:
    edges = [0.0, -0.0, 1e-4, 3.0, -50.0, 1e4, np.inf, -np.inf, np.nan]
    x = np.concatenate([np.linspace(-1, 1, 101), edges]).astype(dtype)
    with np.errstate(all="ignore"):
        want = getattr(np, "arc" + op[1:])(x.astype(np.float64))
    rtol = {"float32": 2e-6, "float64": 1e-13, "float16": 1e-3}[dtype]
    np.testing.assert_allclose(run(op, x).astype(np.float64), want, rtol=rtol, atol=rtol * 1e-3)


# --- lines ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 5, 8, 12, 96, 67, 1021])
def test_the_transform_of_a_line_and_back(length: int) -> None:
    x = normal(2, 8, 3, 2)
    found = run("dft", x, axis=1, length=length)
    want = np.fft.fft(x[..., 0] + 1j * x[..., 1], length, 1)
    np.testing.assert_allclose(found[..., 0] + 1j * found[..., 1], want, rtol=1e-4, atol=1e-5)
    if length == 8:
        np.testing.assert_allclose(run("dft", found, axis=1, length=8, inverse=True), x, rtol=1e-4, atol=1e-5)
        half = run("dft", x[..., :1], axis=1, length=8, onesided=True)
        assert half.shape == (2, 5, 3, 2)
        back = run("dft", half, axis=1, length=8, inverse=True, onesided=True)
        np.testing.assert_allclose(back, x[..., :1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("given", "length"), [(96, 96), (60, 77), (200, 128), (400, 400)])
def test_halves_of_long_lines(given: int, length: int) -> None:
    x = normal(2, given, 1)
    half = run("dft", x, axis=1, length=length, onesided=True)
    want = np.fft.rfft(x[..., 0], length, 1)
    np.testing.assert_allclose(half[..., 0] + 1j * half[..., 1], want, rtol=1e-4, atol=1e-4)
    for extent in (half.shape[1], half.shape[1] - 9):  # what is left out is 0
        back = run("dft", half[:, :extent], axis=1, length=length, inverse=True, onesided=True)
        np.testing.assert_allclose(back[..., 0], np.fft.irfft(want[:, :extent], length, 1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("exclusive", "reverse"), list(product((False, True), (False, True))))
def test_running_products(exclusive: bool, reverse: bool) -> None:
    x = normal(3, 5)
    lines = x[:, ::-1] if reverse else x
    want = np.cumprod(lines, 1)
    if exclusive:
        want = np.concatenate([np.ones((3, 1)), want[:, :-1]], 1)
    want = want[:, ::-1] if reverse else want
    np.testing.assert_allclose(run("cumprod", x, axis=1, exclusive=exclusive, reverse=reverse), want, rtol=1e-5)


def test_determinants() -> None:
    x = normal(4, 3, 3)
    np.testing.assert_allclose(run("determinant", x), np.linalg.det(x), rtol=1e-5)
    assert run("determinant", np.zeros((2, 0, 0), np.float32)).tolist() == [1, 1]


def test_sequences_turn_by_their_lengths() -> None:
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    found = run("reverse_sequence", x, np.array([2, 4, 0]))
    np.testing.assert_array_equal(found, [[3, 10, 2], [0, 7, 5], [6, 4, 8], [9, 1, 11]])


def test_ngrams_are_counted_with_skips() -> None:
    x = np.array([1, 1, 3, 3, 3, 7], np.int64)
    attrs = {"pool": (1, 3, 1, 3, 3, 7), "starts": (0, 2), "indexes": (0, 1, 2, 3), "lengths": (1, 2)}
    assert run("count_ngrams", x, **attrs).tolist() == [2, 3, 1, 1]
    assert run("count_ngrams", x, **attrs, skips=1).tolist() == [2, 3, 3, 2]
    found = run("count_ngrams", x[None], **attrs, weights=(2.0, 3.0, 4.0, 5.0), mode="TFIDF")
    assert found.tolist() == [[4, 9, 4, 5]]


def test_trees_with_missing_values_and_silent_leaves() -> None:
    nodes = np.array([[0, 1, 2, 1], [1, 3, 4, 0], [0, 2, 2, 0], [0, 3, 3, 1], [0, 4, 4, 2]], np.uint32)
    thresholds = np.array([0.5, 3, 0, 0, 0], np.float32)
    weights = np.array([[1.0, np.nan], [2.0, np.nan], [4.0, 8.0]], np.float32)
    x = np.array([[1, 0], [0, 3], [0, 4], [np.nan, 8]], np.float32)
    made, attrs = packed_trees(np.array([0]), nodes, thresholds, weights), {"targets": 2}
    assert made[0].tolist() == [0] and made[1][1:, 0].tolist() == [1, 0, 0, 0], "the larger part is next"
    found = run("tree_ensemble", x, *made, **attrs, silent=-1.0)
    assert found.tolist() == [[1, -1], [2, -1], [4, 8], [4, 8]]
    twice = run("tree_ensemble", x, np.zeros(2, np.uint32), *made[1:], **attrs, aggregate="AVERAGE")
    assert twice[:, 0].tolist() == [1, 2, 4, 4]
