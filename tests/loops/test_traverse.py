"""Expressions are graphs: what occurs in them more than once is met, and rebuilt, once."""

from burnish.loops.expr import MOST_TEXT, Binary, Buffer, Const, Expr, Load, Var, math
from burnish.loops.traverse import depth, repeated, substitute, transform, walk

X = Buffer("x", (8,))
I, J = Var("i"), Var("j")  # noqa: E741


def squared(times: int, at: Expr = I) -> Expr:
    """``x[at]`` to the power ``2 ** times``."""
    e: Expr = Load(X, (at,))
    for _ in range(times):
        e = e * e
    return e


def test_walk_meets_each_expression_once_and_outer_ones_first() -> None:
    e = squared(90)
    met = list(walk(e))
    assert len(met) == len(set(met)) == 90 + 2
    assert met[0] is e
    assert met[-1] is I


def test_transform_rebuilds_each_expression_once() -> None:
    visited = []

    def moved(e: Expr) -> Expr:
        visited.append(e)
        return Load(X, (J,)) if isinstance(e, Load) else e

    assert transform(squared(90), moved) is substitute(squared(90), {"i": J})
    assert len(visited) == 90 + 2


def test_transform_leaves_what_cannot_change() -> None:
    e = squared(3) + math("exp", Load(X, (J,)))
    seen = []
    assert transform(e, lambda part: seen.append(part) or part, lambda part: "j" in part.variables) is e
    assert squared(3) not in seen


def test_repeated_are_the_inner_expressions_with_several_readers() -> None:
    x = Load(X, (I,))
    double = x + x
    assert repeated(double) == {x}
    assert repeated((double * double) + Const(1.0, "float32")) == {double, x}
    assert repeated(Binary("+", x, Load(X, (J,)))) == frozenset()


def test_depth_counts_the_longest_way_down() -> None:
    assert depth(I) == 0
    assert depth(squared(30)) == 31


def test_text_of_what_is_used_twice_is_bounded() -> None:
    assert str(squared(2)) == "((x[i] * x[i]) * (x[i] * x[i]))" == repr(squared(2))
    assert len(str(squared(90))) <= 2 * MOST_TEXT


def test_different_expressions_have_different_texts_however_long() -> None:
    one, other = squared(60), squared(60, J)
    assert str(one) != str(other)  # kernels are kept by their text
    assert str(one + 1.0) != str(other + 1.0)
