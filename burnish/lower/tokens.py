"""Dependence tokens between the decoupled units of a machine (thesis-chen section 4.3.4, second step of Figure 4.8).

A buffer that one unit writes and another reads is a channel with room for one value. Before the first writes it, it
takes a token of the second ("empty"); behind that it gives one ("full"), which the second takes before it reads, and
answers when it has read. At the beginning the second gives one "empty", which the first takes at the end.

Tokens have no names: a queue only counts them. Each channel therefore takes its token before anything else that its
unit does, and gives it behind all of that, so that channels between the same units are nested and never mixed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from burnish.errors import ScheduleError
from burnish.loops.program import For, Seq, Stmt, rebuild_stmt, seq, walk_stmt
from burnish.machines.decoupled import Decoupled, pop, push, token_unit

UnitOf = Callable[[Stmt], str]
Place = tuple[int, ...]  # a statement: by which part one comes to it from the root


def unit_within(s: Stmt, unit_of: UnitOf) -> str | None:
    """The unit that does everything in ``s``; None where there are several, or nothing."""
    found = {token_unit(x) or unit_of(x) for x in walk_stmt(s) if not x.parts and not isinstance(x, Seq)}
    return found.pop() if len(found) == 1 else None


@dataclass(frozen=True)
class Channel:
    """Buffers that ``first`` hands to ``second``. ``meeting``: the innermost sequence in which both use them;
    ``made`` and ``used``: the numbers of its statements in which they do.
    """

    first: str
    second: str
    meeting: Place
    made: frozenset[int]
    used: frozenset[int]
    buffers: tuple[str, ...]

    @property
    def pair(self) -> frozenset[str]:
        """Both units."""
        return frozenset((self.first, self.second))


def insert_tokens(body: Stmt, machine: Decoupled) -> Stmt:
    """``body``, in which no buffer is allocated, with tokens for all that one unit writes and another accesses.

    Raises ScheduleError, naming the buffer, where units without queues between them share one, or where a loop's body
    does not first make and then use what is in a buffer.
    """
    channels = _merged([c for name in sorted(body.writes) for c in _channels(body, name, machine)])
    for c in channels:
        missing = {(c.first, c.second), (c.second, c.first)} - machine.queues
        if missing:
            names = ", ".join(f"{a} to {b}" for a, b in sorted(missing))
            raise ScheduleError(f"buffer '{c.buffers[0]}': there is no queue from {names} for its tokens")
    inside: dict[Place, list[Channel]] = {}
    around: dict[Place, list[Channel]] = {}
    for c in channels:
        inside.setdefault(c.meeting, []).append(c)
        around.setdefault(_outermost(body, c, channels), []).append(c)
    return _with_tokens(body, (), inside, around, machine.unit_of)


def _units_using(s: Stmt, buffer: str, unit_of: UnitOf) -> dict[str, bool]:
    """The units that access a buffer in ``s``, and whether they write it."""
    found: dict[str, bool] = {}
    for x in walk_stmt(s):
        if not x.parts and not isinstance(x, Seq) and token_unit(x) is None and buffer in x.reads | x.writes:
            unit = unit_of(x)
            found[unit] = found.get(unit, False) or buffer in x.writes
    return found


def _channels(body: Stmt, buffer: str, machine: Decoupled) -> list[Channel]:
    """Channels between pairs of units that access one buffer, which at least one of them writes."""
    users = _units_using(body, buffer, machine.unit_of)
    order = [*users]  # by their first access
    pairs = [(a, b) for i, a in enumerate(order) for b in order[i + 1 :] if users[a] or users[b]]
    return [_channel(body, buffer, a, b, machine.unit_of) for a, b in pairs]


def _channel(body: Stmt, buffer: str, first: str, second: str, unit_of: UnitOf) -> Channel:
    place: Place = ()
    s = body
    while True:
        uses = [{*_units_using(part, buffer, unit_of)} for part in s.parts]
        both = [i for i, use in enumerate(uses) if {first, second} <= use]
        if both and sum(bool(use & {first, second}) for use in uses) == 1:
            place, s = (*place, both[0]), s.parts[both[0]]
            continue
        made = frozenset(i for i, use in enumerate(uses) if first in use)
        used = frozenset(i for i, use in enumerate(uses) if second in use)
        return Channel(first, second, place, made, used, (buffer,))


def _merged(channels: Sequence[Channel]) -> list[Channel]:
    """Channels of the same units that meet in the same sequence as one."""
    found: dict[tuple[frozenset[str], Place], Channel] = {}
    for c in channels:
        key = c.pair, c.meeting
        old = found.get(key)
        if old is not None and old.first != c.first:
            raise ScheduleError(
                f"buffers '{old.buffers[0]}' and '{c.buffers[0]}' are handed between {old.first} and {c.first} in both "
                f"directions in one sequence; allowed: one"
            )
        if old is not None:
            c = replace(old, made=old.made | c.made, used=old.used | c.used, buffers=(*old.buffers, *c.buffers))
        if max(c.made) >= min(c.used):
            raise ScheduleError(
                f"buffer '{c.buffers[-1]}': {c.first} writes it again behind its use by {c.second}; allowed: in each "
                f"iteration first {c.first}, then {c.second}"
            )
        found[key] = c
    return [*found.values()]


def _outermost(body: Stmt, channel: Channel, channels: Sequence[Channel]) -> Place:
    """The outermost loop around which a channel's first token may be given and its last one taken.

    Other channels of its units inside of that loop are inside of its own sequence.
    """
    best = channel.meeting
    s = body
    loops = []
    for depth, part in enumerate(channel.meeting):
        if isinstance(s, For):
            loops.append(channel.meeting[:depth])
        s = s.parts[part]
    if isinstance(s, For):
        loops.append(channel.meeting)
    others = [c for c in channels if c is not channel and c.pair == channel.pair]
    for loop in reversed(loops):
        inside = [c for c in others if c.meeting[: len(loop)] == loop]
        if any(c.meeting[: len(channel.meeting)] != channel.meeting for c in inside):
            break
        best = loop
    return best


def _with_tokens(
    s: Stmt,
    place: Place,
    inside: Mapping[Place, Sequence[Channel]],
    around: Mapping[Place, Sequence[Channel]],
    unit_of: UnitOf,
) -> Stmt:
    parts = [_with_tokens(part, (*place, i), inside, around, unit_of) for i, part in enumerate(s.parts)]
    result = s if isinstance(s, Seq) or not s.parts else rebuild_stmt(s, lambda _: parts[0])
    before: list[list[Stmt]] = [[] for _ in range(len(parts) + 1)]
    behind: list[list[Stmt]] = [[] for _ in range(len(parts) + 1)]
    for c in inside.get(place, ()):
        users = [{token_unit(x) or unit_of(x) for x in walk_stmt(p) if not x.parts and not isinstance(x, Seq)}
                 for p in s.parts]  # fmt: skip
        at = [i for i, own in enumerate(users) if c.second in own and i > max(c.made)]
        before[min(i for i, own in enumerate(users) if c.first in own)].append(pop(c.first, c.second))
        behind[max(c.made)].append(push(c.first, c.second))
        before[min(at)].append(pop(c.second, c.first))
        behind[max(at)].append(push(c.second, c.first))
    if isinstance(s, Seq):
        result = seq(*(x for i, part in enumerate(parts) for x in (*before[i], part, *behind[i])))
    begins = [push(c.second, c.first) for c in around.get(place, ())]
    ends = [pop(c.first, c.second) for c in around.get(place, ())]
    return seq(*begins, result, *reversed(ends)) if begins else result
