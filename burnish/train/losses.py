"""Losses: the graph of a scalar from a model's outputs and labels. Each is the mean over all that is labelled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

from burnish.base.arguments import check_number, refusal, typed
from burnish.errors import ModelError
from burnish.graph.graph import Graph, GraphBuilder, TensorType
from burnish.loops.expr import FLOATS


class Loss(Protocol):
    """A loss: what labels it takes for outputs of some types, and the graph from both to the scalar.

    One whose labels are classes may say in a method ``classes``, of the outputs too, how many there are, and which
    number beyond them is left out: a step refuses other labels.
    """

    def labels(self, outputs: Sequence[TensorType]) -> Mapping[str, TensorType]:
        """Names and types of the labels, in the order of a call. Raises ModelError for outputs it does not take."""

    def build(self, b: GraphBuilder, outputs: Sequence[str], labels: Sequence[str]) -> str:
        """The name of the loss, a scalar of floating-point numbers."""


@typed
@dataclass(frozen=True)
class CrossEntropy:
    """The mean of ``-log softmax(logits)[label]`` over all labels that are not negative, nor ``ignore``.

    ``axis``: that of the classes in the output; labels, int64, have the other dimensions: [N] for [N, classes], [steps,
    batch] for [steps, batch, words], with axis 1 [N, H, W] for [N, classes, H, W]. A compiled step refuses a label
    beyond the last class; in the graph alone one makes the loss NaN, and moves no weight to NaN. A batch in which all
    are left out makes the loss NaN, and its gradients.
    ``label_smoothing`` of the weight of each label goes to all classes alike (Szegedy et al. 2016). ``wide``: sums are
    of float64, as a mean over a hundred thousand labels needs.

    >>> x, w = bn.sym.variable("x"), bn.sym.constant(np.ones(2, "f4"), "w")
    >>> graph = bn.sym.graph(x * w, {"x": (2, 2)})
    >>> step = bn.compile(graph, train=bn.Train(bn.CrossEntropy(label_smoothing=0.1), bn.SGD(0.1)))
    >>> round(float(step(np.array([[0, 1], [2, 4]], "f4"), np.array([1, 0]))), 4)
    1.1951
    """

    axis: int = -1
    label_smoothing: float = 0.0
    ignore: int | None = None
    wide: bool = False

    def __post_init__(self) -> None:
        """Raises ParameterError, naming the field, what was found and what is allowed."""
        check_number("CrossEntropy: label_smoothing", self.label_smoothing, 0, 1)
        for name, value in (("axis", self.axis), ("ignore", 0 if self.ignore is None else self.ignore)):
            if not isinstance(value, int) or isinstance(value, bool):
                raise refusal(f"CrossEntropy: {name}", value, "an integer")

    def classes(self, outputs: Sequence[TensorType]) -> Mapping[str, tuple[int, int | None]]:
        """Number of classes, and the label that is left out."""
        (t,) = outputs
        return {"label": (t.shape[self.axis], self.ignore)}

    def labels(self, outputs: Sequence[TensorType]) -> Mapping[str, TensorType]:
        """Integers of the output's shape without the classes."""
        (t,) = _floats("cross-entropy", outputs)
        if not -len(t.shape) <= self.axis < len(t.shape):
            raise ModelError(f"cross-entropy: found an output {t}; allowed: one with classes along axis {self.axis}")
        axis = self.axis % len(t.shape)
        return {"label": TensorType((*t.shape[:axis], *t.shape[axis + 1 :]), "int64")}

    def build(self, b: GraphBuilder, outputs: Sequence[str], labels: Sequence[str]) -> str:
        """The mean over all labels that count."""
        (logits,), (label,) = outputs, labels
        shape, dtype, rank = b.types[label].shape, b.types[logits].dtype, len(b.types[logits].shape)
        axis = self.axis % rank
        classes = b.types[logits].shape[axis]
        counted = b.add("greater_equal", label, b.constant(0))
        if self.ignore is not None:
            counted = b.add("logical_and", counted, b.add("not_equal", label, b.constant(self.ignore)))
        outside = b.add("logical_and", counted, b.add("greater_equal", label, b.constant(classes)))
        place = b.add("reshape", b.add("maximum", label, b.constant(0)), shape=(*shape[:axis], 1, *shape[axis:]))
        logs = b.add("log_softmax", logits, axis=axis)
        found = b.add("reshape", b.add("gather_elements", logs, place, axis=axis), shape=shape)
        if self.label_smoothing:
            everywhere = b.add("reduce_mean", logs, axes=(axis,), keepdims=False)
            kept = b.add("mul", found, b.constant(1 - self.label_smoothing, dtype=dtype))
            found = b.add("add", kept, b.add("mul", everywhere, b.constant(self.label_smoothing, dtype=dtype)))
        known = b.add("cast", counted, to=dtype)
        chosen = b.add("where", outside, b.constant(float("nan"), dtype=dtype), found)
        weighted = b.add("where", counted, chosen, b.constant(0.0, dtype=dtype))
        return b.add("neg", b.add("div", sum_of(b, weighted, self.wide), sum_of(b, known, self.wide)))


@dataclass(frozen=True)
class Squared:
    """The mean of the squared differences.

    >>> x, w = bn.sym.variable("x"), bn.sym.constant(np.ones(2, "f4"), "w")
    >>> graph = bn.sym.graph(x * w, {"x": (2, 2)})
    >>> step = bn.compile(graph, train=bn.Train(bn.Squared(), bn.SGD(0.1)))
    >>> round(float(step(np.array([[0, 1], [2, 4]], "f4"), np.ones((2, 2), "f4"))), 4)
    2.75
    """

    def labels(self, outputs: Sequence[TensorType]) -> Mapping[str, TensorType]:
        """Numbers of the output's type."""
        (t,) = _floats("mse", outputs)
        return {"label": t}

    def build(self, b: GraphBuilder, outputs: Sequence[str], labels: Sequence[str]) -> str:
        """The mean."""
        difference = b.add("sub", outputs[0], labels[0])
        return _mean(b, b.add("mul", difference, difference))


@dataclass(frozen=True)
class Absolute:
    """The mean of the absolute differences (L1)."""

    def labels(self, outputs: Sequence[TensorType]) -> Mapping[str, TensorType]:
        """Numbers of the output's type."""
        (t,) = _floats("absolute", outputs)
        return {"label": t}

    def build(self, b: GraphBuilder, outputs: Sequence[str], labels: Sequence[str]) -> str:
        """The mean."""
        return _mean(b, b.add("abs", b.add("sub", outputs[0], labels[0])))


@typed
@dataclass(frozen=True)
class Huber:
    """The mean of ``d² / 2`` where a difference is below ``delta``, else ``delta (|d| - delta / 2)`` (Huber 1964).

    >>> x, w = bn.sym.variable("x"), bn.sym.constant(np.ones(2, "f4"), "w")
    >>> graph = bn.sym.graph(x * w, {"x": (2, 2)})
    >>> step = bn.compile(graph, train=bn.Train(bn.Huber(delta=2.0), bn.SGD(0.1)))
    >>> round(float(step(np.array([[0, 1], [2, 4]], "f4"), np.ones((2, 2), "f4"))), 4)
    1.25
    """

    delta: float = 1.0

    def __post_init__(self) -> None:
        """Raises ParameterError, naming the field, what was found and what is allowed."""
        check_number("Huber: delta", self.delta, 0)
        if self.delta == 0:
            raise refusal("Huber: delta", self.delta, "a number above 0")

    def labels(self, outputs: Sequence[TensorType]) -> Mapping[str, TensorType]:
        """Numbers of the output's type."""
        (t,) = _floats("Huber", outputs)
        return {"label": t}

    def build(self, b: GraphBuilder, outputs: Sequence[str], labels: Sequence[str]) -> str:
        """The mean. With m = d between -delta and delta it is ``m (d - m / 2)``, whose slope m is NaN where d is."""
        dtype = b.types[outputs[0]].dtype
        d = b.add("sub", outputs[0], labels[0])
        near = b.add("clip", d, min=-self.delta, max=self.delta)
        rest = b.add("sub", d, b.add("mul", near, b.constant(0.5, dtype=dtype)))
        return _mean(b, b.add("mul", near, rest))


@dataclass(frozen=True)
class BinaryLogistic:
    """The mean of ``log(1 + e^z) - z * label``: the cross-entropy of a sigmoid, safe from overflow."""

    def labels(self, outputs: Sequence[TensorType]) -> Mapping[str, TensorType]:
        """Probabilities, of the output's type."""
        (t,) = _floats("binary logistic", outputs)
        return {"label": t}

    def build(self, b: GraphBuilder, outputs: Sequence[str], labels: Sequence[str]) -> str:
        """The mean."""
        each = b.add("sub", b.add("softplus", outputs[0]), b.add("mul", outputs[0], labels[0]))
        return _mean(b, each)


@dataclass(frozen=True)
class FirstOutput:
    """The model's first output, which is the loss itself: its labels are inputs of the model."""

    def labels(self, outputs: Sequence[TensorType]) -> Mapping[str, TensorType]:
        """None."""
        if outputs[0].size != 1 or outputs[0].dtype not in FLOATS:
            raise ModelError(f"output: found an output {outputs[0]}; allowed: one number, the loss")
        return {}

    def build(self, b: GraphBuilder, outputs: Sequence[str], labels: Sequence[str]) -> str:
        """The output."""
        return outputs[0]


@typed
@dataclass(frozen=True)
class Sum:
    """The weighted sum of one loss for each output of a model, None for those without; labels are called ``label``,
    ``label.1``, …
    """

    losses: tuple[str | Loss | Graph | None, ...]
    weights: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        """Raises ParameterError, naming the field, what was found and what is allowed."""
        for loss in self.losses:
            if loss is not None:
                check_loss("Sum: losses", loss)
        if not any(loss is not None for loss in self.losses):
            raise refusal("Sum: losses", self.losses, "one loss at least")
        if self.weights is not None and len(self.weights) != len(self.losses):
            raise refusal("Sum: weights", self.weights, f"{len(self.losses)} numbers, one for each output")

    def labels(self, outputs: Sequence[TensorType]) -> Mapping[str, TensorType]:
        """Labels of all losses: ``label``, ``label.1``, … Raises ModelError for another number of outputs."""
        if len(outputs) != len(self.losses):
            raise ModelError(f"Sum: found {len(outputs)} outputs; allowed: {len(self.losses)}, as many as losses")
        given = [t for loss, output in self._pairs(outputs) for t in loss.labels([output]).values()]
        return {f"label.{i}" if i else "label": t for i, t in enumerate(given)}

    def classes(self, outputs: Sequence[TensorType]) -> Mapping[str, tuple[int, int | None]]:
        """Classes of the losses that have some, by label."""
        found: dict[str, tuple[int, int | None]] = {}
        count = 0
        for loss, output in self._pairs(outputs):
            names, own = [*loss.labels([output])], _classes(loss, [output])
            found |= {
                f"label.{count + names.index(n)}" if count + names.index(n) else "label": c for n, c in own.items()
            }
            count += len(names)
        return found

    def build(self, b: GraphBuilder, outputs: Sequence[str], labels: Sequence[str]) -> str:
        """The sum."""
        total, rest = "", list(labels)
        weights = [w for w, loss in zip(self.weights or (1.0,) * len(outputs), self.losses, strict=True) if loss]
        for weight, (loss, output) in zip(weights, self._pairs(outputs), strict=True):
            count = len(loss.labels([b.types[output]]))
            own, rest = rest[:count], rest[count:]
            value = loss.build(b, [output], own)
            if weight != 1.0:
                value = b.add("mul", value, b.constant(float(weight), dtype=b.types[value].dtype))
            total = b.add("add", total, value) if total else value
        return total

    def _pairs(self, outputs: Sequence[Any]) -> list[tuple[Loss, Any]]:
        return [(resolved(loss), output) for loss, output in zip(self.losses, outputs, strict=True) if loss is not None]


@dataclass(frozen=True, eq=False)
class _OfGraph:
    """A loss that is a graph: of the outputs, then of the labels."""

    graph: Graph

    def labels(self, outputs: Sequence[TensorType]) -> Mapping[str, TensorType]:
        """The inputs behind the outputs."""
        names, types = self.graph.inputs, self.graph.types
        found = [types[name] for name in names[: len(outputs)]]
        if found != [*outputs]:
            words = ", ".join(map(str, outputs))
            raise ModelError(f"loss: found a graph of {', '.join(map(str, found))}; allowed: of the outputs, {words}")
        return {name: types[name] for name in names[len(outputs) :]}

    def build(self, b: GraphBuilder, outputs: Sequence[str], labels: Sequence[str]) -> str:
        """Its nodes, under names that are not taken."""
        names = dict(zip(self.graph.inputs, (*outputs, *labels), strict=True))
        names |= {name: b.constant(value, b.fresh(name)) for name, value in self.graph.constants.items()}
        for node in self.graph.nodes:
            fresh = [b.fresh(name) for name in node.outputs]
            made = b.add_many(node.op, *(names[n] for n in node.inputs), names=fresh, node=node.name, **node.attrs)
            names |= dict(zip(node.outputs, made, strict=True))
        return names[self.graph.outputs[0]]


LOSSES: Mapping[str, Loss] = {
    "softmax_cross_entropy": CrossEntropy(),
    "mse": Squared(),
    "absolute": Absolute(),
    "huber": Huber(),
    "binary_logistic": BinaryLogistic(),
    "output": FirstOutput(),
}


def check_loss(argument: str, loss: Any) -> None:
    """Raises ParameterError for what is no loss."""
    if isinstance(loss, Graph):
        if len(loss.outputs) != 1 or loss.states:
            raise refusal(argument, f"a graph with outputs {loss.outputs}", "a graph with one output, without states")
        return
    known = isinstance(loss, str) and loss in LOSSES
    if not known and (isinstance(loss, str) or not all(callable(getattr(loss, n, None)) for n in ("labels", "build"))):
        raise refusal(argument, loss, f"{', '.join(LOSSES)}, a loss, or a graph")


def resolved(loss: str | Loss | Graph) -> Loss:
    """The loss of a name, or of a graph."""
    return LOSSES[loss] if isinstance(loss, str) else _OfGraph(loss) if isinstance(loss, Graph) else loss


def label_classes(loss: str | Loss | Graph, outputs: Sequence[TensorType]) -> Mapping[int, tuple[int, int | None]]:
    """For each label that is one of some classes, by its number: how many there are, and a label that is left out."""
    own = resolved(loss)
    names = [*own.labels(outputs)]
    return {names.index(name): found for name, found in _classes(own, outputs).items()}


def _classes(loss: Loss, outputs: Sequence[TensorType]) -> Mapping[str, tuple[int, int | None]]:
    """Classes of a loss's labels: their number, and the label that is left out; nothing where it has no such method."""
    classes_of = getattr(loss, "classes", None)
    return classes_of(outputs) if callable(classes_of) else {}


def add_loss(b: GraphBuilder, loss: str | Loss | Graph, outputs: Sequence[str]) -> str:
    """Adds labels as inputs, and the loss behind a model's outputs; returns its name, that of a scalar.

    Raises ModelError for outputs that the loss does not take, and for a loss that is no scalar.
    """
    own = resolved(loss)
    wanted = own.labels([b.types[name] for name in outputs])
    labels = [b.input(b.fresh(name), t.shape, t.dtype) for name, t in wanted.items()]
    value = own.build(b, outputs, labels)
    t = b.types[value]
    if prod(t.shape) != 1 or t.dtype not in FLOATS:
        raise ModelError(f"Train: loss: found {t}; allowed: one floating-point number")
    return value if not t.shape else b.add("reshape", value, shape=())


def _floats(loss: str, outputs: Sequence[TensorType]) -> Sequence[TensorType]:
    """The only output. Raises ModelError for several, and for integers."""
    if len(outputs) != 1 or outputs[0].dtype not in FLOATS:
        words = ", ".join(map(str, outputs))
        raise ModelError(f"Train: loss {loss}: found outputs {words}; allowed: one of floating-point numbers")
    return outputs


def sum_of(b: GraphBuilder, x: str, wide: bool = False) -> str:
    """The sum of all elements, by rows first: one sum of many loses more digits. ``wide``: that of rows in float64."""
    rows = b.add("reduce_sum", x, axes=(-1,), keepdims=False) if len(b.types[x].shape) > 1 else x
    if not wide:
        return b.add("reduce_sum", rows, keepdims=False)
    total = b.add("reduce_sum", b.add("cast", rows, to="float64"), keepdims=False)
    return b.add("cast", total, to=b.types[x].dtype)


def _mean(b: GraphBuilder, x: str) -> str:
    """The mean of all elements, likewise."""
    return b.add("div", sum_of(b, x), b.count(x, b.types[x].dtype))
