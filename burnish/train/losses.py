"""Losses: the graph of a scalar from a model's output and labels. Each is the mean over all that is labelled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from burnish.errors import ModelError
from burnish.graph.graph import GraphBuilder, TensorType

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Loss:
    """A loss: the type of the labels for an output of a type, and the graph from both to the scalar."""

    label: Callable[[TensorType], TensorType]
    build: Callable[[GraphBuilder, str, str], str]


def _class_label(output: TensorType) -> TensorType:
    if not output.shape:
        raise ModelError("softmax_cross_entropy: the model's output: found a scalar; allowed: [..., classes]")
    return TensorType(output.shape[:-1], "int64")


def _softmax_cross_entropy(b: GraphBuilder, logits: str, label: str) -> str:
    """The mean of ``-log softmax(logits)[label]`` over all labels that are not negative: others are left out.

    A label beyond the last class makes the loss NaN.
    """
    shape, (*_, classes), dtype = b.types[label].shape, b.types[logits].shape, b.types[logits].dtype
    known = b.add("cast", b.add("greater_equal", label, b.constant(0)), to=dtype)
    outside = b.add("greater_equal", label, b.constant(classes))
    place = b.add("reshape", b.add("maximum", label, b.constant(0)), shape=(*shape, 1))
    found = b.add("gather_elements", b.add("log_softmax", logits), place, axis=-1)
    chosen = b.add("where", outside, b.constant(float("nan"), dtype=dtype), b.add("reshape", found, shape=shape))
    total = b.add("reduce_sum", b.add("mul", chosen, known), keepdims=False)
    return b.add("neg", b.add("div", total, b.add("reduce_sum", known, keepdims=False)))


def _squared(b: GraphBuilder, output: str, label: str) -> str:
    """The mean of the squared differences."""
    difference = b.add("sub", output, label)
    return b.add("reduce_mean", b.add("mul", difference, difference), keepdims=False)


def _binary_logistic(b: GraphBuilder, logits: str, label: str) -> str:
    """The mean of ``log(1 + e^z) - z * label``: the cross-entropy of a sigmoid, safe from overflow."""
    each = b.add("sub", b.add("softplus", logits), b.add("mul", logits, label))
    return b.add("reduce_mean", each, keepdims=False)


LOSSES: Mapping[str, Loss] = {
    "softmax_cross_entropy": Loss(_class_label, _softmax_cross_entropy),
    "squared": Loss(lambda output: output, _squared),
    "binary_logistic": Loss(lambda output: output, _binary_logistic),
}
