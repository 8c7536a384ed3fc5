"""Bundles of groups: maps that do not wait for each other as one group, on devices where every launch has a price.

What a step of training does with each parameter (its conversion to half precision, the update of it and of what the
optimizer remembers), and with short vectors, is many small kernels. Here each is put off until something needs it, and
all that could be computed then go along: one launch, whose blocks are divided among them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from burnish.graph.fuse import Group
from burnish.graph.fusion_properties import facts_of
from burnish.graph.graph import Graph, Node
from burnish.loops.expr import Reduce
from burnish.loops.sizes import is_size
from burnish.loops.tensor import placeholder, stages
from burnish.ops import OPERATORS, is_opaque

SHORT = 1 << 16  # bytes of tensors that may as well be there earlier, or later
MOST_TERMS = 128  # of a reduction that one thread computes
MOST_HELD = 32 << 20  # bytes that such a reduction reads, which are there until it is computed
MOST_TENSORS = 384  # of a bundle: their addresses are parameters of a launch, which are 4 KiB in all


def bundle_groups(graph: Graph, groups: Sequence[Group], is_map: Callable[[Group], bool]) -> list[Group]:
    """The groups in topological order, with maps that are put off together as one. ``is_map``: whether a group is a
    kernel of its own and :func:`is_plain_map`.
    """
    return _Bundles(graph, groups, is_map).run()


class _Bundles:
    """Groups under arrangement: those put off, and those that have their place."""

    def __init__(self, graph: Graph, groups: Sequence[Group], is_map: Callable[[Group], bool]) -> None:
        self.graph, self.groups = graph, groups
        self.after = {graph.outputs[state.output]: name for name, state in graph.states.items()}
        self.place = {node.outputs: number for number, node in enumerate(graph.nodes)}
        self.read = {name for group in groups for name in group.inputs}
        self.readers: dict[str, int] = {}  # groups without a place yet that read a state
        for group in groups:
            for name in {*group.inputs} & graph.states.keys():
                self.readers[name] = self.readers.get(name, 0) + 1
        self.movable = self._movable([group for group in groups if is_map(group)])
        self.held = {g.outputs[0]: g for g in groups if id(g) in self.movable}  # by what they compute; without a place
        self.known = {*graph.inputs, *graph.constants}  # what has been computed, or is given
        self.needs, self.awaited = inputs_needed(graph, groups), awaited(graph, groups)
        self.result: list[Group] = []

    def _movable(self, maps: Sequence[Group]) -> set[int]:
        """The maps that may be put off and go along with others, without much memory that is held for longer."""
        graph, found = self.graph, set[int]()
        users: dict[str, list[Group]] = {}
        for group in self.groups:
            for name in group.inputs:
                users.setdefault(name, []).append(group)
        given = {*graph.inputs, *graph.constants, *self._arranged(maps)}
        for group in reversed(maps):
            (name,) = group.outputs
            if name in graph.outputs and name not in self.after:  # the caller, or another device, waits for it
                continue
            late = all(id(user) in found for user in users.get(name, ()))
            last = late and (name in self.after or name in users)
            own = {name, self.after.get(name, name)}  # a state is written where it is
            short = all(
                graph.types[n].nbytes <= SHORT for n in {*group.inputs, name} - (own if len(own) > 1 else set())
            )
            if last or short or given.issuperset(group.inputs):
                found.add(id(group))
        return found

    def _arranged(self, maps: Sequence[Group]) -> set[str]:
        """The results of maps of parameters alone that take no more memory than these: as halves, or turned."""
        graph = self.graph
        found = {*graph.states, *graph.constants}
        for group in maps:
            most = max((graph.types[name].nbytes for name in group.inputs), default=0)
            if found.issuperset(group.inputs) and graph.types[group.outputs[0]].nbytes <= most:
                found.update(group.outputs)
        return found

    def run(self) -> list[Group]:
        last = list[Group]()  # they overwrite states, whose values before something that is put off may read
        for group in self.groups:
            if id(group) in self.movable:
                continue
            while not self.held.keys().isdisjoint(group.inputs):
                self._release(self._waiting(group))
            if group.outputs[0] in self.after and group.outputs[0] not in self.read:
                last.append(group)
            else:
                self._put(group)
        while self.held:
            self._release([*self.held.values()])
        return [*self.result, *last]

    def _put(self, group: Group) -> None:
        for name in {*group.inputs} & self.readers.keys():
            self.readers[name] -= 1
        self.known.update(group.outputs)
        self.result.append(group)

    def _waiting(self, group: Group) -> list[Group]:
        """Maps put off that may go along with what a group reads, so that nothing that the caller or another device
        waits for needs inputs, which may be messages, that it did not need.
        """
        given, held = self._needed(group), [*self.held.values()]
        if not self.awaited.isdisjoint(group.outputs):
            return [each for each in held if self._needed(each) <= given]
        soon = not self.awaited.isdisjoint({*group.inputs} & self.held.keys())
        return [each for each in held if self.awaited.isdisjoint(each.outputs) != soon] or held

    def _needed(self, group: Group) -> set[str]:
        """The graph's inputs that a group is computed from."""
        return {name for each in group.inputs for name in self.needs[each]}

    def _release(self, among: Sequence[Group]) -> None:
        """Places what is ready of some that were put off, as one group or, of too many tensors, some."""
        ready = [g for g in among if self.known.issuperset(g.inputs)]
        ready = ready or [g for g in self.held.values() if self.known.issuperset(g.inputs)]
        free = [g for g in ready if self._is_free(g)] or ready[:1]
        while free:
            taken, names = list[Group](), set[str]()
            for group in [*free]:
                own = {*group.inputs, *group.outputs}
                if taken and len(names | own) > MOST_TENSORS:
                    break
                taken.append(group)
                names |= own
                free.remove(group)
            for group in taken:
                del self.held[group.outputs[0]]
            self._put(self._together(taken))

    def _is_free(self, group: Group) -> bool:
        """Whether nothing that has no place yet reads the state that a group overwrites, but itself."""
        state = self.after.get(group.outputs[0])
        return state is None or self.readers.get(state, 0) <= (state in group.inputs)

    def _together(self, groups: Sequence[Group]) -> Group:
        if len(groups) == 1:
            return groups[0]
        nodes = sorted((node for group in groups for node in group.nodes), key=lambda node: self.place[node.outputs])
        inputs = dict.fromkeys(name for group in groups for name in group.inputs)
        return Group(tuple(nodes), tuple(inputs), tuple(group.outputs[0] for group in groups))


def inputs_needed(graph: Graph, groups: Sequence[Group]) -> dict[str, frozenset[str]]:
    """The graph's inputs, without states, that each tensor is computed from."""
    found: dict[str, frozenset[str]] = {name: frozenset() for name in (*graph.states, *graph.constants)}
    found.update((name, frozenset((name,))) for name in graph.inputs if name not in graph.states)
    same: dict[frozenset[str], frozenset[str]] = {}  # one set for all equal ones
    for group in groups:
        needed = frozenset[str]().union(*{found[name] for name in group.inputs})
        found.update(dict.fromkeys(group.outputs, same.setdefault(needed, needed)))
    return found


def awaited(graph: Graph, groups: Sequence[Group]) -> set[str]:
    """The tensors that results, other than the next values of states, are computed from, and these results."""
    found = {*graph.outputs} - {graph.outputs[state.output] for state in graph.states.values()}
    for group in reversed(groups):
        if not found.isdisjoint(group.outputs):
            found.update(group.inputs)
    return found


def is_plain_map(graph: Graph, group: Group) -> bool:
    """Whether a group has one result, of a known number of elements, more than none, each of which is computed by
    itself, or from a few by a reduction.
    """
    if group.alias or len(group.outputs) != 1 or any(is_opaque(node.op) for node in group.nodes):
        return False
    if any(
        facts_of(graph, n).kind != "injective" and not (n is group.anchor and _reduces_few(graph, n))
        for n in group.nodes
    ):
        return False
    names = {name for node in group.nodes for name in (*node.inputs, *node.outputs)}
    return not any(is_size(d) or d == 0 for name in names for d in graph.types[name].shape)


def _reduces_few(graph: Graph, node: Node) -> bool:
    """Whether each element of a node's result is reduced from a few, in one stage."""
    types = [graph.types[name] for name in node.inputs]
    if facts_of(graph, node).kind != "reduction" or any(is_size(d) for t in types for d in t.shape):
        return False
    results = OPERATORS[node.op].define(
        "y", [placeholder(t.shape, t.dtype, f"x{i}") for i, t in enumerate(types)], node.attrs
    )
    sums = [t.body for t in stages(results) if isinstance(t.body, Reduce)]
    extents = [axis.extent for body in sums for axis in body.axes]
    return len(sums) == 1 and prod(extents) <= MOST_TERMS and sum(t.nbytes for t in types) <= MOST_HELD
