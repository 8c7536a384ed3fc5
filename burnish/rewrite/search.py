"""Cost-based backtracking search over substitutions: from a graph to the cheapest equal one that the budget allows.

Source: thesis-jia section 2.7, algorithm 2, on hash-consed graphs whose costs are updated where they change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass

from burnish.graph.graph import Graph
from burnish.rewrite.apply import State, start
from burnish.rewrite.convert import read_graph, write_graph
from burnish.rewrite.moves import Moves
from burnish.rewrite.normal import NormalTable
from burnish.rewrite.table import Cost
from burnish.rewrite.terms import Rule
from burnish.search.best_first import best_first
from burnish.search.budget import Budget, Event, Report

SLACK = 1.05  # the paper's alpha
WORTH = 1e-9  # of the cost: below, two costs are equal but for rounding


@dataclass(frozen=True)
class Substitution:
    """A rule that was applied ``times`` times in one step, and the predicted seconds that the step saved."""

    rule: str
    times: int
    saved: float


@dataclass(frozen=True)
class Rewritten:
    """A graph equal to the one given. ``before`` and ``after``: predicted seconds. ``graph`` is the one given where
    nothing cheaper was found.
    """

    graph: Graph
    applied: tuple[Substitution, ...]
    before: float
    after: float
    report: Report[State]


def rewrite_graph(
    graph: Graph,
    rules: Sequence[Rule],
    cost: Cost,
    budget: Budget,
    *,
    slack: float = SLACK,
    progress: Callable[[Event], None] | None = None,
) -> Rewritten:
    """The cheapest graph found that substitutions lead to.

    Raises ModelError naming the node of a graph that does not type, RuleError for a rule with an unknown word.
    """
    table = NormalTable(cost)
    reading = read_graph(table, graph)
    moves = Moves(table, rules)

    def expand(state: State) -> Iterator[tuple[Hashable, Callable[[], State]]]:
        for replacement, applied in moves.replacements(state):
            yield replacement.roots, lambda r=replacement, a=applied: r.state_after(a)  # type: ignore[misc]

    first = start(table, reading.roots)
    report = best_first(first, lambda state: state.cost, expand, budget, slack=slack, progress=progress)
    best = report.best
    assert best is not None
    if best.cost >= first.cost * (1 - WORTH):
        return Rewritten(graph, (), first.cost, first.cost, report)
    return Rewritten(write_graph(table, reading, best.roots, graph), history(best), first.cost, best.cost, report)


def history(state: State) -> tuple[Substitution, ...]:
    """The substitutions that lead to a state, in order."""
    steps = []
    for before, after in zip(state.path(), state.path()[1:], strict=False):
        for rule, times in Counter(after.applied).items():
            steps.append(Substitution(rule, times, before.cost - after.cost))
    return tuple(steps)
