"""Canonical forms: one way to write what models write in several, so that later passes and templates see one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from burnish.graph.eliminate import permutation
from burnish.graph.graph import Graph, Node
from burnish.graph.rewrite import Rewrite, rewrite
from burnish.loops.numeric import overflows, underflows


def canonicalize(graph: Graph, exact: bool = False) -> Graph:
    """``graph`` in canonical form.

    conv2d(x, W, b)               →  conv2d(x, W) + b[:, 1, 1]           also conv2d_transpose
    conv2d(pad(x))                →  conv2d(x) with larger pads          where the padding is zeros in H and W
    max/avg_pool2d, whole image   →  reduce_max/mean over H and W
    matmul(x, W.T)                →  matmul(x, W')                       for a constant: a view, nothing moves
    x / c                         →  x * (1 / c)                         where 1 / c is exact; not ``exact``: or
                                                                         has all digits, and nothing rounds later
    x - c                         →  x + (-c)
    pow(x, 2), pow(x, 0.5)        →  x * x, sqrt(x)                      with ``exact``: only x * x
    transpose                     →  reshape                             if it moves only extents of 1
    norm(transpose(x))            →  transpose(norm(x))                  where transposes alone read it: normalizations,
                                                                         softmax
    """
    return rewrite(graph, partial(_rule, exact=exact))


def _rule(new: Rewrite, node: Node, exact: bool) -> Sequence[str] | None:
    match node.op:
        case "conv2d" | "conv2d_transpose" if len(node.inputs) == 3:
            return _split_bias(new, node)
        case "conv2d":
            return _absorb_pad(new, node)
        case "max_pool2d" | "avg_pool2d":
            return _global_pool(new, node)
        case "matmul":
            return _transpose_constant(new, node)
        case "div":
            return _multiply_by_reciprocal(new, node, exact)
        case "sub":
            return _add_negative(new, node)
        case "pow":
            return _special_power(new, node, exact)
        case "transpose":
            return _trivial_transpose(new, node)
        case "layer_norm" | "rms_norm" | "softmax" | "log_softmax":
            return _normalize_as_stored(new, node)
    return None


def _split_bias(new: Rewrite, node: Node) -> Sequence[str]:
    x, weight, bias = node.inputs
    (channels,) = new.types[bias].shape
    product = new.fresh(f"{node.outputs[0]}.product")
    convolved = Node(node.op, (x, weight), (product,), node.attrs, node.name)
    if node.op == "conv2d":
        (product,) = _absorb_pad(new, convolved) or new.keep(convolved)
    else:
        new.keep(convolved)
    if bias in new.constants:
        column = new.constant(new.constants[bias].reshape(channels, 1, 1), new.fresh(f"{node.outputs[0]}.bias"))
    else:
        column = new.add("reshape", bias, shape=(channels, 1, 1), name=new.fresh(f"{node.outputs[0]}.bias"))
    return new.replace(node, "add", product, column)


def _absorb_pad(new: Rewrite, node: Node) -> Sequence[str] | None:
    before = new.producer(node.inputs[0])
    if before is None or before.op != "pad" or not new.used_once(node.inputs[0]):
        return None
    if before.attrs.get("mode", "constant") != "constant" or before.attrs.get("value", 0.0) != 0.0:
        return None
    pads: tuple[int, ...] = before.attrs["pads"]  # type: ignore[assignment]
    own: tuple[int, ...] = node.attrs.get("pads", (0, 0, 0, 0))  # type: ignore[assignment]
    if any((*pads[:2], *pads[4:6])) or min(pads) < 0:
        return None
    total = tuple(a + b for a, b in zip(own, (*pads[2:4], *pads[6:8]), strict=True))
    return new.replace(node, "conv2d", before.inputs[0], *node.inputs[1:], **{**node.attrs, "pads": total})


def _global_pool(new: Rewrite, node: Node) -> Sequence[str] | None:
    shape = new.types[node.inputs[0]].shape
    whole = node.attrs["kernel"] == shape[2:] and not any(node.attrs.get("pads", ()))  # type: ignore[arg-type]
    if not whole or any(d != 1 for d in new.source.types[node.outputs[0]].shape[2:]):
        return None
    op = "reduce_max" if node.op == "max_pool2d" else "reduce_mean"
    return new.replace(node, op, node.inputs[0], axes=(2, 3), keepdims=True)


def _transpose_constant(new: Rewrite, node: Node) -> Sequence[str] | None:
    inputs, attrs = list(node.inputs), dict(node.attrs)
    for position, key in enumerate(("transpose_a", "transpose_b")):
        value = new.value(inputs[position])
        if attrs.get(key) and value is not None and value.ndim > 1:
            inputs[position] = new.derived(inputs[position], "transposed", lambda x: x.swapaxes(-1, -2))
            attrs[key] = False
    return new.replace(node, "matmul", *inputs, **attrs) if tuple(inputs) != node.inputs else None


def _multiply_by_reciprocal(new: Rewrite, node: Node, exact: bool) -> Sequence[str] | None:
    x, divisor = node.inputs
    value = new.value(divisor)
    if value is None or value.dtype.kind != "f" or x in new.constants or not np.all(value):
        return None
    with np.errstate(over="ignore"):
        reciprocal = (1.0 / value.astype(np.float64)).astype(value.dtype)
    powers_of_two = np.all(np.abs(np.frexp(value)[0]) == 0.5)
    if overflows(reciprocal, value) or underflows(reciprocal, value):
        return None
    if not powers_of_two and (exact or value.itemsize < 4 or new.is_rounded(node)):
        return None
    return new.replace(node, "mul", x, new.constant(reciprocal, new.fresh(f"{divisor}.reciprocal")))


def _add_negative(new: Rewrite, node: Node) -> Sequence[str] | None:
    x, subtrahend = node.inputs
    value = new.value(subtrahend)
    if value is None or value.dtype.kind != "f" or x in new.constants:
        return None
    return new.replace(node, "add", x, new.constant(-value, new.fresh(f"{subtrahend}.negative")))


def _special_power(new: Rewrite, node: Node, exact: bool) -> Sequence[str] | None:
    x, exponent = node.inputs
    value = new.value(exponent)
    same_shape = new.types[x].shape == new.source.types[node.outputs[0]].shape
    if value is None or value.size != 1 or new.types[x].dtype != str(value.dtype) or not same_shape:
        return None
    if value.item() == 2:
        return new.replace(node, "mul", x, x)
    # pow(-inf, 0.5) is inf and pow(-0.0, 0.5) is 0, sqrt(-inf) NaN and sqrt(-0.0) -0: few models mean the former.
    root = value.item() == 0.5 and value.dtype.kind == "f" and not exact
    return new.replace(node, "sqrt", x) if root else None


def _normalize_as_stored(new: Rewrite, node: Node) -> Sequence[str] | None:
    """A normalization between transposes on the dimensions as they lie in memory, such as the channels of an image."""
    before, readers = new.producer(node.inputs[0]), new.readers.get(node.outputs[0], [])
    if before is None or before.op != "transpose" or not new.used_once(node.inputs[0]):
        return None
    if not readers or node.outputs[0] in new.source.outputs or any(r.op != "transpose" for r in readers):
        return None
    perm = permutation(new, before)
    attrs: dict[str, Any] = dict(node.attrs)
    first = attrs.get("axis", -1) % len(perm)
    if node.op in ("softmax", "log_softmax"):
        attrs["axis"] = perm[first]
    else:
        over = perm[first : len(perm) - attrs.get("trailing", 0)]
        if [*over] != [*range(over[0], over[0] + len(over))]:
            return None
        attrs |= {"axis": over[0], "trailing": len(perm) - over[-1] - 1}
    name = new.fresh(f"{node.outputs[0]}.stored")
    (moved,) = new.add_many(node.op, before.inputs[0], *node.inputs[1:], names=[name], node=node.name, **attrs)
    return new.replace(node, "transpose", moved, perm=perm)


def _trivial_transpose(new: Rewrite, node: Node) -> Sequence[str] | None:
    shape = new.types[node.inputs[0]].shape
    perm = node.attrs.get("perm")
    order: Sequence[int] = range(len(shape))[::-1] if perm is None else perm  # type: ignore[assignment]
    moved = [d for d in order if shape[d] != 1]
    if moved != sorted(moved) or math.prod(shape) == 0:
        return None
    return new.replace(node, "reshape", node.inputs[0], shape=tuple(shape[d] for d in order))
