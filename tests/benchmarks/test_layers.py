"""Benchmark layers have the shapes of the paper's table, and their models compute what they say."""

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from benchmarks import layers


@pytest.mark.parametrize(
    ("name", "output_shape", "megaflops"),
    [
        ("C1", (1, 64, 112, 112), 236.0),
        ("C2", (1, 64, 56, 56), 231.2),
        ("C4", (1, 128, 28, 28), 115.6),
        ("C8", (1, 256, 14, 14), 12.85),
        ("C12", (1, 512, 7, 7), 231.2),
        ("D2", (1, 64, 56, 56), 3.61),
        ("D9", (1, 1024, 7, 7), 0.903),
        ("M2", (128, 3072), 604.0),
    ],
)
def test_output_shape_and_work(name: str, output_shape: tuple[int, ...], megaflops: float) -> None:
    layer = layers.LAYERS[name]
    assert layer.output_shape == output_shape
    assert layer.flops / 1e6 == pytest.approx(megaflops, rel=5e-3)


@pytest.mark.parametrize("name", ["C11", "D9", "M1"])
def test_model_declares_the_shape_it_computes(name: str) -> None:
    layer = layers.LAYERS[name]
    (y,) = ReferenceEvaluator(onnx.load_from_string(layers.model(layer))).run(None, {"x": layers.input_array(layer)})
    assert y.shape == layer.output_shape
    assert np.isfinite(y).all()
    assert y.std() > 0.1


def test_chain_has_distinct_weights() -> None:
    model = onnx.load_from_string(layers.model(layers.LAYERS["D9"], length=3))
    weights = [w.SerializeToString() for w in model.graph.initializer if w.name.startswith("w")]
    onnx.checker.check_model(model, full_check=True)
    assert len(set(weights)) == 3
    assert [layer.name for layer in layers.CONVOLUTIONS if layers.chainable(layer)] == ["C2", "C3", "C6", "C9", "C12"]


def test_cold_copies_hold_enough_weights_where_the_limit_allows() -> None:
    assert layers.cold_copies(layers.LAYERS["C12"]) * 4 * 512 * 512 * 9 >= layers.COLD_BYTES
    assert layers.cold_copies(layers.LAYERS["D1"]) == layers.MOST_COPIES
