import random

import pytest

from burnish.memory import Interval, plan
from burnish.memory.offsets import Lives, best_fit, place_many, stacked


def drawn(count: int, seed: int) -> list[Interval]:
    r = random.Random(seed)
    found = []
    for i in range(count):
        first = r.randrange(count)
        life = r.choice((1, 2, 3, 5, 40)) if r.random() < 0.97 else r.randrange(count // 4)
        found.append(Interval(f"b{i}", r.choice((0, 4, 100, 4096, 65536, 65536, 262144)), first, first + life))
    return found


def overlapping(buffers: list[Interval], offsets: dict[str, int]) -> list[tuple[str, str]]:
    """Pairs of live buffers that share bytes, by a sweep over the steps."""
    found = []
    alive: list[Interval] = []
    for b in sorted(buffers, key=lambda b: b.first):
        alive = [a for a in alive if a.last >= b.first]
        x = offsets[b.name]
        for a in alive:
            y = offsets[a.name]
            if a.nbytes and b.nbytes and x < y + a.nbytes and y < x + b.nbytes:
                found.append((a.name, b.name))
        alive.append(b)
    return found


@pytest.mark.parametrize("start", [0, 200, "peak", "last"])
@pytest.mark.parametrize("seed", range(4))
def test_best_fit_puts_no_two_live_buffers_over_each_other(seed: int, start: int | str) -> None:
    buffers = drawn(400, seed)
    lives = Lives.of(buffers, 64)
    at = {"peak": lives.peak, "last": lives.steps - 1}.get(start, start)  # type: ignore[call-overload]
    check(buffers, *best_fit(lives, at))


@pytest.mark.parametrize("seed", range(4))
def test_greedy_placement_puts_no_two_live_buffers_over_each_other(seed: int) -> None:
    buffers = drawn(400, seed)
    lives = Lives.of(buffers, 64)
    found = stacked(lives)
    assert found is not None
    check(buffers, *found)
    first = stacked(lives, enough=1 << 60)  # by size into the lowest gap alone
    assert first is not None and found[1] <= first[1]
    check(buffers, *first)


def check(buffers: list[Interval], offsets: dict[str, int], size: int) -> None:
    assert overlapping(buffers, offsets) == []
    assert all(offset % 64 == 0 for offset in offsets.values()) and len(offsets) == len(buffers)
    assert size == max(offsets[b.name] + b.nbytes for b in buffers)


def test_free_blocks_are_joined() -> None:
    """Two neighbours die, and what is born next takes the place of both."""
    buffers = [
        Interval("a", 64, 0, 1), Interval("b", 64, 0, 1), Interval("c", 64, 0, 9), Interval("d", 128, 2, 3),
    ]  # fmt: skip
    offsets, size = best_fit(Lives.of(buffers, 64))
    assert size == 192 and offsets["d"] in (0, 64)
    assert best_fit(Lives.of([Interval("a", 64, 0, 0), Interval("b", 128, 1, 1)], 64))[1] == 128  # the last block grows


def test_what_lives_where_most_bytes_do_lies_without_gaps() -> None:
    """In order of birth "b" does not fit where "a" was; from the peak on it lies below, and "a" has room."""
    buffers = [
        Interval("a", 128, 0, 1), Interval("long", 64, 0, 9), Interval("b", 192, 2, 9), Interval("c", 64, 3, 9),
        Interval("d", 128, 12, 13),
    ]  # fmt: skip
    lives = Lives.of(buffers, 64)
    assert lives.peak == 3
    assert best_fit(lives, 0)[1] == 384
    assert best_fit(lives, lives.peak)[1] == 320
    assert place_many(buffers, 64)[1] == 320


def test_buffers_without_bytes_need_no_place() -> None:
    assert place_many([Interval("a", 0, 3, 4), Interval("b", 0, 0, 9)], 64) == ({"a": 0, "b": 0}, 0)
    assert place_many([], 64) == ({}, 0)


@pytest.mark.parametrize("count", [700, 1500, 6000])
def test_many_buffers_lie_apart_and_close_to_the_bound(count: int) -> None:
    buffers = drawn(count, 1)
    result = plan(buffers)
    assert overlapping(buffers, dict(result.offsets)) == []
    assert result.lower_bound <= result.arena_bytes <= 1.05 * result.lower_bound
