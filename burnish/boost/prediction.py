"""Predictions of a model for any table: probabilities, values, classes, margins or leaves."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnish.base.arguments import typed
from burnish.boost.ensemble import Ensemble
from burnish.boost.objective import transform
from burnish.boost.predictor import of_values
from burnish.errors import ParameterError
from burnish.runtime.threads import Workers

OUTPUTS = ("prediction", "margin", "class", "leaf")
RAW = ("custom", "binary:logitraw")  # objectives whose predictions are margins, which are above 0 for class 1
LABELS = ("logistic", "binary:logitraw", "binary:hinge")  # objectives of several outputs that are labels, not classes


@typed
def predict(
    model: Ensemble,
    data: Any,
    *,
    output: str = "prediction",
    rounds: tuple[int, int] | None = None,
    base_margin: NDArray[np.float32] | None = None,
    threads: int | None = None,
) -> NDArray[Any]:
    """Predictions for rows: (rows,), or (rows, outputs) of several outputs.

    data: a Dataset, or anything that `Dataset.of` reads; category values become the model's category numbers, and
    columns that have names are found by those of training, in any order.
    output: "prediction" (a probability, mean count, value or score), "margin" (before the objective's transform),
    "class" (the most probable one; of several binary labels 0 or 1 for each, (rows, outputs)) or "leaf" (rows, trees).
    rounds: begin and end of those to use; by default all, or those up to `best_iteration`. Raises DataError and
    ParameterError.
    """
    if output not in OUTPUTS:
        raise ParameterError(f"output: found {output!r}; allowed: {', '.join(map(repr, OUTPUTS))}")
    data = of_values(data, model)
    rounds = model.used if rounds is None else rounds
    workers = Workers(threads)
    if output == "leaf":
        return model.predict_leaf(data, workers, rounds)
    margin = model.predict_margin(data, workers, rounds, base_margin)
    result = margin if output == "margin" else transform(model.objective, margin, workers)
    if output == "class":
        border = 0.0 if model.objective in RAW else 0.5
        if model.outputs > 1 and model.objective in LABELS:
            return np.ascontiguousarray((result > border).T).astype(np.int64)
        return (result[0] > border).astype(np.int64) if model.outputs == 1 else result.argmax(axis=0)
    return result[0] if model.outputs == 1 else np.ascontiguousarray(result.T)
