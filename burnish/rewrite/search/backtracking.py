"""Cost-based backtracking search over substitutions: from a graph to the cheapest equal one that the budget allows.

Source: thesis-jia section 2.7, algorithm 2, on hash-consed graphs whose costs are updated where they change; first on
regions, then on neighbours together, and last on the whole.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from burnish.graph.graph import Graph
from burnish.rewrite.language.terms import RewriteRule
from burnish.rewrite.search.convert import read_graph, write_graph
from burnish.rewrite.search.moves import Moves
from burnish.rewrite.search.normal import NormalTable
from burnish.rewrite.search.regions import Subgraph, cuts, independent, placed, regions
from burnish.rewrite.search.saturate import saturate
from burnish.rewrite.search.states import SearchState, start
from burnish.rewrite.search.table import Cost
from burnish.search.best_first import best_first
from burnish.search.budget import Budget, Event, SearchReport, StopReason, Tally

SLACK = 1.05  # the paper's alpha
SMALL = 400  # values of a region that is saturated
PROGRAM_SECONDS = 5.0  # of an integer program, where the search has no limit
WORTH = 1e-9  # of the cost: below, two costs are equal but for rounding


@dataclass(frozen=True)
class Substitution:
    """A rule that was applied ``times`` times, and the predicted seconds that this saved."""

    rule: str
    times: int
    saved: float


@dataclass(frozen=True)
class Rewritten:
    """A graph equal to the one given, and how it was found.

    ``before`` and ``after``: predicted seconds. ``graph`` is the one given where nothing cheaper was found. ``graphs``
    were tried in ``seconds``; the best of each search was met ``best_after`` seconds from the start, in all. ``walks``:
    how many graphs each of the searches took to its best, by which they can be repeated without a clock.
    """

    graph: Graph
    applied: tuple[Substitution, ...]
    before: float
    after: float
    graphs: int
    seconds: float
    best_after: float
    stop_reason: StopReason
    walks: tuple[int, ...] = ()


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@_no_garbage_collection()  # a search makes no cycles, but so many values that looking for some takes a fifth of it
def rewrite_graph(
    graph: Graph,
    rules: Sequence[RewriteRule],
    cost: Cost,
    budget: Budget,
    *,
    slack: float = SLACK,
    integer_program: bool = False,
    walks: Sequence[int] | None = None,
    fold: bool = True,
    progress: Callable[[Event], None] | None = None,
) -> Rewritten:
    """The cheapest graph found that substitutions lead to.

    ``walks``: those of an earlier call with the same graph, rules and cost, whose graph is then found again, whatever
    the budget. ``fold``: see :func:`write_graph`. ``integer_program``: small regions are also saturated, and the better
    of both results is taken; needs SciPy.
    Raises ModelError naming the node of a graph that does not type, RuleError for a rule with an unknown word.
    """
    table = NormalTable(cost)
    reading = read_graph(table, graph)
    search = _Search(table, rules, budget, slack, progress, integer_program, walks)
    first = start(table, reading.roots)
    roots = search.run(reading.roots)
    after, done = start(table, roots).cost, search.done
    if after >= first.cost * (1 - WORTH):
        return Rewritten(graph, (), first.cost, first.cost, done.graphs, done.seconds, 0.0, done.stop_reason)
    written = write_graph(table, reading, roots, graph, fold)
    applied = tuple(search.applied)
    return Rewritten(
        written, applied, first.cost, after, done.graphs, done.seconds, done.best_after, done.stop_reason,
        tuple(search.walks),
    )  # fmt: skip


@dataclass
class _Done:
    """Statistics over all searches of a graph."""

    graphs: int = 0
    seconds: float = 0.0
    best_after: float = 0.0
    stop_reason: StopReason = "exhausted"


class _Search:
    """One budget for the searches of all regions and of the whole graph."""

    def __init__(
        self,
        table: NormalTable,
        rules: Sequence[RewriteRule],
        budget: Budget,
        slack: float,
        progress: Callable[[Event], None] | None,
        integer_program: bool,
        walks: Sequence[int] | None,
    ) -> None:
        self.integer_program = integer_program
        self.walks: list[int] = []
        self.planned = None if walks is None else iter(walks)
        self.table, self.slack, self.progress = table, slack, progress
        self.clock: Tally[None] = Tally(budget)
        self.moves = Moves(table, rules)
        self.applied: list[Substitution] = []
        self.done = _Done()

    def run(self, roots: tuple[int, ...]) -> tuple[int, ...]:
        """The best graph's outputs: of its regions, of any two neighbours, and of the whole if that may say more."""
        table = self.table
        found = regions(table, roots)
        apart = len(found) > 1 and len(roots) == 1 and independent(found)
        if len(found) > 1:
            roots = self.by_regions(roots, found)
            for first in (1, 0):  # so each cut is once within a region
                ends = cuts(table, roots)[first::2]
                roots = self.by_regions(roots, regions(table, roots, ends))
        return roots if apart and self.done.stop_reason == "exhausted" else self.walk(roots, 1)

    def by_regions(self, roots: tuple[int, ...], found: Sequence[Subgraph]) -> tuple[int, ...]:
        """The outputs after every region has been searched; regions that are equal once, all in a share of the time."""
        table = self.table
        different: dict[int, list[Subgraph]] = {}
        for region in found:
            different.setdefault(region.root, []).append(region)
        best: dict[int, int] = {}
        for left, (root, places) in zip(range(len(different), 0, -1), different.items(), strict=True):
            best[root] = self.walk((root,), left + 1, len(places))[0]
        moved: dict[int, int] = {}
        for region in found:
            leaves = {leaf: moved.get(value, value) for leaf, value in region.leaves.items()}
            root = best[region.root]
            if root != region.root or any(moved.get(v, v) != v for v in region.leaves.values()):
                moved[region.end] = placed(table, root, leaves)
        return self._rebuilt(roots, moved)

    def _rebuilt(self, roots: tuple[int, ...], moved: dict[int, int]) -> tuple[int, ...]:
        """The outputs after values have been replaced by others."""
        for value in self.table.reachable(roots):
            if value not in moved:
                args = self.table.args[value]
                now = tuple([moved.get(a, a) for a in args])
                moved[value] = value if now == args else self.table.again(value, now)
        return tuple(moved[r] for r in roots)

    def walk(self, roots: tuple[int, ...], shares: int, places: int = 1) -> tuple[int, ...]:
        """Best-first search from ``roots`` within one of ``shares`` equal shares of the time left: outputs of the best
        graph.
        """
        seconds, graphs = self.clock.seconds_left, self._graphs_left()
        if self.planned is not None:
            seconds, graphs = None, next(self.planned, 0)
        if seconds == 0 or graphs == 0:
            self.done.stop_reason = "trials" if graphs == 0 else "seconds"
            self.walks.append(0)
            return roots
        first = start(self.table, roots)
        limits = Budget(graphs, None if seconds is None else seconds / shares, self.clock.budget.clock)
        report = best_first(first, lambda s: s.cost, self.expand, limits, slack=self.slack, progress=self.progress)
        self._count(report)
        best = report.best
        assert best is not None
        if self.integer_program and len(self.table.reachable(roots)) <= SMALL:
            left = self.clock.seconds_left
            seconds = PROGRAM_SECONDS if left is None else max(left / shares, 0.1)
            other = saturate(self.table, self.moves, first, seconds)
            best = other if other.cost < best.cost * (1 - WORTH) else best
        if best.cost >= first.cost * (1 - WORTH):
            return roots
        self.applied += [Substitution(s.rule, s.times * places, s.saved * places) for s in history(best)]
        return best.outputs()

    def expand(self, state: SearchState) -> Iterator[tuple[Hashable, Callable[[], SearchState]]]:
        """The steps from a state, as :func:`best_first` takes them."""
        for change, applied in self.moves.changes(state):
            child = state.after(change, applied)
            yield (child.key, child.roots), lambda c=child: c  # type: ignore[misc]

    def _graphs_left(self) -> int | None:
        trials = self.clock.budget.trials
        return None if trials is None else max(0, trials - self.done.graphs)

    def _count(self, report: SearchReport[SearchState]) -> None:
        best = min(report.history, key=lambda trial: trial.cost)
        self.done.best_after += best.seconds
        self.walks.append(best.number)
        self.done.graphs += report.trials
        self.done.seconds += report.seconds
        if self.done.stop_reason == "exhausted":
            self.done.stop_reason = report.stop_reason


def history(state: SearchState) -> tuple[Substitution, ...]:
    """The substitutions that lead to a state, in order."""
    steps = []
    for before, after in zip(state.path(), state.path()[1:], strict=False):
        for rule, times in Counter(after.applied).items():
            steps.append(Substitution(rule, times, before.cost - after.cost))
    return tuple(steps)
