"""Translators of ai.onnx.ml's support vector machines: regression, and classification by pairs of classes (LibSVM)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from burnish.frontend.onnx.classical import labels_of, no_texts, real, rows, transformed
from burnish.frontend.onnx.context import OnnxContext, OnnxNode, Translator


def _svm_regressor(c: OnnxContext, n: OnnxNode) -> str:
    """A weighted sum of kernels of the row and each support vector, or a linear function."""
    x = rows(c, real(c, n.inputs[0]))
    count, width = n.attr("n_supports", 0), c.shape(x)[1]
    weights, rho = np.asarray(n.attrs["coefficients"], np.float32), n.attrs["rho"][0]
    if count < 0:
        c.invalid("attribute 'n_supports'", count, "0 or more")
    if count:
        vectors = np.asarray(n.attrs["support_vectors"], np.float32).reshape(count, width)
        similar = _kernel(c, n, x, vectors)
    else:
        similar = x
    total = c.add("matmul", similar, c.constant(weights.reshape(-1, 1), c.dtype(x)))
    total = c.cast(c.add("add", total, c.scalar(rho, total)), "float32")
    if n.attr("one_class", 0):
        positive = c.add("greater", total, c.scalar(0.0, total))
        return c.add("where", positive, c.scalar(1.0, total), c.scalar(-1.0, total))
    return transformed(c, total, n.attr("post_transform", "NONE"))


def _kernel(c: OnnxContext, n: OnnxNode, x: str, vectors: np.ndarray) -> str:
    """The kernel of every row and every support vector: [N, vectors]."""
    given = n.attr("kernel_params") or (0.0, 0.0, 3.0)
    if len(given) != 3:
        c.invalid("attribute 'kernel_params'", list(given), "gamma, coef0 and degree")
    gamma, coefficient, degree = given
    product = c.add("matmul", x, c.constant(np.ascontiguousarray(vectors.T), c.dtype(x)))

    def line(value: str) -> str:
        return c.add("add", c.add("mul", value, c.scalar(gamma, x)), c.scalar(coefficient, x))

    match n.attr("kernel_type", "LINEAR"):
        case "LINEAR":
            return product
        case "POLY":
            return c.add("pow", line(product), c.scalar(degree, x))
        case "SIGMOID":
            return c.add("tanh", line(product))
        case "RBF":
            own = c.add("reduce_sumsq", x, axes=(1,), keepdims=True)
            others = c.constant((vectors.astype(np.float64) ** 2).sum(1), c.dtype(x))
            twice = c.add("mul", product, c.scalar(2.0, x))
            apart = c.add("sub", c.add("add", own, others), twice)
            return c.add("exp", c.add("mul", apart, c.scalar(-gamma, x)))
    return c.invalid("attribute 'kernel_type'", n.attrs["kernel_type"], "LINEAR, POLY, RBF, SIGMOID")


def _svm_classifier(c: OnnxContext, n: OnnxNode) -> list[str]:
    """Labels, and scores of classes, of pairs of classes, or probabilities where the model has them."""
    no_texts(n, "classlabels_strings")
    x, labels = rows(c, real(c, n.inputs[0])), n.attr("classlabels_ints") or []
    counts = n.attr("vectors_per_class") or []
    if not labels or (counts and len(counts) != len(labels)):
        c.invalid("attribute 'vectors_per_class'", f"{len(counts)}, {len(labels)} labels", "one for each label")
    if not counts:
        return _linear_machine(c, n, x, labels)
    scores = _pair_scores(c, n, x, counts)
    first, second = _pairs(len(labels))
    wins = c.cast(c.add("greater", scores, c.scalar(0.0, scores)), c.dtype(x))
    votes = np.zeros((len(first), len(labels)))  # of the first of a pair, less those of the second
    votes[np.arange(len(first)), first] += 1
    votes[np.arange(len(first)), second] -= 1
    lost = np.bincount(second, minlength=len(labels))
    counted = c.add("add", c.add("matmul", wins, c.constant(votes, c.dtype(x))), c.constant(lost, c.dtype(x)))
    label = labels_of(c, labels, c.add("argmax", counted, axis=1, keepdims=False))
    transform = n.attr("post_transform", "NONE")
    if n.attr("prob_a"):
        return [label, transformed(c, _probabilities(c, n, scores, first, second), transform)]
    if len(first) > 1:
        return [label, transformed(c, scores, transform)]
    if transform != "NONE":
        c.refuse("attribute 'post_transform'", transform, "NONE for two classes without probabilities")
    return [label, c.add("concat", c.add("neg", scores), scores, axis=1)]


def _linear_machine(c: OnnxContext, n: OnnxNode, x: str, labels: Sequence[int]) -> list[str]:
    """One linear function for each class; the greatest decides."""
    weights = np.asarray(n.attrs["coefficients"], np.float32).reshape(len(labels), -1)
    if weights.shape[1] != c.shape(x)[1] or len(labels) < 3:
        allowed = f"{c.shape(x)[1]} for each label, of three labels or more"
        c.refuse("attribute 'coefficients'", f"{weights.size} of {len(labels)} labels", allowed)
    total = c.add("matmul", x, c.constant(np.ascontiguousarray(weights.T), c.dtype(x)))
    scores = c.cast(c.add("add", total, c.scalar(n.attrs["rho"][0], x)), "float32")
    label = labels_of(c, labels, c.add("argmax", scores, axis=1, keepdims=False))
    return [label, transformed(c, scores, n.attr("post_transform", "NONE"))]


def _pairs(classes: int) -> tuple[np.ndarray, np.ndarray]:
    """The first and the second class of every pair, in the order of decision functions."""
    return np.triu_indices(classes, 1)


def _pair_scores(c: OnnxContext, n: OnnxNode, x: str, counts: Sequence[int]) -> str:
    """The decision function of each pair of classes, [N, pairs]: positive for the first."""
    count, width = int(sum(counts)), c.shape(x)[1]
    vectors = np.asarray(n.attrs["support_vectors"], np.float32)
    found = np.asarray(n.attrs["coefficients"], np.float32)
    first, second = _pairs(len(counts))
    if vectors.size != count * width or found.size != count * (len(counts) - 1) or len(n.attrs["rho"]) != len(first):
        sizes = f"{vectors.size}, {found.size}, {len(n.attrs['rho'])}"
        allowed = f"{count * width}, {count * (len(counts) - 1)}, {len(first)}"
        c.invalid("attributes 'support_vectors', 'coefficients', 'rho'", sizes, allowed)
    found, ends = found.reshape(len(counts) - 1, count), np.cumsum([0, *counts])
    weights = np.zeros((count, len(first)), np.float32)
    for pair, (i, j) in enumerate(zip(first.tolist(), second.tolist(), strict=True)):
        for own, row in ((i, j - 1), (j, i)):
            weights[ends[own] : ends[own + 1], pair] = found[row, ends[own] : ends[own + 1]]
    total = c.add("matmul", _kernel(c, n, x, vectors.reshape(count, width)), c.constant(weights, c.dtype(x)))
    return c.cast(c.add("add", total, c.constant(np.asarray(n.attrs["rho"]), c.dtype(x))), "float32")


def _probabilities(c: OnnxContext, n: OnnxNode, scores: str, first: np.ndarray, second: np.ndarray) -> str:
    """Probabilities of classes, by those that a logistic function gives for each pair."""
    if not len(n.attrs["prob_a"]) == len(n.attr("prob_b") or []) == len(first):
        c.invalid("attributes 'prob_a' and 'prob_b'", f"{len(n.attrs['prob_a'])} numbers", f"{len(first)} of each")
    slope, offset = (c.constant(np.asarray(n.attrs[key]), "float32") for key in ("prob_a", "prob_b"))
    value = c.add("sigmoid", c.add("neg", c.add("add", c.add("mul", scores, slope), offset)))
    sure = c.add("clip", value, min=1e-7, max=1 - 1e-7)
    both = c.add("concat", sure, c.add("sub", c.scalar(1.0, sure), sure), axis=1)
    classes = int(second.max()) + 1
    place = np.zeros((classes, classes), np.int64)  # nobody reads the diagonal
    place[first, second] = np.arange(len(first))
    place[second, first] = len(first) + np.arange(len(first))
    table = c.add("gather", both, c.constant(place.reshape(-1)), axis=1)
    return c.add("coupled_probabilities", c.reshape(table, (c.shape(scores)[0], classes, classes)))


_OPERATORS: Mapping[str, Translator] = {"SVMClassifier": _svm_classifier, "SVMRegressor": _svm_regressor}
TRANSLATORS: Mapping[str, Translator] = {f"ai.onnx.ml.{name}": t for name, t in _OPERATORS.items()}
