"""A call by addresses computes what the module computes."""

from __future__ import annotations

import numpy as np
import pytest

import burnish as bn
from burnish.array.prepared import PreparedModule
from burnish.errors import ParameterError
from burnish.graph.graph import GraphBuilder
from burnish.runtime.buffers import address_of, aligned_array


def run(call: object, module: bn.Module, inputs: list[np.ndarray]) -> list[np.ndarray]:
    outputs = [aligned_array(spec.shape, np.dtype(spec.dtype)) for spec in module.outputs]
    call([address_of(a) for a in inputs] + [address for _, address in outputs])
    return [array for array, _ in outputs]


def compiled(*operators: str) -> bn.Module:
    b = GraphBuilder()
    name = b.input("x", (6, 8))
    for operator in operators:
        name = (
            b.add(operator, name) if operator != "matmul" else b.add("matmul", name, b.constant(np.eye(8, dtype="f4")))
        )
    return bn.compile(b.build(name), rewrite=False)


@pytest.mark.parametrize(
    "operators", [("relu",), ("softmax", "matmul", "softmax"), ("exp", "determinant")], ids=["kernel", "arena", "host"]
)
def test_prepared_calls_equal_the_module(operators: tuple[str, ...]) -> None:
    x = np.random.default_rng(0).standard_normal((6, 8)).astype("float32")
    if operators[-1] == "determinant":
        b = GraphBuilder()
        e = b.add("exp", b.input("x", (2, 4, 4)))
        module, x = bn.compile(b.build(b.add("determinant", e)), rewrite=False), x[:4].reshape(2, 4, 4)
    else:
        module = compiled(*operators)
    prepared = PreparedModule(module)
    expected = module(x)
    for call in (prepared, prepared.short, prepared):
        np.testing.assert_array_equal(run(call, module, [x])[0], expected)


def test_a_module_with_state_is_refused() -> None:
    b = GraphBuilder()
    s = b.state("s", np.zeros(3, "float32"))
    x = b.input("x", (3,))
    total = b.add("add", s, x)
    b.update(s, total)
    module = bn.compile(b.build(b.add("relu", total)), rewrite=False)
    with pytest.raises(ParameterError, match="found a module with states"):
        PreparedModule(module)
