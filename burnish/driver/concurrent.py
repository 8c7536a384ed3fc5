"""Concurrent kernels: neighbours that do not depend on each other share parallel regions where each alone is too small.

Branches of a model (the convolutions of an inception module, queries and keys of attention, a block and its shortcut)
are kernels of which none reads or writes what another one writes. One after another each ends with a wait for the
slowest thread, and leaves threads without work where it has fewer iterations than there are threads. Side by side they
wait once. It is decided by the time that a static model predicts for as many threads as are compiled for, and then
how far down it still holds: regions of one kernel keep a few threads busy. Memory is planned afterwards, so that what
they work on is apart.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from heapq import heapify, heapreplace
from itertools import islice, pairwise, product

from burnish.driver.stages import Built, Compilation, ConcurrentStages, KernelStage, StageShare
from burnish.graph.costs import KERNEL, least_seconds, region_seconds
from burnish.graph.fuse import Group
from burnish.graph.graph import Graph
from burnish.loops.sizes import is_size
from burnish.ops.classify import flops_and_traffic
from burnish.runtime.concurrent_ir import WEIGHTS
from burnish.runtime.pool_ir import CHUNKS

WINDOW = 16  # steps behind a kernel among which others are looked for: so far is memory held for longer
MOST = 6  # kernels side by side
GAIN = 0.05  # of the time of two, or
LESSER_GAIN = 0.25  # of that of the shorter one: what must be saved at least
Regions = Sequence[tuple[int, float]]  # iterations and seconds on one thread; 0: on one thread alone


def side_by_side(made: Compilation, begins: Collection[int] = ()) -> Compilation:
    """The compilation with independent kernels next to each other that are to run side by side, and which these are.

    Only kernels of known sizes on CPUs with several cores. The others, those that write a state (which they do where
    the old value lies), and what is no kernel, stay alone. No step passes one of the numbers ``begins``, from which
    on steps stay behind what is in front: where messages come and go.
    """
    target = made.target
    if target.kind != "cpu" or target.machine.offloads or target.cores < 2:
        return made
    steps: list[Built] = []
    found: list[ConcurrentStages] = []
    for run in _runs(made.steps, begins):
        own = _Run(made, run)
        groups = own.arrange()
        if any(len(group) > 1 for group in groups):
            for group in groups:
                if len(group) > 1:
                    found.append(own.concurrent(len(steps), group))
                steps += [run[number] for number in group]
        else:
            steps += run
    return replace(made, steps=tuple(steps), concurrent=tuple(found)) if found else made


def _runs(steps: Sequence[Built], begins: Collection[int]) -> Iterator[list[Built]]:
    """The steps in runs of kernels and other names for memory; each other step is a run of its own."""
    run: list[Built] = []
    for number, step in enumerate(steps):
        if number in begins:
            yield run
            run = []
        if isinstance(step, (KernelStage, Group)):
            run.append(step)
            continue
        yield run
        yield [step]
        run = []
    yield run


class _Run:
    """Steps that may change places, but for what depends on each other."""

    def __init__(self, made: Compilation, run: Sequence[Built]) -> None:
        self.graph, self.target, self.steps = made.graph, made.target, run
        states = {made.graph.outputs[state.output] for state in made.graph.states.values()}
        self._apart = states | {*made.graph.counts.values()}
        self._needs = _dependences(made.graph, run)
        self._regions: dict[int, Regions] = {}

    def arrange(self) -> list[list[int]]:
        """The numbers of the steps in a new order, those side by side together."""
        result: list[list[int]] = []
        pending, rest = list[int](), iter(range(len(self.steps)))
        done = set[int]()
        while pending := [*pending, *islice(rest, WINDOW - len(pending))]:
            ready = [n for n in pending if self._needs[n] <= done]
            views = [n for n in ready if isinstance(self.steps[n], Group)]
            group = [pending[0]]
            if not views and self.regions(pending[0]):
                self._join(group, ready[1:])
            done.update(views or group)
            result += [[n] for n in views] or [group]
            pending = [n for n in pending if n not in done]
        return result

    def _join(self, group: list[int], others: Sequence[int]) -> None:
        """Kernels that join a group, in order, where that saves time: added to it."""
        before = self.seconds(group) if others else 0.0
        for other in others:
            if len(group) == MOST or not self.regions(other):
                continue
            alone, together = self.seconds([other]), self.seconds([*group, other])
            if self._saves([*group, other], [before, alone], together):
                group.append(other)
                before = together

    def _saves(self, group: Sequence[int], alone: Sequence[float], together: float) -> bool:
        """Whether kernels side by side take so much less than the parts ``alone`` that it is worth it, in seconds."""
        threaded = any(extent for number in group for extent, _ in self.regions(number))
        total = sum(alone)
        least = min(GAIN * total, LESSER_GAIN * (total - max(alone)))
        return total - together > least + (0.0 if threaded else KERNEL)

    def regions(self, number: int) -> Regions:
        """Parallel regions of a step; none where it has to stay alone."""
        if number not in self._regions:
            step = self.steps[number]
            self._regions[number] = self._predicted(step) if isinstance(step, KernelStage) else ()
        return self._regions[number]

    def _predicted(self, step: KernelStage) -> Regions:
        """The regions of a kernel and their seconds on one thread: by instructions, and no less than its roofline."""
        own, task = step.kernel.regions, step.task
        if not own or task.dims or not self._apart.isdisjoint(step.group.outputs):
            return ()
        if any(is_size(extent) for t in (*task.inputs, *task.outputs) for extent in t.shape):
            return ()
        bound = least_seconds(*flops_and_traffic(task.outputs), self.target)
        counted = sum(seconds for _, seconds in own)
        total = max(counted, bound * self.target.cores)
        return [(extent, total * (seconds / counted if counted else 1 / len(own))) for extent, seconds in own]

    def seconds(self, group: Sequence[int]) -> float:
        """Predicted seconds of kernels side by side, or of one."""
        if len(group) == 1:
            return self.alone(group[0], self.target.cores)
        return min(_together(regions, self.target.cores) for regions in self._placements(group))

    def alone(self, number: int, threads: int) -> float:
        """Predicted seconds of one kernel."""
        return sum(_alone(extent, seconds, threads) for extent, seconds in self.regions(number))

    def concurrent(self, first: int, group: Sequence[int]) -> ConcurrentStages:
        """Kernels side by side from step ``first`` on: the regions of the fastest placement, and, of halves of the
        cores, the fewest threads that these save time for.
        """
        threads = self.target.cores
        regions = min(self._placements(group), key=lambda regions: _together(regions, threads))
        while threads > 1:
            fewer = threads // 2
            if not self._saves(group, [self.alone(n, fewer) for n in group], _together(regions, fewer)):
                break
            threads = fewer
        return ConcurrentStages(first, len(group), threads, tuple(map(tuple, regions)))

    def _placements(self, group: Sequence[int]) -> Iterator[list[list[StageShare]]]:
        """The ways to let the regions of kernels coincide, each kernel's one right behind the other."""
        most = max(len(self.regions(number)) for number in group)
        offsets = [range(most - len(self.regions(number)) + 1) for number in group]
        for begins in product(*offsets) if sum(map(len, offsets)) <= 2 * MOST else [[0] * len(group)]:
            found: list[list[StageShare]] = [[] for _ in range(most)]
            for place, (number, begin) in enumerate(zip(group, begins, strict=True)):
                for region, (extent, seconds) in enumerate(self.regions(number)):
                    found[begin + region].append(StageShare(place, region, extent, seconds))
            # Those of long iterations first: what is left for the end is short
            yield [sorted(region, key=lambda s: -s.seconds / max(1, s.extent)) for region in found]


def _dependences(graph: Graph, run: Sequence[Built]) -> list[set[int]]:
    """The steps of a run that each one has to come after: what it reads, and of states who still reads or changes what
    it changes.
    """
    states = {graph.outputs[state.output]: name for name, state in graph.states.items()}
    names = {name: name for name in graph.states}  # of a state, also by other names for its memory
    makers: dict[str, int] = {}
    users: dict[str, set[int]] = {}
    found = []
    for number, step in enumerate(run):
        group = step if isinstance(step, Group) else step.group
        needs = {makers[name] for name in group.inputs if name in makers}
        touched = {names[name] for name in group.inputs if name in names}
        written = {states[name] for name in group.outputs if name in states}
        for state in touched | written:
            changed = makers.get(f"state {state}")
            needs |= {changed} if changed is not None else set()
        for state in written:
            needs |= users.get(state, set())
            makers[f"state {state}"] = number
        for state in touched:
            users.setdefault(state, set()).add(number)
        if isinstance(step, Group) and len(touched) == 1:
            names.update(dict.fromkeys(group.outputs, *touched))
        makers.update(dict.fromkeys(group.outputs, number))
        found.append(needs - {number})
    return found


def _makespan(parts: Iterable[float], threads: int) -> float:
    """Seconds until all parts are done, each of which a thread begins as soon as it is free, in their order."""
    free = [0.0] * threads
    heapify(free)
    for part in parts:
        heapreplace(free, free[0] + part)
    return max(free)


def _cut(extent: int, parts: int, seconds: float) -> list[float]:
    """Seconds of each part of a region."""
    if extent < 2 or parts < 2:
        return [seconds]
    edges = [extent * part // parts for part in range(parts + 1)]
    return [seconds * (end - begin) / extent for begin, end in pairwise(edges)]


def _alone(extent: int, seconds: float, threads: int) -> float:
    """Seconds of a region of one kernel."""
    if not extent:
        return seconds
    return _makespan(_cut(extent, min(extent, CHUNKS * threads), seconds), threads) + region_seconds(threads)


def _together(regions: Iterable[Sequence[StageShare]], threads: int) -> float:
    """Seconds of regions that kernels share, cut as `runtime.concurrent_ir` does."""
    found = 0.0
    for shares in regions:
        room = CHUNKS * threads
        cut = [
            _cut(share.extent, max(1, min(share.extent, room * weight // WEIGHTS)), share.seconds)
            for share, weight in zip(shares, weights([s.seconds for s in shares]), strict=True)
        ]
        found += _makespan((part for parts in cut for part in parts), threads) + region_seconds(threads)
    return found


def weights(seconds: Sequence[float]) -> list[int]:
    """The parts of a region's time that its shares take."""
    total = sum(seconds)
    return [int(WEIGHTS * own / total) if total else WEIGHTS // len(seconds) for own in seconds]
