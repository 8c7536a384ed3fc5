"""Products from bfloat16 parts: as accurate as float32, whatever the shapes."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from burnish.errors import ModelError
from burnish.loops.evaluate import evaluate
from burnish.loops.tensor import placeholder
from burnish.ops import OPERATORS
from burnish.ops.bf16x3 import split_matrix, split_stem_weight, split_weight

BOUND = 2e-5  # of the sum of absolute products: 2**-18 for the parts, and float32 accumulation


def apply(name: str, *arrays: np.ndarray, dtype: str | None = None, **attrs: Any) -> np.ndarray:
    inputs = [placeholder(a.shape, a.dtype.name, f"x{i}") for i, a in enumerate(arrays)]
    outputs = OPERATORS[name].define("y", inputs, attrs)
    return evaluate(outputs, {t.name: a for t, a in zip(inputs, arrays, strict=True)}, dtype)[0]


def close(
    found: np.ndarray, x: np.ndarray, w: np.ndarray, reference: Callable[[np.ndarray, np.ndarray], np.ndarray]
) -> None:
    """Within the bound of the float64 result, element by element."""
    scale = reference(abs(x), abs(w))
    assert (abs(found - reference(x, w)) <= BOUND * scale + 1e-30).all()


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype("float32")


@pytest.mark.parametrize("make", [split_weight, split_stem_weight], ids=["channels", "window rows"])
def test_parts_of_a_weight_add_up(make: Callable[[np.ndarray], np.ndarray]) -> None:
    w = normal(5, 3, 2, 2)
    parts = make(w).astype("float64")
    assert parts.shape[:3] == (2, 16, 32)
    whole = parts.sum(0)
    kept = whole[:5, :3] if make is split_weight else whole[:5, :6].reshape(5, 2, 3, 2).transpose(0, 2, 3, 1)
    np.testing.assert_allclose(kept, w, rtol=2**-16)
    whole[:5, : 3 if make is split_weight else 6] = 0
    assert not whole.any(), "padding is zero"


def test_parts_of_a_matrix_are_whole_tiles() -> None:
    assert split_matrix(normal(40, 10)).shape == (2, 64, 16)
    assert split_matrix(normal(32, 17)).shape == (2, 32, 32)
    assert split_matrix(normal(32, 17)).dtype == ml_dtypes.bfloat16


CONVOLUTIONS = [
    ((1, 3, 7, 9), (5, 3, 3, 3), {"pads": (1, 1, 1, 1)}, 1),
    ((2, 33, 6, 5), (17, 33, 1, 1), {}, 6),
    ((1, 20, 8, 7), (4, 20, 3, 3), {"strides": (2, 2), "pads": (1, 1, 1, 1)}, 2),
    ((1, 4, 9, 9), (6, 4, 5, 2), {"strides": (3, 1), "pads": (0, 1, 2, 0)}, 3),
    ((1, 4, 5, 5), (6, 4, 1, 1), {"strides": (2, 2)}, 2),
]


@pytest.mark.parametrize(("x", "w", "attrs", "rows"), CONVOLUTIONS)
def test_split_convolution(x: tuple[int, ...], w: tuple[int, ...], attrs: dict[str, Any], rows: int) -> None:
    values, weight = normal(*x), normal(*w)
    found = apply("split_conv2d", values, split_weight(weight), outputs=w[0], rows=rows, **attrs)
    close(found, values, weight, lambda a, b: apply("conv2d", a, b, dtype="float64", **attrs))


@pytest.mark.parametrize(("x", "w", "attrs", "rows"), [CONVOLUTIONS[0], CONVOLUTIONS[2], CONVOLUTIONS[3]])
def test_split_stem(x: tuple[int, ...], w: tuple[int, ...], attrs: dict[str, Any], rows: int) -> None:
    values, weight = normal(*x), normal(*w)
    found = apply("split_stem", values, split_stem_weight(weight), outputs=w[0], kernel_w=w[3], **attrs)
    close(found, values, weight, lambda a, b: apply("conv2d", a, b, dtype="float64", **attrs))


@pytest.mark.parametrize("shape", [(5, 40), (2, 3, 33), (33, 8), (1, 1)])
@pytest.mark.parametrize("columns", [1, 16, 20])
def test_split_matmul(shape: tuple[int, ...], columns: int) -> None:
    a, b = normal(*shape), normal(shape[-1], columns)
    close(apply("split_matmul", a, split_matrix(b), columns=columns), a, b, lambda x, y: x.astype("float64") @ y)


def test_extreme_values() -> None:
    """What is not finite stays so (infinity may become NaN), huge values do not overflow, tiny ones vanish at worst."""
    a = np.zeros((6, 32), "float32")
    a[:, 0] = [np.inf, -np.inf, np.nan, 3.2e38, 1e-38, 0.0]
    b = np.zeros((32, 2), "float32")
    b[0] = [1.0, -0.7]
    found = apply("split_matmul", a, split_matrix(b), columns=2)
    assert not np.isfinite(found[:3]).any()
    np.testing.assert_allclose(found[3:], (a[:, :1] * b[:1])[3:], rtol=4e-3, atol=1e-37)


def test_refusals() -> None:
    x = placeholder((1, 40, 5, 5), name="x")
    w = placeholder((2, 16, 32, 3, 3), "bfloat16", "w")
    with pytest.raises(
        ModelError, match="split_conv2d 'y': input 'weight': found 32 input channels; allowed: 40 in whole"
    ):
        OPERATORS["split_conv2d"].define("y", [x, w], {"outputs": 5})
    a = placeholder((3, 40), name="a")
    with pytest.raises(ModelError, match="split_matmul 'y': input 'b': found depth 32; allowed: 40 in whole"):
        OPERATORS["split_matmul"].define("y", [a, placeholder((2, 32, 16), "bfloat16", "b")], {"columns": 5})
