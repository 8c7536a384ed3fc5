"""Multi-output fusion: short reductions with the maps and reductions of the same rows, as one kernel.

The statistics of a normalization over a batch are reductions of what blocks of threads have found, and maps of these:
several launches, of which each takes as long as a launch takes. Where all are of the same rows, they become one kernel.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterator, Sequence

from burnish.graph.fuse import Group
from burnish.graph.fusion_properties import facts_of
from burnish.graph.graph import Graph
from burnish.loops.sizes import is_size
from burnish.ops import is_opaque
from burnish.pipeline.bundles import awaited, inputs_needed

MOST_BYTES = 1 << 20  # of a tensor of such a kernel: of more, its memory takes longer than a launch

NEAR = 24  # groups between two that wait for each other in nothing and are one kernel all the same

Takes = Callable[[Graph, Group], bool]


def fuse_several(
    graph: Graph,
    groups: Sequence[Group],
    takes: Takes,
    computes: Callable[[Group], bool],
    is_usual: Callable[[Group], bool],
) -> list[Group]:
    """The groups in topological order, short reductions as one group with others of the same rows where ``takes``
    agrees. ``computes``: whether a group needs code; ``is_usual``: whether its results are tensors of their own, and
    all its tensors row-major.
    """
    return _Fusion(graph, groups, takes, computes, is_usual).run()


class _Fusion:
    """Groups under fusion, by number: that of the first of those that one was made of."""

    def __init__(
        self,
        graph: Graph,
        groups: Sequence[Group],
        takes: Takes,
        computes: Callable[[Group], bool],
        is_usual: Callable[[Group], bool],
    ) -> None:
        self.graph, self.takes = graph, takes
        self.groups = dict(enumerate(groups))
        self.rank = {number: number for number in self.groups}  # in an order in which each is behind what it reads
        self.views = {number for number, group in self.groups.items() if not computes(group)}
        self.place = {node.outputs: number for number, node in enumerate(graph.nodes)}
        self.needs, self.awaited = inputs_needed(graph, groups), awaited(graph, groups)
        self.states = {graph.outputs[state.output] for state in graph.states.values()}
        self.producer = {name: number for number, group in self.groups.items() for name in group.outputs}
        self.readers: dict[str, set[int]] = {}
        for number, group in self.groups.items():
            for name in group.inputs:
                self.readers.setdefault(name, set()).add(number)
        able = (n for n, group in self.groups.items() if n not in self.views and is_usual(group))
        self.short = {n for n in able if self._is_short(self.groups[n])}

    def run(self) -> list[Group]:
        """All groups, in order."""
        for seed in sorted(self.short):
            number: int | None = seed
            while number in self.groups and self._reduces(self.groups[number]):
                number = self._grown(number)
        return [self.groups[number] for number in self._in_order()]

    def _is_short(self, group: Group) -> bool:
        """Whether a group computes one short tensor of others by what is neither a product nor opaque."""
        names = (*group.inputs, *group.outputs)
        types = [self.graph.types[name] for name in names]
        if len(group.outputs) != 1 or group.outputs[0] in self.states or not group.nodes:
            return False
        if any(is_size(d) or d == 0 for t in types for d in t.shape) or any(is_opaque(n.op) for n in group.nodes):
            return False
        if group.anchor is not None and facts_of(self.graph, group.anchor).kind != "reduction":
            return False
        return all(t.nbytes <= MOST_BYTES for t in types)

    def _reduces(self, group: Group) -> bool:
        return any(facts_of(self.graph, node).kind == "reduction" for node in group.nodes)

    def _grown(self, seed: int) -> int | None:
        """Fuses a group with a neighbour; the number of both, or None where there is no such."""
        for numbers in self._neighbours(seed):
            together = {seed, *numbers}
            if self._is_convex(together):
                whole = self._fused(together)
                if not self._delays(whole) and self.takes(self.graph, whole):
                    return self._replace(together, whole)
        return None

    def _delays(self, whole: Group) -> bool:
        """Whether a result that the caller or another device waits for, or what it is computed from, would wait for an
        input of the graph that it does not need, which may be a message.
        """
        needed = {name for each in whole.inputs for name in self.needs[each]}
        return any(not self.needs[name] >= needed for name in whole.outputs if name in self.awaited)

    def _neighbours(self, seed: int) -> Iterator[set[int]]:
        """Candidates for fusion: readers of results, with the views between; of the same tensors; reductions nearby."""
        for name in self.groups[seed].outputs:
            yield from self._short_readers(name, seed)
        for name in self.groups[seed].inputs:
            while self.producer.get(name) in self.views:
                name = self.groups[self.producer[name]].inputs[0]
            if name in self.producer:
                yield from (numbers - self.views for numbers in self._short_readers(name, seed))
        yield from ({number} for number in self._beside(seed))

    def _beside(self, seed: int) -> list[int]:
        """Short groups nearby, of results of the same shape, that reduce something."""
        shape = self.graph.types[self.groups[seed].outputs[0]].shape
        near = [number for number in sorted(self.short) if 0 < self.rank[number] - self.rank[seed] <= NEAR]
        groups = ((number, self.groups[number]) for number in near)
        return [n for n, g in groups if self.graph.types[g.outputs[0]].shape == shape and self._reduces(g)]

    def _short_readers(self, name: str, seed: int, views: frozenset[int] = frozenset()) -> Iterator[set[int]]:
        """Each short group that reads a tensor, or a view of it, with the views between."""
        for number in sorted(self.readers.get(name, ())):
            if number in self.views:
                yield from self._short_readers(self.groups[number].outputs[0], seed, views | {number})
            elif number != seed and number in self.short:
                yield {*views, number}

    def _is_convex(self, numbers: Collection[int]) -> bool:
        """Whether no path between two groups leads through others."""
        last, seen = max(self.rank[number] for number in numbers), set[int]()
        waiting = [behind for number in numbers for behind in self._behind(number) if behind not in numbers]
        while waiting:
            number = waiting.pop()
            if number in seen or self.rank[number] > last:
                continue
            seen.add(number)
            behind = self._behind(number)
            if not behind.isdisjoint(numbers):
                return False
            waiting += behind
        return True

    def _behind(self, number: int) -> set[int]:
        """The groups that read a result of a group."""
        return {reader for name in self.groups[number].outputs for reader in self.readers.get(name, ())}

    def _fused(self, numbers: Collection[int]) -> Group:
        """One group, whose results are what others read, in the order of computation."""
        own = [self.groups[number] for number in sorted(numbers)]
        nodes = sorted((node for group in own for node in group.nodes), key=lambda node: self.place[node.outputs])
        inside = {name for node in nodes for name in node.outputs}
        inputs = dict.fromkeys(name for group in own for name in group.inputs if name not in inside)
        results = [name for node in nodes for name in node.outputs if self._is_read(name, numbers)]
        anchor = next(node for node in nodes if facts_of(self.graph, node).kind == "reduction")
        return Group(tuple(nodes), tuple(inputs), tuple(results), anchor)

    def _is_read(self, name: str, numbers: Collection[int]) -> bool:
        """Whether a tensor is needed outside of some groups."""
        return name in self.graph.outputs or not self.readers.get(name, set()).issubset(numbers)

    def _replace(self, numbers: Collection[int], whole: Group) -> int:
        """Puts a fused group in the place of others; its number."""
        first = min(numbers)
        for number in numbers:
            for name in self.groups.pop(number).inputs:
                self.readers[name].discard(number)
            self.short.discard(number)
            self.views.discard(number)
        self.groups[first] = whole
        self.short.add(first)
        self.producer.update(dict.fromkeys(whole.outputs, first))
        for name in whole.inputs:
            self.readers[name].add(first)
        self.rank = {number: rank for rank, number in enumerate(self._in_order())}
        return first

    def _in_order(self) -> list[int]:
        """The groups' numbers so that each is behind those that it reads, else from the least."""
        waits = {
            number: {self.producer[n] for n in g.inputs if n in self.producer} for number, g in self.groups.items()
        }
        ready = [number for number, before in waits.items() if not before]
        heapq.heapify(ready)
        result = list[int]()
        while ready:
            number = heapq.heappop(ready)
            result.append(number)
            for behind in self._behind(number):
                waits[behind].discard(number)
                if not waits[behind]:
                    heapq.heappush(ready, behind)
        assert len(result) == len(self.groups)
        return result
