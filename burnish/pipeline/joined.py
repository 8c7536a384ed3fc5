"""Joined groups: several kernels as one, where a template schedules all that they compute together (attention).

A chain of groups, each of which has one result that only the next one reads, becomes one group if a template of the
target that joins groups takes it: what was between them is then never in memory. In front of it the joined group takes
in what only moves or scales elements of one tensor. A product may take in a normalization that only it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from burnish.graph.fuse import Group
from burnish.graph.fusion_properties import facts_of
from burnish.graph.graph import Graph, Node

LONGEST = 4  # groups of a chain: two products, a softmax, and what may be between them

Takes = Callable[[Graph, Group], bool]


def join_groups(graph: Graph, groups: Sequence[Group], takes: Takes) -> list[Group]:
    """The groups in topological order, those of a chain between two products as one where ``takes`` agrees."""
    producers = {name: group for group in groups for name in group.outputs}
    readers: dict[str, int] = {}
    for group in groups:
        for name in group.inputs:
            readers[name] = readers.get(name, 0) + 1
    place = {node.outputs: number for number, node in enumerate(graph.nodes)}
    gone: dict[int, Group | None] = {}
    for last in groups:
        if not _is_product(graph, last):
            continue
        for chain in _chains(graph, last, producers, readers):
            if any(id(group) in gone for group in chain):
                continue
            whole = _together(chain, place)
            if _is_product(graph, chain[-1]) and takes(graph, whole):
                whole, fronts = _with_fronts(graph, whole, producers, readers, place, takes)
                gone.update({id(group): None for group in (*chain, *fronts)})
                gone[id(last)] = whole
                break
    kept = [group for group in (gone.get(id(group), group) for group in groups) if group is not None]
    return _join_normalized(graph, _join_rows(graph, kept, place, takes), place, takes)


def _join_normalized(graph: Graph, groups: list[Group], place: dict[tuple[str, ...], int], takes: Takes) -> list[Group]:
    """Products as one group with the rows of a reduction in front that only they read, where ``takes`` agrees."""
    producers = {name: group for group in groups for name in group.outputs}
    readers: dict[str, int] = {}
    for group in groups:
        for name in group.inputs:
            readers[name] = readers.get(name, 0) + 1
    gone: dict[int, Group | None] = {}
    for last in groups:
        if not _is_product(graph, last):
            continue
        for name in last.inputs:
            front = producers.get(name)
            if front is None or len(front.outputs) != 1 or readers[name] != 1 or name in graph.outputs:
                continue
            if _is_product(graph, front) or not _reduces(graph, front) or id(front) in gone:
                continue
            whole = _together((last, front), place)
            if takes(graph, whole):
                gone[id(front)], gone[id(last)] = None, whole
                break
    return [group for group in (gone.get(id(group), group) for group in groups) if group is not None]


def _join_rows(graph: Graph, groups: list[Group], place: dict[tuple[str, ...], int], takes: Takes) -> list[Group]:
    """Groups without products, as one with what only they read, where a reduction is in front: a normalization that is
    written out, for one.
    """
    producers = {name: group for group in groups for name in group.outputs}
    readers: dict[str, list[Group]] = {}
    for group in groups:
        for name in group.inputs:
            readers.setdefault(name, []).append(group)
    gone: dict[int, Group | None] = {}
    for last in reversed(groups):
        if id(last) in gone or _is_product(graph, last):
            continue
        parts, whole, refused = [last], last, list[Group]()
        while len(parts) < LONGEST:
            fronts = (producers.get(name) for name in whole.inputs)
            front = next(
                (
                    f
                    for f in fronts
                    if f is not None
                    and f not in refused
                    and len(f.outputs) == 1
                    and not f.alias
                    and not _is_product(graph, f)
                    and f.outputs[0] not in graph.outputs
                    and all(reader in parts for reader in readers[f.outputs[0]])
                    and (len(parts) > 1 or _reduces(graph, f))
                ),
                None,
            )
            if front is None:
                break
            more = _together((whole, front), place)
            if takes(graph, more):
                whole, parts = more, [*parts, front]
            else:
                refused.append(front)
        if len(parts) > 1:
            gone.update({id(part): None for part in parts})
            gone[id(last)] = whole
    return [group for group in (gone.get(id(group), group) for group in groups) if group is not None]


def _reduces(graph: Graph, group: Group) -> bool:
    return any(facts_of(graph, node).kind == "reduction" for node in group.nodes)


def _is_product(graph: Graph, group: Group) -> bool:
    return group.anchor is not None and facts_of(graph, group.anchor).kind == "complex"


def _chains(
    graph: Graph, last: Group, producers: dict[str, Group], readers: dict[str, int]
) -> Iterator[tuple[Group, ...]]:
    """The chains of three groups or more that end in ``last``, backwards."""
    paths: list[tuple[Group, ...]] = [(last,)]
    while paths:
        path = paths.pop()
        if len(path) > 2:
            yield path
        if len(path) == LONGEST:
            continue
        for name in path[-1].inputs:
            before = producers.get(name)
            if before is None or before in path or len(before.outputs) != 1 or before.alias:
                continue
            if readers[name] == 1 and name not in graph.outputs:
                paths.append((*path, before))


def _with_fronts(
    graph: Graph,
    whole: Group,
    producers: dict[str, Group],
    readers: dict[str, int],
    place: dict[tuple[str, ...], int],
    takes: Takes,
) -> tuple[Group, list[Group]]:
    """A group with those in front of it that only it reads, and that only move or scale, where ``takes`` agrees."""
    fronts: list[Group] = []
    waiting = [*whole.inputs]
    while waiting:
        name = waiting.pop()
        front = producers.get(name)
        if front is None or readers[name] != 1 or name in graph.outputs or front in fronts:
            continue
        if len(front.outputs) != 1 or not all(_moves_or_scales(graph, node) for node in front.nodes):
            continue
        more = _together((whole, front), place)
        if takes(graph, more):
            whole, fronts = more, [*fronts, front]
            waiting += front.inputs
    return whole, fronts


def _moves_or_scales(graph: Graph, node: Node) -> bool:
    """Whether each element of a node's result is one of an operand, perhaps times a constant."""
    facts = facts_of(graph, node)
    if facts.kind != "injective":
        return False
    varying = [name for name in node.inputs if name not in graph.constants or graph.types[name].size > 1]
    return len(varying) == 1 and (facts.moves or (facts.scales and len(node.inputs) == 2))


def _together(chain: Sequence[Group], place: dict[tuple[str, ...], int]) -> Group:
    """One group of all nodes, with the anchor of the last."""
    last = chain[0]
    inside = {name for group in chain for node in group.nodes for name in node.outputs}
    nodes = sorted((node for group in chain for node in group.nodes), key=lambda node: place[node.outputs])
    inputs = dict.fromkeys(name for group in reversed(chain) for name in group.inputs if name not in inside)
    return Group(tuple(nodes), tuple(inputs), last.outputs, last.anchor)
