"""Equality saturation of small graphs: all equal values are kept together, and an integer program takes the cheapest.

Sources: Yang et al. 2021 (Tensat), sections 4 and 5: extraction as an integer program, cycles cut when they are met. In
each round the values that all steps from the best graph so far make are joined to those they equal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from burnish.rewrite.search.moves import Moves
from burnish.rewrite.search.normal import NormalTable
from burnish.rewrite.search.states import SearchState, start
from burnish.rewrite.search.table import Table
from burnish.search.integer import LinearProgram

ROUNDS = 4
MOST = 2000  # values in classes: larger programs take minutes
CUTS = 32  # cycles cut before a round is given up
GAP = 1e-9  # relative, of the program's optimum


def saturate(table: NormalTable, moves: Moves, first: SearchState, seconds: float) -> SearchState:
    """The cheapest state found, the first if there is none. Every program may take ``seconds``.

    Raises MissingDependencyError without SciPy.
    """
    classes = _Classes(table)
    classes.add(first.roots)
    best = state = first
    for _ in range(ROUNDS):
        names = state.wiring().chosen
        for change, applied in moves.changes(state):
            other = state.after(change, applied)
            values = other.values()
            equal = {name: values[name] for name in names if name in values}  # a first state's names are values
            equal |= {name: values.get(own, own) for name, own in change.same.items()}
            classes.join(equal, other.outputs(), applied[0])
            if len(classes.members) > MOST:
                break
        roots = classes.extract(first.roots, seconds)
        if roots is None:
            break
        state = start(table, roots)
        if state.cost >= best.cost * (1 - GAP):
            break
        state.parent, state.applied = first, classes.reasons(roots)
        classes.join(dict(zip(first.roots, roots, strict=True)), roots, "")
        best = state
    return best


class _Classes:
    """Values in classes of equal ones. ``members``: those that may be taken; weights are always there."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.members: dict[int, None] = {}  # in the order of their making
        self.rules: dict[int, str] = {}  # the rule that first made a value equal to an older one
        self._parent: dict[int, int] = {}

    def find(self, value: int) -> int:
        """The class of a value."""
        root = value
        while self._parent.get(root, root) != root:
            root = self._parent[root]
        while self._parent.get(value, value) != root:
            self._parent[value], value = root, self._parent[value]
        return root

    def add(self, roots: Sequence[int]) -> None:
        """Values, and all that they are made of."""
        self.members.update(dict.fromkeys(v for v in self.table.reachable(roots) if not self.table.fixed[v]))

    def join(self, equal: dict[int, int], roots: Sequence[int], rule: str) -> None:
        """Makes old values equal to new ones."""
        self.add(roots)
        self.add([new for new in equal.values() if not self.table.fixed[new]])
        for old, new in equal.items():
            if old != new and not self.table.fixed[new] and old in self.members:
                self.rules.setdefault(new, rule)
                self._parent[max(self.find(old), self.find(new))] = min(self.find(old), self.find(new))

    def reasons(self, roots: Sequence[int]) -> tuple[str, ...]:
        """The rules that made the values of a graph."""
        live = self.table.reachable(roots)
        counts = Counter(rule for v in live if (rule := self.rules.get(v, "")))
        return tuple(sorted(counts.elements()))

    # --- the integer program ---

    def extract(self, roots: Sequence[int], seconds: float) -> tuple[int, ...] | None:
        """The cheapest values equal to these; None where no program was solved in time."""
        values = list(self.members)
        place = {value: i for i, value in enumerate(values)}
        groups: dict[int, list[int]] = {}
        for value in values:
            groups.setdefault(self.find(value), []).append(value)
        program = LinearProgram("rewrite")
        costs = [self.table.cost(v) for v in values]
        little = 1e-9 * max(costs, default=0.0)  # of values that cost nothing, as few as may be
        for cost in costs:
            program.variable(cost + little)
        self._add_rows(program, roots, place, groups)
        for _ in range(CUTS):
            answer = program.solve(seconds, gap=1e-4)
            if answer.values is None:
                return None
            taken = {self.find(v): v for v in values if answer.values[place[v]] > 0.5}
            cycle = self._cycle(roots, taken)
            if cycle is None:
                return self._built(roots, taken)
            program.row(dict.fromkeys((place[v] for v in cycle), 1.0), high=len(cycle) - 1.0)
        return None

    def _add_rows(
        self, program: LinearProgram, roots: Sequence[int], place: dict[int, int], groups: dict[int, list[int]]
    ) -> None:
        """One of each output's class is taken; with a value, one of the class of each of its arguments."""
        for root in dict.fromkeys(self.find(r) for r in roots if r in place):
            program.row(dict.fromkeys((place[v] for v in groups[root]), 1.0), low=1.0)
        for value in place:
            for group in dict.fromkeys(self.find(a) for a in self.table.args[value] if not self.table.fixed[a]):
                row = {place[v]: 1.0 for v in groups[group]}
                row[place[value]] = row.get(place[value], 0.0) - 1.0
                program.row(row, low=0.0)

    def _cycle(self, roots: Sequence[int], taken: dict[int, int]) -> list[int] | None:
        """Values taken that are made of one another; None if there are none."""
        done: set[int] = set()
        for root in roots:
            path: list[int] = []
            stack = [(self.find(root), False)]
            while stack:
                group, leaving = stack.pop()
                if leaving:
                    done.add(path.pop())
                elif group in path:
                    return [taken[g] for g in path[path.index(group) :]]
                elif group not in done and group in taken:
                    path.append(group)
                    stack.append((group, True))
                    stack += [(self.find(a), False) for a in self.table.args[taken[group]] if not self.table.fixed[a]]
        return None

    def _built(self, roots: Sequence[int], taken: dict[int, int]) -> tuple[int, ...]:
        """The values that the taken ones make."""
        made: dict[int, int] = {}
        stack = [self.find(r) for r in roots if not self.table.fixed[r]]
        while stack:
            group = stack[-1]
            value = taken[group]
            args = self.table.args[value]
            waiting = [self.find(a) for a in args if not self.table.fixed[a] and self.find(a) not in made]
            if group in made or not waiting:
                stack.pop()
                now = tuple(a if self.table.fixed[a] else made[self.find(a)] for a in args)
                made.setdefault(group, self.table.again(value, now) if args else value)
            else:
                stack += waiting
        return tuple(r if self.table.fixed[r] else made[self.find(r)] for r in roots)
