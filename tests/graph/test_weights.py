"""Weights stored in half precision."""

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import burnish as bn
from burnish.errors import ParameterError
from burnish.graph.evaluate import evaluate
from burnish.graph.graph import Graph, GraphBuilder
from burnish.graph.weights import store_weights

HALF = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16}


def mlp(rows: int = 3, scale: float = 1.0) -> Graph:
    """Two products with weights, of which the first one is also added up, and one of two computed factors."""
    random = np.random.default_rng(0)
    b = GraphBuilder()
    x = b.input("x", (rows, 64))
    weights = [b.constant((random.standard_normal(s) * scale / 8).astype(np.float32)) for s in ((64, 128), (128, 64))]
    y = b.add("relu", b.add("matmul", x, weights[0]))
    z = b.add("matmul", y, weights[1])
    gram = b.add("matmul", z, z, transpose_b=True)
    return b.build(z, gram, b.add("reduce_sum", weights[0], axes=(0,), keepdims=False))


@pytest.mark.parametrize("dtype", HALF)
def test_weights_of_products_become_halves(dtype: str) -> None:
    graph = mlp()
    found, stored = store_weights(graph, dtype)
    halves = [array for array in found.constants.values() if array.dtype == HALF[dtype]]
    assert stored.weights == len(halves) == 2 and stored.elements == 2 * 64 * 128
    originals = sorted((a for a in graph.constants.values()), key=lambda a: a.shape)
    for half, original in zip(sorted(halves, key=lambda a: a.shape), originals, strict=True):
        assert np.array_equal(half, original.astype(HALF[dtype]))
        error = np.abs(half.astype(np.float32) - original) / np.abs(original)
        assert error.max() <= stored.error
    assert 0 < stored.error <= 2**-8, "the bits of a bfloat16; a small float16 has fewer"
    assert any(array.dtype == np.float32 for array in found.constants.values()), "the sum reads the weight itself"


def test_what_a_half_cannot_hold_stays() -> None:
    _, stored = store_weights(mlp(scale=1e7), "float16")
    assert stored.weights == 0
    _, stored = store_weights(mlp(scale=1e7), "bfloat16")
    assert stored.weights == 2


@pytest.mark.parametrize("target", ["cpu", "cpu,-amx"])
@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("rows", [1, 3, 40])
def test_a_model_computes_with_the_rounded_weights(rows: int, dtype: str, target: str, tmp_path: Path) -> None:
    graph = mlp(rows)
    module = bn.compile(graph, weights=dtype, target=target, threads=2, cache_dir=tmp_path)
    whole = bn.compile(graph, target=target, threads=2, cache_dir=tmp_path, rewrite=False)
    assert module.memory["params"] < 0.7 * whole.memory["params"]
    x = np.random.default_rng(rows).standard_normal((rows, 64)).astype(np.float32)
    rounded, _ = store_weights(graph, dtype)
    for found, exact in zip(module(x), evaluate(rounded, {"x": x}).values(), strict=True):
        np.testing.assert_allclose(found, exact, rtol=0, atol=2e-4 * np.abs(exact).max())
    module.save(tmp_path / "m.bn")
    again = bn.load(tmp_path / "m.bn")
    assert again.stored == module.stored and again.stored is not None and again.stored["dtype"] == dtype
    assert whole.stored is None


def test_other_dtypes_are_refused() -> None:
    with pytest.raises(ParameterError, match="weights: found 'int8'; allowed: 'bfloat16' or 'float16', or None"):
        bn.compile(mlp(), weights="int8")
