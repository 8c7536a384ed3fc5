"""Symbolic sizes: one form, sound bounds, decisions that hold for all values, and text that reads back."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burnish.errors import ScheduleError
from burnish.loops.bounds import bounds, linear_bounds
from burnish.loops.expr import Expr, Var, maximum, minimum, wrap
from burnish.loops.linear import to_linear
from burnish.loops.simplify import simplify
from burnish.loops.size_text import parse_extent
from burnish.loops.sizes import (
    SymbolicSize,
    at_least,
    dim,
    exact_quotient,
    floor,
    greatest,
    hinted,
    least,
    nondecreasing,
    solve,
    valued,
)
from burnish.loops.specialize import expr_at
from burnish.loops.traverse import substitute

N, M = dim("n", 1, 9, hint=4), dim("m", 2, 5, hint=3)
VALUES = [{"n": n, "m": m} for n in range(1, 10) for m in range(2, 6)]


def extents() -> st.SearchStrategy[Any]:
    """Extents over n and m, with how to compute them from numbers."""
    numbers = st.integers(-3, 12).map(lambda k: (k, lambda s: k))
    names = st.sampled_from([(N, lambda s: s["n"]), (M, lambda s: s["m"])])

    def grow(parts: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        def combine(pair: Any) -> Any:
            op, (a, f), (b, g), k = pair
            return {
                "+": (a + b, lambda s: f(s) + g(s)),
                "-": (a - b, lambda s: f(s) - g(s)),
                "*": (a * b, lambda s: f(s) * g(s)),
                "//": (a // k, lambda s: f(s) // k),
                "%": (a % k, lambda s: f(s) % k),
            }[op]

        return st.tuples(st.sampled_from(["+", "-", "*", "//", "%"]), parts, parts, st.integers(1, 7)).map(combine)

    return st.recursive(numbers | names, grow, max_leaves=5)


@given(extents())
def test_sizes_compute_like_the_numbers_they_stand_for(pair: tuple[Any, Callable[[dict[str, int]], int]]) -> None:
    extent, number = pair
    for sizes in VALUES:
        assert valued(extent, sizes) == number(sizes), (extent, sizes)
        assert least(extent) <= number(sizes) <= greatest(extent), (extent, sizes)
    assert hinted(extent) == number({"n": 4, "m": 3})
    dims = {d.name: d for d in extent.dims} if isinstance(extent, SymbolicSize) else {}
    assert parse_extent(str(extent), dims) == extent


@given(extents(), extents())
def test_comparisons_are_decided_only_where_they_hold_for_all_values(a: Any, b: Any) -> None:
    (x, f), (y, g) = a, b
    if not (isinstance(x, SymbolicSize) or isinstance(y, SymbolicSize)):
        return
    for found, test in ((x < y, int.__lt__), (x <= y, int.__le__), (x > y, int.__gt__), (x >= y, int.__ge__)):
        if isinstance(found, bool):
            assert all(test(f(s), g(s)) is found for s in VALUES), (x, y, found)


def test_equal_sizes_are_one_object() -> None:
    assert (N + 13) // 14 * 14 is -(-N // 14) * 14
    assert (N + M) * (N - M) is N * N - M * M
    assert N * 768 // 256 is N * 3
    assert (N * 16 + 5) % 16 == 5
    assert N - N == 0 and isinstance(N - N, int)
    assert (N // 4) // 3 is N // 12
    assert (N - 1 + 16) // 16 is (N + 15) // 16
    assert exact_quotient(N * M * 6, M * 2) is N * 3
    assert exact_quotient(N * M + 1, M) is None


def test_a_size_over_a_size_is_a_number_only_where_it_is_one_for_all_values() -> None:
    assert N * 3 // N == 3 and N // (N + 1) == 0 and (N + 1) // (N + 5) == 0
    for size in range(1, 10):
        assert valued(floor(N + 47, N), {"n": size}) == (size + 47) // size


@pytest.mark.parametrize(
    ("extent", "low", "high"),
    [
        ((N + 3) // 4 * 4 - N, 0, 3),
        ((N + 3) // 4 - N // 4, 0, 1),
        (N % 4 % 2, 0, 1),
        (N * M - N, 1, 36),
        (N * N - N, 0, 72),
    ],
)
def test_bounds_see_how_parts_of_a_size_depend_on_each_other(extent: SymbolicSize, low: int, high: int) -> None:
    assert (extent.low, extent.high) == (low, high)


def test_what_grows_with_every_dimension_is_known_as_such() -> None:
    assert all(nondecreasing(extent) for extent in (7, N, N * M + 3, N * N * 2 - 5, (N + 3) // 4 * 16))
    assert not any(nondecreasing(extent) for extent in (M - N, N * M - N, N % 4, 9 - N))


def test_what_depends_on_the_dimensions_has_no_truth_value() -> None:
    assert N > 0 and N < 10 and at_least(N * 2, N) and bool(N)
    with pytest.raises(TypeError):
        bool(N > 4)
    with pytest.raises(TypeError, match="whether \\(n - 4\\) is zero depends on n"):
        bool(N - 4)
    with pytest.raises(TypeError):
        range(N)


def test_a_dimension_has_bounds_a_multiple_and_a_hint() -> None:
    even = dim("k", 3, 11, multiple=4, hint=9)
    assert (least(even), greatest(even), hinted(even), str(even)) == (4, 8, 8, "k*4")
    assert even % 4 == 0 and even // 2 * 2 is even
    assert dim("one", 8, 9, multiple=8) == 8
    for wrong in ({"low": 5, "high": 4}, {"low": -1}, {"multiple": 0}, {"low": 5, "high": 7, "multiple": 4}):
        with pytest.raises(ScheduleError, match="dimension 'k': found low"):
            dim("k", **wrong)  # type: ignore[arg-type]
    with pytest.raises(ScheduleError, match="a name"):
        dim("batch size")
    with pytest.raises(ScheduleError, match="found hint 99; allowed: 1 to 8"):
        dim("k", 1, 8, hint=99)


def test_an_extent_of_one_dimension_is_solved() -> None:
    (d,) = N.dims  # type: ignore[attr-defined]
    assert solve(N * 3 + 2, 14) == (d, 4)
    assert solve(N * M, 4) is None and solve(N // 2, 1) is None
    with pytest.raises(ValueError, match="15 is not"):
        solve(N * 3 + 2, 15)


@pytest.mark.parametrize("text", ["n**2", "m", "f(n)", "n +", "n / 2", "n // 0", "True", "1.5"])
def test_other_texts_are_no_sizes(text: str) -> None:
    with pytest.raises(ValueError, match="size"):
        parse_extent(text, {d.name: d for d in N.dims})  # type: ignore[attr-defined]


# --- index expressions with sizes -------------------------------------------------------------------------------------

RANGES: dict[str, Any] = {"i": N, "j": 4, "o": (N + 3) // 4, "f": N * M}


def indices() -> st.SearchStrategy[Expr]:
    """Index expressions over i < n, j < 4, o < ceil(n / 4), f < n * m."""
    leaves = st.sampled_from([*map(Var, RANGES), *map(wrap, (0, 1, 3, 8)), N, M, N * M, N // 4])

    def grow(parts: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        sums = st.tuples(parts, parts, st.sampled_from([1, 4, -2])).map(lambda t: wrap(t[0]) + wrap(t[1]) * t[2])
        products = st.tuples(parts, st.sampled_from([N, M, 3])).map(lambda t: wrap(t[0]) * t[1])
        quotients = st.tuples(parts, st.sampled_from([N, M, 2, 4]), st.booleans()).map(
            lambda t: wrap(t[0]) // t[1] if t[2] else wrap(t[0]) % t[1]
        )
        ends = st.tuples(parts, parts, st.sampled_from([minimum, maximum])).map(lambda t: t[2](wrap(t[0]), wrap(t[1])))
        return sums | products | quotients | ends

    return st.recursive(leaves, grow, max_leaves=4).map(wrap)


@given(indices(), st.integers(0, len(VALUES) - 1))
def test_simplified_indices_are_equal_and_within_their_bounds(e: Expr, which: int) -> None:
    sizes = VALUES[which]
    simple = simplify(e, RANGES)
    low, high = bounds(e, RANGES)
    first, last = linear_bounds(to_linear(simple), RANGES)
    extent = {name: valued(n, sizes) for name, n in RANGES.items()}
    for point in itertools.islice(itertools.product(*map(range, extent.values())), 0, None, 7):
        values = {name: wrap(at) for name, at in zip(extent, point, strict=True)}
        number, other = (simplify(substitute(expr_at(x, sizes), values)) for x in (e, simple))
        assert number == other, (e, simple, sizes, point)
        assert low <= number.value <= high and first <= number.value <= last, (e, sizes, point)  # type: ignore[attr-defined]
