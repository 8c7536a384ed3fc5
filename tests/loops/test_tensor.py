"""Tensor expressions: what they print, what they refuse, and the naive programs they denote."""

import numpy as np
import pytest

from burnish.errors import ScheduleError
from burnish.loops import tensor as t
from burnish.loops.evaluate import evaluate
from burnish.loops.expr import Var, maximum
from burnish.loops.interpret import run_program
from burnish.loops.tensor import argreduce, compute, create_program, placeholder, reduce_axis, stages


def matmul() -> tuple[list[t.Tensor], t.Tensor]:
    a, b, k = placeholder((2, 3), name="a"), placeholder((3, 4), name="b"), reduce_axis(3, "k")
    c = compute((2, 4), lambda i, j: t.sum(a[i, k.var] * b[k.var, j], k), "c")
    return [a, b], compute((2, 4), lambda i, j: maximum(c[i, j], 0.0), "y")


def test_definitions_print() -> None:
    inputs, y = matmul()
    assert str(inputs[0]) == "a: float32[2, 3]"
    assert str(y) == "y: float32[2, 4]; y[i, j] = max(c[i, j], 0.0)"
    assert str(y.inputs[0]) == "c: float32[2, 4]; c[i, j] = sum((a[i, k] * b[k, j]), over=(k<3))"


def test_the_naive_program_golden() -> None:
    inputs, y = matmul()
    assert (
        str(create_program("matmul", inputs, [y]))
        == """\
program matmul(a: float32[2, 3], b: float32[3, 4], y: float32[2, 4]):
  alloc c: float32[2, 4]
  for c.init.i in 2:
    for c.init.j in 4:
      c[c.init.i, c.init.j] = 0.0
  for c.i in 2:
    for c.j in 4:
      for c.k in 3:
        c[c.i, c.j] += (a[c.i, c.k] * b[c.k, c.j])
  for y.i in 2:
    for y.j in 4:
      y[y.i, y.j] = max(c[y.i, y.j], 0.0)
"""
    )


def test_inputs_are_the_tensors_read() -> None:
    inputs, y = matmul()
    assert [i.name for i in y.inputs] == ["c"]
    assert list(y.inputs[0].inputs) == inputs
    assert [s.name for s in stages([y])] == ["a", "b", "c", "y"]


def test_a_stage_read_twice_is_computed_once() -> None:
    x = placeholder((3,), name="x")
    a = compute((3,), lambda i: x[i] + 1.0, "a")
    outputs = [compute((3,), lambda i: a[i] * a[2 - i], "b"), compute((3,), lambda i: a[i] - x[i], "c")]
    program = create_program("p", [x], outputs)
    assert str(program).count("a[a.i] =") == 1
    assert [p.name for p in program.params] == ["x", "b", "c"]
    found = run_program(program, {"x": np.array([1, 2, 3], "float32")})
    assert found["b"].tolist() == [8, 9, 8]
    assert found["c"].tolist() == [1, 1, 1]


def test_axes_take_the_names_of_parameters() -> None:
    x = placeholder((2, 3, 4), name="x")
    assert compute((2, 3, 4), lambda n, *rest: x[(n, *rest)], "y").axes == (Var("i0"), Var("i1"), Var("i2"))
    assert compute((4, 3), lambda w, c: x[0, c, w], "z").axes == (Var("w"), Var("c"))
    assert compute((), lambda: x[0, 0, 0], "s").shape == ()


def test_numbers_take_the_stated_dtype() -> None:
    assert compute((2,), lambda i: 1, "y", "int8").dtype == "int8"
    assert compute((2,), lambda i: 1.5, "y").dtype == "float32"


@pytest.mark.parametrize("kind", ["max", "min"])
def test_argreduce_finds_the_first_extreme(kind: str) -> None:
    values = np.array([[3, 1, 3, 1], [0, 0, 0, 0], [-1, 5, 5, -9]], "float32")
    x = placeholder(values.shape, name="x")
    for dim in (0, 1):
        found = evaluate([argreduce(x, dim, kind, "y")], {"x": values})[0]
        np.testing.assert_array_equal(found, getattr(np, f"arg{kind}")(values, dim, keepdims=True))
        assert found.dtype == np.int64


@pytest.mark.parametrize("kind", ["sum", "prod", "max", "min"])
def test_reductions_over_several_axes(kind: str) -> None:
    values = np.random.default_rng(0).uniform(0.5, 2, (2, 3, 4)).astype("float32")
    x, r, s = placeholder((2, 3, 4), name="x"), reduce_axis(3, "r"), reduce_axis(4, "s")
    y = compute((2,), lambda i: getattr(t, kind)(x[i, r.var, s.var], (r, s)), "y")
    np.testing.assert_allclose(evaluate([y], {"x": values})[0], getattr(values, kind)((1, 2)), rtol=1e-5)


def test_refusals() -> None:
    x, k = placeholder((3, 4), name="x"), reduce_axis(4, "k")
    with pytest.raises(ScheduleError, match="tensor 'x' has 2 dimensions, indexed with 1"):
        x[0]
    with pytest.raises(ScheduleError, match="compute 'y': a reduction must be the whole body"):
        compute((3,), lambda i: t.sum(x[i, k.var], k) + 1.0, "y")
    with pytest.raises(ScheduleError, match="the shape has 2 dimensions, the function takes 1 indices"):
        compute((3, 4), lambda i: x[i, 0], "y")
    with pytest.raises(ScheduleError, match=r"tensor 'y': shape \(3, -1\) has a negative extent"):
        compute((3, -1), lambda i, j: x[i, j], "y")
    with pytest.raises(ScheduleError, match="reduce_axis 'k': extent -2 is negative"):
        reduce_axis(-2, "k")
    with pytest.raises(ScheduleError, match="placeholder 'p': unknown dtype 'complex64'; allowed: float64"):
        placeholder((2,), "complex64", "p")
    with pytest.raises(ScheduleError, match=r"program 'p': inputs \['x'\] are read but not listed"):
        create_program("p", [], [compute((3,), lambda i: x[i, 0], "y")])
    twice = compute((3,), lambda i: x[i, 0], "x")
    with pytest.raises(ScheduleError, match=r"program 'p': several stages are named \['x'\]"):
        create_program("p", [x], [twice])
