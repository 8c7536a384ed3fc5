import pytest

from burnish.errors import VerificationError
from burnish.memory import Interval, LifetimeStep, Place, lifetimes
from burnish.memory.lifetimes import live_bytes


def test_a_buffer_lives_from_its_write_to_its_last_read() -> None:
    steps = [LifetimeStep(("x",), ("a",)), LifetimeStep(("a", "w"), ("b",)), LifetimeStep(("a", "b"), ("c",))]
    intervals, home = lifetimes(steps, {"a": 4, "b": 8, "c": 12}, keep=["c"])
    assert intervals == [Interval("a", 4, 0, 2), Interval("b", 8, 1, 2), Interval("c", 12, 2, 2)]
    assert home == {"a": Place("a"), "b": Place("b"), "c": Place("c")}


def test_an_alias_prolongs_the_life_of_its_source() -> None:
    steps = [
        LifetimeStep(("x",), ("a",)),
        LifetimeStep(("a",), ("flat",), alias=True),
        LifetimeStep(("x",), ("b",)),
        LifetimeStep(("flat", "b"), ("c",)),
    ]
    intervals, home = lifetimes(steps, {"a": 4, "flat": 4, "b": 4, "c": 4})
    assert intervals[0] == Interval("a", 4, 0, 3)
    assert home["flat"] == Place("a")


def test_an_alias_of_an_input_needs_no_buffer() -> None:
    steps = [LifetimeStep(("x",), ("flat",), alias=True), LifetimeStep(("flat",), ("y",))]
    intervals, home = lifetimes(steps, {"flat": 4, "y": 4}, keep=["y"])
    assert intervals == [Interval("y", 4, 1, 1)]
    assert home == {"flat": Place("x"), "y": Place("y")}


def test_pieces_lie_in_their_container_from_the_first_write_on() -> None:
    steps = [
        LifetimeStep(("x",), ("a",)),
        LifetimeStep(("a",), ("flat",), alias=True),
        LifetimeStep(("x",), ("b",)),
        LifetimeStep(("a", "b"), ("ab",), alias=True),
        LifetimeStep(("x",), ("c",)),
        LifetimeStep(("ab", "c"), ("abc",), alias=True),
        LifetimeStep(("abc",), ("y",)),
        LifetimeStep(("flat", "y"), ("z",)),
    ]
    sizes = {"a": 8, "flat": 8, "b": 4, "ab": 12, "c": 4, "abc": 16, "y": 4, "z": 4}
    pieces = {"a": Place("ab", 0), "b": Place("ab", 8), "ab": Place("abc", 0), "c": Place("abc", 12)}
    intervals, home = lifetimes(steps, sizes, keep=["z"], pieces=pieces)
    assert intervals == [Interval("abc", 16, 0, 7), Interval("y", 4, 6, 7), Interval("z", 4, 7, 7)]
    assert home == {
        "a": Place("abc", 0), "flat": Place("abc", 0), "b": Place("abc", 8), "ab": Place("abc", 0),
        "c": Place("abc", 12), "abc": Place("abc", 0), "y": Place("y"), "z": Place("z"),
    }  # fmt: skip


def test_results_live_to_the_end() -> None:
    steps = [LifetimeStep(("x",), ("a",)), LifetimeStep(("x",), ("b",)), LifetimeStep(("x",), ("c",))]
    intervals, _ = lifetimes(steps, {"a": 4, "b": 4, "c": 4}, keep=["a"])
    assert [(b.name, b.last) for b in intervals] == [("a", 2), ("b", 1), ("c", 2)]


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([LifetimeStep(("a",), ("b",)), LifetimeStep((), ("a",))], "step 0 reads 'a' before it is written"),
        ([LifetimeStep((), ("a",)), LifetimeStep((), ("a",))], "step 1 writes 'a', which an earlier step wrote"),
    ],
)
def test_wrong_orders_are_refused(steps: list[LifetimeStep], message: str) -> None:
    with pytest.raises(VerificationError, match=message):
        lifetimes(steps, {"a": 4, "b": 4})


def test_a_view_lies_inside_of_its_source() -> None:
    steps = [
        LifetimeStep(("x",), ("a",)), LifetimeStep(("a",), ("part",), alias=True, offset=8),
        LifetimeStep(("part",), ("inner",), alias=True, offset=4), LifetimeStep(("inner",), ("b",)),
    ]  # fmt: skip
    intervals, home = lifetimes(steps, {"a": 16, "part": 8, "inner": 4, "b": 4})
    assert intervals[0] == Interval("a", 16, 0, 3)
    assert (home["part"], home["inner"]) == (Place("a", 8), Place("a", 12))


def test_live_bytes_over_time() -> None:
    buffers = [Interval("a", 10, 0, 2), Interval("b", 7, 1, 1), Interval("c", 8, 2, 3)]
    assert live_bytes(buffers) == (10, 17, 18, 8)
    assert live_bytes(buffers, [("a", "c")]) == (10, 17, 10, 8)
    assert live_bytes([]) == ()
