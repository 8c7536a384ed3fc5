"""Partial sums of products that are added up later, together: split gradients of weights, on devices where every launch
has a price.

A product whose depth is split over blocks leaves partial sums, which a launch of its own adds up. Where nothing needs
the product before the end of a step of training, the parts are kept, and added up by the map that reads them, where
parameters are updated, in one launch for all (:mod:`burnish.pipeline.bundles`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod

from burnish.graph.fuse import Group
from burnish.graph.fusion_properties import facts_of
from burnish.graph.graph import Attribute, Graph, Node, infer_types
from burnish.loops.expr import ITEM_BYTES, Reduce
from burnish.loops.tensor import Tensor, placeholder
from burnish.ops import OPERATORS
from burnish.ops.part import attributes_of
from burnish.ops.partial_sums import product_of

MOST_PARTS = 128  # which a thread adds up
MOST_BYTES = 32 << 20  # of all parts of a product: more of them cost more memory than a launch does time
IMAGE = 4  # dimensions
LAST, FIRST = (0, 2, 3, 1), (0, 3, 1, 2)  # orders of these: channels last, and back

Parts = Callable[[Graph, Group], int]


def defer_sums(
    graph: Graph, groups: Sequence[Group], parts: Parts, is_map: Callable[[Group], bool], channels_last: bool
) -> tuple[Graph, list[Group]]:
    """The graph and its groups in topological order, products that nothing needs soon as their partial sums, where
    these are made, and what adds them. ``parts``: how many the kernel of a group would add in a launch of its own;
    ``is_map``: whether a group is a kernel of its own that computes elements; ``channels_last``: so are images stored.
    """
    late = _late(graph, groups, is_map)
    made = {name: number for number, group in enumerate(groups) for name in group.outputs}
    placed: list[list[Group]] = [[] for _ in groups]
    readers = Counter(name for group in groups for name in group.inputs)
    sums: dict[str, tuple[int, Group]] = {}  # what adds partial sums up, by its result, and its place
    for number, group in enumerate(groups):
        product = number in late and group.anchor is not None and not is_map(group)
        split = _split(graph, group, parts, channels_last) if product else None
        if split is None:
            read = next((name for name in group.inputs if name in sums and readers[name] == 1), None)
            if read is not None and is_map(group) and _adds_there(graph, group, read):
                place, last = sums.pop(read)
                placed[place].remove(last)
                group = _together(graph, last, group)
            placed[number].append(group)
            continue
        graph, first, last = split
        placed[max((made[name] for name in first.inputs if name in made), default=0)].append(first)
        placed[number].append(last)
        sums[last.outputs[0]] = (number, last)
    return graph, [group for found in placed for group in found]


def _adds_there(graph: Graph, group: Group, sums: str) -> bool:
    """Whether a map that reads sums may add them up itself: none of them for several of its elements."""
    maps = all(facts_of(graph, node).kind == "injective" for node in group.nodes)
    fits = graph.types[group.outputs[0]].size <= graph.types[sums].size
    return maps and fits and sums not in graph.outputs


def _together(graph: Graph, last: Group, group: Group) -> Group:
    """Group of what adds partial sums up, and the map that reads them."""
    nodes = (*last.nodes, *group.nodes)
    return Group(nodes, _read(nodes, graph), group.outputs, last.anchor)


def _late(graph: Graph, groups: Sequence[Group], is_map: Callable[[Group], bool]) -> set[int]:
    """The numbers of products, and of maps behind them, from which only the next values of states are made."""
    after = {graph.outputs[state.output] for state in graph.states.values()}
    results = {*graph.outputs} - after
    readers: dict[str, list[int]] = {}
    for number, group in enumerate(groups):
        for name in group.inputs:
            readers.setdefault(name, []).append(number)
    found = set[int]()
    for number in reversed(range(len(groups))):
        group = groups[number]
        product = group.anchor is not None and facts_of(graph, group.anchor).kind == "complex"
        if not (product or is_map(group)) or not results.isdisjoint(group.outputs):
            continue
        users = [reader for name in group.outputs for reader in readers.get(name, ())]
        if all(user in found and is_map(groups[user]) for user in users):
            found.add(number)
    return found


def _split(graph: Graph, group: Group, parts: Parts, channels_last: bool) -> tuple[Graph, Group, Group] | None:
    """A product as its partial sums: the graph, the group that computes them, and that of what adds them; None where
    it is not one that is split.
    """
    count, more = 1, parts(graph, group)
    allowed, found = _counts(graph, group) if more > 1 else [], None
    while more > 1:  # as long as a kernel of that many would itself be split
        larger = [n for n in allowed if n > count]
        count = min((n for n in larger if n >= count * more), default=max(larger, default=0))
        found = _in_parts(graph, group, count, channels_last) if count else None
        if found is None:
            return None
        more = parts(found[0], found[1])
    return found


def _counts(graph: Graph, group: Group) -> list[int]:
    """Numbers of equal parts of a product's longest axis that are not too many, nor too large together; ascending."""
    defined = _defined(graph, group)
    if defined is None:
        return []
    product = defined[1]
    longest = max(axis.extent for axis in product.body.axes) if isinstance(product.body, Reduce) else 1
    most = min(MOST_PARTS, MOST_BYTES // (prod(product.shape) * ITEM_BYTES[product.dtype]))
    return [n for n in range(2, most + 1) if longest % n == 0]


def _defined(graph: Graph, group: Group) -> tuple[Tensor, Tensor] | None:
    """The only result of a group's product, and the sum of products that it is, perhaps converted; None of others."""
    anchor = group.anchor
    assert anchor is not None
    inputs = [placeholder(graph.types[n].shape, graph.types[n].dtype, f"x{i}") for i, n in enumerate(anchor.inputs)]
    outputs = OPERATORS[anchor.op].define("y", inputs, anchor.attrs)
    product = product_of(outputs[0]) if len(outputs) == 1 else None
    return None if product is None else (outputs[0], product)


def _in_parts(graph: Graph, group: Group, count: int, channels_last: bool) -> tuple[Graph, Group, Group] | None:
    """Product split into ``count`` partial sums, of :func:`_counts`; None of one that more than these wait for."""
    anchor = group.anchor
    assert anchor is not None
    front, behind = _around(group, anchor)
    inside = {name for node in front for name in node.outputs}
    defined = _defined(graph, group)
    if defined is None or any(name in inside for node in behind for name in node.inputs):
        return None
    whole, product = defined
    turned = channels_last and len(product.shape) == IMAGE
    order = LAST if turned else tuple(range(len(product.shape)))
    attrs: dict[str, Attribute] = {
        "operator": anchor.op,
        "attributes": attributes_of(OPERATORS[anchor.op], anchor.attrs),
    }
    (result,) = anchor.outputs
    sums = f"{result}/parts"
    first = replace(anchor, op="partial_sums", outputs=(sums,), attrs={**attrs, "count": count, "order": order})
    nodes = _added(sums, result, turned, graph.types[result].dtype if product is not whole else None)
    own = (*front, first)
    made = Group(own, _read(own, graph), (sums,), first)
    added = (*nodes, *behind)
    last = Group(added, _read(added, graph), group.outputs, nodes[0])
    return _with_nodes(graph, (first, *nodes)), made, last


def _around(group: Group, anchor: Node) -> tuple[list[Node], list[Node]]:
    """The nodes of a group that the anchor is computed from, and the others."""
    needed, front = {*anchor.inputs}, list[Node]()
    for node in reversed(group.nodes):
        if node is not anchor and not needed.isdisjoint(node.outputs):
            front.insert(0, node)
            needed.update(node.inputs)
    return front, [node for node in group.nodes if node is not anchor and node not in front]


def _added(sums: str, result: str, turned: bool, dtype: str | None) -> list[Node]:
    """The nodes that make a result of partial sums: added up, turned to the usual order, converted to ``dtype``."""
    steps: list[tuple[str, dict[str, Attribute]]] = [("reduce_sum", {"axes": (0,), "keepdims": False})]
    steps += [("transpose", {"perm": FIRST})] if turned else []
    steps += [("cast", {"to": dtype})] if dtype is not None else []
    names = [sums, *(f"{result}/{op}" for op, _ in steps[:-1]), result]
    return [Node(op, (names[i],), (names[i + 1],), attrs) for i, (op, attrs) in enumerate(steps)]


def _read(nodes: Sequence[Node], graph: Graph) -> tuple[str, ...]:
    """The tensors that nodes read of others, but for constants of one element, which are part of the code."""
    inside = {name for node in nodes for name in node.outputs}
    found = dict.fromkeys(name for node in nodes for name in node.inputs if name not in inside)
    return tuple(n for n in found if n not in graph.constants or graph.types[n].size != 1)


def _with_nodes(graph: Graph, nodes: Sequence[Node]) -> Graph:
    """The graph with nodes in the place of the one that has computed the last one's result."""
    types = dict(graph.types)
    for node in nodes:
        inferred = infer_types(node.op, [types[name] for name in node.inputs], node.attrs)
        types.update(zip(node.outputs, inferred, strict=True))
    result = nodes[-1].outputs
    own = [each for node in graph.nodes for each in (nodes if node.outputs == result else (node,))]
    return graph.with_nodes(own, types=types)
