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
    """The mean of ``-log softmax(logits)[label]``; gradients do not pass through the maximum."""
    shape = b.types[label].shape
    chosen = b.add("gather_elements", b.add("log_softmax", logits), b.add("reshape", label, shape=(*shape, 1)), axis=-1)
    return b.add("neg", b.add("reduce_mean", chosen, keepdims=False))


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
