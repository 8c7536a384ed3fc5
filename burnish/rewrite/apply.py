"""Puts right sides in place: states of a search, and the state after values of one have been replaced."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from burnish.rewrite.table import Table


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """A graph in a search. ``roots``: its outputs; ``uses``: how often each of its values is read or is an output;
    ``cost``: seconds; ``parent`` and ``applied``: where it comes from, and the rules that were applied there, each as
    often as it was.
    """

    roots: tuple[int, ...]
    uses: dict[int, int]
    cost: float
    parent: State | None = None
    applied: tuple[str, ...] = ()

    def path(self) -> list[State]:
        """The states from the first to this one."""
        states = [self]
        while states[-1].parent is not None:
            states.append(states[-1].parent)
        return states[::-1]


class CycleError(Exception):
    """A replacement would make a value depend on itself."""


def start(table: Table, roots: tuple[int, ...]) -> State:
    """The state of a graph."""
    ledger = _Ledger(table, {}, 0.0)
    for root in roots:
        ledger.acquire(root)
    return State(roots, ledger.uses, ledger.cost)


def consumers(table: Table, state: State) -> dict[int, list[int]]:
    """Value -> the values of the state that read it, each once."""
    readers: dict[int, list[int]] = {value: [] for value in state.uses}
    for value in state.uses:
        for a in dict.fromkeys(table.args[value]):
            readers[a].append(value)
    return readers


class Replacement:
    """Values of a state replaced by others, and all that is made of them made again.

    ``roots`` are the outputs then. Raises CycleError where a new value is made of what it replaces.
    """

    def __init__(
        self, table: Table, state: State, readers: Mapping[int, list[int]], replaced: Mapping[int, int]
    ) -> None:
        self.table, self.state, self.replaced = table, state, replaced
        affected = set(replaced)
        stack = list(replaced)
        while stack:
            for reader in readers[stack.pop()]:
                if reader not in affected:
                    affected.add(reader)
                    stack.append(reader)
        self.affected = affected
        self.order = sorted(affected)
        self.new: dict[int, int] = {}
        self._low = self.order[0]
        self._open: set[int] = set()
        new, all_args, labels, again, became = self.new, table.args, table.labels, table.again, table.became
        for value in self.order:
            if value in new:
                continue
            if value in replaced:
                self._renew(value)
            else:  # its arguments are smaller: they have been made
                args = tuple([new.get(a, a) for a in all_args[value]])
                made = became.get((labels[value], args))
                new[value] = again(value, args) if made is None else made
        self.roots = tuple(new.get(r, r) for r in state.roots)

    def _renew(self, value: int) -> int:
        """The new value for one of the state's or one of those put in place."""
        if value in self.new or value < self._low:
            return self.new.get(value, value)
        if value not in self.affected and value in self.state.uses:
            return value
        if value in self._open:
            raise CycleError(f"value {value} depends on its own replacement")
        self._open.add(value)
        target = self.replaced.get(value)
        if target in self.affected and target != value:
            self.new[value] = self._renew(target)
            return self.new[value]
        source = value if target is None else target
        args = self.table.args[source]
        now = tuple([self._renew(a) for a in args])
        self.new[value] = source if now == args else self.table.again(source, now)
        self._open.discard(value)
        return self.new[value]

    def state_after(self, applied: tuple[str, ...]) -> State:
        """The new state. Only what changed is counted again: values made anew from one old value keep its uses."""
        ledger = _Ledger(self.table, dict(self.state.uses), self.state.cost)
        uses, table, replaced, made = ledger.uses, self.table, self.replaced, self.new
        labels, all_args, costs = table.labels, table.args, table.costs
        released: list[int] = []
        for old in self.order:
            new = made[old]
            if new == old:
                continue
            count = uses.pop(old)
            args = [made.get(a, a) for a in all_args[old]]
            if new not in uses and old not in replaced and labels[new] is labels[old] and _same(all_args[new], args):
                uses[new] = count
                ledger.cost += costs[new] - costs[old]
            else:
                ledger.cost -= costs[old]
                ledger.acquire(new, count)
                released += args
        for value in released:
            ledger.release(value)
        return State(self.roots, uses, ledger.cost, self.state, applied)


def _same(a: tuple[int, ...], b: list[int]) -> bool:
    """Whether these are the same arguments; those of commutative operators may have changed places."""
    return len(a) == len(b) and (a == tuple(b) or sorted(a) == sorted(b))


class _Ledger:
    """Uses of values, and the cost of all that are used."""

    def __init__(self, table: Table, uses: dict[int, int], cost: float) -> None:
        self.table, self.uses, self.cost = table, uses, cost

    def acquire(self, value: int, count: int = 1) -> None:
        stack = [(value, count)]
        while stack:
            top, times = stack.pop()
            if top in self.uses:
                self.uses[top] += times
                continue
            self.uses[top] = times
            self.cost += self.table.costs[top]
            stack.extend((a, 1) for a in self.table.args[top])

    def release(self, value: int, count: int = 1) -> None:
        stack = [(value, count)]
        while stack:
            top, times = stack.pop()
            self.uses[top] -= times
            if not self.uses[top]:
                del self.uses[top]
                self.cost -= self.table.costs[top]
                stack.extend((a, 1) for a in self.table.args[top])
