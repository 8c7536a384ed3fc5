"""Reshapes that drop extents of one, such as the rows of a 1-D convolution, moved behind element-wise nodes.

A convolution of [N, C, L] is one of [N, C, 1, L] between reshapes. Behind a reshape, no activation could join the
convolution's kernel, no batch normalization its weights, and every image would be row-major in between::

    relu(reshape(conv2d(x)))  →  reshape(relu(conv2d(x)))

The next convolution's reshape then undoes this one.
"""

from __future__ import annotations

from collections.abc import Sequence

from burnish.graph.fusion_properties import facts_of
from burnish.graph.graph import Graph, Node
from burnish.graph.rewrite import Rewrite, rewrite

Shape = tuple[int, ...]
CHANNELS = 1  # the dimension that parameters of a batch normalization belong to


def keep_unit_axes(graph: Graph) -> Graph:
    """``graph`` with element-wise nodes and batch normalizations in front of reshapes that only drop extents of one."""
    return rewrite(graph, _rule)


def _rule(new: Rewrite, node: Node) -> Sequence[str] | None:
    if len(node.outputs) != 1 or not node.inputs:
        return None
    shape = new.source.types[node.outputs[0]].shape
    sources = [_source(new, name, shape) for name in node.inputs]
    wide = next((new.types[name].shape for name in sources if name is not None), None)
    axes = None if wide is None else _dropped(wide, shape)
    if wide is None or axes is None or min(axes) <= CHANNELS or len(shape) <= CHANNELS + 1:
        return None  # no images, but statistics of channels, are those
    if node.op == "batch_norm":
        if sources[0] is None:
            return None
        inputs = [sources[0], *node.inputs[1:]]
    elif facts_of(new, node).elementwise and not any(map(_is_place, node.attrs.values())):
        inputs = [
            found if found is not None and new.types[found].shape == wide else _widened(new, name, wide, axes)
            for found, name in zip(sources, node.inputs, strict=True)
        ]
    else:
        return None
    (result,) = new.add_many(
        node.op, *inputs, names=[new.fresh(f"{node.outputs[0]}.wide")], node=node.name, **node.attrs
    )
    return new.replace(node, "reshape", result, shape=shape)


def _source(new: Rewrite, name: str, shape: Shape) -> str | None:
    """The operand of a reshape to ``shape`` that only drops extents of one; None of another node."""
    made = new.producer(name)
    if made is None or made.op != "reshape" or new.types[name].shape != shape:
        return None
    return made.inputs[0] if _dropped(new.types[made.inputs[0]].shape, shape) else None


def _dropped(wide: Shape, narrow: Shape) -> list[int] | None:
    """The axes of extent one that the narrow shape has not; None where it is not the wide one without some of these."""
    axes, rest = list[int](), list(narrow)
    for axis, extent in enumerate(wide):
        if rest and rest[0] == extent:
            rest.pop(0)
        elif extent == 1:
            axes.append(axis)
        else:
            return None
    return axes if axes and not rest else None


def _widened(new: Rewrite, name: str, wide: Shape, axes: Sequence[int]) -> str:
    """An operand that is broadcast to the narrow shape, with extents of one at ``axes``; of one element, as it is."""
    own = new.types[name].shape
    if not own:
        return name
    rest = iter((*(1 for _ in range(len(wide) - len(axes) - len(own))), *own))
    shape = tuple(1 if axis in axes else next(rest) for axis in range(len(wide)))
    return new.add("reshape", name, shape=shape)


def _is_place(value: object) -> bool:
    """Whether an attribute may be a dimension, or extents."""
    return isinstance(value, tuple) or (isinstance(value, int) and not isinstance(value, bool))
