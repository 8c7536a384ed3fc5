"""Operators as described by the signatures of their definitions, and rules that hold for all of them."""

from __future__ import annotations

import pytest

from burnish.errors import ModelError, UnsupportedOperator
from burnish.loops.tensor import Tensor, compute, placeholder
from burnish.ops import OPERATORS, REQUIRED, infer, operator_named
from burnish.ops.operator import Ints, operator


@operator
def scale(name: str, x: Tensor, y: Tensor | None = None, *, factor: float, axes: Ints = (0,)) -> Tensor:
    """Scales."""
    return compute(x.shape, lambda *i: x[i] * factor, name)


def test_the_signature_is_the_description():
    assert (scale.name, scale.arguments, scale.inputs, scale.doc) == ("scale", ("x", "y"), (1, 2), "Scales.")
    assert dict(scale.attrs) == {"factor": REQUIRED, "axes": (0,)}


def test_attributes_are_completed_and_normalised():
    assert scale.complete({"factor": 2, "axes": [1, 2]}) == {"factor": 2.0, "axes": (1, 2)}


@pytest.mark.parametrize(
    ("attrs", "words"),
    [
        ({}, ["scale 'y'", "'factor'", "no default"]),
        ({"factor": "2"}, ["'factor'", "'2'", "float"]),
        ({"factor": True}, ["'factor'", "True", "float"]),
        ({"factor": 1.0, "axes": 3}, ["'axes'", "3", "Ints"]),
        ({"factor": 1.0, "axes": [1.5]}, ["'axes'", r"\[1.5\]", "Ints"]),
        ({"factor": 1.0, "exes": [1]}, ["'exes'", "factor, axes"]),
    ],
)
def test_wrong_attributes_are_refused(attrs, words):
    with pytest.raises(ModelError, match=".*".join(words)):
        scale.define("y", [placeholder((2,))], attrs)


def test_unknown_operators_are_refused_by_name():
    with pytest.raises(UnsupportedOperator, match=r"'conv9d'.*conv2d"):
        operator_named("conv9d")


def test_infer():
    shapes = [(2, 16), (2, 4), (2, 4), (4, 4, 4)]
    assert infer("lstm_cell", [(s, "float32") for s in shapes]) == [((2, 4), "float32"), ((2, 4), "float32")]


def test_attribute_types_are_checked_when_an_operator_is_described():
    def define(name: str, x: Tensor, *, mode: list) -> Tensor:
        return x

    with pytest.raises(TypeError, match="define: attribute 'mode' needs an annotation among int"):
        operator(define)


@pytest.mark.parametrize("name", OPERATORS)
def test_every_operator_is_documented_and_refuses_too_few_inputs(name):
    op = OPERATORS[name]
    assert op.doc.endswith(".")
    if op.inputs[0] == 0:  # it makes random numbers
        assert op.extern is not None
        return
    with pytest.raises(ModelError, match=f"{name} 'y': inputs: found 0 tensors"):
        op.define("y", [])
