"""Sequences of tensors that import knows the length of: lists of names, which are no part of the graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from burnish.frontend.onnx.context import OnnxContext, OnnxNode, RuntimeValue, Translator
from burnish.frontend.onnx.nodes import translate_subgraph
from burnish.loops.sizes import dims_of

MOST_ITEMS = 512  # of a sequence that is as many nodes


def _items(c: OnnxContext, n: OnnxNode, name: str) -> tuple[str, ...]:
    """The tensors of a sequence. Raises RuntimeValue for one that only a call knows."""
    if name not in c.lists:
        raise RuntimeValue(f"{n}: found a sequence that a call gives; allowed: one of a known length", "")
    return c.lists[name]


def _position(c: OnnxContext, name: str, length: int, last: int, default: int) -> int:
    """A position from the front, of those from ``-length`` to ``last``."""
    if not name:
        return default
    at = int(c.static(name, "position").reshape(-1)[0])
    if not -length <= at <= last:
        c.invalid("input 'position'", at, f"{-length} to {last} for a sequence of {length}")
    return at + length if at < 0 else at


def _insert(c: OnnxContext, n: OnnxNode) -> str:
    items = _items(c, n, n.inputs[0])
    at = _position(c, n.input(2), len(items), len(items), len(items))
    return c.listed((*items[:at], n.inputs[1], *items[at:]))


def _erase(c: OnnxContext, n: OnnxNode) -> str:
    items = _items(c, n, n.inputs[0])
    at = _position(c, n.input(1), len(items), len(items) - 1, len(items) - 1)
    if at < 0:
        c.invalid("sequence", "no element", "one at least")
    return c.listed((*items[:at], *items[at + 1 :]))


def _at(c: OnnxContext, n: OnnxNode) -> str:
    items = _items(c, n, n.inputs[0])
    return items[_position(c, n.inputs[1], len(items), len(items) - 1, 0)]


def _split(c: OnnxContext, n: OnnxNode) -> str:
    x = n.inputs[0]
    axis = c.axis(x, n.attr("axis", 0))
    extent = c.shape(x)[axis]
    split = c.static(n.input(1), "split") if n.input(1) else None
    if dims_of((extent,)) or (split is not None and split.dtype == object):
        raise RuntimeValue(f"{n}: found {extent} along axis {axis}; allowed: a number", "")
    if split is None or not split.ndim:
        size = 1 if split is None else int(split)
        if size < 1:
            c.invalid("input 'split'", size, "1 or more")
        sizes = [min(size, extent - at) for at in range(0, extent, size)]
    else:
        sizes = [int(size) for size in split]
        if sum(sizes) != extent or min(sizes, default=0) < 0:
            c.invalid("input 'split'", sizes, f"sizes that add up to {extent}")
    if len(sizes) > MOST_ITEMS:
        raise RuntimeValue(f"{n}: found {len(sizes)} parts; allowed: {MOST_ITEMS}", "")
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    parts = [c.slice(x, axis, end - size, end) for size, end in zip(sizes, ends, strict=True)]
    if split is None and not n.attr("keepdims", 1):
        shape = c.shape(x)
        parts = [c.reshape(part, (*shape[:axis], *shape[axis + 1 :])) for part in parts]
    return c.listed(parts)


def _concat(c: OnnxContext, n: OnnxNode) -> str:
    parts: Sequence[str] = _items(c, n, n.inputs[0])
    if not parts:
        c.invalid("sequence", "no element", "one at least")
    shape = c.shape(parts[0])
    rank = len(shape) + n.attr("new_axis", 0)
    axis = n.attrs["axis"]
    if not -rank <= axis < rank:
        c.invalid("attribute 'axis'", axis, f"{-rank} to {rank - 1}")
    at = axis % rank
    if n.attr("new_axis", 0):
        parts = [c.reshape(part, (*shape[:at], 1, *shape[at:])) for part in parts]
    return parts[0] if len(parts) == 1 else c.add("concat", *parts, axis=at)


def _map(c: OnnxContext, n: OnnxNode) -> list[str]:
    items, body = _items(c, n, n.inputs[0]), n.attrs["body"]
    if len(items) * max(len(body.node), 1) > MOST_ITEMS:
        raise RuntimeValue(f"{n}: found {len(items)} times {len(body.node)} nodes; allowed: {MOST_ITEMS} in all", "")
    columns = [c.lists[name] if name in c.lists else (name,) * len(items) for name in n.inputs]
    if any(len(column) != len(items) for column in columns):
        c.invalid("sequences", f"lengths {[len(column) for column in columns]}", "one length")
    rows = [translate_subgraph(c, body, row) for row in zip(*columns, strict=True)]
    return [c.listed([row[i] for row in rows]) for i in range(len(body.output))]


def _identity(c: OnnxContext, n: OnnxNode) -> str:
    return n.inputs[0] if n.inputs[0] in c.lists else c.add("identity", n.inputs[0])


TRANSLATORS: Mapping[str, Translator] = {
    "Identity": _identity,
    "SequenceEmpty": lambda c, n: c.listed(()),
    "SequenceConstruct": lambda c, n: c.listed(n.inputs),
    "SequenceInsert": _insert,
    "SequenceErase": _erase,
    "SequenceAt": _at,
    "SequenceLength": lambda c, n: c.constant(len(_items(c, n, n.inputs[0])), "int64"),
    "SequenceMap": _map,
    "SplitToSequence": _split,
    "ConcatFromSequence": _concat,
}
