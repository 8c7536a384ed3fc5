"""Whole-graph layout choice: which activations are stored in channel blocks, and where that has to end."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from burnish.graph.algorithms import TRANSFORMS
from burnish.graph.fuse import Group
from burnish.graph.fusion_properties import facts_of
from burnish.graph.graph import Graph, Node
from burnish.graph.row_images import takes_rows
from burnish.loops.layout import Layout, layout
from burnish.loops.sizes import hinted
from burnish.machines.target import Target
from burnish.ops import OPERATORS, is_opaque

BLOCKED = ("float32",)  # dtypes of images in blocks that CPUs compute with
CONVOLUTION = 4.0  # affinity from which on images are worth a conversion of their own
ENLARGED = 4  # times as many bytes as are read, for which a copy of them costs more than gathering their channels
WINDOW = 2.0  # affinity of pools and what gains more: their operands are images, those of a join may be anything


CHANNELS_LAST = layout("ACDB")


def blocked(lanes: int) -> Layout:
    """NCHW with the channels in blocks of one vector; of one element, channels last."""
    return layout(f"ABCD{lanes}b") if lanes > 1 else CHANNELS_LAST


def image_blocks(target: Target) -> tuple[int, tuple[str, ...]]:
    """Channels of a block of images for a target's kernels, and the dtypes of images that are stored so; blocks of one
    are channels last, on machines that want this of some.
    """
    if target.channels_last:
        return 1, target.channels_last
    return target.lanes, target.machine.blocked if target.lanes > 1 else ()


def choose_layouts(
    graph: Graph, groups: Sequence[Group], lanes: int, dtypes: Collection[str] = BLOCKED
) -> dict[str, Layout]:
    """The layout of every activation that is not row-major; only those of ``dtypes`` may be.

    A value is blocked when the groups that write and read it gain more than they lose (the affinities of their
    operators: a convolution that reads plain channels cannot vectorize its stores), and it fills more than half a
    block, and one of those groups, or a neighbour that gains, too, and so on, reads windows of an image: other values
    need not have channels in the second of four dimensions. Graph inputs and outputs are row-major: that is their
    contract. So are operands and results of opaque operators.
    """
    if not dtypes:
        return {}
    fixed = {*graph.inputs, *graph.outputs, *graph.constants, *weights_of(graph, groups)}
    for node in graph.nodes:
        if is_opaque(node.op):
            fixed |= {*node.inputs, *node.outputs}
    score: dict[str, float] = {}
    images = set[str]()
    operands = [_images_of(graph, group) for group in groups]
    for group, own in zip(groups, operands, strict=True):
        worth = sum(OPERATORS[op].traits.layout_affinity for op in {node.op for node in group.nodes})
        for name in own:
            score[name] = score.get(name, 0.0) + worth
        images.update(own if worth >= WINDOW else ())
        for name in () if group.anchor is None else _adjoints(graph, group.anchor):
            score[name] = score.get(name, 0.0) + CONVOLUTION
            images.add(name)
    gaining = {
        name
        for name, worth in score.items()
        if worth > 0 and name not in fixed and _blockable(graph, name, lanes, dtypes)
    }
    chosen = _reached(operands, gaining & images, gaining)
    rows = {group.outputs[0] for group in groups if _normalizes_rows(graph, group, chosen)}
    chosen -= rows - _read_in_blocks(graph, groups, lanes)
    for _ in range(2):  # element-wise groups follow their neighbours
        for group, own in zip(groups, operands, strict=True):
            if _contracts_images(graph, group):
                continue
            values = [n for n in own if n not in fixed and _blockable(graph, n, lanes, dtypes)]
            if all(score.get(n, 0.0) == 0.0 or n in chosen for n in values) and any(n in chosen for n in values):
                chosen.update(values)
    return {name: blocked(lanes) for name in chosen} | _words_in_place(graph, groups, chosen - fixed, lanes)


def _words_in_place(graph: Graph, groups: Sequence[Group], images: Collection[str], lanes: int) -> dict[str, Layout]:
    """Words of the channels of images in blocks, as they lie there: of whole blocks, read by convolutions alone."""
    found, readers = {}, graph.consumers()
    for group in groups:
        (node, *others), result = group.nodes, group.outputs[0]
        if others or not packs_channels(graph, node) or node.inputs[0] not in images or result in graph.outputs:
            continue
        channels, words = (graph.types[name].shape[1] for name in (node.inputs[0], result))
        if channels % lanes == 0 and all(has_pixels(graph, r) and r.inputs[0] == result for r in readers[result]):
            found[result] = blocked(lanes * words // channels)
    return found


def packs_channels(graph: Graph, node: Node) -> bool:
    """Whether a node takes successive channels of bytes as one word each, as they are."""
    packs = OPERATORS[node.op].traits.packs and not node.attrs.get("flip", False)
    return packs and len(graph.types[node.inputs[0]].shape) == 4 and node.attrs.get("axis") in (1, -3)


def _reached(operands: Sequence[Sequence[str]], found: set[str], allowed: set[str]) -> set[str]:
    """``found``, and the ``allowed`` values of groups with these ``operands`` that have a value reached."""
    chosen, before = set(found), -1
    while len(chosen) != before:
        before = len(chosen)
        for values in operands:
            if any(name in chosen for name in values):
                chosen.update(allowed.intersection(values))
    return chosen


def _images_of(graph: Graph, group: Group) -> list[str]:
    """The operands and results of a group; without operands whose channels are not where a permutation reads them."""
    makers = {name: node for node in group.nodes for name in node.outputs}
    moved, waiting = set[str](), list[str]()
    for node in group.nodes:
        permutation = facts_of(graph, node).permutation
        if permutation is not None and len(permutation) == 4 and permutation[1] != 1:
            waiting += node.inputs
    while waiting:
        name = waiting.pop()
        moved.add(name)
        waiting += makers[name].inputs if name in makers else ()
    return [name for name in (*group.inputs, *group.outputs) if name not in moved or name in group.outputs]


def _read_in_blocks(graph: Graph, groups: Sequence[Group], lanes: int) -> set[str]:
    """The images of convolutions whose kernels read blocks alone."""
    anchors = [group.anchor for group in groups if group.anchor is not None]
    return {node.inputs[0] for node in anchors if has_pixels(graph, node) and not takes_rows(graph, node, lanes)}


def _normalizes_rows(graph: Graph, group: Group, images: Collection[str]) -> bool:
    """Whether a group normalizes a row-major image, so that its result is one: else it gathers vectors of channels."""
    anchor = group.anchor
    if anchor is None or facts_of(graph, anchor).kind != "reduction":
        return False
    shape = graph.types[anchor.inputs[0]].shape
    if graph.types[anchor.outputs[0]].shape != shape:
        return False
    return all(name not in images for name in group.inputs if graph.types[name].shape == shape)


def _contracts_images(graph: Graph, group: Group) -> bool:
    """Whether a group computes a product that holds no pixels, such as the gradient of a weight."""
    return group.anchor is not None and _holds_no_pixels(graph, group.anchor)


def _holds_no_pixels(graph: Graph, node: Node) -> bool:
    facts = facts_of(graph, node)
    return facts.kind == "complex" and not facts.pixels


def _adjoints(graph: Graph, node: Node) -> list[str]:
    """The operands of a convolution's weight gradient whose channels are the weight's outputs: its kernels read them as
    blocks. None of another node.
    """
    shape = graph.types[node.outputs[0]].shape
    if len(shape) != 4 or len(node.inputs) != 2 or not _holds_no_pixels(graph, node):
        return []
    types = [graph.types[name].shape for name in node.inputs]
    return [n for n, s in zip(node.inputs, types, strict=True) if len(s) == 4 and s[1] == shape[0]]


def _blockable(graph: Graph, name: str, lanes: int, dtypes: Collection[str]) -> bool:
    shape = graph.types[name].shape
    return len(shape) == 4 and 2 * hinted(shape[1]) > lanes and graph.types[name].dtype in dtypes


def _affinity(node: Node) -> float:
    return OPERATORS[node.op].traits.layout_affinity


def separate_inputs(graph: Graph, lanes: int, dtypes: Collection[str] = BLOCKED) -> Graph:
    """Gives a graph input that convolutions read a copy of its own, which may be stored in blocks."""
    if not dtypes:
        return graph
    types = dict(graph.types)
    copies: list[Node] = []
    renamed: dict[str, str] = {}
    readers = graph.consumers()
    for name in graph.inputs:
        images = [node for node in readers[name] if node.inputs[0] == name]
        wanted = any(_affinity(node) >= CONVOLUTION and not takes_rows(graph, node, lanes) for node in images)
        wanted = wanted or any(name in _adjoints(graph, node) for node in readers[name])
        if wanted and _blockable(graph, name, lanes, dtypes) and graph.types[name].shape[1] % lanes == 0:
            renamed[name] = f"{name}.blocked"
            types[renamed[name]] = types[name]
            copies.append(Node("identity", (name,), (renamed[name],)))
    nodes = [
        replace(
            n,
            inputs=tuple(i if p and _reads_weight(graph, n, p) else renamed.get(i, i) for p, i in enumerate(n.inputs)),
        )
        for n in graph.nodes
    ]
    return replace(graph, nodes=(*copies, *nodes), types=types)


def _reads_weight(graph: Graph, node: Node, position: int) -> bool:
    """Whether an operand is the weight of a convolution, or of a product of parts that were made of it."""
    return position == 1 and len(node.inputs) == 2 and (has_pixels(graph, node) or node.op in TRANSFORMS)


def has_pixels(graph: Graph, node: Node) -> bool:
    """Whether a node computes the channels of an image, as convolutions do."""
    if node.op in TRANSFORMS:
        return len(graph.types[node.outputs[0]].shape) == 4 and len(graph.types[node.inputs[1]].shape) > 3
    convolves = _affinity(node) >= CONVOLUTION and OPERATORS[node.op].traits.weight_channel is not None
    return convolves or facts_of(graph, node).pixels


def weights_of(graph: Graph, groups: Sequence[Group]) -> set[str]:
    """The values that kernels read as weights and are no constants: they are packed at each call."""
    anchors = [group.anchor for group in groups if group.anchor is not None]
    found = {node.inputs[1] for node in anchors if len(node.inputs) == 2 and _reads_weight(graph, node, 1)}
    return found - graph.constants.keys()


def separate_outputs(
    graph: Graph, groups: Sequence[Group], lanes: int, dtypes: Collection[str] = BLOCKED
) -> tuple[Graph, list[Group]]:
    """Gives graph outputs that are better written, or read again, in blocks a copy of their own; the rest stay as are.

    Who reads such an output reads the blocks::

        y = conv2d(x, w)             y.blocked = conv2d(x, w)
        z = conv2d(y, v)             y = identity(y.blocked)
                                     z = conv2d(y.blocked, v)
    """
    read = {name for group in groups for name in group.inputs}
    blocks = choose_layouts(graph, groups, lanes, dtypes)
    wanted = []
    for group in groups:
        result, anchor = group.outputs[0], group.anchor
        if len(group.outputs) != 1 or result not in graph.outputs or not _blockable(graph, result, lanes, dtypes):
            continue
        gains = anchor is not None and _affinity(anchor) >= CONVOLUTION and not takes_rows(graph, anchor, lanes)
        if gains or result in read or _gathers_channels(graph, group, blocks):
            wanted.append(result)
    if not wanted:
        return graph, list(groups)
    tried, divided = _with_copies(graph, groups, wanted)
    blocks = choose_layouts(tried, divided, lanes, dtypes)
    better = [name for name in wanted if _copy_of(name) in blocks]
    return (tried, divided) if better == wanted else _with_copies(graph, groups, better)


def _gathers_channels(graph: Graph, group: Group, blocks: Collection[str]) -> bool:
    """Whether a join or another map of images in blocks writes rows, for which it would gather channels: unless it is
    element-wise, only moves them, as the template of copies does, or writes far more than it reads.
    """
    facts = [facts_of(graph, node) for node in group.nodes]
    if group.anchor is not None or all(f.view for f in facts) or all(f.elementwise for f in facts):
        return False
    images = [graph.types[name].nbytes for name in group.inputs if name in blocks]
    return hinted(graph.types[group.outputs[0]].nbytes) <= ENLARGED * sum(map(hinted, images))


def _copy_of(output: str) -> str:
    return f"{output}.blocked"


def _with_copies(graph: Graph, groups: Sequence[Group], outputs: Sequence[str]) -> tuple[Graph, list[Group]]:
    """The graph and its groups with ``outputs`` computed under another name, which all read, and copied from there."""
    inner = {name: _copy_of(name) for name in outputs}
    types = dict(graph.types)
    types.update({own: graph.types[name] for name, own in inner.items()})
    result: list[Group] = []
    for group in groups:
        changed = {node: _renamed(node, inner) for node in group.nodes}
        result.append(
            replace(
                group,
                nodes=tuple(changed[node] for node in group.nodes),
                inputs=tuple(inner.get(name, name) for name in group.inputs),
                outputs=tuple(inner.get(name, name) for name in group.outputs),
                anchor=None if group.anchor is None else changed[group.anchor],
            )
        )
        for name in group.outputs:
            if name in inner:
                result.append(Group((Node("identity", (inner[name],), (name,)),), (inner[name],), (name,)))
    nodes = [node for group in result for node in group.nodes]
    return replace(graph, nodes=tuple(nodes), types=types), result


def _renamed(node: Node, names: Mapping[str, str]) -> Node:
    inputs = tuple(names.get(name, name) for name in node.inputs)
    outputs = tuple(names.get(name, name) for name in node.outputs)
    return node if (inputs, outputs) == (node.inputs, node.outputs) else replace(node, inputs=inputs, outputs=outputs)
