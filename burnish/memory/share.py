"""Sharing: places buffers with known lifetimes in one arena, to the byte, close to the proven lower bound.

Greedy placement in several orders (Pisarchyk and Lee 2020, "Efficient memory management for deep neural net inference",
section 5), then repeated promotion of the buffers at the top; the best arena found is kept. Many buffers are placed by
compiled loops (:mod:`burnish.memory.offsets`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from burnish.errors import VerificationError
from burnish.loops.expr import ALIGNMENT
from burnish.memory.lifetimes import Interval

FEW = 256  # buffers that are all ordered with care
MANY = 1000  # buffers that still are; more are placed by compiled loops
SMALL = 2000  # buffers of no more than so small a part of the lower bound only fill gaps
PROMOTIONS = 64  # attempts to lower the best arena further
MOST_WORK = 4_000_000  # buffers looked at, about a second, before the best arena so far is taken
LOOSE = 1.1  # times its lower bound: an arena for other sizes that is planned anew
SHORT = 16  # steps: a buffer that lives no longer is found by the step of its birth


@dataclass(frozen=True)
class ArenaPlan:
    """Byte offsets of the buffers in an arena of ``arena_bytes``; no arena can be smaller than ``lower_bound``.

    ``in_place`` lists the pairs (input, output) that the plan lets share their bytes at one step.
    """

    offsets: Mapping[str, int]
    arena_bytes: int
    lower_bound: int
    in_place: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        above = 100.0 * (self.arena_bytes / self.lower_bound - 1.0) if self.lower_bound else 0.0
        return (
            f"arena {self.arena_bytes} bytes, lower bound {self.lower_bound} (+{above:.1f} %), "
            f"{len(self.offsets)} buffers, {len(self.in_place)} in place"
        )


def plan(
    buffers: Sequence[Interval],
    in_place: Sequence[tuple[str, str]] = (),
    alignment: int = ALIGNMENT,
    enough: int = 0,
) -> ArenaPlan:
    """The smallest arena found for ``buffers``; every offset is a multiple of ``alignment``.

    An arena of ``enough`` bytes is not improved further.

    ``in_place`` holds pairs (dying, born) of buffers where the step that writes ``born`` may overwrite ``dying`` as it
    reads it. A pair counts only if ``dying`` is last used where ``born`` is first written and is at least as large.
    Raises VerificationError for repeated names, pairs that name no buffer, or lifetimes that end before they begin.
    """
    by_name = {b.name: b for b in buffers}
    if len(by_name) != len(buffers):
        raise VerificationError("memory plan: two buffers have the same name")
    for b in buffers:
        if b.last < b.first or b.nbytes < 0:
            raise VerificationError(f"memory plan: buffer '{b.name}' has {b.nbytes} bytes, steps {b.first} to {b.last}")
    unknown = sorted({name for pair in in_place for name in pair if name not in by_name})
    if unknown:
        raise VerificationError(f"memory plan: in-place pairs name unknown buffers {unknown}")
    pairs = [(a, b) for a, b in in_place if _can_share(by_name[a], by_name[b])]
    bound = lower_bound(buffers, pairs, alignment)
    best: ArenaPlan | None = None
    for chosen in [_matching(pairs), []] if pairs else [[]]:
        merged, members = _merge(by_name, chosen)
        if best is not None and best.arena_bytes <= enough:
            break
        offsets, size = _search(merged, bound, alignment, enough)
        if best is None or size < best.arena_bytes:
            every = {name: offsets[root] for root, names in members.items() for name in names}
            best = ArenaPlan(every, size, bound, tuple(chosen))
    assert best is not None
    return best


def replan(
    before: ArenaPlan, buffers: Sequence[Interval], in_place: Sequence[tuple[str, str]] = (), alignment: int = ALIGNMENT
) -> ArenaPlan:
    """A plan for the same buffers with other sizes, in the time of one placement: in the order of their places before.

    Buffers share bytes in place where they did and still can. An arena more than ``LOOSE`` times its lower bound is
    planned anew. Errors as of ``plan``.
    """
    by_name = {b.name: b for b in buffers}
    if by_name.keys() != before.offsets.keys():
        return plan(buffers, in_place, alignment)
    pairs = [pair for pair in before.in_place if _can_share(by_name[pair[0]], by_name[pair[1]])]
    merged, members = _merge(by_name, pairs)
    order = sorted(merged, key=lambda b: before.offsets[b.name])
    offsets, size, _ = _place(order, False, alignment)
    bound = lower_bound(buffers, [(a, b) for a, b in in_place if _can_share(by_name[a], by_name[b])], alignment)
    if size > LOOSE * bound:
        return plan(buffers, in_place, alignment)
    return ArenaPlan(
        {name: offsets[root] for root, names in members.items() for name in names}, size, bound, tuple(pairs)
    )


def lower_bound(
    buffers: Sequence[Interval], in_place: Sequence[tuple[str, str]] = (), alignment: int = ALIGNMENT
) -> int:
    """Bytes that no arena can go below: the largest sum of live bytes at a step, less what in-place pairs could save.

    All buffers live at a step but one start at aligned offsets that lie below others, so they count rounded up; the
    topmost counts as it is, and is taken to be the one for which rounding matters most.
    """
    by_name = {b.name: b for b in buffers}
    shared: dict[int, list[tuple[str, str]]] = {}
    for pair in in_place:
        shared.setdefault(by_name[pair[1]].first, []).append(pair)
    born = sorted((b for b in buffers if b.nbytes), key=lambda b: b.first)
    dying: list[tuple[int, int]] = []  # (last step, rounded bytes) of what is live, the first to die on top
    slacks: list[tuple[int, int]] = []  # (less what rounding adds, last step), the largest slack on top
    bound = total = position = 0
    for step in sorted({b.first for b in buffers}):
        while position < len(born) and born[position].first == step:
            b = born[position]
            rounded = round_up(b.nbytes, alignment)
            total += rounded
            heappush(dying, (b.last, rounded))
            heappush(slacks, (b.nbytes - rounded, b.last))
            position += 1
        while dying and dying[0][0] < step:
            total -= heappop(dying)[1]
        while slacks and slacks[0][1] < step:
            heappop(slacks)
        saved = _saved([(a, b, round_up(by_name[b].nbytes, alignment)) for a, b in shared.get(step, ())])
        bound = max(bound, total + (slacks[0][0] if slacks else 0) - saved)
    return bound


def _saved(pairs: Sequence[tuple[str, str, int]]) -> int:
    """Bytes that pairs of (dying, born, bytes) at one step save at most: each buffer takes part in one pair."""
    by_input: dict[str, int] = {}
    by_output: dict[str, int] = {}
    for a, b, nbytes in pairs:
        by_input[a] = max(by_input.get(a, 0), nbytes)
        by_output[b] = max(by_output.get(b, 0), nbytes)
    return min(sum(by_input.values()), sum(by_output.values()))


def round_up(nbytes: int, alignment: int) -> int:
    """The next multiple of ``alignment``."""
    return -(-nbytes // alignment) * alignment


def _can_share(dying: Interval, born: Interval) -> bool:
    return dying.last == born.first and dying.first < born.first and dying.nbytes >= born.nbytes > 0


def _matching(pairs: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Pairs such that every buffer dies into, and is born from, at most one other."""
    heirs: dict[str, str] = {}
    taken: set[str] = set()
    for a, b in pairs:
        if a not in heirs and b not in taken:
            heirs[a] = b
            taken.add(b)
    return list(heirs.items())


def _merge(
    by_name: Mapping[str, Interval], pairs: Sequence[tuple[str, str]]
) -> tuple[list[Interval], dict[str, list[str]]]:
    """Each chain of in-place pairs as one buffer named after its first member, and the members of every buffer."""
    heir = dict(pairs)
    heirs = set(heir.values())
    members: dict[str, list[str]] = {}
    merged = []
    for name in by_name:
        if name in heirs:
            continue
        chain = [name]
        while chain[-1] in heir:
            chain.append(heir[chain[-1]])
        members[name] = chain
        merged.append(Interval(name, by_name[name].nbytes, by_name[name].first, by_name[chain[-1]].last))
    return merged, members


_ORDERS: tuple[Callable[[Interval], tuple[int, ...]], ...] = (
    lambda b: (-b.nbytes, b.first),  # greedy by size
    lambda b: (-b.nbytes * (b.last - b.first + 1), b.first),  # by bytes times steps
    lambda b: (b.first - b.last, -b.nbytes),  # longest life first
    lambda b: (b.first, -b.nbytes),  # in order of birth
    lambda b: (-b.last, -b.nbytes),  # in reverse order of death
)


def _search(buffers: Sequence[Interval], bound: int, alignment: int, enough: int) -> tuple[dict[str, int], int]:
    """Offsets and arena size. Of more than a few buffers only the large ones are ordered with care, the small ones fill
    gaps; many are placed by compiled loops.
    """
    if len(buffers) <= FEW:
        return _placed(buffers, max(bound, enough), alignment)[:2]
    if len(buffers) > MANY:
        from burnish.memory.offsets import place_many  # with numba, which loading a module of few buffers does without

        return place_many(buffers, alignment, max(bound, enough))
    order = _placed([b for b in buffers if b.nbytes > bound // SMALL], max(bound, enough), alignment)[2]
    taken = {b.name for b in order}
    small = sorted((b for b in buffers if b.name not in taken), key=lambda b: (-b.nbytes, b.first))
    return _place([*order, *small], True, alignment)[:2]


def _placed(buffers: Sequence[Interval], bound: int, alignment: int) -> tuple[dict[str, int], int, Sequence[Interval]]:
    """Offsets, arena size, and the order of placing that gives them: the best over all orders, gap rules and promotions
    that ``MOST_WORK`` allows.
    """
    best: tuple[int, dict[str, int], list[Interval]] | None = None
    work = 0
    for key in _ORDERS:
        order = sorted(buffers, key=key)
        for tightest in (True, False):
            if best is not None and work > MOST_WORK:
                break
            offsets, size, compared = _place(order, tightest, alignment)
            work += compared
            if best is None or size < best[0]:
                best = size, offsets, order
            if size <= bound:
                return offsets, size, order
    assert best is not None
    size, offsets, order = best
    for _ in range(PROMOTIONS):
        if work > MOST_WORK:
            break
        # Whatever reaches the top of the arena was placed too late: place it first.
        top = [b for b in order if offsets[b.name] + b.nbytes == size]
        first = {b.name for b in top}
        order = top + [b for b in order if b.name not in first]
        offsets, size, compared = _place(order, True, alignment)
        work += compared
        if size < best[0]:
            best = size, offsets, order
        if size <= bound:
            break
    return best[1], best[0], best[2]


def _place(order: Sequence[Interval], tightest: bool, alignment: int) -> tuple[dict[str, int], int, int]:
    """Puts each buffer into the tightest (else the lowest) gap between those placed that are live at the same time.

    Returns the offsets, the arena's size, and how many buffers were looked at.
    """
    offsets: dict[str, int] = {}
    placed = _Placed()
    size = compared = 0
    for b in order:
        taken = sorted((offsets[p.name], offsets[p.name] + p.nbytes) for p in placed.alive_with(b))
        compared += 1 + placed.looked_at + len(taken)
        position, smallest, chosen = 0, None, None
        for start, end in taken:
            gap = start - position
            if gap >= b.nbytes and (smallest is None or (tightest and gap < smallest)):
                smallest, chosen = gap, position
            position = max(position, round_up(end, alignment))
        offsets[b.name] = position if chosen is None else chosen
        size = max(size, offsets[b.name] + b.nbytes)
        if b.nbytes:
            placed.add(b)
    return offsets, size, compared


class _Placed:
    """Buffers by the steps at which they live; those that live long are looked at one by one."""

    def __init__(self) -> None:
        self._long: list[Interval] = []
        self._short: dict[int, list[Interval]] = {}  # by the first step

    @property
    def looked_at(self) -> int:
        """Buffers that are looked at for each other one, at least."""
        return len(self._long)

    def add(self, b: Interval) -> None:
        if b.last - b.first >= SHORT:
            self._long.append(b)
        else:
            self._short.setdefault(b.first, []).append(b)

    def alive_with(self, b: Interval) -> Iterator[Interval]:
        """Placed buffers that are live at some step at which ``b`` is."""
        yield from (p for p in self._long if p.overlaps(b))
        steps: Iterable[int] = range(b.first - SHORT + 1, b.last + 1)
        if len(steps) > len(self._short):  # type: ignore[arg-type]
            steps = self._short.keys()
        for step in steps:
            yield from (p for p in self._short.get(step, ()) if p.overlaps(b))
