"""Normal forms: laws that cost nothing either way are applied as values are made, so that a search never meets them.

The laws:

    concat(…, concat(x, y), …)          →  concat(…, x, y, …)                    along the same axis
    concat(…, part(x), part(x), …)      →  concat(…, part(x), …)                 where the parts follow one another
    concat(x)                           →  x
    part(x)                             →  x                                     where it is all of it
    part(part(x))                       →  part(x), or the lower axis inside
    part(concat(x, y, …))               →  the part of the one it meets          of weights: concat of those it meets
    relu(part(x))                       →  part(relu(x))                         and any element-wise f(·, constants)
    gelu(swap(x))                       →  swap(gelu(x))                         also of constant rows: add(swap(x), b)
    swap(swap(x))                       →  x                                     also transpose ∘ transpose
    reshape(reshape(x))                 →  reshape(x)
    identity(x)                         →  x
    slice(x), pad(x), transpose(x)      →  part(x), grow(x), swap(x)             where they are
    matmul(x, y; transpose_b)           →  matmul(x, swap(y))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from burnish import ops
from burnish.errors import ModelError
from burnish.graph.graph import Attribute
from burnish.rewrite.language.types import is_map
from burnish.rewrite.language.vocabulary import WORDS
from burnish.rewrite.search.table import Label, Table

# What a law of an operator needs among those that make its operands.
_MEETS = {
    "part": frozenset(("part", "concat")),
    "concat": frozenset(("part", "concat")),
    "swap": frozenset(("swap",)),
    "reshape": frozenset(("reshape",)),
    "transpose": frozenset(("transpose",)),
}


class NormalTable(Table):
    """A table all of whose values are in normal form."""

    def make(self, op: str, args: Sequence[int], attrs: Mapping[str, Attribute]) -> int:
        """See :meth:`Table.make`; the laws of this module are applied."""
        match op:
            case "part":
                return self._part(args[0], **self._complete("part", args, attrs))  # type: ignore[arg-type]
            case "concat":
                return self._concat(args, self._complete("concat", args, attrs)["axis"])  # type: ignore[arg-type]
            case "swap":
                return self._swap(args[0])
            case "identity":
                return args[0]
            case "transpose":
                return self._transpose(args[0], attrs)
            case "reshape":
                return self._reshape(args[0], attrs)
            case "slice":
                return self._slice(args[0], ops.OPERATORS["slice"].complete(attrs))
            case "grow" if not any(attrs["pads"]):  # type: ignore[arg-type]
                return args[0]
            case "pad":
                return self._pad(args[0], ops.OPERATORS["pad"].complete(attrs))
            case "matmul":
                return self._matmul(args, attrs)
        return self._pointwise(op, args, attrs)

    def again(self, value: int, args: tuple[int, ...]) -> int:
        """See :meth:`Table.again`; the laws of this module are applied."""
        label = self.labels[value]
        return self.make(label.op, args, label.values) if self._lawful(label, args) else super().again(value, args)

    def _lawful(self, label: Label, args: tuple[int, ...]) -> bool:
        """Whether a law may apply to an operator in normal form whose arguments have changed, but not their types."""
        if label.op in _MEETS:
            return any(self.operator(a).op in _MEETS[label.op] for a in args)
        return self.facts(label, args).elementwise and any(self.operator(a).op in ("part", "swap") for a in args)

    # --- parts and joins ---

    def _part(self, x: int, axis: int, start: int, extent: int) -> int:
        shape = self.types[x].shape
        if not (start >= 0 and extent > 0 and start + extent <= shape[axis]):
            found = f"elements {start} to {start + extent}"
            raise ModelError(f"part: attribute 'start': found {found}; allowed: within 0 to {shape[axis]}")
        if extent == shape[axis]:
            return x
        label = self.operator(x)
        if label.op == "part":
            inner = label.values
            (source,) = self.operands(x)
            if inner["axis"] == axis:
                return self._part(source, axis, int(inner["start"]) + start, extent)  # type: ignore[arg-type]
            if int(inner["axis"]) > axis:  # type: ignore[arg-type]
                return self.make("part", (self._part(source, axis, start, extent),), inner)
        if label.op == "concat" and label.values["axis"] == axis:
            return self._part_of_concat(x, axis, start, extent)
        return super().make("part", (x,), {"axis": axis, "start": start, "extent": extent})

    def _part_of_concat(self, x: int, axis: int, start: int, extent: int) -> int:
        pieces, begin = [], 0
        for piece in self.operands(x):
            end = begin + self.types[piece].shape[axis]
            low, high = max(start, begin), min(start + extent, end)
            if low < high:
                pieces.append(self._part(piece, axis, low - begin, high - low))
            begin = end
        if len(pieces) > 1 and not self.fixed[x]:  # a join of its own would be one more copy
            return super().make("part", (x,), {"axis": axis, "start": start, "extent": extent})
        return self._concat(pieces, axis)

    def _concat(self, args: Sequence[int], axis: int) -> int:
        flat: list[int] = []
        for a in args:
            label = self.operator(a)
            nested = label.op == "concat" and label.values["axis"] == axis
            for piece in self.operands(a) if nested else (a,):
                joined = self._adjacent(flat[-1], piece, axis) if flat else None
                if joined is not None:
                    flat[-1] = joined
                else:
                    flat.append(piece)
        if len(flat) == 1:
            return flat[0]
        return super().make("concat", flat, {"axis": axis})

    def _adjacent(self, a: int, b: int, axis: int) -> int | None:
        """Two parts of one tensor that follow one another, as one."""
        first, second = self.operator(a), self.operator(b)
        if first.op != "part" or second.op != "part" or self.operands(a) != self.operands(b):
            return None
        (x, p), (y, q) = _extent(first.values), _extent(second.values)
        if first.values["axis"] != axis or second.values["axis"] != axis or x + p != y:
            return None
        return self._part(self.operands(a)[0], axis, x, p + q)

    # --- element-wise operators behind parts and swaps ---

    def _pointwise(self, op: str, args: Sequence[int], attrs: Mapping[str, Attribute]) -> int:
        """``op(part(x))`` as ``part(op(x))``, where all other operands are single constants; and of ``swap``, where
        they may be constant rows, too.
        """
        moved = [a for a in args if self.operator(a).op in ("part", "swap") and not self.fixed[a]]
        if len(moved) != 1 or op in WORDS or op == "item":
            return super().make(op, args, attrs)
        (view,) = moved
        word, shape = self.operator(view).op, self.types[view].shape
        others = {a: self.types[a].shape for a in args if a != view}
        turns = word == "swap" and is_map(op, len(args))
        rows = [a for a, own in others.items() if turns and own == shape[-1:] and shape[-1] > 1]
        if any((self.types[a].size != 1 and a not in rows) or not self.fixed[a] for a in others):
            return super().make(op, args, attrs)
        if len(shape) < max(map(len, others.values()), default=0):
            return super().make(op, args, attrs)
        if not self.facts(self.label(op, self._complete(op, args, attrs)), tuple(args)).elementwise:
            return super().make(op, args, attrs)
        (source,) = self.operands(view)
        put = {view: source} | {a: self.make("reshape", (a,), {"shape": (shape[-1], 1)}) for a in rows}
        whole = self._pointwise(op, [put.get(a, a) for a in args], attrs)
        return self.make(word, (whole,), self.operator(view).values)

    # --- views ---

    def _swap(self, x: int) -> int:
        if self.operator(x).op == "swap":
            return self.operands(x)[0]
        if len(self.types[x].shape) < 2:
            raise ModelError(f"swap: input 'x': found shape {list(self.types[x].shape)}; allowed: 2 or more dimensions")
        return super().make("swap", (x,), {})

    def _transpose(self, x: int, attrs: Mapping[str, Attribute]) -> int:
        rank = len(self.types[x].shape)
        perm = attrs.get("perm") or tuple(reversed(range(rank)))
        assert isinstance(perm, tuple)
        if self.operator(x).op == "transpose":
            inner = self.operator(x).values["perm"]
            assert isinstance(inner, tuple)
            return self._transpose(self.operands(x)[0], {"perm": tuple(inner[p] for p in perm)})  # type: ignore[index]
        if perm == tuple(range(rank)):
            return x
        if perm == (*range(rank - 2), rank - 1, rank - 2):
            return self._swap(x)
        return super().make("transpose", (x,), {"perm": perm})

    def _reshape(self, x: int, attrs: Mapping[str, Attribute]) -> int:
        if self.operator(x).op == "reshape":
            (x,) = self.operands(x)
        made = super().make("reshape", (x,), attrs)
        shape = self.types[made].shape
        if shape == self.types[x].shape:
            return x
        return super().make("reshape", (x,), {"shape": shape})

    def _slice(self, x: int, attrs: Mapping[str, Attribute]) -> int:
        starts, extents, steps = attrs["starts"], attrs["extents"], attrs["steps"]
        assert isinstance(starts, tuple) and isinstance(extents, tuple)
        if (steps is not None and set(steps) != {1}) or 0 in extents:  # type: ignore[arg-type]
            return super().make("slice", (x,), attrs)
        for axis, (start, extent) in enumerate(zip(starts, extents, strict=True)):
            x = self._part(x, axis, int(start), int(extent))  # type: ignore[arg-type]
        return x

    def _pad(self, x: int, attrs: Mapping[str, Attribute]) -> int:
        pads, rank = attrs["pads"], len(self.types[x].shape)
        assert isinstance(pads, tuple)
        low, high = pads[:rank], pads[rank:]
        plain = attrs["mode"] == "constant" and attrs["value"] == 0.0 and rank >= 2
        if not plain or any((*low[:-2], *high[:-2])):
            return super().make("pad", (x,), attrs)
        return self.make("grow", (x,), {"pads": (*low[-2:], *high[-2:])})

    def _matmul(self, args: Sequence[int], attrs: Mapping[str, Attribute]) -> int:
        a, b = args
        if attrs.get("transpose_a") and len(self.types[a].shape) > 1:
            a = self._swap(a)
        if attrs.get("transpose_b") and len(self.types[b].shape) > 1:
            b = self._swap(b)
        return super().make("matmul", (a, b), {"transpose_a": False, "transpose_b": False})


def _extent(values: Mapping[str, Attribute]) -> tuple[int, int]:
    start, extent = values["start"], values["extent"]
    assert isinstance(start, int) and isinstance(extent, int)
    return start, extent
