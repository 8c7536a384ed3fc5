"""Fusion properties of a node: its class, and how it reads each operand, derived from its definition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

from burnish import ops
from burnish.graph.graph import Attribute, Graph, GraphBuilder, Node, TensorType
from burnish.loops.expr import Binary, Expr, Load, Var, wrap
from burnish.loops.linear import to_linear
from burnish.loops.simplify import simplify
from burnish.loops.sizes import greatest
from burnish.loops.tensor import Tensor, placeholder, stages
from burnish.loops.traverse import depth, free_vars
from burnish.ops.classify import (
    axis_inputs,
    fusion_class,
    has_steps,
    inlined,
    is_elementwise,
    is_view,
    value_variables,
)
from burnish.ops.reads import Access, accesses


@dataclass(frozen=True, slots=True)
class FusionProperties:
    """``kind``: the fusion class, or ``extern`` of an operator without a definition, which fuses with nothing. The
    sets hold positions of operands.

    ``elementwise``: injective, and all operands are read at the output's own index up to broadcasting.
    ``moves``: every element is one of the only operand. ``scales``: every element is a product of two operands'.
    ``view``: pure movement of one operand's elements, none used twice. ``bijection``: a view that uses them all.
    ``alias``: one that also keeps their order. ``channels``: an alias that splits or joins the channels of images.
    ``once``: of an injective node, operands of which no element is read by two output elements.
    ``reduced``: of a reduction, operands that it reads along its reduction axes, each element once in a pass.
    ``pixels``: of a complex node, its last axis runs over the first operand, as a convolution's does, and its first one
    over that operand's; a matrix product's last one runs over the second, and the gradient of a convolution's weight
    sums over images. What it selects in the other operand, channels, it can compute in blocks.
    ``own``: operands that are read at the output's own index alone, without broadcasting. ``reads``: at how many places
    each operand is read for one element of the output, or of what is reduced. ``depth``: of the deepest expression.
    ``steps``: a rounding error in an operand may change the output by much more. ``pixelwise``: of an image, the two
    last axes are only where its operands are read, at the same row and column; it is the same on all pixels in a row.
    ``permutation``: of a bijection that only permutes dimensions, which of the output each of the operand is.
    """

    kind: str
    elementwise: bool = False
    moves: bool = False
    scales: bool = False
    view: bool = False
    bijection: bool = False
    alias: bool = False
    channels: bool = False
    once: frozenset[int] = frozenset()
    reduced: frozenset[int] = frozenset()
    pixels: bool = False
    own: frozenset[int] = frozenset()
    reads: tuple[int, ...] = ()
    depth: int = 0
    steps: bool = False
    pixelwise: bool = False
    permutation: tuple[int, ...] | None = None


def facts_of(graph: Graph | GraphBuilder, node: Node) -> FusionProperties:
    """The facts of one node."""
    types = tuple(graph.types[name] for name in node.inputs)
    return operator_facts(node.op, types, tuple(sorted(node.attrs.items())))


@lru_cache(maxsize=1 << 16)
def operator_facts(
    op: str, types: tuple[TensorType, ...], attrs: tuple[tuple[str, Attribute], ...]
) -> FusionProperties:
    """Facts of an operator with operands of these types and these attributes, from its definition; remembered."""
    if ops.is_opaque(op):
        return FusionProperties("extern", reads=(1,) * len(types), steps=True)
    inputs = [placeholder(t.shape, t.dtype, f"x{i}") for i, t in enumerate(types)]
    outputs = ops.OPERATORS[op].define("y", inputs, dict(attrs))
    kind = fusion_class(outputs)
    facts = FusionProperties(kind)
    if kind == "injective" and len(outputs) == 1:
        facts = _injective_facts(inputs, outputs[0])
    elif kind == "reduction":
        facts = FusionProperties(kind, reduced=_reduced(inputs, outputs[0]))
    elif kind == "complex" and outputs[0].axes:
        facts = FusionProperties(kind, pixels=_has_pixels(inputs[0], outputs[0]))
    read: dict[str, list[Access]] = {x.name: [] for x in inputs}
    for access in (a for y in outputs for a in accesses(y)):
        read[access.source.name].append(access)
    bodies = [t.body for t in stages(outputs) if t.body is not None]
    return replace(
        facts,
        own=frozenset(i for i, x in enumerate(inputs) if all(a.indices == outputs[0].axes for a in read[x.name])),
        reads=tuple(len(read[x.name]) for x in inputs),
        depth=sum(map(depth, bodies)) if kind == "injective" else max(map(depth, bodies), default=0),
        steps=has_steps(outputs),
    )


def _has_pixels(first: Tensor, output: Tensor) -> bool:
    """Whether the last axis of ``output`` runs over ``first``, and the first axis over its first dimension."""
    image = output.axes[0].name
    own = [a for a in accesses(output) if a.source.name == first.name]
    return first.name in axis_inputs(output)[-1] and any(image in free_vars(i) for a in own for i in a.indices[:1])


def _injective_facts(inputs: Sequence[Tensor], output: Tensor) -> FusionProperties:
    read: dict[str, list[Access]] = {}
    for access in accesses(output):
        read.setdefault(access.source.name, []).append(access)
    moving = {v.name for v, extent in zip(output.axes, output.shape, strict=True) if greatest(extent) > 1}
    once = frozenset(i for i, t in enumerate(inputs) if all(moving <= _index_vars(a) for a in read.get(t.name, ())))
    moves = len(inputs) == 1 and is_view([output])
    view = moves and 0 in once
    bijection = view and prod(inputs[0].shape) == prod(output.shape)
    alias = bijection and _keeps_order(inputs[0], output)
    channels = alias and _splits_channels(inputs[0].shape, output.shape)
    facts = FusionProperties(
        "injective", is_elementwise([output]), moves, _is_scaling(output), view, bijection, alias, channels, once
    )
    return replace(facts, pixelwise=_is_pixelwise(output), permutation=_permutation(output) if bijection else None)


def _permutation(output: Tensor) -> tuple[int, ...] | None:
    """The dimension of ``output`` that is each dimension of its operand; None where it is no permutation of these."""
    body = inlined(output)
    if not isinstance(body, Load) or sorted(map(str, body.indices)) != sorted(map(str, output.axes)):
        return None
    return tuple(output.axes.index(i) for i in body.indices if isinstance(i, Var))


def _is_scaling(output: Tensor) -> bool:
    return (
        isinstance(output.body, Binary)
        and output.body.op == "*"
        and all(isinstance(e, Load) for e in (output.body.a, output.body.b))
    )


def _is_pixelwise(output: Tensor) -> bool:
    pixel = output.axes[2:]
    names = {v.name for v in pixel}
    if len(pixel) != 2 or names & value_variables(output):
        return False
    read = accesses(output)
    return all(
        not names & set().union(*(free_vars(i) for i in (a.indices[:-2] if a.indices[-2:] == pixel else a.indices)))
        for a in read
    )


def _index_vars(access: Access) -> set[str]:
    return set().union(*(free_vars(i) for i in access.indices))


def _reduced(inputs: Sequence[Tensor], output: Tensor) -> frozenset[int]:
    extents = {v.name: n for v, n in zip(output.axes, output.shape, strict=True)}
    for t in stages([output]):
        axes = getattr(t.body, "axes", ())
        extents.update({f"{t.name}.{a.var.name}": a.extent for a in axes})
    own = {v.name for v in output.axes}
    along: set[str] = set()
    repeated: set[str] = set()
    for access in accesses(output):
        used = _index_vars(access)
        if used - own:
            along.add(access.source.name)
        if prod(greatest(extents[v]) for v in used) > access.source.buffer.size:  # overlapping windows
            repeated.add(access.source.name)
    return frozenset(i for i, t in enumerate(inputs) if t.name in along - repeated)


def contiguous_when_joined(parts: Sequence[TensorType], axis: int, lanes: int) -> bool:
    """Whether tensors joined along ``axis`` are one after the other in memory; channels come in blocks of ``lanes``."""
    shape = parts[0].shape
    axis %= len(shape)
    blocks = len(shape) == 4 and axis == 1 and sum(part.shape[1] for part in parts) >= lanes
    return prod(shape[:axis]) == 1 and not (blocks and any(part.shape[1] % lanes for part in parts[:-1]))


def contiguous_offset(graph: Graph, node: Node, lanes: int, blocked: bool | None = None) -> int | None:
    """Offset of a slice that is one run of its operand's memory, in elements; None for another node.

    Channels of images come in blocks of ``lanes``, of which the slice begins one. ``blocked``: whether they do; as long
    as no layout is chosen, it is expected of images with as many channels.
    """
    if node.op != "slice" or any(step != 1 for step in node.attrs.get("steps") or ()):  # type: ignore[union-attr]
        return None
    shape, own = graph.types[node.inputs[0]].shape, graph.types[node.outputs[0]].shape
    starts: tuple[int, ...] = node.attrs["starts"]  # type: ignore[assignment]
    first = next((d for d, extent in enumerate(own) if greatest(extent) > 1), len(own))
    if 0 in own or own[first + 1 :] != shape[first + 1 :]:
        return None
    blocks = len(shape) == 4 and shape[1] >= lanes > 1 if blocked is None else blocked
    if blocks and (starts[1] % lanes or own[1] < lanes or (shape[0], *shape[2:]) != (1, *own[2:])):
        return None
    return sum(start * prod(shape[d + 1 :]) for d, start in enumerate(starts))


def _ranges(output: Tensor) -> Mapping[str, int]:
    return {v.name: extent for v, extent in zip(output.axes, output.shape, strict=True)}


def _flat(index: Sequence[Expr], shape: Sequence[int], ranges: Mapping[str, int]) -> Expr:
    position: Expr = wrap(0)
    for i, extent in zip(index, shape, strict=True):
        position = simplify(position * extent + i, ranges)  # at once: x // 20 * 20 + x % 20 is no longer seen in a sum
    return position


def _splits_channels(source: Sequence[int], output: Sequence[int]) -> bool:
    """Whether one shape is [N, C, H, W], and the other has more dimensions between the same first and last two."""
    ends = (source[:1], source[-2:]) == (output[:1], output[-2:])
    return ends and len(source) != len(output) and min(len(source), len(output)) == 4


def _keeps_order(source: Tensor, output: Tensor) -> bool:
    body = inlined(output)
    if not isinstance(body, Load):
        return False
    ranges = _ranges(output)
    read, written = _flat(body.indices, source.shape, ranges), _flat(output.axes, output.shape, ranges)
    return read == written


def separable(graph: Graph, chain: Sequence[Node]) -> bool:
    """Whether a chain of views reads, in each dimension of its source, digits of single output dimensions.

    Then its inverse is affine in those digits, and a kernel can store through it: reshapes that split and join whole
    dimensions, and transposes, are separable; a reshape from [6, 4] to [8, 3] is not. Nor is a permutation inside of a
    dimension, such as a shuffle of channels: what is one vector for the kernel would be scattered.
    """
    if not chain:
        return True
    source = graph.types[chain[0].inputs[0]]
    tensor = placeholder(source.shape, source.dtype, "x")
    for position, node in enumerate(chain):
        (tensor,) = ops.OPERATORS[node.op].define(f"y{position}", [tensor], node.attrs)
    body = inlined(tensor)
    assert isinstance(body, Load)
    ranges = _ranges(tensor)
    return all(_digits(simplify(i, ranges)) for i in body.indices)


def _digits(index: Expr) -> bool:
    """A sum of multiples of ``v``, ``v // a``, ``v % b`` and ``v // a % b``, each for another variable ``v``."""
    atoms = list(to_linear(index)[0])
    names = [name for atom in atoms for name in free_vars(atom)]
    return all(_is_digit(atom) for atom in atoms) and len(set(names)) == len(names)


def _is_digit(e: Expr) -> bool:
    if isinstance(e, Binary) and e.op in ("//", "%"):
        return _is_digit(e.a) and not free_vars(e.b)
    return isinstance(e, Var)
