"""Sizes as text: what artifacts keep of symbolic extents, written and read back."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

from burnish.loops.sizes import Dim, SymbolicSize, extent_of, is_size


def extent_text(extent: int) -> int | str:
    """Extent as JSON has it: a number, or the text of a size."""
    return str(extent) if is_size(extent) else extent


def parse_extent(text: str, dims: Mapping[str, Dim]) -> int:
    """The extent that ``str`` printed. Raises ValueError for any other text, and for a dimension not in ``dims``."""
    try:
        found = _parsed(ast.parse(text, mode="eval").body, dims)
    except (SyntaxError, RecursionError, ZeroDivisionError) as error:
        raise ValueError(f"size {text!r}: {error}") from None
    if not isinstance(found, (int, SymbolicSize)):
        raise ValueError(f"size {text!r}: found {found}; allowed: quotients by positive numbers")
    return extent_of(found)


def _parsed(tree: ast.expr, dims: Mapping[str, Dim]) -> Any:
    match tree:
        case ast.Constant(int(value)) if not isinstance(value, bool):
            return value
        case ast.Name(name) if name in dims:
            return SymbolicSize((((dims[name],), 1),))
        case ast.UnaryOp(ast.USub(), operand):
            return -_parsed(operand, dims)
        case ast.BinOp(a, ast.Add() | ast.Sub() | ast.Mult() | ast.FloorDiv() as op, b):
            return _OPERATIONS[type(op)](_parsed(a, dims), _parsed(b, dims))
    known = ", ".join(dims) or "none"
    raise ValueError(f"size: found '{ast.unparse(tree)}'; allowed: integers, + - * //, and dimensions: {known}")


_OPERATIONS: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
}  # fmt: skip
