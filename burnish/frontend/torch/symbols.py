"""Symbolic shapes: PyTorch's SymInts, whose expressions are SymPy's, as extents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from burnish.errors import UnsupportedOperator
from burnish.loops.sizes import is_size


def is_open(extent: object) -> bool:
    """Whether an extent is no number: known when a model is called."""
    return is_size(extent)


@dataclass(frozen=True)
class Symbols:
    """Extents of PyTorch's symbols by their names (``s77``): a dimension that stays open, or a number."""

    extents: dict[str, int] = field(default_factory=dict)

    def extent(self, value: Any, where: str) -> int:
        """An ``int`` or a ``SymInt`` as an extent. Raises UnsupportedOperator for what is no polynomial."""
        if isinstance(value, int):
            return int(value)
        return self._evaluated(value.node.expr, where)

    def shape(self, tensor: Any, where: str) -> tuple[int, ...]:
        """The extents of a tensor."""
        return tuple([self.extent(d, where) for d in tensor.shape])

    def bind(self, tensor: Any, shape: Sequence[int]) -> None:
        """Takes extents that torch could not know, for they depend on data, from the shape that was found."""
        for said, own in zip(tensor.shape, shape, strict=False):
            if not isinstance(said, int) and said.node.expr.is_Symbol and not is_open(own):
                self.extents.setdefault(said.node.expr.name, own)

    def _evaluated(self, expr: Any, where: str) -> int:
        if expr.is_Integer:
            return int(expr)
        if expr.is_Symbol:
            if expr.name not in self.extents:
                known = ", ".join(self.extents) or "none"
                raise UnsupportedOperator(f"{where}: found an extent {expr} that depends on data; allowed: {known}")
            return self.extents[expr.name]
        kind = type(expr).__name__
        parts = [self._evaluated(a, where) for a in expr.args] if kind in _KINDS else []
        found = _computed(kind, parts)
        if found is None:
            raise UnsupportedOperator(f"{where}: found the extent {expr}; allowed: polynomials, // and % by numbers")
        return found


_KINDS = ("Add", "Mul", "Pow", "FloorDiv", "CleanDiv", "IntTrueDiv", "Mod", "PythonMod", "Max", "Min")


def _computed(kind: str, parts: list[int]) -> int | None:
    """An extent from its parts; None where it is none."""
    if not parts:
        return None
    total = parts[0]
    if kind == "Pow":
        base, power = parts
        if is_open(power) or power < 0:
            return None
        total = 1
        for _ in range(power):
            total = total * base
        return total
    if kind in ("FloorDiv", "CleanDiv", "Mod", "PythonMod"):
        total = total // parts[1] if kind.endswith("Div") else total % parts[1]
        return total if type(total) is int or is_open(total) else None
    for part in parts[1:]:
        if kind == "Add":
            total = total + part
        elif kind == "Mul":
            total = total * part
        elif kind in ("Max", "Min") and not is_open(total - part):
            total = max(total, part) if kind == "Max" else min(total, part)
        else:
            return None
    return total
