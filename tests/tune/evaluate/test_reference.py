"""What candidates are compared with."""

import numpy as np

from burnish.kernels.task import KernelTask
from burnish.loops.expr import cast
from burnish.loops.tensor import compute, placeholder
from burnish.ops import OPERATORS
from burnish.tune.evaluate import Evaluator
from burnish.tune.evaluate.reference import examples


def test_rounding_on_purpose_is_kept_and_other_rounding_is_not() -> None:
    x = placeholder((8,), "float32", "x")
    rounded = compute((8,), lambda i: cast("float32", cast("bfloat16", x[i])) * 3.0, "rounded")
    exact = compute((8,), lambda i: x[i] * 3.0, "exact")
    for y in (rounded, exact):
        feeds, (answer,) = examples(KernelTask("scaled", (x,), (y,), "mul", {}, frozenset()))
        value = feeds["x"].astype("float64")
        error = np.abs(answer - 3.0 * value).max()
        assert (1e-4 < error < 1e-2) if y is rounded else error == 0


def test_products_of_parts_are_right(evaluator: Evaluator) -> None:
    """By the template that this machine has. Random parts do not add up to weights that were split."""
    x, parts = placeholder((32, 64), "float32", "x"), placeholder((2, 64, 32), "bfloat16", "parts")
    outputs = OPERATORS["split_matmul"].define("y", [x, parts], {"columns": 32})
    task = KernelTask("product", (x, parts), tuple(outputs), "split_matmul", {}, frozenset({"parts"}))
    (made,) = evaluator.evaluate([evaluator.default(task)])
    assert made.outcome == "ok", made.error
