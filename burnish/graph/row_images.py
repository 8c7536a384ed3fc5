"""Row-major images: which convolutions read and write them as they are, and what conversions to blocks take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from burnish.graph.costs import KERNEL, copy_seconds
from burnish.graph.graph import Graph, Node
from burnish.loops.sizes import hinted
from burnish.machines.target import Target
from burnish.ops import OPERATORS

FILLED = 0.75  # of the lanes that columns are computed in: of fewer, whole vectors of channels are faster


def suits_rows(graph: Graph, node: Node, lanes: int) -> bool:
    """Whether a convolution in groups that fill no vectors has only element-wise nodes between graph input and output.

    It is then faster on rows than a conversion to blocks and back, if its columns fill vectors, or half ones, better.
    """
    outputs, depth = graph.types[node.inputs[1]].shape[:2]
    groups = graph.types[node.inputs[0]].shape[1] // depth
    width, half = hinted(graph.types[node.outputs[0]].shape[3]), max(lanes // 2, 1)
    small = depth < lanes or outputs // groups % lanes != 0
    filled = depth == 1 or width >= FILLED * -(-width // half) * half
    if node.inputs[0] not in graph.inputs or groups == 1 or not small or not filled:
        return False
    return reaches_output(graph, node)


def reaches_output(graph: Graph, node: Node) -> bool:
    """Whether a node's result becomes an output of the graph through nodes alone that gain nothing by blocks."""
    consumers, value = graph.consumers(), node.outputs[0]
    while value not in graph.outputs or consumers[value]:
        readers = consumers[value]
        if len(readers) != 1 or OPERATORS[readers[0].op].traits.layout_affinity:
            return False
        value = readers[0].outputs[0]
    return True


def takes_rows(graph: Graph, node: Node, lanes: int) -> bool:
    """Whether a convolution reads and writes row-major images about as fast as blocks, so that no copy would pay.

    A direct one does: it broadcasts single inputs from anywhere, and transposes its output while it is in a cache. One
    on matrix tiles copies its input in any case, and transposes likewise. One of bytes that has stayed one is for an
    accelerator, which reads whole blocks. Products of a machine that stores channels last want them so; a depthwise
    convolution is none.
    """
    if lanes == 1:
        depthwise = OPERATORS[node.op].traits.weight_channel == 0 and graph.types[node.inputs[1]].shape[1] == 1
        return depthwise and suits_rows(graph, node, 2)
    if graph.types[node.inputs[0]].dtype == "int8":
        return False
    channels, when = graph.types[node.inputs[0]].shape[1], OPERATORS[node.op].traits.row_major
    if when == "dense":
        return channels == graph.types[node.inputs[1]].shape[1] or suits_rows(graph, node, lanes)
    return when == "always" or (when == "ragged" and channels % lanes != 0)


def borders(graph: Graph, node: Node) -> list[str]:
    """A node's image if it is an input of the graph, and its result if that becomes an output but for maps."""
    found = [node.inputs[0]] if node.inputs[0] in graph.inputs else []
    return [*found, node.outputs[0]] if reaches_output(graph, node) else found


def conversion_seconds(graph: Graph, node: Node, op: str, images: Sequence[str], target: Target) -> float:
    """Seconds to convert the ``images`` at a graph's borders to blocks of channels, or back, for a convolution by
    ``op``; 0 where it takes rows.
    """
    if target.machine.dialect.grid is not None or takes_rows(graph, replace(node, op=op), target.lanes):
        return 0.0
    sizes = [float(hinted(graph.types[name].nbytes)) for name in images]
    return sum(KERNEL + copy_seconds(nbytes, nbytes, target) for nbytes in sizes)
