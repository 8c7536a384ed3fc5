import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.errors import VerificationError
from burnish.memory import ArenaPlan, Interval, plan
from burnish.memory.share import LOOSE, lower_bound, replan


@st.composite
def interval_lists(draw: st.DrawFn) -> list[Interval]:
    count = draw(st.integers(0, 14))
    buffers = []
    for i in range(count):
        first = draw(st.integers(0, 12))
        buffers.append(Interval(f"b{i}", draw(st.integers(0, 1000)), first, first + draw(st.integers(0, 6))))
    return buffers


def chains(buffers: list[Interval]) -> list[tuple[str, str]]:
    """Every pair that may share in place: one dies where the other is born."""
    return [
        (a.name, b.name)
        for a in buffers
        for b in buffers
        if a.last == b.first and a.first < b.first and a.nbytes >= b.nbytes > 0
    ]


def clashes(buffers: list[Interval], result: ArenaPlan) -> list[tuple[str, str]]:
    """Pairs of buffers that are live at one step and overlap in memory, other than by an in-place pair."""
    found = []
    for i, a in enumerate(buffers):
        for b in buffers[i + 1 :]:
            x, y = result.offsets[a.name], result.offsets[b.name]
            if a.nbytes and b.nbytes and a.overlaps(b) and x < y + b.nbytes and y < x + a.nbytes:
                found.append((a.name, b.name))
    return [(a, b) for a, b in found if (a, b) not in result.in_place and (b, a) not in result.in_place]


@settings(max_examples=200, deadline=None)
@given(interval_lists(), st.booleans())
def test_no_two_live_buffers_overlap_and_the_bound_holds(buffers: list[Interval], in_place: bool) -> None:
    pairs = chains(buffers) if in_place else []
    result = plan(buffers, pairs)
    assert clashes(buffers, result) == []
    assert result.arena_bytes == max((result.offsets[b.name] + b.nbytes for b in buffers), default=0)
    assert result.arena_bytes >= result.lower_bound
    assert all(offset % 64 == 0 for offset in result.offsets.values())
    assert set(result.in_place) <= set(pairs)
    for dying, born in result.in_place:
        assert result.offsets[dying] == result.offsets[born]


@settings(max_examples=200, deadline=None)
@given(interval_lists(), st.integers(0, 400), st.integers(1, 9), st.booleans())
def test_a_plan_for_other_sizes_is_as_right_and_near_its_bound(
    buffers: list[Interval], more: int, factor: int, in_place: bool
) -> None:
    pairs = chains(buffers) if in_place else []
    first = plan(buffers, pairs)
    grown = [Interval(b.name, b.nbytes * factor + more * (i % 2), b.first, b.last) for i, b in enumerate(buffers)]
    result = replan(first, grown, pairs)
    assert clashes(grown, result) == []
    assert set(result.in_place) <= set(pairs)
    assert result.arena_bytes == max((result.offsets[b.name] + b.nbytes for b in grown), default=0)
    assert result.arena_bytes <= max(LOOSE * result.lower_bound, plan(grown, pairs).arena_bytes)


@settings(max_examples=200, deadline=None)
@given(interval_lists())
def test_of_any_pairs_only_those_share_that_may(buffers: list[Interval]) -> None:
    """A caller may name pairs that live on beside each other, or whose heir is larger."""
    result = plan(buffers, [(a.name, b.name) for a in buffers for b in buffers if a is not b])
    assert set(result.in_place) <= set(chains(buffers)) and clashes(buffers, result) == []
    assert result.arena_bytes >= result.lower_bound


@pytest.mark.parametrize(
    ("dying", "born"),
    [
        (Interval("a", 64, 0, 3), Interval("b", 64, 1, 4)),  # a is read after b is written
        (Interval("a", 64, 1, 1), Interval("b", 64, 1, 2)),  # both are written by one step
        (Interval("a", 64, 0, 1), Interval("b", 128, 1, 2)),  # b is larger
    ],
)
def test_a_buffer_that_is_still_needed_is_not_taken(dying: Interval, born: Interval) -> None:
    result = plan([dying, born], [("a", "b")])
    assert result.in_place == () and clashes([dying, born], result) == []
    assert result.arena_bytes == result.lower_bound == dying.nbytes + born.nbytes


def test_a_chain_of_layers_ping_pongs_between_two_places() -> None:
    result = plan([Interval(f"layer{i}", 640, i, i + 1) for i in range(10)])
    assert result.arena_bytes == result.lower_bound == 1280


def test_in_place_chain_needs_one_place() -> None:
    buffers = [Interval(f"layer{i}", 640, i, i + 1) for i in range(10)]
    result = plan(buffers, chains(buffers))
    assert result.arena_bytes == result.lower_bound == 640
    assert len(result.in_place) == 9


def test_bound_does_not_count_the_alignment_of_the_topmost_buffer() -> None:
    result = plan([Interval("a", 10, 0, 1), Interval("b", 70, 0, 1)])
    assert result.arena_bytes == result.lower_bound == 134  # a at 0, b at 64


def test_promotion_finds_the_optimum_that_every_greedy_order_misses(monkeypatch: pytest.MonkeyPatch) -> None:
    buffers = [
        Interval("a", 256, 0, 0), Interval("b", 192, 1, 2), Interval("c", 384, 1, 4), Interval("d", 256, 0, 0),
        Interval("e", 256, 0, 2),
    ]  # fmt: skip
    result = plan(buffers)
    assert result.arena_bytes == result.lower_bound == 832
    monkeypatch.setattr("burnish.memory.share.PROMOTIONS", 0)
    assert plan(buffers).arena_bytes > 832


@pytest.mark.parametrize(
    ("buffers", "pairs", "message"),
    [
        ([Interval("a", 1, 0, 0), Interval("a", 1, 1, 1)], [], "same name"),
        ([Interval("a", 1, 2, 1)], [], "'a' has 1 bytes, steps 2 to 1"),
        ([Interval("a", 1, 0, 1)], [("a", "z")], r"\['z'\]"),
    ],
)
def test_malformed_requests_are_refused(buffers: list[Interval], pairs: list[tuple[str, str]], message: str) -> None:
    with pytest.raises(VerificationError, match=message):
        plan(buffers, pairs)


def test_plan_prints_its_figures() -> None:
    assert str(plan([Interval("a", 128, 0, 0)])) == ("arena 128 bytes, lower bound 128 (+0.0 %), 1 buffers, 0 in place")


def simple_bound(buffers: list[Interval], pairs: list[tuple[str, str]]) -> int:
    """`lower_bound` step by step."""
    sizes = {b.name: -(-b.nbytes // 64) * 64 for b in buffers}
    born = {b.name: b.first for b in buffers}
    bound = 0
    for step in born.values():
        live = [b for b in buffers if b.first <= step <= b.last]
        here = [(a, b) for a, b in pairs if born[b] == step]
        saved = [{pair[side]: 0 for pair in here} for side in (0, 1)]
        for pair in here:
            for side in (0, 1):
                saved[side][pair[side]] = max(saved[side][pair[side]], sizes[pair[1]])
        slack = max(sizes[b.name] - b.nbytes for b in live)
        bound = max(bound, sum(sizes[b.name] for b in live) - slack - min(sum(s.values()) for s in saved))
    return bound


@settings(max_examples=200, deadline=None)
@given(interval_lists(), st.booleans())
def test_the_lower_bound_is_that_of_each_step(buffers: list[Interval], in_place: bool) -> None:
    pairs = chains(buffers) if in_place else []
    assert lower_bound(buffers, pairs) == simple_bound(buffers, pairs)


def test_thousands_of_buffers_are_planned_with_few_comparisons(monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer of many steps: each buffer lives for two of them."""
    compared = 0
    overlaps = Interval.overlaps

    def counted(a: Interval, b: Interval) -> bool:
        nonlocal compared
        compared += 1
        return overlaps(a, b)

    monkeypatch.setattr(Interval, "overlaps", counted)
    result = plan([Interval(f"b{i}", 640, i, i + 1) for i in range(4000)])
    assert result.arena_bytes == result.lower_bound == 1280
    assert compared < 100 * 4000
