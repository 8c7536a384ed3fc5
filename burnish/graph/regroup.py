"""Fission of groups: into single nodes, a beginning and the rest, or what precedes an anchor and the rest."""

from __future__ import annotations

from collections.abc import Sequence

from burnish.graph.fuse import Fusion, Group
from burnish.graph.graph import Graph, Node


def fall_apart(graph: Graph, group: Group | None = None) -> list[Group]:
    """The nodes of a group, or of the whole graph, as groups of their own, in topological order."""
    fusion = Fusion(graph, lanes=1)
    nodes = graph.nodes if group is None else group.nodes
    positions = sorted(fusion.position[node.outputs[0]] for node in nodes)
    fusion.anchors = {p: None if fusion.facts[p].kind == "injective" else graph.nodes[p] for p in positions}
    return [fusion.group([p], fusion.anchors[p]) for p in positions]


def divided(graph: Graph, group: Group, count: int, fusion: Fusion | None = None) -> tuple[Group, Group] | None:
    """The first ``count`` nodes of a group, among them its anchor, and the others, as two; None where these are not
    injective, or the first have several results.
    """
    fusion = fusion or Fusion(graph, lanes=1)
    positions = sorted(fusion.position[node.outputs[0]] for node in group.nodes)
    first, rest = positions[:count], positions[count:]
    if any(fusion.facts[p].kind != "injective" for p in rest):
        return None
    own, others = fusion.group(first, group.anchor), fusion.group(rest, None)
    return (own, others) if len(own.outputs) == len(others.outputs) == 1 else None


def fronts(group: Group) -> list[tuple[Node, ...]]:
    """The chains of members in front of a group's anchor, one for each operand of it that a member computes."""
    if group.anchor is None:
        return []
    makers = {name: node for node in group.nodes for name in node.outputs}
    chains: list[tuple[Node, ...]] = []
    for name in dict.fromkeys(group.anchor.inputs):
        found, waiting = set[int](), [name]
        while waiting:
            node = makers.get(waiting.pop())
            if node is not None:
                found.add(group.nodes.index(node))
                waiting.extend(node.inputs)
        if found:
            chains.append(tuple(group.nodes[i] for i in sorted(found)))
    return chains


def detached(
    graph: Graph, group: Group, chains: Sequence[tuple[Node, ...]], fusion: Fusion | None = None
) -> list[Group]:
    """Chains in front of a group's anchor as groups of their own, and what remains of the group behind them."""
    fusion = fusion or Fusion(graph, lanes=1)
    at = fusion.position
    apart = list(dict.fromkeys(node for chain in chains for node in chain))
    rest = [at[node.outputs[0]] for node in group.nodes if node not in apart]
    parts, seen = list[Group](), set[Node]()
    for chain in chains:
        own = [node for node in chain if node not in seen]
        seen.update(own)
        if own:
            parts.append(fusion.group([at[node.outputs[0]] for node in own], None))
    return [*parts, fusion.group(rest, group.anchor)]
