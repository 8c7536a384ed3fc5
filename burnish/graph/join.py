"""Copy elision for joins and slices: parts written straight into the whole, or read where they lie in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from burnish.graph.fuse import Group
from burnish.graph.fusion_properties import contiguous_offset
from burnish.graph.graph import Graph
from burnish.loops.expr import ITEM_BYTES
from burnish.loops.layout import Layout
from burnish.loops.sizes import greatest, is_size


def find_pieces(
    graph: Graph, groups: Sequence[Group], layouts: Mapping[str, Layout], aligned: int = 1
) -> dict[str, tuple[str, int]]:
    """Concatenation placement: for each tensor that can lie inside another, (the output, byte offset in it).

    A concatenation that is a group of its own needs no code if in memory its inputs follow one another, at offsets that
    are multiples of ``aligned``, and each input

    - is computed by a kernel, or is such a concatenation itself: no input, constant or view, which lie elsewhere;
    - is not a result of the graph, whose memory is the caller's;
    - is in no other such concatenation;
    - occurs once in this one.

    Else all inputs are copied.
    """
    kernels = {name for group in groups if not group.alias for name in group.outputs}
    pieces: dict[str, tuple[str, int]] = {}
    for group in groups:
        if len(group.nodes) != 1 or group.nodes[0].op != "concat":
            continue
        parts = group.nodes[0].inputs
        offsets = _offsets(graph, parts, group.outputs[0], int(group.nodes[0].attrs["axis"]), layouts)  # type: ignore[arg-type]
        if offsets is not None and any(offset % aligned for offset in offsets):
            continue
        movable = kernels - set(graph.outputs) - pieces.keys()
        if offsets is not None and len(set(parts)) == len(parts) and movable.issuperset(parts):
            pieces.update({part: (group.outputs[0], offset) for part, offset in zip(parts, offsets, strict=True)})
    return pieces


def find_views(
    graph: Graph, groups: Sequence[Group], layouts: Mapping[str, Layout], pieces: Mapping[str, object], aligned: int = 1
) -> dict[str, tuple[str, int]]:
    """Slice views: for each slice that is one run of another tensor's memory, (that tensor, byte offset in it).

    Not for results of the graph, nor for ``pieces``, which lie elsewhere. Offsets are multiples of ``aligned``.
    """
    views: dict[str, tuple[str, int]] = {}
    for group in groups:
        source, name = group.inputs[0] if group.inputs else "", group.outputs[0]
        if len(group.nodes) > 1 or name in graph.outputs or name in pieces or source in graph.constants:
            continue
        layout, t = layouts.get(name), graph.types[group.outputs[0]]
        begin = contiguous_offset(graph, group.nodes[0], layout.block(1) if layout else 1, blocked=layout is not None)
        if isinstance(begin, int) and layouts.get(source) == layout and begin * ITEM_BYTES[t.dtype] % aligned == 0:
            views[name] = (source, begin * ITEM_BYTES[t.dtype])
    return views


def _offsets(
    graph: Graph, parts: Sequence[str], whole: str, axis: int, layouts: Mapping[str, Layout]
) -> list[int] | None:
    """Byte offsets of the parts in the whole; None where a part is not one contiguous run of it."""
    shape = graph.types[whole].shape
    axis %= len(shape)
    layout = layouts.get(whole)
    if prod(shape[:axis]) != 1 or any(layouts.get(part) != layout for part in parts):
        return None
    block = 1
    if layout is not None:
        first = next((p.dim for p in layout.parts if p.block == 0 and greatest(shape[p.dim]) > 1), axis)
        block = layout.block(axis)
        if first != axis or any(layout.block(d) != 1 for d in range(len(shape)) if d != axis):
            return None
    row = prod(shape[axis + 1 :]) * ITEM_BYTES[graph.types[whole].dtype]
    offsets, begin = [], 0
    for part in parts:
        if is_size(begin) or is_size(begin * row) or begin % block:
            return None
        offsets.append(begin * row)
        begin += graph.types[part].shape[axis]
    return offsets
