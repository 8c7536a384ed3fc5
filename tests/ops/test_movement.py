"""Data movement against NumPy and ONNX's reference implementation."""

from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.errors import ModelError
from burnish.loops.interpret import evaluate
from burnish.loops.tensor import placeholder
from burnish.ops import OPERATORS, infer
from burnish.ops.movement import matched_groups


def reshape_body(source, shape):
    return str(OPERATORS["reshape"].define("y", [placeholder(source)], {"shape": shape})[0].body)


def test_reshape_keeps_unaffected_dimensions_as_they_are():
    assert reshape_body((1, 128, 768), (1, 128, 12, 64)) == "x[0, i1, ((i2 * 64) + i3)]"
    assert reshape_body((1, 128, 12, 64), (1, 128, 768)) == "x[0, i1, (i2 // 64), (i2 % 64)]"
    assert reshape_body((2, 3, 4), (2, 1, 3, 4)) == "x[i0, i2, i3]"
    assert reshape_body((5, 6), (6, 5)) == "x[(((i0 * 5) + i1) // 6), (((i0 * 5) + i1) % 6)]"


def test_matched_groups():
    assert matched_groups((1, 128, 768), (1, 128, 12, 64)) == [
        (range(1), range(1)),
        (range(1, 2), range(1, 2)),
        (range(2, 3), range(2, 4)),
    ]
    assert matched_groups((), (1,)) == [(range(0), range(1))]


@st.composite
def equal_products(draw):
    factors = draw(st.lists(st.sampled_from([1, 2, 3]), max_size=5))

    def grouped():
        shape = [1]
        for f in draw(st.permutations(factors)):
            shape = [*shape, f] if draw(st.booleans()) else [*shape[:-1], shape[-1] * f]
        return tuple(shape)

    return grouped(), grouped()


@given(equal_products())
@settings(max_examples=100, deadline=None)
def test_reshape_is_numpys(shapes):
    x = np.arange(prod(shapes[0])).reshape(shapes[0])
    outputs = OPERATORS["reshape"].define("y", [placeholder(x.shape, "int64")], {"shape": shapes[1]})
    np.testing.assert_array_equal(evaluate(outputs, {"x": x})[0], x.reshape(shapes[1]))


def test_reshape_of_open_empty_and_scalar_shapes(apply, normal):
    x = normal(2, 6)
    np.testing.assert_array_equal(apply("reshape", x, shape=(3, -1))[0], x.reshape(3, 4))
    assert apply("reshape", normal(0, 3), shape=(3, 0, 2))[0].shape == (3, 0, 2)
    assert apply("reshape", normal(1, 1), shape=())[0].shape == ()


@pytest.mark.parametrize("perm", [None, (0, 2, 1), (2, 0, 1)])
def test_transpose(perm, apply, normal):
    x = normal(2, 3, 4)
    np.testing.assert_array_equal(apply("transpose", x, perm=perm)[0], x.transpose(perm))


def test_expand_broadcasts_in_both_directions(apply, normal):
    x = normal(3, 1)
    np.testing.assert_array_equal(apply("expand", x, shape=(2, 1, 4))[0], np.broadcast_to(x, (2, 3, 4)))


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_concat(axis, apply, normal):
    parts = []
    for extent in (2, 0, 3, 1):
        shape = [2, 2, 2]
        shape[axis] = extent
        parts.append(normal(*shape))
    np.testing.assert_array_equal(apply("concat", *parts, axis=axis)[0], np.concatenate(parts, axis))
    np.testing.assert_array_equal(apply("concat", parts[0], axis=axis)[0], parts[0])


def test_slice_with_steps_of_either_sign(apply, normal):
    x = normal(6, 7)
    y = apply("slice", x, starts=(1, 6), extents=(3, 3), steps=(2, -3))[0]
    np.testing.assert_array_equal(y, x[1:6:2, 6::-3])
    assert apply("slice", x, starts=(6, 0), extents=(0, 7))[0].shape == (0, 7)


@pytest.mark.parametrize(
    ("mode", "pads"), [("constant", (1, 0, 2, 3)), ("reflect", (2, 1, 1, 3)), ("edge", (0, 5, 4, 1))]
)
def test_pad_modes_are_numpys(mode, pads, apply, normal):
    x = normal(3, 4)
    values = {"constant_values": 1.5} if mode == "constant" else {}
    expected = np.pad(x, [(pads[0], pads[2]), (pads[1], pads[3])], mode, **values)
    np.testing.assert_array_equal(apply("pad", x, pads=pads, mode=mode, value=1.5)[0], expected)


def test_an_empty_axis_may_be_padded_by_nothing_in_any_mode(apply):
    for mode in ("constant", "edge", "reflect"):
        y = apply("pad", np.zeros((0, 3), "float32"), pads=(0, 2, 0, 1), mode=mode)[0]
        assert y.shape == (0, 6)


def test_negative_pads_crop(apply, normal):
    x = normal(4, 5)
    y = apply("pad", x, pads=(-1, 2, 1, -3))[0]
    np.testing.assert_array_equal(y, np.pad(x[1:, :2], [(0, 1), (2, 0)]))


def test_tile(apply, normal):
    x = normal(2, 1, 3)
    np.testing.assert_array_equal(apply("tile", x, repeats=(2, 3, 1))[0], np.tile(x, (2, 3, 1)))
    assert apply("tile", x, repeats=(0, 1, 1))[0].shape == (0, 1, 3)


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_depth_to_space_matches_onnx_and_inverts(mode, apply, reference, normal):
    x = normal(2, 8, 3, 2)
    y = apply("depth_to_space", x, block=2, mode=mode)[0]
    np.testing.assert_array_equal(y, reference("DepthToSpace", x, blocksize=2, mode=mode)[0])
    np.testing.assert_array_equal(apply("space_to_depth", y, block=2, mode=mode)[0], x)


def test_pad_values_of_integers_are_exact(apply):
    """Beyond 2^53, where not every integer is a float64."""
    x = np.array([5], np.int64)
    for value in (2**53 + 1, -(2**63), 2**63 - 1):
        np.testing.assert_array_equal(apply("pad", x, pads=(1, 0), value=value)[0], [value, 5])


@pytest.mark.parametrize("diagonal", [-2, 0, 1])
def test_trilu(diagonal, apply, normal):
    x = normal(2, 3, 4)
    np.testing.assert_array_equal(apply("trilu", x, diagonal=diagonal)[0], np.triu(x, diagonal))
    np.testing.assert_array_equal(apply("trilu", x, upper=False, diagonal=diagonal)[0], np.tril(x, diagonal))


@pytest.mark.parametrize(
    ("name", "shapes", "attrs", "words"),
    [
        ("reshape", [(2, 3)], {"shape": (4, 2)}, ["'shape'", r"\[4, 2\]", "6 elements"]),
        ("reshape", [(2, 3)], {"shape": (-1, -1)}, ["'shape'", r"\[-1, -1\]"]),
        ("transpose", [(2, 3)], {"perm": (0, 0)}, ["'perm'", r"\[0, 0\]", "permutation"]),
        ("expand", [(2, 3)], {"shape": (2,)}, ["'shape'", r"\[2\]", r"\[2, 3\]"]),
        ("slice", [(4,)], {"starts": (2,), "extents": (3,)}, ["'starts'", "start 2, extent 3", "0 to 3"]),
        ("slice", [(4,)], {"starts": (0, 0), "extents": (3,)}, ["'starts'", r"\[0, 0\]", "1 integers"]),
        ("concat", [(2, 3), (2, 4)], {"axis": 0}, ["input '1'", r"\[2, 4\]"]),
        ("concat", [], {"axis": 0}, ["0 tensors", "1 or more"]),
        ("pad", [(3,)], {"pads": (3, 0), "mode": "reflect"}, ["'pads'", "at most 2"]),
        ("pad", [(3,)], {"pads": (-2, -2)}, ["'pads'", r"\[3\]"]),
        ("depth_to_space", [(1, 6, 2, 2)], {"block": 2}, ["'block'", "divides 6"]),
    ],
)
def test_refusals(name, shapes, attrs, words):
    with pytest.raises(ModelError, match=".*".join([f"{name} 'y'", *words])):
        infer(name, [(shape, "float32") for shape in shapes], attrs)
