"""Masks of attention as conditions on row and column, by which a kernel on a grid of threads sees what it need not
compute at all: causal attention, sliding windows of it, and sequences of several lengths.

A mask that is known when a model is compiled tells which scores count. One that holds between two diagonals is a
condition, and the mask is read no more::

    where(mask, scores, -inf)  →  band(scores)
    scores + mask              →  band(scores)    where the mask holds 0, and minus infinity or the lowest float

One that a call brings, the same for all rows as padding is, hides what is in front of the first key that it shows and
behind the last one. Where these are is found once for all layers that it masks::

    where(mask, scores, -inf)  →  interval(where(mask, scores, -inf), true_interval(mask))
    scores + mask              →  interval(scores + mask, true_interval(mask > max(mask) - HIDING))

A finite number hides a key of a row that shows another one where its exponential, by that of the other, is 0 in
float32: their scores differ by 104 or more. One as low as the lowest float does so for all scores; one such as -10000
does where scores, of which a normalization in front bounds the magnitude (``graph/magnitudes.py``), are at most
``MOST_SCORE``. Results then are the same bits. What is computed of masked scores must be their softmax alone: a second
mask may hide what the first one shows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from burnish.graph.fusion_properties import operator_facts
from burnish.graph.graph import Graph, Node
from burnish.graph.magnitudes import Magnitudes
from burnish.graph.rewrite import Rewrite, rewrite
from burnish.loops.sizes import is_size
from burnish.machines.target import Target

FEWEST_KEYS = 65  # more than a block of them
FARTHEST = 8  # nodes from a product to its scores, and to what a mask is made of

LOWEST = {"float16": -6e4, "bfloat16": -1e30, "float32": -1e30}  # what is below counts for nothing among others
HIDING = 9800.0  # below what a mask shows: of -10000, which bfloat16 rounds to -9984
MOST_SCORE = 4500.0  # of which two differ by so much less than HIDING that exp of the rest is 0, rounded or not

Ends = dict[tuple[str, ...], str]  # mask, and how it is read -> the interval that it shows


def compute_masks(graph: Graph, target: Target) -> Graph:
    """Graph with bands instead of constant masks, where ``target`` is a grid of threads."""
    if target.machine.dialect.grid is None or not any(node.op in ("where", "add") for node in graph.nodes):
        return graph
    ends: Ends = {}
    known: list[Magnitudes] = []

    def rule(new: Rewrite, node: Node) -> Sequence[str] | None:
        if not known:
            known.append(Magnitudes(new))
        return _rule(new, node, ends, known[0])

    return rewrite(graph, rule)


def _rule(new: Rewrite, node: Node, ends: Ends, sizes: Magnitudes) -> Sequence[str] | None:
    found = constant_mask(new, node, sizes)
    if found is None:
        return _measured(new, node, ends, sizes)
    scores, seen, hidden = found
    if hidden > -np.inf and not _is_softmaxed(new, node):
        return None
    shape = new.types[scores].shape
    if seen.ndim < 2 or seen.shape[-2:] != shape[-2:] or seen.size != seen.shape[-2] * seen.shape[-1]:
        return None
    between = diagonals(seen.reshape(seen.shape[-2:]))
    return None if between is None else new.replace(node, "band", scores, lower=between[0], upper=between[1])


def constant_mask(new: Rewrite, node: Node, sizes: Magnitudes | None = None) -> tuple[str, np.ndarray, float] | None:
    """Scores that a constant mask is put on, where they count, and the number that hides others: minus infinity, or,
    where every row shows a key, the lowest float or one that is low enough by the ``sizes`` of scores.
    """
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
    if hidden > -np.inf and not seen.any(-1).all():
        return None  # where nothing counts, finite scores are all the same
    low = hidden <= LOWEST[t.dtype]  # which NaN is not
    if not low and (sizes is None or not hidden <= -HIDING or sizes.element(scores) > MOST_SCORE):
        return None
    return scores, seen, hidden


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


# --- masks that a call brings -----------------------------------------------------------------------------------------


def _measured(new: Rewrite, node: Node, ends: Ends, sizes: Magnitudes) -> Sequence[str] | None:
    """Scores under a mask that is no constant, with what it hides at both ends as an interval; ``ends``: those that are
    known, by mask.
    """
    shape = new.source.types[node.outputs[0]].shape
    if len(shape) < 3 or is_size(shape[-1]) or shape[-1] < FEWEST_KEYS or not _is_softmaxed(new, node):
        return None
    for mask, turned, low in _masks(new, node, sizes):
        if new.types[mask].shape[-1:] != shape[-1:]:
            continue
        key = (mask, str(turned), str(low))
        if key not in ends:
            first = _first_row(new, mask)
            if first is None:
                continue
            ends[key] = new.add("true_interval", _shown(new, first, turned, low))
        name = new.fresh(f"{node.outputs[0]}.masked")
        masked = new.add(node.op, *node.inputs, name=name, node=node.name, **node.attrs)
        return new.replace(node, "interval", masked, ends[key])
    return None


def _shown(new: Rewrite, mask: str, turned: bool, low: float | None) -> str:
    """Where a mask shows keys, see :func:`_masks`."""
    dtype = new.types[mask].dtype
    if dtype == "bool":
        return new.add("logical_not", mask) if turned else mask
    if low is not None:
        return new.add("greater", mask, new.constant(np.array(low), dtype=dtype))
    top = new.add("reduce_max", mask, axes=(len(new.types[mask].shape) - 1,), keepdims=True)
    return new.add("greater", mask, new.add("add", top, new.constant(np.array(-HIDING), dtype=dtype)))


def _masks(new: Rewrite, node: Node, sizes: Magnitudes) -> Iterator[tuple[str, bool, float | None]]:
    """Masks of scores, of a node that may put one on them: where bools hold, or where they do not (turned), or
    numbers are above a low one; None: above what is ``HIDING`` below their greatest one. All that it shows is where
    each of these shows something.
    """
    if node.op == "where":
        cond, chosen, other = node.inputs
        turned = new.value(other) is None
        fill, scores = new.value(chosen if turned else other), other if turned else chosen
        if fill is None or fill.size != 1 or cond in new.constants or not _is_scores(new, scores):
            return
        hidden = float(fill.reshape(-1)[0])
        low = LOWEST.get(new.types[scores].dtype)
        if low is not None and (hidden <= low or (hidden <= -HIDING and sizes.element(scores) <= MOST_SCORE)):
            yield cond, turned, 0.0
        if hidden == -np.inf and not turned:  # where nothing counts, finite scores are all the same
            yield from ((part, False, 0.0) for part in _conjuncts(new, cond))
    elif node.op == "add" and new.types[node.inputs[0]].dtype in LOWEST:
        for scores, mask in (node.inputs, node.inputs[::-1]):
            if mask not in new.constants and _is_scores(new, scores) and not _is_scores(new, mask):
                low = LOWEST[new.types[mask].dtype]
                relative = sizes.element(scores) <= MOST_SCORE and not _holds(new, mask, low, FARTHEST)
                yield mask, False, None if relative else low


def _holds(new: Rewrite, name: str, low: float, most: int) -> bool:
    """Whether a mask is made of a number as low as the lowest float, which needs no greatest one to be known."""
    value, made = new.value(name), new.producer(name)
    if value is not None:
        return value.size == 1 and bool(value.reshape(-1)[0] <= low)
    return made is not None and most > 0 and any(_holds(new, own, low, most - 1) for own in made.inputs)


def _conjuncts(new: Rewrite, name: str) -> Iterator[str]:
    """Conditions that all hold where a mask does."""
    made = new.producer(name)
    if made is not None and made.op in ("logical_and", "expand"):
        for own in made.inputs:
            if new.types[own].dtype == "bool" and own not in new.constants:
                yield own
                yield from _conjuncts(new, own)


def _is_scores(new: Rewrite, name: str) -> bool:
    """Whether a tensor is a product of matrices, perhaps scaled, converted, masked or of another shape."""
    for _ in range(FARTHEST):
        made = new.producer(name)
        if made is None or made.op == "matmul":
            return made is not None
        if not made.inputs or made.op == "softmax":
            return False
        whole = [n for n in made.inputs if n not in new.constants and new.types[n].size == new.types[name].size]
        if len(whole) != 1:
            return False
        name = whole[0]
    return False


def _is_softmaxed(new: Rewrite, node: Node) -> bool:
    """Whether softmax of rows is all that is done with a node's result, perhaps converted."""
    names = [*node.outputs]
    while names:
        name = names.pop()
        readers = new.readers.get(name, ())
        rank = len(new.source.types[name].shape)
        if not readers or name in new.source.outputs:
            return False
        for reader in readers:
            if reader.op == "cast":
                names += reader.outputs
            elif reader.op != "softmax" or reader.attrs.get("axis", -1) not in (-1, rank - 1):
                return False
    return True


def _first_row(new: Rewrite, name: str) -> str | None:
    """One row of a mask that all rows share, and one of all else that is the same; None where rows differ."""
    shape = new.types[name].shape
    extents = tuple(1 if not _varies(new, name, len(shape) - d, FARTHEST) else n for d, n in enumerate(shape[:-1]))
    if extents and extents[-1] != 1:
        return None
    if extents == shape[:-1]:
        return name
    return new.add("slice", name, starts=(0,) * len(shape), extents=(*extents, shape[-1]))


def _varies(new: Rewrite, name: str, axis: int, most: int) -> bool:
    """Whether a tensor may differ along an axis, counted from the last one, which is 1."""
    shape = new.types[name].shape
    if len(shape) < axis or shape[-axis] == 1:
        return False
    made = new.producer(name)
    if made is None or most == 0 or len(made.outputs) != 1:
        return True
    facts = operator_facts(made.op, tuple(new.types[n] for n in made.inputs), tuple(sorted(made.attrs.items())))
    if made.op != "expand" and not facts.elementwise:
        return True
    return any(_varies(new, own, axis, most - 1) for own in made.inputs)
