"""Constant masks that are bands, as what computes them: causal attention, and sliding windows of it.

A mask that is known when a model is compiled tells which scores count. One that holds between two diagonals is a
condition on row and column, by which a kernel on a grid of threads sees what it need not compute at all, and reads no
mask::

    where(mask, scores, -inf)  →  band(scores)
    scores + mask              →  band(scores)    where the mask holds 0, and minus infinity or the lowest float
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from burnish.graph.graph import Graph, Node
from burnish.graph.rewrite import Rewrite, rewrite
from burnish.machines.target import Target

LOWEST = {"float16": -6e4, "bfloat16": -1e30, "float32": -1e30}  # what is below counts for nothing among others


def compute_masks(graph: Graph, target: Target) -> Graph:
    """Graph with bands instead of constant masks, where ``target`` is a grid of threads."""
    if target.machine.dialect.grid is None or not any(node.op in ("where", "add") for node in graph.nodes):
        return graph
    return rewrite(graph, _rule)


def _rule(new: Rewrite, node: Node) -> Sequence[str] | None:
    found = _masked(new, node)
    if found is None:
        return None
    scores, seen = found
    shape = new.types[scores].shape
    if seen.ndim < 2 or seen.shape[-2:] != shape[-2:] or seen.size != seen.shape[-2] * seen.shape[-1]:
        return None
    between = diagonals(seen.reshape(seen.shape[-2:]))
    return None if between is None else new.replace(node, "band", scores, lower=between[0], upper=between[1])


def _masked(new: Rewrite, node: Node) -> tuple[str, np.ndarray] | None:
    """Scores that a constant mask is put on, and where they count."""
    if node.op == "where":
        cond, chosen, other = node.inputs
        mask, fill = new.value(cond), new.value(other)
        if mask is None:
            return None
        if fill is None:
            chosen, fill, mask = other, new.value(chosen), ~mask
        if fill is None or fill.size != 1 or chosen in new.constants:
            return None
        hidden = float(fill.reshape(-1)[0])
        scores, seen = chosen, mask
    elif node.op == "add":
        names = [name for name in node.inputs if name not in new.constants]
        masks = [value for name in node.inputs if (value := new.value(name)) is not None]
        if len(names) != 1 or masks[0].size < 2 or new.types[names[0]].dtype not in LOWEST:
            return None
        scores, mask = names[0], masks[0].astype("float32")
        seen = mask == 0
        hidden = float(mask.max(where=~seen, initial=-np.inf))
    else:
        return None
    t = new.types[scores]
    if t.dtype not in LOWEST or t.shape != new.source.types[node.outputs[0]].shape:
        return None
    if hidden > LOWEST[t.dtype] or (hidden > -np.inf and not seen.any(-1).all()):
        return None  # where nothing counts, finite scores are all the same
    return scores, seen


def diagonals(seen: np.ndarray) -> tuple[int, int] | None:
    """Lowest and highest column - row of the places where a mask holds; None where it is no band, or all of it."""
    rows, columns = seen.shape
    some = seen.any(1)
    if not some.any() or seen.all():
        return None
    row = np.arange(rows)[some]
    first, last = seen.argmax(1)[some], columns - 1 - seen[:, ::-1].argmax(1)[some]
    cut, begun = last < columns - 1, first > 0
    upper = int((last - row)[cut].max()) if cut.any() else columns - 1
    lower = int((first - row)[begun].min()) if begun.any() else 1 - rows
    band = np.tri(rows, columns, upper, dtype=bool) & ~np.tri(rows, columns, lower - 1, dtype=bool)
    return (lower, upper) if np.array_equal(band, seen) else None
