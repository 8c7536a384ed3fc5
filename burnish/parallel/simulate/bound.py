"""Lower bound of a step's time over all strategies of a space: a linear program, or the integer one behind it (HiGHS).

Variables say what share of each operation takes which degrees. No strategy is faster than all work spread evenly over
the devices, than any path of forward tasks and back, than what follows the last gradient of a group of weights, or than
the bytes that must cross between nodes or within them. Of repeated blocks (steps of a layer), a variable for each pair
of degrees at the ends of a tensor says what is sent, on links and on the path through all steps; other transfers of
activations, and queues, are left out, so the gap to a strategy is no measure of what is left to find. The bound is one
of this space and these costs alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from burnish.parallel.simulate.bound_program import MS, DegreeChoices, Floats, at_least_after, moments
from burnish.parallel.simulate.bound_transfers import Sent, always_covered, transfers
from burnish.parallel.simulate.core import SPLIT
from burnish.parallel.simulate.sharing import SOURCE, TARGET
from burnish.parallel.simulate.taskgraph import Problem
from burnish.parallel.simulate.weight_sums import synchronization
from burnish.search.integer import LinearProgram

_SAFE = 1 - 1e-6  # of what a solver says: its tolerances are no part of a bound


@dataclass(frozen=True)
class LowerBound:
    """``ns``: no strategy is faster. ``parts``: what single constraints say; ``solved``: whether to the optimum."""

    ns: float
    parts: Mapping[str, float]
    solved: bool

    def gap(self, found: float) -> float:
        """(found − bound) / found."""
        return max(0.0, (found - self.ns) / found) if found else 0.0


def lower_bound(problem: Problem, seconds: float = 60.0, integer: bool = False) -> LowerBound:
    """The least nanoseconds that a step can take. ``integer``: each operation takes one of its degrees, within
    ``seconds``; a little larger, and much slower.

    Raises MissingDependencyError without scipy.
    """
    splits = DegreeChoices(problem)
    program = LinearProgram()
    shares = [program.variables(len(own)) for own in splits.numbers]
    step = program.variable(1.0, integer=False, upper=np.inf)
    (makespan,) = moments(program, 1)
    for own in shares:
        program.row(dict.fromkeys(own, 1.0), 1.0, 1.0)
    _work(problem, splits, program, shares, makespan)
    forward, gradient = _paths(problem, splits, program, shares, makespan)
    between = _links_between_nodes(problem)
    sent = transfers(problem, splits, program, shares, forward, gradient, between)
    _synchronization(problem, splits, program, shares, gradient, makespan, step, between, sent)
    found = program.solve(seconds, gap=1e-4, relaxed=not integer)
    value = max(found.bound, 0.0) if integer else found.cost if found.optimal else 0.0
    parts = {"work": _work_alone(problem, splits), "program": value / MS}
    return LowerBound(max(parts["work"], value / MS * _SAFE), parts, found.optimal)


def _work_alone(problem: Problem, splits: DegreeChoices) -> float:
    return sum(float(splits.work(i).min()) for i in range(len(splits.numbers))) / problem.machine.size


def _work(
    problem: Problem, splits: DegreeChoices, program: LinearProgram, shares: list[list[int]], makespan: int
) -> None:
    """All work, spread over all devices."""
    terms: dict[int, float] = {makespan: float(problem.machine.size)}
    for i, own in enumerate(shares):
        terms |= {v: -float(x) * MS for v, x in zip(own, splits.work(i), strict=True)}
    program.row(terms, 0.0)


def _paths(
    problem: Problem, splits: DegreeChoices, program: LinearProgram, shares: list[list[int]], makespan: int
) -> tuple[list[int], list[int]]:
    """Ends of the last forward and the last backward task of every operation, as variables.

    A tensor orders two operations where every part of the first has something that a part of the second reads.
    """
    t = problem.tables
    count = len(shares)
    forward, backward = moments(program, count), moments(program, count)
    ahead = [e for e in range(t.geometry.edges.shape[0]) if always_covered(problem, e, 0)]
    back = [e for e in range(t.geometry.edges.shape[0]) if always_covered(problem, e, 1)]
    for i in range(count):
        own = splits.numbers[i]
        at_least_after(program, forward[i], None, shares[i], splits.forward[own])
        # What is run backward ends after its own forward task: every part's does.
        at_least_after(program, backward[i], forward[i], shares[i], splits.backward[own])
        program.row({makespan: 1.0, backward[i]: -1.0}, 0.0)
    for e in ahead:
        i, j = int(t.geometry.edges[e, SOURCE]), int(t.geometry.edges[e, TARGET])
        at_least_after(program, forward[j], forward[i], shares[j], splits.forward[splits.numbers[j]])
    for e in back:
        i, j = int(t.geometry.edges[e, SOURCE]), int(t.geometry.edges[e, TARGET])
        at_least_after(program, backward[i], backward[j], shares[i], splits.backward[splits.numbers[i]])
    return forward, backward


# --- synchronization --------------------------------------------------------------------------------------------------


def _synchronization(
    problem: Problem,
    splits: DegreeChoices,
    program: LinearProgram,
    shares: list[list[int]],
    gradient: list[int],
    makespan: int,
    step: int,
    between: list[int],
    sent: Sent,
) -> None:
    """Constraints for gradient sums: after the last gradient, on links with what is sent, and after the step."""
    t = problem.tables
    load: dict[int, float] = {}
    after: dict[int, float] = {step: 1.0, makespan: -1.0}
    for g in range(len(problem.weights.nbytes)):
        members = t.members[t.member_pointer[g] : t.member_pointer[g + 1], 0]
        alone = len(members) == 1
        leader = int(members[0])
        costs = _alone(problem, splits, g, leader, between) if alone else _shared(problem, splits, g)
        for i in members:
            (end,) = moments(program, 1)
            at_least_after(program, end, gradient[int(i)], shares[int(i)], costs[int(i)].link)
            program.row({makespan: 1.0, end: -1.0}, 0.0)
        for v, far, late in zip(shares[leader], costs[leader].between, costs[leader].after, strict=True):
            load[v] = load.get(v, 0.0) + float(far) * MS
            after[v] = after.get(v, 0.0) - float(late) * MS
    for weight, terms in sent.links.items():
        share = weight / max(len(between), 1)
        row = {makespan: 1.0, **{v: -share * x for v, x in load.items()}}
        for v, x in terms.items():
            row[v] = row.get(v, 0.0) - x
        program.row(row, 0.0)
    program.row(after, 0.0)


@dataclass(frozen=True)
class _Sums:
    """Lower bounds of weights' sums, in ns, by the degrees of an operation: on some link, on all links between nodes
    together, and after the step.
    """

    link: Floats
    between: Floats
    after: Floats


def _links_between_nodes(problem: Problem) -> list[int]:
    t = problem.tables
    found: set[int] = set()
    size = problem.machine.size
    for x in range(size):
        for y in range(size):
            if t.node[x] != t.node[y]:
                found.update(int(r) for r in t.route[x, y] if r >= 0)
    return sorted(found)


def _alone(problem: Problem, splits: DegreeChoices, g: int, i: int, between: list[int]) -> dict[int, _Sums]:
    """Least cost of gradient sums for weights of a single operation, over its places."""
    t, space = problem.tables, problem.space
    choice = space.first.astype(np.int32).copy()
    own = splits.numbers[i]
    place = {int(n): k for k, n in enumerate(own)}
    link, far, after = np.full((3, len(own)), np.inf)
    sync = np.zeros((len(problem.weights.nbytes), problem.resources + 1), np.int64)
    holders = np.zeros((problem.most_pieces, problem.machine.size), np.bool_)
    for c in range(int(space.first[i]), int(space.first[i]) + int(space.count[i])):
        choice[i] = c
        synchronization(t, g, choice, sync, holders)
        row = sync[g]
        k = place[int(t.configurations[c, SPLIT])]
        link[k] = min(link[k], float(row[:-1].max()))
        far[k] = min(far[k], float(row[between].sum()) if between else 0.0)
        after[k] = min(after[k], float(row[-1]))
    return {i: _Sums(link, far, after)}


def _shared(problem: Problem, splits: DegreeChoices, g: int) -> dict[int, _Sums]:
    """Least cost of gradient sums for weights that several operations share: each alone makes a number of replicas of a
    piece, others only more.

    A device's share of a sum among n leaves it over its links: 2 (n - 1) / n of its bytes.
    """
    t = problem.tables
    nbytes = float(t.weight_bytes[g])
    rates = _fastest_rates(problem)
    found = {}
    begin = int(t.member_pointer[g])
    for q in range(begin, int(t.member_pointer[g + 1])):
        i = int(t.members[q, 0])
        own = splits.numbers[i]
        pieces = np.ones(len(own))
        for axis in t.members[q, 1:]:
            if axis >= 0:
                pieces = pieces * t.geometry.splits[own, int(axis)]
        replicas = np.maximum(splits.parts[i] / pieces, 1.0)
        moved = 2.0 * (replicas - 1.0) / replicas * nbytes / pieces
        link = moved / rates if t.overlapped else np.zeros(len(own))
        after = np.zeros(len(own)) if t.overlapped else nbytes * _linear(problem, replicas)
        found[i] = _Sums(link, np.zeros(len(own)), after)
    return found


def _fastest_rates(problem: Problem) -> float:
    """Bytes a nanosecond that leave a device over all of its links together, of the device with the fastest."""
    t = problem.tables
    best = 0.0
    for x in range(problem.machine.size):
        links = {int(t.route[x, y, 0]) for y in range(problem.machine.size) if y != x} - {-1}
        best = max(best, sum(1.0 / float(t.link[r, 1]) for r in links if t.link[r, 1] > 0))
    return best or np.inf


def _linear(problem: Problem, replicas: Floats) -> Floats:
    """Nanoseconds a byte of sums after the step, linear in replicas, over the best number of nodes."""
    t = problem.tables
    nodes = len(np.unique(t.node))
    options = [(np.ceil(replicas / n) - 1) * t.near + (n - 1) * t.far for n in range(1, nodes + 1)]
    found: Floats = np.maximum(np.minimum.reduce(options), 0.0)
    return found
