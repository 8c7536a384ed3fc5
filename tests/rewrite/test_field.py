"""Evaluation in a prime field against evaluation in float64: on integers, sums and products are the same numbers."""

import numpy as np
import pytest

from burnish.errors import ModelError
from burnish.graph.evaluate import evaluate
from burnish.graph.graph import GraphBuilder
from burnish.rewrite.proofs.field import LOWEST, PRIMES, PrimeField, evaluate_graph, evaluate_operator

POOL = {"kernel": (2, 3), "strides": (2, 1), "pads": (1, 0, 1, 2)}
CASES = [
    ("matmul", [(2, 3, 4), (4, 5)], {}),
    ("matmul", [(4, 3), (5, 4)], {"transpose_a": True, "transpose_b": True}),
    ("conv2d", [(2, 4, 5, 6), (6, 2, 3, 2)], {"strides": (2, 1), "pads": (1, 0, 2, 1), "groups": 2}),
    ("conv2d", [(1, 2, 5, 5), (3, 2, 2, 2), (3,)], {"dilations": (2, 2), "pads": (-1, 0, 1, 0)}),
    ("add", [(2, 3, 4), (3, 1)], {}),
    ("sub", [(2, 3), (3,)], {}),
    ("mul", [(2, 3), ()], {}),
    ("neg", [(2, 3)], {}),
    ("concat", [(2, 3), (2, 1), (2, 2)], {"axis": 1}),
    ("slice", [(5, 4)], {"starts": (3, 0), "extents": (2, 2), "steps": (-1, 2)}),
    ("slice", [(5, 4)], {"starts": (3, 0), "extents": (0, 2)}),
    ("pad", [(2, 3)], {"pads": (1, 0, -1, 2), "value": 2.0}),
    ("reshape", [(2, 3, 4)], {"shape": (6, 4)}),
    ("transpose", [(2, 3, 4)], {"perm": (2, 0, 1)}),
    ("expand", [(3, 1)], {"shape": (2, 3, 4)}),
    ("tile", [(2, 3)], {"repeats": (2, 1)}),
    ("reduce_sum", [(2, 3, 4)], {"axes": (1,)}),
    ("reduce_prod", [(2, 3)], {"axes": (1,)}),
    ("trilu", [(3, 3)], {}),
]


@pytest.mark.parametrize("prime", PRIMES)
@pytest.mark.parametrize(("op", "shapes", "attrs"), CASES)
def test_integers_give_what_float64_gives(op: str, shapes: list[tuple[int, ...]], attrs: dict, prime: int) -> None:
    random = np.random.default_rng(0)
    batch = [random.integers(-9, 10, (3, *shape)) for shape in shapes]
    (found,) = evaluate_operator(op, [x % prime for x in batch], attrs, PrimeField(prime))
    b = GraphBuilder()
    names = [b.input(f"x{i}", shape) for i, shape in enumerate(shapes)]
    graph = b.build(b.add(op, *names, **attrs))
    for i in range(3):
        feeds = {n: x[i].astype(np.float32) for n, x in zip(names, batch, strict=True)}
        (expected,) = evaluate(graph, feeds, "float64").values()
        np.testing.assert_array_equal(found[i], np.asarray(expected).astype(np.int64) % prime)


def test_quotients_are_the_fields() -> None:
    field = PrimeField()
    x = field.random(np.random.default_rng(0), (2, 1, 2, 4, 4))
    (mean,) = evaluate_operator("avg_pool2d", [x], {"kernel": (2, 2)}, field)
    (total,) = evaluate_operator("conv2d", [x[:, :, :1], np.ones((1, 1, 1, 2, 2), np.int64)], {}, field)
    np.testing.assert_array_equal(mean[:, :, :1] * 4 % field.prime, total)
    y = field.random(np.random.default_rng(1), (2, 1, 2, 4, 4))
    (quotient,) = evaluate_operator("div", [x, y], {}, field)
    np.testing.assert_array_equal(quotient * y % field.prime, x)


def test_the_order_is_an_order_with_zero_in_the_middle() -> None:
    field = PrimeField()
    x = field.random(np.random.default_rng(0), (1, 1000))
    (positive,) = evaluate_operator("relu", [x], {}, field)
    assert 0.4 < (positive == 0).mean() < 0.6
    np.testing.assert_array_equal(positive[positive != 0], x[positive != 0])
    np.testing.assert_array_equal(evaluate_operator("relu", [positive], {}, field)[0], positive)
    np.testing.assert_array_equal(field.ranked(field.rank(x)), x)
    (greatest,) = evaluate_operator("reduce_max", [x], {"axes": (0,)}, field)
    assert field.rank(greatest[0]) == field.rank(x).max() and greatest[0] in x


def test_what_pads_a_maximum_is_below_everything() -> None:
    field = PrimeField()
    x = field.random(np.random.default_rng(0), (1, 1, 1, 2, 2))
    (y,) = evaluate_operator("max_pool2d", [x], {"kernel": (1, 1), "pads": (1, 0, 0, 0)}, field)
    assert (y[0, 0, 0, 0] == LOWEST).all() and (y[0, 0, 0, 1:] == x[0, 0, 0]).all()


def test_functions_are_fixed_and_differ() -> None:
    x = PrimeField().random(np.random.default_rng(0), (1, 100))
    first, again, other = (evaluate_operator(op, [x], {})[0] for op in ("exp", "exp", "tanh"))
    assert (first == again).all() and (first != other).any()


def test_a_graph_is_evaluated_with_its_constants() -> None:
    b = GraphBuilder()
    x = b.input("x", (2, 2))
    graph = b.build(b.add("matmul", x, b.constant(np.array([[0.5, 0], [0, 2]], np.float32))))
    (y,) = evaluate_graph(graph, {"x": np.array([[[2, 3], [4, 5]]])})
    np.testing.assert_array_equal(y, [[[1, 6], [2, 10]]])


def test_a_number_that_is_no_simple_fraction_is_refused() -> None:
    assert PrimeField().element(0.25) * 4 % PrimeField().prime == 1
    with pytest.raises(ModelError, match=r"0\.70710678.* is no simple fraction"):
        PrimeField().element(0.7071067811865476)
