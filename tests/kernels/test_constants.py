"""What depends on constants alone is computed at compile time."""

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from burnish.driver.compilation import compile_kernels, make_module
from burnish.graph.graph import GraphBuilder
from burnish.kernels.constants import split_constants
from burnish.loops import tensor as t
from burnish.loops.evaluate import evaluate
from burnish.loops.expr import Const, math
from burnish.loops.tensor import Tensor, compute, placeholder, reduce_axis
from burnish.machines.target import host
from burnish.pipeline import plan


def named(tensors: list[Tensor]) -> list[str]:
    return [x.name for x in tensors]


def test_a_transformed_weight_becomes_an_input() -> None:
    """y = x * exp(w + b): the stages exp and sum are derived, and w and b are no longer read."""
    x, w, b = (placeholder((4,), name=n) for n in "xwb")
    total = compute((4,), lambda i: w[i] + b[i], "total")
    scale = compute((4,), lambda i: math("exp", total[i]), "scale")
    y = compute((4,), lambda i: x[i] * scale[i], "y")
    inputs, outputs, derived = split_constants([x, w, b], [y], {"w", "b"})
    assert named(inputs) == ["x", "scale"]
    assert named(derived) == ["scale"]
    assert inputs[1].body is None
    feeds = {n: np.random.default_rng(3).standard_normal(4).astype("float32") for n in "xwb"}
    value = evaluate(derived, {n: feeds[n] for n in "wb"})[0]
    found = evaluate(outputs, {"x": feeds["x"], "scale": value})[0]
    np.testing.assert_array_equal(found, evaluate([y], feeds)[0])


def test_constants_read_directly_stay() -> None:
    x, w = placeholder((4,), name="x"), placeholder((4,), name="w")
    twice = compute((4,), lambda i: w[i] * 2.0, "twice")
    y = compute((4,), lambda i: x[i] * w[i] + twice[i], "y")
    inputs, _, derived = split_constants([x, w], [y], {"w"})
    assert named(inputs) == ["x", "w", "twice"]
    assert named(derived) == ["twice"]


def test_stages_that_read_nothing_are_derived() -> None:
    x, k = placeholder((3,), name="x"), reduce_axis(3, "k")
    ones = compute((3,), lambda i: Const(1.0, "float32"), "ones")
    y = compute((), lambda: t.sum(x[k.var] * ones[k.var], k), "y")
    inputs, outputs, derived = split_constants([x], [y], set())
    assert (named(inputs), named(derived)) == (["x", "ones"], ["ones"])
    assert named(list(outputs[0].inputs)) == ["x", "ones"]


def test_an_output_is_computed_even_from_constants() -> None:
    w = placeholder((3,), name="w")
    y = compute((3,), lambda i: w[i] + 1.0, "y")
    inputs, outputs, derived = split_constants([w], [y], {"w"})
    assert (named(inputs), derived) == (["w"], [])
    assert outputs[0].body == y.body


def test_nothing_constant_changes_nothing() -> None:
    x = placeholder((3,), name="x")
    a = compute((3,), lambda i: x[i] + 1.0, "a")
    y = compute((3,), lambda i: a[i] * 2.0, "y")
    inputs, outputs, derived = split_constants([x], [y], set())
    assert (named(inputs), derived) == (["x"], [])
    assert str(outputs[0]) == str(y)


def test_a_plan_computes_no_constant_and_a_compilation_each_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans look at tasks of groups that they then arrange otherwise."""
    computed: list[str] = []

    def noted(outputs: Sequence[Tensor], feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        computed.extend(t.name for t in outputs)
        return evaluate(outputs, feeds)

    monkeypatch.setattr(plan, "evaluate", noted)
    g = GraphBuilder()
    x, weight = g.input("x", (8, 16)), np.arange(24 * 16, dtype=np.float32).reshape(24, 16) % 7
    graph = g.build(g.add("relu", g.add("matmul", x, g.add("transpose", g.constant(weight)))))
    plan.plan_kernels(graph, host(), exact=False)
    assert not computed
    module = make_module(compile_kernels(graph, host(), optimized=True), 1)
    assert len(computed) == 1
    given = np.arange(8 * 16, dtype=np.float32).reshape(8, 16) % 5 - 2
    np.testing.assert_array_equal(module(given), np.maximum(given @ weight.T, 0))
