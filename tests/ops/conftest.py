"""Fixtures: an operator applied to arrays by both interpreters, and ONNX's own reference implementation of one node."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from burnish.loops.interpret import evaluate, run_program
from burnish.loops.tensor import Tensor, create_program, placeholder
from burnish.ops import OPERATORS

Apply = Callable[..., list[np.ndarray]]
OPSET = 22
PROGRAM_POINTS = 40_000  # elements of work above which the scalar interpreter is left out


def placeholders(arrays: tuple[np.ndarray, ...]) -> list[Tensor]:
    return [placeholder(a.shape, str(a.dtype), f"x{i}") for i, a in enumerate(arrays)]


@pytest.fixture
def apply() -> Apply:
    """``apply("conv2d", x, w, strides=(2, 2))``: the outputs, after the naive loop program gave the same ones."""

    def apply_operator(name: str, *arrays: np.ndarray, **attrs: Any) -> list[np.ndarray]:
        arrays = tuple(np.asarray(a) for a in arrays)
        inputs = placeholders(arrays)
        outputs = OPERATORS[name].define("y", inputs, attrs)
        feeds = {t.name: a for t, a in zip(inputs, arrays, strict=True)}
        values = evaluate(outputs, feeds)
        if sum(a.size for a in (*arrays, *values)) < PROGRAM_POINTS:
            stored = run_program(create_program(name, inputs, outputs), feeds)
            for t, value in zip(outputs, values, strict=True):
                tolerance = 2e-2 if "16" in t.dtype else 2e-5
                actual, expected = stored[t.name].astype("float64"), value.astype("float64")
                np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=1e-5)
        for t, value in zip(outputs, values, strict=True):
            assert (value.shape, value.dtype.name) == (t.shape, t.dtype)
        return values

    return apply_operator


@pytest.fixture
def reference() -> Apply:
    """``reference("Conv", x, w, strides=[2, 2])``: the outputs of one ONNX node, by the ``onnx`` package itself."""

    def run_node(op_type: str, *arrays: np.ndarray | None, outputs: int = 1, **attrs: Any) -> list[np.ndarray]:
        names = ["" if a is None else f"x{i}" for i, a in enumerate(arrays)]
        results = [f"y{i}" for i in range(outputs)]
        node = onnx.helper.make_node(op_type, names, results, **attrs)
        inputs = [
            onnx.helper.make_tensor_value_info(n, onnx.helper.np_dtype_to_tensor_dtype(np.asarray(a).dtype), None)
            for n, a in zip(names, arrays, strict=True)
            if a is not None
        ]
        values = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.UNDEFINED, None) for n in results]
        graph = onnx.helper.make_graph([node], "node", inputs, values)
        model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", OPSET)])
        feeds = {n: np.asarray(a) for n, a in zip(names, arrays, strict=True) if a is not None}
        return [np.asarray(v) for v in ReferenceEvaluator(model).run(None, feeds)]

    return run_node


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture
def normal(rng: np.random.Generator) -> Callable[..., np.ndarray]:
    """``normal(2, 3)``: a float32 array of that shape from the normal distribution."""
    return lambda *shape: rng.standard_normal(shape).astype("float32")
