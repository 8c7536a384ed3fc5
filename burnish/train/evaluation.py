"""Evaluation of a model in training: its inference graph with the loss, and its trained form."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

import numpy as np

from burnish.base.arguments import refusal
from burnish.graph.graph import Graph, GraphBuilder
from burnish.train.losses import add_loss
from burnish.train.step import Train, trained_constants

Metric = Callable[[np.ndarray, np.ndarray], float]  # of the model's output and the labels: a mean over the batch


def evaluation_graph(graph: Graph, train: Train, changed: Collection[str] | None = None) -> Graph:
    """The model's inference graph with loss and output; what training changes are states, which it leaves as they are.

    Inputs are those of the training step. ``changed``: the states of the step, where it is that of another form.
    """
    changed = trained_constants(graph, train) if changed is None else changed
    b = GraphBuilder()
    for name in graph.inputs:
        b.input(name, graph.types[name].shape, graph.types[name].dtype)
    for name, value in graph.constants.items():
        if name in changed:
            b.state(name, value)
        else:
            b.constant(value, name)
    for node in without_dropout(graph).nodes:
        b.add_many(node.op, *node.inputs, names=node.outputs, node=node.name, **node.attrs)
    loss = add_loss(b, train.loss, graph.outputs)
    return b.build(b.add("identity", loss, name=b.fresh("loss")), *graph.outputs)


def without_dropout(graph: Graph) -> Graph:
    """The graph of a model as it infers: dropout gives what it is given."""
    nodes = (
        replace(node, op="identity", inputs=node.inputs[:1], attrs={}) if node.op == "dropout" else node
        for node in graph.nodes
    )
    return replace(graph, nodes=tuple(nodes))


def trained(graph: Graph, states: Mapping[str, np.ndarray]) -> Graph:
    """The model as it infers, with the values that training gave its constants."""
    return replace(
        without_dropout(graph), constants={name: states.get(name, value) for name, value in graph.constants.items()}
    )


def _accuracy(output: np.ndarray, label: np.ndarray) -> float:
    """The share of labels, of those that are not negative, whose class has the greatest logit."""
    known = label >= 0
    hits = (np.argmax(output, -1) == label) & known
    return float(np.sum(hits) / max(int(np.sum(known)), 1))


def _binary_accuracy(output: np.ndarray, label: np.ndarray) -> float:
    """The share of logits on the label's side of 0."""
    return float(np.mean((output > 0) == (label > 0.5)))


def _absolute_error(output: np.ndarray, label: np.ndarray) -> float:
    return float(np.mean(np.abs(output.astype(np.float64) - label)))


METRICS: Mapping[str, Metric] = {
    "accuracy": _accuracy,
    "binary_accuracy": _binary_accuracy,
    "absolute_error": _absolute_error,
}


def metrics_named(names: Mapping[str, Metric] | tuple[str, ...] | list[str]) -> dict[str, Metric]:
    """Metrics by name, of :data:`METRICS` where only names are given. Raises ParameterError."""
    if isinstance(names, Mapping):
        return dict(names)
    for name in names:
        if name not in METRICS:
            raise refusal("metrics", name, ", ".join(METRICS))
    return {name: METRICS[name] for name in names}
