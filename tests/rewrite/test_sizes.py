"""Sizes as polynomials: their value is a homomorphism, their text is read back, their refusals name them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burnish.errors import RuleError
from burnish.loops.sizes import exact_quotient, greatest, least
from burnish.rewrite.language.sizes import names_of, parse_size, put_in, quotient, size_text, solve, value_of

NAMES = st.sampled_from("abc")
SIZES = st.recursive(
    st.integers(-4, 4) | NAMES.map(parse_size),
    lambda s: st.tuples(s, s, st.sampled_from("+-*")).map(lambda t: _combined(*t)),
    max_leaves=6,
)
VALUES = st.fixed_dictionaries({n: st.integers(1, 9) for n in "abc"})


def _combined(a: int, b: int, op: str) -> int:
    return a + b if op == "+" else a - b if op == "-" else a * b


@given(SIZES, SIZES, st.sampled_from("+-*"), VALUES)
def test_the_value_of_a_combination_is_that_of_its_parts(a: int, b: int, op: str, values: dict[str, int]) -> None:
    x, y = value_of(a, values), value_of(b, values)
    assert value_of(_combined(a, b, op), values) == {"+": x + y, "-": x - y, "*": x * y}[op]


@given(SIZES)
def test_text_is_read_back(size: int) -> None:
    assert parse_size(size_text(size)) == size


@given(SIZES, SIZES)
def test_equal_polynomials_are_equal_and_hash_alike(a: int, b: int) -> None:
    assert (a + b) * (a - b) == a * a - b * b
    assert hash(a + b) == hash(b + a)


@given(SIZES, SIZES, VALUES)
def test_substitution_is_evaluation_of_what_is_put_in(a: int, b: int, values: dict[str, int]) -> None:
    assert value_of(put_in(a, {"a": b}), values) == value_of(a, {**values, "a": value_of(b, values)})


@given(SIZES, SIZES)
def test_a_product_divides_by_its_factor(a: int, b: int) -> None:
    if b != 0:
        assert exact_quotient(a * b, b) == a


def test_what_does_not_divide_has_no_quotient() -> None:
    assert exact_quotient(parse_size("a * b + 1"), parse_size("a")) is None
    assert exact_quotient(parse_size("3 * a"), 2) is None
    assert exact_quotient(parse_size("a"), 0) is None


@given(SIZES, st.integers(-9, 9), VALUES)
def test_a_solution_is_one(size: int, value: int, values: dict[str, int]) -> None:
    known = {n: v for n, v in values.items() if n != "a"}
    solution = solve(size, value, known)
    if solution is not None:
        assert value_of(size, {**values, **solution}) == value


def test_solving_for_one_unknown() -> None:
    assert solve(parse_size("2 * a + b"), 10, {"b": 4}) == {"a": 3}
    assert solve(parse_size("2 * a + b"), 9, {"b": 4}) is None
    assert solve(parse_size("a * b"), 9, {}) is None
    assert solve(parse_size("a"), 4, {"a": 4}) == {}


@given(SIZES, st.integers(1, 4), VALUES)
def test_quotients_round_down(size: int, divisor: int, values: dict[str, int]) -> None:
    found = quotient(size, divisor)
    assert value_of(found, values) == value_of(size, values) // divisor
    assert parse_size(size_text(found)) == found
    assert names_of(found) <= names_of(size)


def test_quotients_are_substituted_in() -> None:
    found = parse_size("floor(h + 2*p - k, s) + 1")
    assert names_of(found) == {"h", "p", "k", "s"}
    assert size_text(put_in(found, {"s": 1})) == "h - k + 2*p + 1"
    assert value_of(found, {"h": 7, "p": 1, "k": 3, "s": 2}) == 4


@pytest.mark.parametrize("text", ["a / b", "a +", "True", "'a'", "f(a)", "a ** 2", "floor(a)"])
def test_what_is_no_size_is_refused_by_name(text: str) -> None:
    with pytest.raises(RuleError, match="size"):
        parse_size(text)


def test_a_name_without_value_is_refused() -> None:
    with pytest.raises(RuleError, match="'b' has no value; known: a"):
        value_of(parse_size("a + b"), {"a": 1})


@given(SIZES, SIZES, VALUES)
def test_quotients_by_sizes_round_down_and_have_bounds(a: int, b: int, values: dict[str, int]) -> None:
    if value_of(b, values) and b != 0:
        found = quotient(a, b)
        assert value_of(found, values) == value_of(a, values) // value_of(b, values)
        assert least(found) <= value_of(found, values) <= greatest(found)
        assert parse_size(size_text(found)) == found


def test_division_by_zero_is_refused() -> None:
    with pytest.raises(RuleError, match="division by 0"):
        quotient(parse_size("a"), 0)
