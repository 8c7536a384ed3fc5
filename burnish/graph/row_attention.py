"""Attention in a graph as one node: what a step of training then computes again instead of keeping it.

``softmax(f(Q K')) V``, ``f`` being scales and a band of keys that a constant mask shows (causal attention, a sliding
window), in any of the forms that operators write it in; heads of keys that several heads of queries share are not
copied. Used where a target's templates keep scores and shares in registers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from burnish.graph.bands import constant_mask, diagonals
from burnish.graph.eliminate import eliminate
from burnish.graph.graph import Graph, Node, TensorType
from burnish.graph.rewrite import Rewrite, rewrite
from burnish.loops.expr import FLOATS
from burnish.loops.sizes import is_size
from burnish.ops.row_attention import exchanged

Band = tuple[int, int]  # lowest and highest key - row that counts
Tiled = Callable[[TensorType, TensorType, TensorType, Band | None], bool]
"""Whether the gradient of attention of queries, keys, values and a band computes scores again."""


def gather_attention(graph: Graph, tiled: Tiled | None = None) -> Graph:
    """Graph with single nodes of attention, without the nodes that these replace and nothing else reads.

    ``tiled``: tells whose gradient, beside that of halves, computes scores again; None: nobody's.
    """
    if not any(node.op == "softmax" for node in graph.nodes):
        return graph
    gathered = eliminate(rewrite(graph, partial(_attention, tiled)))
    return eliminate(rewrite(gathered, _moved))


def _attention(tiled: Tiled | None, new: Rewrite, node: Node) -> Sequence[str] | None:
    """Attention that ends in a product."""
    attrs: Any = node.attrs
    if node.op != "matmul" or attrs.get("transpose_a") or attrs.get("transpose_b"):
        return None
    softmax = _only(new, node.inputs[0], "softmax")
    if softmax is None:
        return None
    shape = new.types[softmax.outputs[0]].shape
    if len(shape) < 3 or any(map(is_size, shape)) or softmax.attrs.get("axis", -1) not in (-1, len(shape) - 1):
        return None
    name, scale = softmax.inputs[0], 1.0
    band: Band | None = None
    while (step := _step(new, name)) is not None:
        name, factor, masked = step
        if masked is not None and (band is not None or scale != 1.0):
            return None
        scale, band = scale * factor, masked or band
    first = _only(new, name, "matmul")
    if first is None or first.attrs.get("transpose_a"):
        return None
    query, key, value = (*first.inputs, node.inputs[1])
    types = [new.types[n] for n in (query, key, value)]
    if len({t.dtype for t in types}) != 1 or types[0].dtype not in FLOATS:
        return None
    if any(t.shape[:-2] != shape[:-2] for t in types):
        return None
    scaled = _step(new, query)
    if scaled is not None and scaled[2] is None:
        query, scale = scaled[0], scale * scaled[1]
    if not first.attrs.get("transpose_b"):
        rank = len(shape)
        key = new.add("transpose", key, perm=(*range(rank - 2), rank - 1, rank - 2))
    shared = [_shared(new, name) for name in (key, value)]
    if None not in shared and len({new.types[name].shape[-3] for name in shared if name is not None}) == 1:
        key, value = (name for name in shared if name is not None)
    own: dict[str, int] = {} if band is None else {"lower": band[0], "upper": band[1]}
    own_type, key_type, value_type = (new.types[name] for name in (query, key, value))
    if tiled is not None and tiled(own_type, key_type, value_type, band):
        own["tiled"] = True
    operands = (query, key, value)
    return new.add_many("row_attention", *operands, names=node.outputs, node=node.name, scale=scale, **own)[:1]


def _moved(new: Rewrite, node: Node) -> Sequence[str] | None:
    """Attention whose heads are moved behind its rows, which then are so from the beginning."""
    made = new.producer(node.inputs[0]) if node.op == "transpose" else None
    if made is None or made.op != "row_attention" or made.attrs.get("inside"):
        return None
    name, shape = made.outputs[0], new.types[made.outputs[0]].shape
    if node.inputs[0] != name or node.attrs["perm"] != exchanged(len(shape)) or not new.used_once(name):
        return None
    moved = new.add_many("row_attention", *made.inputs, names=node.outputs, node=made.name,
                         **{**made.attrs, "inside": True})  # fmt: skip
    return moved[:1]


def _only(new: Rewrite, name: str, op: str) -> Node | None:
    """The node that computes a tensor which one other reads, if it is of an operator."""
    found = new.producer(name)
    return found if found is not None and found.op == op and new.used_once(name) else None


def _shared(new: Rewrite, name: str) -> str | None:
    """Heads of keys or values of which others are copies, one after another; None for others."""
    whole, shape = _only(new, name, "reshape"), new.types[name].shape
    spread = None if whole is None else _only(new, whole.inputs[0], "expand")
    apart = None if spread is None else _only(new, spread.inputs[0], "reshape")
    if apart is None or spread is None or len(shape) < 3:
        return None
    own = new.types[apart.inputs[0]].shape
    heads, several = own[-3] if len(own) == len(shape) else 0, shape[-3]
    if not heads or (*own[:-3], *own[-2:]) != (*shape[:-3], *shape[-2:]):
        return None
    wanted = [(*shape[:-3], heads, n, *shape[-2:]) for n in (1, several // heads)]
    return apart.inputs[0] if [new.types[n].shape for n in (*apart.outputs, *spread.outputs)] == wanted else None


def _step(new: Rewrite, name: str) -> tuple[str, float, Band | None] | None:
    """A scale or mask whose result a tensor is: of which one, the factor, and the band that the mask shows."""
    node = new.producer(name)
    if node is None or not new.used_once(name):
        return None
    if node.op in ("mul", "div"):
        number = new.value(node.inputs[1])
        if number is None or number.size != 1 or new.types[node.inputs[0]] != new.types[name]:
            return None
        factor = float(number.reshape(-1)[0])
        return (node.inputs[0], factor if node.op == "mul" else 1 / factor, None) if factor > 0 else None
    masked = constant_mask(new, node)
    if masked is None:
        return None
    scores, seen, _ = masked
    shape = new.types[scores].shape
    if seen.ndim < 2 or seen.shape[-2:] != shape[-2:] or seen.size != shape[-2] * shape[-1] or not seen.any(-1).all():
        return None
    band = diagonals(seen.reshape(shape[-2:]))
    if band is None or band[1] < 0 or band[0] > shape[-1] - shape[-2]:
        return None
    return scores, 1.0, band
