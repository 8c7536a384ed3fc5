"""Resampling against ONNX's reference implementation."""

import numpy as np
import pytest

from burnish.errors import ModelError
from burnish.loops.tensor import placeholder
from burnish.ops import OPERATORS, infer

COORDINATES = ["half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners"]
SIZES = [(8, 10), (6, 7), (2, 3), (12, 5), (1, 9)]


@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize("rounding", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
@pytest.mark.parametrize("size", SIZES)
def test_nearest_matches_onnx(coordinates, rounding, size, apply, reference, normal):
    x = normal(1, 2, 4, 5)
    sizes = (1, 2, *size)
    expected = reference(
        "Resize", x, None, None, np.array(sizes),
        mode="nearest", coordinate_transformation_mode=coordinates, nearest_mode=rounding,
    )[0]  # fmt: skip
    y = apply("resize", x, sizes=sizes, coordinates=coordinates, rounding=rounding)[0]
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize("size", SIZES)
def test_linear_matches_onnx(coordinates, size, apply, reference, normal):
    x = normal(1, 2, 4, 5)
    sizes = (1, 2, *size)
    expected = reference(
        "Resize", x, None, None, np.array(sizes), mode="linear", coordinate_transformation_mode=coordinates
    )[0]
    y = apply("resize", x, sizes=sizes, mode="linear", coordinates=coordinates)[0]
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)


def test_scales_place_the_samples(apply, reference, normal):
    x, scales = normal(1, 1, 4, 5), (1.0, 1.0, 1.7, 0.7)
    expected = reference("Resize", x, None, np.array(scales, "float32"), mode="linear")[0]
    y = apply("resize", x, sizes=expected.shape, scales=scales, mode="linear")[0]
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)


def test_whole_factors_need_integer_arithmetic_only():
    def body(size, coordinates):
        attrs = {"sizes": (1, 1, size, 4), "coordinates": coordinates}
        return str(OPERATORS["resize"].define("y", [placeholder((1, 1, 4, 4))], attrs)[0].body)

    assert body(8, "half_pixel") == "x[i0, i1, (i2 // 2), i3]"
    assert body(8, "asymmetric") == "x[i0, i1, (i2 // 2), i3]"
    assert body(2, "asymmetric") == "x[i0, i1, (i2 * 2), i3]"


@pytest.mark.parametrize(
    ("attrs", "words"),
    [
        ({"sizes": (2, 2)}, ["'sizes'", r"\[2, 2\]", "4 extents"]),
        ({"sizes": (1, 1, 2, 2), "mode": "cubic"}, ["'mode'", "cubic", "nearest, linear"]),
        ({"sizes": (1, 1, 2, 2), "coordinates": "tf_crop"}, ["'coordinates'", "tf_crop", "half_pixel"]),
        ({"sizes": (1, 1, 2, 2), "scales": (1.0, 0.0, 1.0, 1.0)}, ["'scales'", "positive"]),
    ],
)
def test_refusals(attrs, words):
    with pytest.raises(ModelError, match=".*".join(["resize 'y'", *words])):
        infer("resize", [((1, 1, 4, 4), "float32")], attrs)
