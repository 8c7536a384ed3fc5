"""What candidates are compared with."""

import numpy as np
import pytest

from burnish.graph import GraphBuilder
from burnish.kernels.task import Task
from burnish.loops.expr import cast
from burnish.loops.tensor import compute, placeholder
from burnish.target import target
from burnish.tune.evaluate import Evaluator
from burnish.tune.evaluate.reference import examples
from burnish.tune.tasks import tuning_tasks


def test_rounding_on_purpose_is_kept_and_other_rounding_is_not() -> None:
    x = placeholder((8,), "float32", "x")
    rounded = compute((8,), lambda i: cast("float32", cast("bfloat16", x[i])) * 3.0, "rounded")
    exact = compute((8,), lambda i: x[i] * 3.0, "exact")
    for y in (rounded, exact):
        feeds, (answer,) = examples(Task("scaled", (x,), (y,), "mul", {}, frozenset()))
        value = feeds["x"].astype("float64")
        error = np.abs(answer - 3.0 * value).max()
        assert (1e-4 < error < 1e-2) if y is rounded else error == 0


@pytest.mark.skipif(not target("cpu").has("amx-bf16"), reason="no matrix tiles")
def test_products_of_parts_are_right(evaluator: Evaluator) -> None:
    """Their parts are random here, and do not add up to weights that were split."""
    g, w = GraphBuilder(), np.random.default_rng(0).standard_normal((256, 512)).astype("float32")
    graph = g.build(g.add("matmul", g.input("x", (128, 256)), g.constant(w, "w")))
    (task,) = tuning_tasks(graph, target("cpu"), exact=False)
    default = task.space.default
    assert default.alternative.template.name == "split_matmul"
    (made,) = evaluator.evaluate([evaluator.default(default.alternative.task)])
    assert made.outcome == "ok", made.error
