"""Search for a strategy: repeated blocks planned once, then a Metropolis walk over single operations (MCMC).

Source: thesis-jia section 3.5: starts from data parallelism, an expert's strategy and random ones; proposals change an
operation's configuration at random; a walk ends when half of its time has brought nothing. Beyond it, operations of one
block (all steps of a layer) first take every configuration together, or are dealt out to devices side by side, in
sweeps until none brings anything: what a walk of single operations does not find, as one step of a layer changes next
to nothing. One more start is the optimum of summed costs, by dynamic programming. After the walk pairs of operations
(neighbours, or of one block) take every two configurations: two that swap devices are a step back each alone. A
strategy beyond a device's memory recomputes results where the space allows it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise, product

import numpy as np
from numpy.typing import NDArray

from burnish.base.arguments import check_number, typed
from burnish.errors import PlanError
from burnish.parallel.simulate.core import PARTS, SPLIT
from burnish.parallel.simulate.elimination import eliminate
from burnish.parallel.simulate.recompute import within_memory
from burnish.parallel.simulate.simulate import Simulator
from burnish.search.budget import Budget, Event, SearchReport, Tally

Choice = NDArray[np.int32]
Options = Callable[[Choice], Iterator[Choice]]  # other strategies, given one
_BEYOND = 1e18  # costs from here on are those of strategies that do not fit
_ROUND = 256  # proposals of a walk between two looks at the clock, at first
ELIMINATION, EVERYWHERE = "dynamic programming", ", everything at the same time"  # names of starts
SPREADS = (1.0, 0.0)  # see burnish.parallel.simulate.elimination.eliminate
_HOT, _COLD = 0.02, 0.002  # temperatures, relative to the time of a step, divided by the number of moves


@typed
@dataclass(frozen=True)
class PlanObjective:
    """Objective of the search: nanoseconds of a step, and ``per_byte`` nanoseconds for every byte that crosses a link.

    ``memory``: only strategies that fit this ``share`` of the devices' memory, with ``slots`` arrays of optimizer state
    a parameter.

    >>> x, w = bn.sym.variable("x"), bn.sym.constant(np.ones(3, "f4"), "w")
    >>> graph = bn.sym.graph(bn.sym.sum(x * w, axis=-1), {"x": (2, 3)})
    >>> frugal = bn.PlanObjective(per_byte=1000.0)  # a byte moved counts as a microsecond
    >>> found = bn.plan(graph, devices="p100:1x2", seconds=0.1, pipelines=False, objective=frugal)
    >>> found.machine.size, found.milliseconds > 0
    (2, True)
    """

    per_byte: float = 0.0
    memory: bool = True
    slots: int = 2
    share: float = 1.0

    def __post_init__(self) -> None:
        """Raises ParameterError."""
        check_number("PlanObjective: per_byte", self.per_byte, 0)
        check_number("PlanObjective: share", self.share, 0, open_below=True)

    def cost(self, simulator: Simulator, choice: Choice, ns: int) -> float:
        """The cost of a strategy that takes so long."""
        return float(ns) if not self.per_byte else ns + self.per_byte * sum(simulator.bytes(choice))

    def excess(self, simulator: Simulator, choice: Choice) -> float:
        """The memory that a strategy needs over what there is, of the fullest device; 0 where that does not count."""
        if not self.memory:
            return 0.0
        held = np.array([device.memory for device in simulator.problem.machine.devices], np.float64)
        return float((simulator.memory(choice, self.slots) / np.maximum(self.share * held, 1.0)).max())


FASTEST = PlanObjective()


@dataclass(frozen=True, eq=False)
class Found:
    """The best strategy found, and its nanoseconds. Of every start by name, ``times``: its nanoseconds, ``starts``: its
    cost, inf where it does not fit the devices' memory.
    """

    choice: Choice
    ns: int
    times: Mapping[str, int]
    starts: Mapping[str, float]
    report: SearchReport[Choice]


def search(
    simulator: Simulator,
    starts: Mapping[str, Choice],
    budget: Budget,
    *,
    seed: int = 0,
    objective: PlanObjective = FASTEST,
    blocks: bool = True,
    summed: bool = True,
    progress: Callable[[Event], None] | None = None,
) -> Found:
    """The best strategy that the budget allows to find from some starts, never one that is slower than a start.

    ``blocks``: sweeps over blocks first, for half of the seconds at most, and over pairs at the end; else only walks.
    ``summed``: from the optimum of summed costs as well. A trial of the report is a simulated proposal of a sweep, or a
    round of a walk. Raises
    PlanError where no start fits the devices' memory and none that does is met.
    """
    walker = _Walker(simulator, objective, Tally(budget, progress), seed)
    costs, times = {}, {}
    begin = dict(starts)
    if blocks and summed:
        for spread in SPREADS:
            begin[ELIMINATION + (EVERYWHERE if spread else "")] = walker.spread_out(eliminate(simulator, spread).choice)
    for name, choice in begin.items():
        times[name] = simulator.full(choice)
        costs[name] = walker.consider(np.ascontiguousarray(choice, np.int32), times[name])[0]
    if blocks:
        nearest, *others = sorted(begin, key=lambda name: costs[name])
        for name in [nearest, *sorted(others, key=lambda name: not name.endswith(EVERYWHERE))][:3]:
            walker.sweep(np.array(begin[name], np.int32), walker.moves_of(walker.blocks), 0.5)
        if walker.tally.best is not None:
            runs = [run for block in walker.blocks for run in _runs(block)[1:]]
            walker.sweep(walker.tally.best, walker.moves_of(runs), 0.75)
    walker.walk(walker.tally.best if walker.tally.best is not None else next(iter(starts.values())))
    if blocks and walker.tally.best is not None:
        walker.sweep(walker.tally.best, walker.pairs(), 1.0)
    walker.tally.stop("exhausted")
    report = walker.tally.report()
    if report.best is None or report.cost >= _BEYOND:
        need = min(float(simulator.memory(c, objective.slots).max()) for c in starts.values())
        raise PlanError(
            f"no strategy was found that fits; the least that a start needs of one device is {need:.0f} bytes; "
            "allowed: devices of more memory, a smaller batch, or recomputation"
        )
    best = report.best
    starting = {name: math.inf if cost >= _BEYOND else cost for name, cost in costs.items()}
    return Found(best, simulator.full(best), times, starting, report)


def blocks_of(simulator: Simulator) -> list[list[int]]:
    """Operations that are planned as one: all steps of a layer, which read the same parameters and are split alike.

    Of those without parameters, the ones of equal definition.
    """
    space, model = simulator.problem.space, simulator.problem.model
    found: dict[tuple[object, ...], list[int]] = {}
    for i, op in enumerate(model.operations):
        alike = tuple((axis.extent, axis.role) for axis in op.axes)
        what: object = op.parameters if op.parameters else op.signature
        found.setdefault((what, alike, int(space.count[i])), []).append(i)
    return list(found.values())


def _runs(block: Sequence[int]) -> list[list[int]]:
    """A block, its halves, quarters and so on: steps of a layer that change together."""
    found, size = [], len(block)
    while size > 1:
        found += [list(block[k : k + size]) for k in range(0, len(block), size)]
        size = -(-size // 2)
    return [run for run in found if len(run) > 1]


class _Walker:
    """Sweeps and walks that share a budget and the best strategy."""

    def __init__(self, simulator: Simulator, objective: PlanObjective, tally: Tally[Choice], seed: int) -> None:
        self.simulator, self.objective, self.tally, self.seed = simulator, objective, tally, seed
        space = simulator.problem.space
        self.first, self.count = space.first, space.plain
        self.blocks = blocks_of(simulator)

    def consider(self, choice: Choice, ns: int | None = None) -> tuple[float, Choice]:
        """Records a strategy, with results recomputed if it needs that to fit, and returns it with its cost: from
        ``_BEYOND`` on where it does not fit, more, the further from that.
        """
        ns = self.simulator.full(choice) if ns is None else ns
        excess = self.objective.excess(self.simulator, choice)
        if excess > 1 and self.simulator.problem.space.recompute:
            choice = within_memory(self.simulator, choice, self.objective.slots)
            ns, excess = self.simulator.full(choice), self.objective.excess(self.simulator, choice)
        cost = self.objective.cost(self.simulator, choice, ns) if excess <= 1 else _BEYOND * excess
        self.tally.record(choice.copy(), cost)
        return cost, choice

    def spread_out(self, choice: Choice) -> Choice:
        """The strategy with blocks moved to other devices, the largest first, as long as that makes a step shorter."""
        t = self.simulator.t
        splits = t.configurations[choice, SPLIT]
        work = t.time[splits].max(axis=(1, 2)) * t.configurations[choice, PARTS]
        now = self.simulator.full(choice)
        for block in sorted(self.blocks, key=lambda b: -int(work[b].sum())):
            first = int(self.first[block[0]])
            own = np.arange(first, first + int(self.count[block[0]]))
            for number in own[t.configurations[own, SPLIT] == splits[block[0]]]:
                new = choice.copy()
                new[block] = number - first + self.first[block]
                ns = self.simulator.full(new, now - 1)
                if ns >= 0:
                    choice, now = new, ns
        return choice

    def moves_of(self, blocks: Sequence[Sequence[int]]) -> Sequence[Options]:
        """For each block every configuration, all else as it is, and the ways to deal it out."""
        return [*(partial(self._alike, block) for block in blocks), *(partial(self._dealt, b) for b in blocks if b[1:])]

    def pairs(self) -> Sequence[Options]:
        """For two operations that are joined by an edge, or are of one block, every two of their configurations."""
        joined = {(edge.producer, edge.consumer) for edge in self.simulator.problem.model.edges}
        joined |= {pair for block in self.blocks for pair in pairwise(block)}
        return [partial(self._both, pair) for pair in sorted(joined)]

    def _alike(self, block: Sequence[int], choice: Choice) -> Iterator[Choice]:
        for number in range(int(self.count[block[0]])):
            yield self._with(choice, block, self.first[block] + number)

    def _dealt(self, block: Sequence[int], choice: Choice) -> Iterator[Choice]:
        """Places side by side of each split: for one operation after the other, or for runs of them."""
        for places in self._side_by_side(block[0]):
            order = np.arange(len(block))
            for which in (order % len(places), order * len(places) // len(block)):
                yield self._with(choice, block, self.first[block] + places[which])

    def _side_by_side(self, i: int) -> Iterator[NDArray[np.int64]]:
        """Configurations of each split that share no device, from the operation's first on, where there are some."""
        space, first = self.simulator.problem.space, int(self.first[i])
        splits = self.simulator.t.configurations[first : first + int(self.count[i]), SPLIT]
        for split in dict.fromkeys(splits.tolist()):
            found, taken = [], set[int]()
            for number in np.flatnonzero(splits == split):
                devices = space.configuration(first + int(number)).devices
                if taken.isdisjoint(devices):
                    found.append(number)
                    taken.update(devices)
            if len(found) > 1:
                yield np.array(found)

    def _both(self, pair: tuple[int, int], choice: Choice) -> Iterator[Choice]:
        i, j = pair
        for a, b in product(range(int(self.count[i])), range(int(self.count[j]))):
            yield self._with(choice, [i, j], np.array([self.first[i] + a, self.first[j] + b]))

    def _with(self, choice: Choice, operations: Sequence[int], numbers: NDArray[np.generic]) -> Choice:
        new = choice.copy()
        new[operations] = numbers
        return new

    def sweep(self, choice: Choice, moves: Sequence[Options], share: float) -> None:
        """The best option of each move, as long as that brings something, up to a share of all seconds."""
        limit = self.tally.budget.seconds
        seconds = None if limit is None else share * limit
        now, choice = self.consider(choice)
        improved = True
        while improved and self._goes_on(seconds):
            improved = False
            for options in moves:
                found, cost = self._best_of(choice, options, now, seconds)
                if cost < now:
                    choice, now, improved = found, cost, True
                if not self._goes_on(seconds):
                    return

    def _best_of(self, choice: Choice, options: Options, now: float, seconds: float | None) -> tuple[Choice, float]:
        """The best option of a move."""
        best = choice
        for new in options(choice):
            if (new == choice).all():
                continue
            limit = None if now >= _BEYOND else math.ceil(now) - 1
            ns = self.simulator.full(new, limit)
            if ns < 0:
                continue
            cost, kept = self.consider(new, ns)
            if cost < now:
                best, now = kept, cost
            if not self._goes_on(seconds):
                break
        return best, now

    def walk(self, choice: Choice) -> None:
        """Metropolis walks over single operations and blocks, cooler and cooler, until half of the time in vain."""
        moves = [[i] for i in range(len(self.first))] + [run for b in self.blocks for run in _runs(b)]
        temperatures = (_HOT / len(moves), _COLD / len(moves))
        number, proposals, since = 0, _ROUND, self.tally.seconds
        begun = self.tally.seconds
        while self.tally.stop_reason is None:
            before, cost = self.tally.seconds, self.tally.cost
            walked = self.simulator.walk(choice, proposals, temperatures[number % 2], self.seed + number, moves)
            self._keep(walked.best, walked.best_ns)
            choice = walked.current if number % 2 == 0 or self.tally.best is None else self.tally.best
            number += 1
            took = self.tally.seconds - before
            proposals = max(1, min(2 * proposals, int(proposals * 0.25 / max(took, 1e-9))))
            if self.tally.cost < cost:
                since = self.tally.seconds
            budget = self.tally.budget.seconds
            if budget is not None and self.tally.seconds - since > max(begun, budget) / 2:
                return
            if self.tally.budget.seconds is None and number >= 8 and self.tally.seconds - since > since - begun:
                return

    def _keep(self, choice: Choice, ns: int) -> None:
        self.consider(choice, ns)

    def _goes_on(self, seconds: float | None) -> bool:
        return self.tally.stop_reason is None and (seconds is None or self.tally.seconds < seconds)
