"""Sizes as polynomials: their value is a homomorphism, their text is read back, their refusals name them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burnish.errors import RuleError
from burnish.rewrite.language.sizes import Size, floor, parse_size

NAMES = st.sampled_from("abc")
SIZES = st.recursive(
    st.integers(-4, 4).map(Size.of) | NAMES.map(Size.of),
    lambda s: st.tuples(s, s, st.sampled_from("+-*")).map(lambda t: _combined(*t)),
    max_leaves=6,
)
VALUES = st.fixed_dictionaries({n: st.integers(1, 9) for n in "abc"})


def _combined(a: Size, b: Size, op: str) -> Size:
    return a + b if op == "+" else a - b if op == "-" else a * b


@given(SIZES, SIZES, st.sampled_from("+-*"), VALUES)
def test_the_value_of_a_combination_is_that_of_its_parts(a: Size, b: Size, op: str, values: dict[str, int]) -> None:
    x, y = a.value(values), b.value(values)
    assert _combined(a, b, op).value(values) == {"+": x + y, "-": x - y, "*": x * y}[op]


@given(SIZES)
def test_text_is_read_back(size: Size) -> None:
    assert parse_size(str(size)) == size


@given(SIZES, SIZES)
def test_equal_polynomials_are_equal_and_hash_alike(a: Size, b: Size) -> None:
    assert (a + b) * (a - b) == a * a - b * b
    assert hash(a + b) == hash(b + a)


@given(SIZES, SIZES, VALUES)
def test_substitution_is_evaluation_of_what_is_put_in(a: Size, b: Size, values: dict[str, int]) -> None:
    assert a.substitute({"a": b}).value(values) == a.value({**values, "a": b.value(values)})


@given(SIZES, SIZES)
def test_a_product_divides_by_its_factor(a: Size, b: Size) -> None:
    if b.terms:
        assert (a * b).divided(b) == a


def test_what_does_not_divide_has_no_quotient() -> None:
    assert parse_size("a * b + 1").divided(Size.of("a")) is None
    assert parse_size("3 * a").divided(Size.of(2)) is None
    assert Size.of("a").divided(Size.of(0)) is None


@given(SIZES, st.integers(-9, 9), VALUES)
def test_a_solution_is_one(size: Size, value: int, values: dict[str, int]) -> None:
    known = {n: v for n, v in values.items() if n != "a"}
    solution = size.solve(value, known)
    if solution is not None:
        assert size.value({**values, **solution}) == value


def test_solving_for_one_unknown() -> None:
    assert parse_size("2 * a + b").solve(10, {"b": 4}) == {"a": 3}
    assert parse_size("2 * a + b").solve(9, {"b": 4}) is None
    assert parse_size("a * b").solve(9, {}) is None
    assert parse_size("a").solve(4, {"a": 4}) == {}


@given(SIZES, st.integers(1, 4), VALUES)
def test_quotients_round_down(size: Size, divisor: int, values: dict[str, int]) -> None:
    quotient = floor(size, Size.of(divisor))
    assert quotient.value(values) == size.value(values) // divisor
    assert parse_size(str(quotient)) == quotient
    assert quotient.names <= size.names


def test_quotients_are_substituted_in() -> None:
    quotient = parse_size("floor(h + 2*p - k, s) + 1")
    assert quotient.names == {"h", "p", "k", "s"}
    assert str(quotient.substitute({"s": Size.of(1)})) == "h - k + 2*p + 1"
    assert quotient.value({"h": 7, "p": 1, "k": 3, "s": 2}) == 4


@pytest.mark.parametrize("text", ["a / b", "a +", "True", "'a'", "f(a)", "a ** 2", "floor(a)"])
def test_what_is_no_size_is_refused_by_name(text: str) -> None:
    with pytest.raises(RuleError, match="size"):
        parse_size(text)


def test_a_name_without_value_is_refused() -> None:
    with pytest.raises(RuleError, match="'b' has no value; known: a"):
        parse_size("a + b").value({"a": 1})


def test_division_by_zero_is_refused() -> None:
    with pytest.raises(RuleError, match="division by 0"):
        floor(Size.of("a"), Size.of(0))
