"""Segments of a training graph: parts that run over blocks of vertices, between aggregations, which read all of them.

Element-wise results are computed again where they are read; what lasts from segment to segment are results of products
and aggregations, as blocks of rows. Sums over vertices, such as gradients of weights, are added up over blocks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from burnish.gnn.model.locality import Axes, Kind, Role, role_of
from burnish.graph.fusion_properties import facts_of
from burnish.graph.graph import Graph
from burnish.loops.sizes import hinted

LAST = 1 << 30  # the level of what only results need
SLACK = 16  # bytes of a row that are not worth keeping another tensor: a label, a scale


@dataclass(frozen=True)
class BlockSegment:
    """Nodes of one kind, by number. ``reads``: rows of other segments or of the graph's inputs, block by block;
    ``gathered``: those of which all rows are read; ``writes``: rows for others; ``sums``: what all rows are
    reduced to, by ``reductions``; ``values``: results without rows; ``given``: what it reads that has no rows.
    """

    kind: Kind
    level: int
    nodes: tuple[int, ...]
    reads: tuple[str, ...]
    gathered: tuple[str, ...]
    writes: tuple[str, ...]
    sums: tuple[str, ...]
    reductions: tuple[str, ...]
    values: tuple[str, ...]
    given: tuple[str, ...]
    structure: tuple[str, ...]

    def __str__(self) -> str:
        words = {"reads": self.reads, "gathers": self.gathered, "writes": self.writes, "sums": self.sums}
        listed = "; ".join(f"{what} {', '.join(names)}" for what, names in words.items() if names)
        return f"{self.kind} {self.level}: {len(self.nodes)} nodes; {listed}"


def cut(graph: Graph, axes: Axes, first: str | None = None) -> tuple[BlockSegment, ...]:
    """The segments of a graph, in an order in which they can run."""
    return _Cut(graph, axes, first).segments()


class _Cut:
    def __init__(self, graph: Graph, axes: Axes, first: str | None) -> None:
        self.graph, self.axes = graph, axes
        self.roles: list[Role] = [role_of(node, graph, axes, first) for node in graph.nodes]
        self.maker = {name: i for i, node in enumerate(graph.nodes) for name in node.outputs}
        self.readers: dict[str, list[int]] = {name: [] for name in graph.types}
        for i, node in enumerate(graph.nodes):
            for name in dict.fromkeys(node.inputs):
                self.readers[name].append(i)
        self.results = {*graph.outputs}
        self.stored = self._stored()

    def segments(self) -> tuple[BlockSegment, ...]:
        """See :func:`cut`."""
        while True:
            levels = self._levels()
            groups = self._groups(levels)
            again = self._merged(groups) or self._repeated(groups)
            if not again:
                break
            self.stored |= again
        made = [self._segment(kind, level, numbers) for (level, kind, _), numbers in sorted(groups.items())]
        return tuple(made)

    def _stored(self) -> set[str]:
        """Rows that must be kept: what is gathered, or a gathering has made, and results."""
        found: set[str] = set()
        for i, node in enumerate(self.graph.nodes):
            if self.roles[i].kind == "gather":
                found |= {n for n in (*node.inputs, *node.outputs) if n in self.axes.rows}
        return found | {n for n in self.results if n in self.axes.rows and n in self.maker}

    def _anchors(self) -> list[int]:
        """The nodes that are there for others: all but the element-wise ones that are computed where they are read."""
        return [
            i for i, node in enumerate(self.graph.nodes)
            if self.roles[i].kind != "rows" or self.stored & {*node.outputs}
        ]  # fmt: skip

    def _closure(self, anchor: int) -> set[int]:
        """The node with the row-wise ones that it needs, back to rows that are kept."""
        found, pending = {anchor}, [anchor]
        while pending:
            for name in self.graph.nodes[pending.pop()].inputs:
                i = self.maker.get(name)
                if i is not None and i not in found and name not in self.stored and self.roles[i].kind == "rows":
                    found.add(i)
                    pending.append(i)
        return found

    def _levels(self) -> dict[int, int]:
        """By anchor, the number of its segment's stage: above those of what it waits for."""
        levels: dict[int, int] = {}
        closures = {i: self._closure(i) if self.roles[i].kind != "plain" else {i} for i in self._anchors()}
        self.closures = closures
        for i, closure in closures.items():
            level = 0
            for name in {n for j in closure for n in self.graph.nodes[j].inputs}:
                maker = self.maker.get(name)
                if maker is None or maker in closure:
                    continue
                level = max(level, levels[maker] + (0 if self._joins(maker, i, name) else 1))
            levels[i] = level
        needed = self._needed(closures)
        for i in levels:
            if self.roles[i].kind == "plain" and i not in needed:
                levels[i] = LAST
        return levels

    def _joins(self, maker: int, reader: int, name: str) -> bool:
        """Whether both can be in one segment: rows are read as they are made, and so are values without rows."""
        one, two = self.roles[maker].kind, self.roles[reader].kind
        if one == "rows":
            return two in ("rows", "sum") and name not in self.roles[reader].gathered
        return one == two == "plain"

    def _needed(self, closures: Mapping[int, Collection[int]]) -> set[int]:
        """The nodes without rows that others wait for; the rest makes results alone."""
        pending = [
            self.maker[n]
            for i, closure in closures.items() if self.roles[i].kind != "plain"
            for j in closure for n in self.graph.nodes[j].inputs
            if n in self.maker and self.roles[self.maker[n]].kind == "plain"
        ]  # fmt: skip
        found = set(pending)
        while pending:
            for name in self.graph.nodes[pending.pop()].inputs:
                i = self.maker.get(name)
                if i is not None and self.roles[i].kind == "plain" and i not in found:
                    found.add(i)
                    pending.append(i)
        return found

    def _groups(self, levels: Mapping[int, int]) -> dict[tuple[int, Kind, int], set[int]]:
        """Nodes by level and kind; each gathering by itself."""
        groups: dict[tuple[int, Kind, int], set[int]] = {}
        for i, level in levels.items():
            kind = self.roles[i].kind
            key = (level, "rows" if kind == "sum" else kind, i if kind == "gather" else -1)
            groups.setdefault(key, set()).update(self.closures[i])
        return groups

    def _merged(self, groups: Mapping[tuple[int, Kind, int], set[int]]) -> set[str]:
        """The first result that several segments compute from rows of more bytes than its own: it is kept instead."""
        counts = Counter(i for (_, kind, _), nodes in groups.items() if kind == "rows" for i in nodes)
        for i in sorted(counts):
            (output, *more) = self.graph.nodes[i].outputs
            if counts[i] < 2 or more or output in self.stored or self.axes.rows.get(output) != 0:
                continue
            closure = self._closure(i)
            inside = {n for j in closure for n in self.graph.nodes[j].outputs}
            read = {n for j in closure for n in self.graph.nodes[j].inputs if n in self.axes.rows} - inside
            given, kept = sum(self.graph.types[n].nbytes for n in read), self.graph.types[output].nbytes
            if hinted(given) > hinted(kept + SLACK * self.axes.vertices * len(read)):
                return {output}
        return set()

    def _repeated(self, groups: Mapping[tuple[int, Kind, int], set[int]]) -> set[str]:
        """Results of products that several segments would compute."""
        seen: dict[int, int] = {}
        for (_, kind, _), nodes in groups.items():
            for i in nodes if kind == "rows" else ():
                seen[i] = seen.get(i, 0) + 1
        return {
            name
            for i, count in seen.items()
            if count > 1 and facts_of(self.graph, self.graph.nodes[i]).kind in ("complex", "extern")
            for name in self.graph.nodes[i].outputs
            if name in self.axes.rows
        } - self.stored

    def _segment(self, kind: Kind, level: int, numbers: Collection[int]) -> BlockSegment:
        nodes = sorted(numbers)
        inside = {n for i in nodes for n in self.graph.nodes[i].outputs}
        read = [*dict.fromkeys(n for i in nodes for n in self.graph.nodes[i].inputs if n not in inside)]
        gathered = frozenset[str]().union(*(self.roles[i].gathered for i in nodes))
        rows, structure = self.axes.rows, self.axes.structure
        out = [*dict.fromkeys(n for i in nodes for n in self.graph.nodes[i].outputs if self._leaves(n, inside, nodes))]
        sums = {
            n: self.roles[i].reduction for i in nodes if self.roles[i].reduction for n in self.graph.nodes[i].outputs
        }
        return BlockSegment(
            kind, level, tuple(nodes),
            tuple(n for n in read if n in rows and n not in gathered),
            tuple(n for n in read if n in gathered),
            tuple(n for n in out if n in rows and (n in self.stored)),
            tuple(n for n in out if n in sums),
            tuple(sums[n] for n in out if n in sums),
            tuple(n for n in out if n not in rows and n not in sums),
            tuple(n for n in read if n not in rows and n not in structure and n not in self.graph.constants),
            tuple(n for n in read if n in structure),
        )  # fmt: skip

    def _leaves(self, name: str, inside: Collection[str], nodes: Sequence[int]) -> bool:
        """Whether a result is read outside of a segment, or is one of the graph's."""
        if name in self.axes.rows:
            return name in self.stored
        return name in self.results or any(i not in nodes for i in self.readers[name])


def segment_graph(segment: BlockSegment, graph: Graph) -> Graph:
    """The graph of a segment's nodes: from what it reads to what it makes."""
    nodes = tuple(graph.nodes[i] for i in segment.nodes)
    inputs = (*segment.reads, *segment.gathered, *segment.given, *segment.structure)
    outputs = (*segment.writes, *segment.sums, *segment.values)
    return Graph(inputs, outputs, (), graph.types, graph.constants).with_nodes(nodes)
