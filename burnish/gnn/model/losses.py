"""Losses and scores of vertices with several labels each, of which those of some vertices count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from burnish.errors import ModelError
from burnish.graph.graph import GraphBuilder, TensorType
from burnish.loops.expr import FLOATS
from burnish.train.evaluation import METRICS, Metric
from burnish.train.losses import sum_of


@dataclass(frozen=True)
class KnownLogistic:
    """Cross-entropy of sigmoids: the mean of ``log(1 + e^z) - z * label`` over all labels that are not negative."""

    def labels(self, outputs: Sequence[TensorType]) -> Mapping[str, TensorType]:
        """Numbers of the output's type: 0, 1, or negative where a label is not known."""
        if len(outputs) != 1 or outputs[0].dtype not in FLOATS:
            words = ", ".join(map(str, outputs))
            raise ModelError(f"logistic: found outputs {words}; allowed: one of floating-point numbers")
        return {"label": outputs[0]}

    def build(self, b: GraphBuilder, outputs: Sequence[str], labels: Sequence[str]) -> str:
        """The mean."""
        (z,), (label,) = outputs, labels
        dtype = b.types[z].dtype
        zero = b.constant(0.0, dtype=dtype)
        known = b.add("greater_equal", label, zero)
        each = b.add("where", known, b.add("sub", b.add("softplus", z), b.add("mul", z, label)), zero)
        total, count = (sum_of(b, x, wide=True) for x in (each, b.add("cast", known, to=dtype)))
        return b.add("div", total, count)


def micro_f1(output: np.ndarray, label: np.ndarray) -> float:
    """F1 of all known labels together: ``2 TP / (2 TP + FP + FN)``, a logit above 0 for a label of 1."""
    known = label >= 0
    said, true = (output > 0) & known, (label > 0.5) & known
    hits = int(np.sum(said & true))
    return 2.0 * hits / max(int(np.sum(said)) + int(np.sum(true)), 1)


def scores(multilabel: bool) -> dict[str, Metric]:
    """The score of vertices by its name: accuracy, or the F1 of several labels each."""
    return {"micro_f1": micro_f1} if multilabel else {"accuracy": METRICS["accuracy"]}
