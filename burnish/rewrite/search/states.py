"""States of a search: each is its parent but for a change, and known by a key before it is made."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from types import MappingProxyType
from weakref import ref

from burnish.rewrite.search.normal import NormalTable
from burnish.rewrite.search.view import ROOT, SearchKnowledge, Wiring


class CycleError(Exception):
    """A replacement would make a value depend on itself."""


@dataclass(frozen=True, slots=True, eq=False)
class Change:
    """Difference between two states. ``chosen`` and ``readers``: see :class:`Wiring`, None for names that are gone;
    ``same``: names that others have taken the place of; ``cost``: seconds added; ``key``: of the values that differ.
    """

    chosen: Mapping[int, int | None]
    readers: Mapping[int, tuple[int, ...] | None]
    same: Mapping[int, int]
    cost: float
    key: int


@dataclass(slots=True, eq=False)
class SearchState:
    """Search state: a graph, its parent's after ``change``. ``roots``: names of its outputs; ``cost``: seconds;
    ``key``: of the values it has chosen, see :meth:`SearchKnowledge.sign`; ``applied``: the rules that led here from
    the parent, each as often as it was.
    """

    walk: SearchKnowledge
    roots: tuple[int, ...]
    cost: float
    key: int
    known: Callable[[], Wiring | None] = lambda: None  # its wiring while that is in use, of the first state always
    parent: SearchState | None = None
    change: Change | None = None
    applied: tuple[str, ...] = ()

    def path(self) -> list[SearchState]:
        """The states from the first to this one."""
        states = [self]
        while states[-1].parent is not None:
            states.append(states[-1].parent)
        return states[::-1]

    def after(self, change: Change, applied: tuple[str, ...]) -> SearchState:
        """The state after a change of this one."""
        roots = tuple([change.same.get(r, r) for r in self.roots]) if change.same else self.roots
        cost, key = self.cost + change.cost, self.key ^ change.key
        return SearchState(self.walk, roots, cost, key, parent=self, change=change, applied=applied)

    def wiring(self) -> Wiring:
        """The whole graph."""
        state, later = self, []
        while (wiring := state.known()) is None:
            assert state.parent is not None
            later.append(state)
            state = state.parent
        for state in reversed(later):
            assert state.change is not None
            wiring = _changed(self.walk, wiring, state.change)
            state.known = ref(wiring)
            self.walk.recent.append(wiring)
        return wiring

    def values(self) -> dict[int, int]:
        """Values of the state's names, as values of the table that are made of one another."""
        table, chosen = self.walk.table, self.wiring().chosen
        made: dict[int, int] = {}
        for name in _ordered(table, chosen, chosen):
            args = table.args[chosen[name]]
            made[name] = table.again(chosen[name], tuple([made.get(a, a) for a in args])) if args else chosen[name]
        return made

    def outputs(self) -> tuple[int, ...]:
        """The outputs as values of the table."""
        values = self.values()
        return tuple([values.get(r, r) for r in self.roots])


def start(table: NormalTable, roots: tuple[int, ...]) -> SearchState:
    """The state that a walk from a graph begins with: every value is its own name."""
    walk = SearchKnowledge(table)
    chosen = {value: value for value in table.reachable(roots) if not table.fixed[value]}
    walk.names.update(chosen)
    readers: dict[int, dict[int, None]] = {value: {} for value in chosen}
    for value, reader in [(a, v) for v in chosen for a in table.args[v]] + [(root, ROOT) for root in roots]:
        if value in readers:
            readers[value][reader] = None
    key = 0
    for value in chosen:
        key ^= walk.sign(value)
    wiring = Wiring(chosen, {value: tuple(sorted(by)) for value, by in readers.items()}, {}, {}, set(chosen))
    cost = sum(table.cost(value) for value in chosen) + sum(table.output_cost(root) for root in set(roots))
    return SearchState(walk, roots, cost, key, lambda: wiring)


def _changed(walk: SearchKnowledge, before: Wiring, change: Change) -> Wiring:
    chosen, readers, found = before.chosen.copy(), before.readers.copy(), before.found.copy()
    stale = set(before.stale)
    for name, value in change.chosen.items():
        stale.add(name)
        stale |= walk.askers.get(name, frozenset())
        if value is None:
            del chosen[name]
            found.pop(name, None)
        else:
            chosen[name] = value
    for name, by in change.readers.items():
        if by is None:
            del readers[name]
        else:
            readers[name] = by
    order = _reordered(walk.table, before.order, change, chosen, readers) if before.order else {}
    return Wiring(chosen, readers, found, order, stale & chosen.keys())


# --- order ------------------------------------------------------------------------------------------------------------


def order_of(table: NormalTable, wiring: Wiring) -> Mapping[int, float]:
    """Numbers of a graph's names, smaller than those of what is made of them."""
    if not wiring.order:
        wiring.order = {name: float(i) for i, name in enumerate(_ordered(table, wiring.chosen, wiring.chosen))}
    return wiring.order


def _reordered(
    table: NormalTable,
    before: Mapping[int, float],
    change: Change,
    chosen: Mapping[int, int],
    readers: Mapping[int, tuple[int, ...]],
) -> dict[int, float]:
    """The order after a change: new names stand between what they read and what reads them. Empty where none fits."""
    order = dict(before)
    for name in reversed(list(change.chosen)):
        value = change.chosen[name]
        if value is None:
            del order[name]
            continue
        low = max([order.get(a, inf) for a in table.args[value] if a in chosen], default=-1.0)
        if name not in order:
            high = min([order[r] for r in readers[name] if r in order], default=low + 2)
            order[name] = (low + high) / 2
        if not low < order[name] < inf:
            return {}
    return order


def depend(table: NormalTable, wiring: Wiring, names: Sequence[int]) -> bool:
    """Whether one of these names is made of another."""
    args, chosen = table.args, wiring.chosen
    stack = list({a for name in names for a in args[chosen[name]] if a in chosen})
    if len(stack) == 1:  # what all of them read is made of none
        return False
    order, these, seen = order_of(table, wiring), set(names), set(stack)
    first = min([order[name] for name in names])
    while stack:
        name = stack.pop()
        if name in these:
            return True
        for a in args[chosen[name]]:
            if a not in seen and a in chosen and order[a] >= first:
                seen.add(a)
                stack.append(a)
    return False


def legal(state: SearchState, wiring: Wiring, change: Change) -> bool:
    """Whether no name depends on itself after a change."""
    key, known = state.key ^ change.key, state.walk.legal
    if key not in known:
        table, order = state.walk.table, order_of(state.walk.table, wiring)
        new = {name: value for name, value in change.chosen.items() if value is not None}
        first = min([order[name] for name in new if name in order], default=-inf)
        try:
            _ordered(table, new, wiring.chosen | new, order, first)
            known[key] = True
        except CycleError:
            known[key] = False
    return known[key]


def _ordered(
    table: NormalTable,
    names: Iterable[int],
    chosen: Mapping[int, int],
    order: Mapping[int, float] = MappingProxyType({}),
    first: float = -inf,
) -> list[int]:
    """All names that these are made of, arguments first; without those that an earlier order has before ``first``.

    Raises CycleError where one is made of itself.
    """
    # Depth-first search with a stack of its own, since chains of operators are longer than Python's. A name stays on
    # the stack while it is open, and is done when it is seen there again: all its arguments are done by then. One that
    # is met while open is on its own path: a cycle.
    done: dict[int, None] = {}
    open_: set[int] = set()
    stack = list(names)[::-1]
    while stack:
        name = stack[-1]
        if name in done:
            stack.pop()
        elif name in open_:
            done[name] = None
            stack.pop()
        else:
            open_.add(name)
            for a in table.args[chosen[name]]:
                if a not in done and a in chosen and order.get(a, inf) >= first:
                    if a in open_:
                        raise CycleError(f"value {a} depends on its own replacement")
                    stack.append(a)
    return list(done)
