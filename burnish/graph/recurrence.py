"""Truncation of a recurrence into segments of time, between which little is alive (Chen et al. 2016, section 4.2).

A weight that nodes on one path read again and again is that of a recurrence, be it of steps of a layer or of layers
that share it: how often it was read before is a node's time. What a layer computes of all steps at once keeps all steps
alive, so it is divided: into the rows of one segment each, as far as the operators' definitions allow. Then the nodes
are ordered by time, not by layer: between two segments only the states of all layers cross.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from math import isqrt, prod
from typing import Any, Literal

from burnish import ops
from burnish.graph.fusion_properties import facts_of
from burnish.graph.graph import Graph, GraphBuilder, Node
from burnish.graph.rewrite import Rewrite
from burnish.graph.round_segments import known_rounds, segmented
from burnish.graph.rounds import operands_of
from burnish.loops.expr import FLOATS
from burnish.loops.sizes import is_size
from burnish.loops.traverse import loads
from burnish.ops.part import Box, Reads, attributes_of, extents_of, part_reads, sum_of, whole
from burnish.ops.reads import accesses, defined

COPIED = "copied_concat"  # joins of what may be computed again, which lies elsewhere
FIRST = "first"  # the argument that says which row of a larger tensor is the first one
LEAST = 4  # steps of a recurrence from which on it is divided


@dataclass(frozen=True)
class TimeSegments:
    """A graph whose nodes are in the order of segments, and the numbers of those with which segments begin."""

    graph: Graph
    begins: tuple[int, ...]


def in_segments(graph: Graph) -> TimeSegments | None:
    """The graph of a forward pass, its recurrences in segments of time; None for one without recurrences.

    A segment has half the square root of the steps: what is alive at its ends is a fifth of what a step computes, and
    all ends together then take as much memory as one segment.
    """
    steps = max(times(graph).values(), default=0)
    if steps < LEAST:
        return None
    length = max(1, isqrt(steps) // 2)
    divided = _Division(graph, length).divided()
    found = times(divided)
    return _ordered(divided, {name: max(0, time - 1) // length for name, time in found.items()})


# --- time -------------------------------------------------------------------------------------------------------------


def times(graph: Graph) -> dict[str, int]:
    """The time of every tensor that a recurrence computes: the most reads of one shared weight on a path to it, one in
    each round of a body; of rounds that read none, these themselves.
    """
    uses = _weights(graph)
    shared = {name for name, count in uses.items() if count >= LEAST}
    counts: dict[str, dict[Hashable, int]] = {}
    for node in graph.nodes:
        found: dict[Hashable, int] = {}
        for name in node.inputs:
            for weight, count in counts.get(name, {}).items():
                found[weight] = max(found.get(weight, 0), count)
        rounds = known_rounds(graph, node)
        for weight in _read_in_rounds(node, uses, counts) if rounds else shared.intersection(node.inputs):
            found[weight] = found.get(weight, 0) + (rounds or 1)
        if found:
            counts.update(dict.fromkeys(node.outputs, found))
    most: dict[Hashable, int] = {}
    for found in counts.values():
        most.update((weight, count) for weight, count in found.items() if count > most.get(weight, 0))
    recurrent = {name: [n for weight, n in found.items() if most[weight] >= LEAST] for name, found in counts.items()}
    return {name: max(found) for name, found in recurrent.items() if found}


def _read_in_rounds(
    node: Node, weights: Collection[str], counts: Mapping[str, Mapping[Hashable, int]]
) -> Collection[Hashable]:
    """The weights that every round of a body reads. Without any: the body, and the first node of those that hand its
    states on to one another; another node with that body is another recurrence.
    """
    own, body = operands_of(node), node.attrs["body"]
    read = [name for name in dict.fromkeys(own.fixed) if name in weights]
    before = [key for name in own.states for key in counts.get(name, ()) if isinstance(key, tuple) and key[1] == body]
    return read or before[-1:] or [(node.outputs[0], body)]


def _weights(graph: Graph) -> Counter[str]:
    """States of several floating-point numbers, and what depends on these alone: how many other nodes read each."""
    lasting = GraphBuilder.of(graph).lasting()
    fixed = {n for n in graph.states if graph.types[n].dtype in FLOATS and graph.types[n].size > 1}
    uses: Counter[str] = Counter()
    for node in graph.nodes:
        if not lasting.issuperset(node.outputs):
            uses.update({*node.inputs})
        elif fixed.intersection(node.inputs):
            fixed.update(node.outputs)
    return Counter({name: uses[name] for name in fixed})


def _ordered(graph: Graph, segments: dict[str, int]) -> TimeSegments:
    """The nodes by segment; those of none come where they are needed first."""
    last = max(segments.values(), default=0)
    own = [max((segments.get(name, -1) for name in node.outputs), default=-1) for node in graph.nodes]
    needed: dict[str, int] = {}
    for number in reversed(range(len(own))):
        node = graph.nodes[number]
        if own[number] < 0:
            own[number] = min((needed[name] for name in node.outputs if name in needed), default=last)
        for name in node.inputs:
            needed[name] = min(needed.get(name, last), own[number])
    order = sorted(range(len(own)), key=own.__getitem__)
    begins = tuple(i for i, (a, b) in enumerate(pairwise(order), 1) if own[a] != own[b])
    return TimeSegments(graph.with_nodes([graph.nodes[n] for n in order]), begins)


# --- division ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TimeCuts:
    """Where a tensor is divided: positions on an axis, from 0 to its extent."""

    axis: int
    places: tuple[int, ...]

    def boxes(self, shape: Sequence[int]) -> Iterator[Box]:
        """The parts of a tensor of this shape."""
        for ends in pairwise(self.places):
            yield (*whole(shape[: self.axis]), ends, *whole(shape[self.axis + 1 :]))


@dataclass
class _Division:
    """A graph under division into segments of ``length`` steps."""

    graph: Graph
    length: int
    lasting: set[str] = field(default_factory=set)  # weights, which are the same at all times
    wanted: dict[str, TimeCuts] = field(default_factory=dict)
    parts: dict[str, tuple[TimeCuts, list[str]]] = field(default_factory=dict)
    slices: dict[tuple[str, int, int, int], str] = field(default_factory=dict)

    def divided(self) -> Graph:
        """The graph with what steps slice, or join, computed in parts."""
        self.lasting = GraphBuilder.of(self.graph).lasting()
        self.want()
        new = Rewrite(self.graph)
        for name in self.graph.inputs:
            if name in self.graph.states:
                new.state(name, self.graph.states[name].initial)
            else:
                new.input(name, self.graph.types[name].shape, self.graph.types[name].dtype)
        for name, value in self.graph.constants.items():
            new.constant(value, name)
        for node in self.graph.nodes:
            self.add(new, node)
        after = {state.output: name for name, state in self.graph.states.items()}
        for number, name in enumerate(self.graph.outputs):
            self.all_of(new, name)
            if number in after and name != after[number]:
                new.update(after[number], name)
        new.trained = self.graph.trained
        results = [name for number, name in enumerate(self.graph.outputs) if number not in after]
        for name, (low, high) in self.graph.limits.items():
            new.limit(name, low, high)
        return new.build(*results)

    # --- where --------------------------------------------------------------------------------------------------------

    def want(self) -> None:
        """Finds cuts of what steps read slices of, and of what that is computed from."""
        readers = self.graph.consumers()
        for node in reversed(self.graph.nodes):
            name = node.outputs[0]
            rounds = self.rounds(node)
            if rounds is not None:
                self.wanted |= {read: rounds for read in operands_of(node).sequences if read not in self.lasting}
                continue
            if name in self.lasting:
                continue
            cuts = self.wanted.get(name) or self.sliced(name, readers[name])
            found = self.inputs_of(node, cuts) if cuts is not None else None
            if found is not None and cuts is not None:
                self.wanted[name] = cuts
                for read, own in zip(node.inputs, found, strict=True):
                    if own is not None:
                        self.wanted.setdefault(read, own)

    def sliced(self, name: str, readers: Sequence[Node]) -> TimeCuts | None:
        """The cuts of a tensor of which steps read slices that follow one another: behind each of a segment."""
        found: dict[int, list[tuple[int, int]]] = {}
        for node in readers:
            one = _one_axis(self.graph, node)
            if one is None:
                return None
            found.setdefault(one[0], []).append(one[1:])
        if len(found) != 1:
            return None
        ((axis, ends),) = found.items()
        ends = sorted({*ends})
        last = self.graph.types[name].shape[axis]
        follow = [0, *(high for _, high in ends)] == [*(low for low, _ in ends), last]
        return self.every(axis, [low for low, _ in ends] + [last]) if follow else None

    def every(self, axis: int, ends: Sequence[int]) -> TimeCuts | None:
        """TimeCuts at the ends of segments, of as many steps as there are ``ends``, less one; None for a single one."""
        places = (*ends[: -1 : self.length], ends[-1])
        return TimeCuts(axis, places) if len(ends) > LEAST and len(places) > 2 else None

    def is_open(self, node: Node) -> bool:
        """Whether a call decides an extent of a node: of what it reads and gives, boxes are not known."""
        return any(is_size(n) for name in (*node.inputs, *node.outputs) for n in self.graph.types[name].shape)

    def reads_parts(self, node: Node) -> bool:
        """Whether a node of one result that may be divided reads what is divided."""
        apart = self.parts.keys().isdisjoint(node.inputs) or ops.is_opaque(node.op)
        return len(node.outputs) == 1 and not apart and not self.is_open(node)

    def rounds(self, node: Node) -> TimeCuts | None:
        """The cuts of what the rounds of a body read and give one by one; None for other nodes. None is of one round
        behind longer ones: an operator on an axis of one element may be defined without it.
        """
        cuts = self.every(0, range(known_rounds(self.graph, node) + 1))
        if cuts is None or self.length == 1 or cuts.places[-1] - cuts.places[-2] > 1:
            return cuts
        places = (*cuts.places[:-2], cuts.places[-1])
        return TimeCuts(0, places) if len(places) > 2 else None

    def joined(self, node: Node) -> TimeCuts | None:
        """The cuts of a concatenation of what many steps give."""
        if node.op != "concat" or node.outputs[0] in self.lasting or self.is_open(node):
            return None
        axis = int(node.attrs["axis"]) % len(self.graph.types[node.outputs[0]].shape)  # type: ignore[arg-type]
        ends = [0]
        for name in node.inputs:
            ends.append(ends[-1] + self.graph.types[name].shape[axis])
        return self.every(axis, ends)

    def inputs_of(self, node: Node, cuts: TimeCuts) -> list[TimeCuts | None] | None:
        """Where a node's operands are cut if its result is; None for those read whole; None if it cannot be."""
        if len(node.outputs) != 1 or ops.is_opaque(node.op) or self.is_open(node):
            return None
        if self.joined(node) == cuts:
            return [None] * len(node.inputs)
        shape = self.graph.types[node.outputs[0]].shape
        if facts_of(self.graph, node).alias and node.op != "slice":
            own = _through_view(shape, self.graph.types[node.inputs[0]].shape, cuts)
            return None if own is None else [own]
        if self.numbered(node):
            same = [self.graph.types[name].shape == shape for name in node.inputs]
            return [cuts if own else None for own in same] if cuts.axis == 0 else None
        return self.tiled(node, [self.reads(node, box) for box in cuts.boxes(shape)])

    def tiled(self, node: Node, reads: Sequence[Reads]) -> list[TimeCuts | None] | None:
        """Where a node's operands are cut if its parts read these boxes; None for those read whole; None if they are
        no tiles, or the parts not the operator itself.
        """
        if not all(each.plain for each in reads):
            return None
        found = [
            _tiles([each.boxes[i] for each in reads], self.graph.types[n].shape) for i, n in enumerate(node.inputs)
        ]
        known = [own for own in found if own is not False]
        if len(known) < len(found) or self._picks(node, known):
            return None
        return known

    def numbered(self, node: Node) -> bool:
        """Whether the rows of a node depend on their number, and an operand may be that of the first one of a part."""
        arguments = ops.OPERATORS[node.op].arguments
        return arguments[-1:] == (FIRST,) and len(node.inputs) == len(arguments) - 1

    def _picks(self, node: Node, cuts: Sequence[TimeCuts | None]) -> bool:
        """Whether a node reads what is not cut at positions that are data: each part's gradient would be all of it."""
        types = tuple((self.graph.types[n].shape, self.graph.types[n].dtype) for n in node.inputs)
        (output,) = defined(ops.operator_named, node.op, tuple(node.attrs.items()), types)
        at_data = {int(a.source.name[1:]) for a in accesses(output) if any(loads(i) for i in a.indices)}
        return any(cuts[i] is None for i in at_data)

    def reads(self, node: Node, box: Box) -> Reads:
        """Boxes that a part of a node's result reads."""
        types = tuple((self.graph.types[n].shape, self.graph.types[n].dtype) for n in node.inputs)
        attributes = attributes_of(ops.operator_named(node.op), node.attrs)
        return part_reads(ops.operator_named, node.op, attributes, types, 0, box, ())

    # --- what ---------------------------------------------------------------------------------------------------------

    def add(self, new: Rewrite, node: Node) -> None:
        """Adds a node, or what computes the parts of its result."""
        rounds = self.rounds(node)
        if rounds is not None:
            self.add_rounds(new, node, rounds)
            return
        one = _one_axis(self.graph, node)
        if one is not None and node.inputs[0] in self.parts:
            self.add_slice(new, node, *one)
            return
        cuts = self.wanted.get(node.outputs[0]) or self.joined(node) or self.following(node)
        operands = self.inputs_of(node, cuts) if cuts is not None else None
        terms = self.terms(node) if operands is None else None
        if terms is not None:
            self.add_terms(new, node, terms)
            return
        if cuts is None or operands is None:
            for name in node.inputs:
                self.all_of(new, name)
            joins = node.op == "concat" and node.outputs[0] not in self.lasting and not self.is_open(node)
            new.replace(node, COPIED if joins else node.op, *node.inputs, **node.attrs)
            return
        self.parts[node.outputs[0]] = cuts, [*self.computed(new, node, cuts, operands)]

    def computed(self, new: Rewrite, node: Node, cuts: TimeCuts, operands: Sequence[TimeCuts | None]) -> Iterator[str]:
        """The parts of a node's result."""
        for i, box in enumerate(cuts.boxes(self.graph.types[node.outputs[0]].shape)):
            called: dict[str, Any] = {
                "name": new.fresh(f"{node.outputs[0]}.part{i}"), "node": f"{node.name}.part{i}"
            }  # fmt: skip
            attrs: dict[str, Any] = {**called, **node.attrs}
            if self.joined(node) == cuts:
                names = node.inputs[i * self.length : (i + 1) * self.length]
                given = [self.all_of(new, name) for name in names]
                yield given[0] if len(given) == 1 else new.add(COPIED, *given, **attrs)
                continue
            given = [
                self.all_of(new, name) if own is None else self.part(new, name, own, i)
                for name, own in zip(node.inputs, operands, strict=True)
            ]
            if self.numbered(node):
                given.append(new.constant(box[0][0]))
            if facts_of(self.graph, node).alias:
                yield new.add("reshape", *given, **called, shape=extents_of(box))
            else:
                yield new.add(node.op, *given, **attrs)

    def following(self, node: Node) -> TimeCuts | None:
        """The cuts of a result whose operand is cut, on the axis that reads the parts one by one."""
        if not self.reads_parts(node):
            return None
        shape = self.graph.types[node.outputs[0]].shape
        for name in node.inputs:
            if name not in self.parts:
                continue
            given, last = self.parts[name][0], self.graph.types[name].shape[self.parts[name][0].axis]
            for axis, extent in enumerate(shape):
                places = tuple(place * extent // last for place in given.places)
                exact = all(place * extent % last == 0 for place in given.places) and len({*places}) == len(places)
                cuts = TimeCuts(axis, places)
                found = self.inputs_of(node, cuts) if exact else None
                if found is not None and found[node.inputs.index(name)] == given:
                    return cuts
        return None

    def terms(self, node: Node) -> list[TimeCuts | None] | None:
        """Where the operands of a sum are cut along one of its axes, as parts that there are; None for other nodes."""
        if not self.reads_parts(node):
            return None
        types = tuple((self.graph.types[n].shape, self.graph.types[n].dtype) for n in node.inputs)
        (output,) = defined(ops.operator_named, node.op, tuple(node.attrs.items()), types)
        extents, box = sum_of(output).extents, whole(output.shape)
        attributes = attributes_of(ops.operator_named(node.op), node.attrs)
        for name in (name for name in node.inputs if name in self.parts):
            cuts, last = self.parts[name][0], self.graph.types[name].shape[self.parts[name][0].axis]
            for axis in (axis for axis, extent in enumerate(extents) if extent == last):
                reads = [
                    part_reads(
                        ops.operator_named, node.op, attributes, types, 0, box,
                        (*whole(extents[:axis]), ends, *whole(extents[axis + 1 :])),
                    )
                    for ends in pairwise(cuts.places)
                ]  # fmt: skip
                found = self.tiled(node, reads)
                if found is not None and found[node.inputs.index(name)] == cuts:
                    return found
        return None

    def add_terms(self, new: Rewrite, node: Node, operands: Sequence[TimeCuts | None]) -> None:
        """Adds a sum as one of each part, and their total."""
        count = len(next(own for own in operands if own is not None).places) - 1
        total = ""
        for i in range(count):
            given = [
                self.all_of(new, name) if own is None else self.part(new, name, own, i)
                for name, own in zip(node.inputs, operands, strict=True)
            ]
            called = f"{node.name}.part{i}"
            attrs: dict[str, Any] = {**node.attrs, "node": called}
            term = new.add(node.op, *given, **attrs)
            names = node.outputs if i + 1 == count else None
            total = term if not total else new.add_many("add_term", total, term, names=names, node=called)[0]

    def add_rounds(self, new: Rewrite, node: Node, cuts: TimeCuts) -> None:
        """Adds the rounds of a body as those of each segment."""
        found = segmented(
            new, node, len(cuts.places) - 1, lambda name, i: self.part(new, name, cuts, i), partial(self.all_of, new)
        )
        self.parts.update((name, (cuts, parts)) for name, parts in found.items())

    def part(self, new: Rewrite, name: str, cuts: TimeCuts, number: int) -> str:
        """Part of a tensor: what computes it, or a slice."""
        if name in self.parts and self.parts[name][0] == cuts:
            return self.parts[name][1][number]
        return self.slice_of(new, self.all_of(new, name), cuts.axis, *cuts.places[number : number + 2])

    def slice_of(self, new: Rewrite, name: str, axis: int, low: int, high: int) -> str:
        """A slice of a tensor on one axis, one for all that read it."""
        if (name, axis, low, high) not in self.slices:
            starts, extents = [0] * len(new.types[name].shape), [*new.types[name].shape]
            starts[axis], extents[axis] = low, high - low
            self.slices[name, axis, low, high] = new.add("slice", name, starts=tuple(starts), extents=tuple(extents))
        return self.slices[name, axis, low, high]

    def add_slice(self, new: Rewrite, node: Node, axis: int, low: int, high: int) -> None:
        """Adds a slice of a tensor that is divided: of the part that it lies in, if there is one."""
        cuts, names = self.parts[node.inputs[0]]
        for name, (begin, end) in zip(names, pairwise(cuts.places), strict=True):
            if axis == cuts.axis and begin <= low and high <= end:
                starts = [0] * len(new.types[name].shape)
                starts[axis] = low - begin
                new.replace(node, node.op, name, starts=tuple(starts), extents=node.attrs["extents"])
                return
        self.all_of(new, node.inputs[0])
        new.replace(node, node.op, *node.inputs, **node.attrs)

    def all_of(self, new: Rewrite, name: str) -> str:
        """A tensor as a whole, under its own name."""
        if name not in new.types:
            cuts, names = self.parts[name]
            new.add_many(COPIED, *names, names=(name,), node=name, axis=cuts.axis)
        return name


def _one_axis(graph: Graph, node: Node) -> tuple[int, int, int] | None:
    """The axis of a slice that takes all of the others, and where it begins and ends on that; None for other nodes."""
    if node.op != "slice" or any(step != 1 for step in node.attrs.get("steps") or ()):  # type: ignore[union-attr]
        return None
    shape, starts, extents = graph.types[node.inputs[0]].shape, node.attrs["starts"], node.attrs["extents"]
    part = [d for d, n in enumerate(shape) if (starts[d], extents[d]) != (0, n)]  # type: ignore[index]
    if len(part) != 1 or is_size(shape[part[0]]):
        return None
    low = int(starts[part[0]])  # type: ignore[index, arg-type]
    return part[0], low, low + int(extents[part[0]])  # type: ignore[index, arg-type]


def _through_view(shape: Sequence[int], source: Sequence[int], cuts: TimeCuts) -> TimeCuts | None:
    """The cuts of a tensor that a view keeps the order of, both outermost but for axes of one element."""
    if prod(shape[: cuts.axis]) != 1:
        return None
    axis = next((d for d, extent in enumerate(source) if extent != 1), 0)
    row, own = prod(shape[cuts.axis + 1 :]), prod(source[axis + 1 :])
    if any(place * row % own for place in cuts.places):
        return None
    return TimeCuts(axis, tuple(place * row // own for place in cuts.places))


def _tiles(boxes: Sequence[Box | None], shape: Sequence[int]) -> TimeCuts | Literal[False] | None:
    """Cuts between boxes that lie side by side along one axis; None for boxes of everything, False for others."""
    known = [box for box in boxes if box is not None]
    if len(known) < len(boxes):
        return False
    apart = [d for d, extent in enumerate(shape) if any(box[d] != (0, extent) for box in known)]
    if not apart:
        return None
    if len(apart) > 1:
        return False
    places = [known[0][apart[0]][0], *(box[apart[0]][1] for box in known)]
    same = all(box[apart[0]] == ends for box, ends in zip(known, pairwise(places), strict=True))
    return TimeCuts(apart[0], tuple(places)) if same and places[0] == 0 and places[-1] == shape[apart[0]] else False
