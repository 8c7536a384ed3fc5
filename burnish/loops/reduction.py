"""Algebra of reductions: neutral elements, one step of combining, and the two factors of a sum of products."""

from __future__ import annotations

from burnish.loops.expr import FLOATS, ITEM_BYTES, WORD_PRODUCTS, Binary, Call, Const, Expr, Literal, binary, wrap


def factors_of(e: Expr) -> tuple[Expr, Expr] | None:
    """Factors of a product: two numbers, or two words of bytes or bits; None where ``e`` is no product."""
    if isinstance(e, Binary) and e.op == "*":
        return e.a, e.b
    return (e.args[0], e.args[1]) if isinstance(e, Call) and e.fn in WORD_PRODUCTS else None


def is_neutral(e: Expr, kind: str) -> bool:
    """Whether an expression is the neutral element of a reduction, which may be a :class:`Literal`."""
    return isinstance(e, Const) and (
        e == identity(kind, e.dtype) or (isinstance(e, Literal) and kind == "sum" and not e.value)
    )


def identity(kind: str, dtype: str) -> Const:
    """The neutral element of a reduction."""
    if kind in ("sum", "prod"):
        return wrap(0 if kind == "sum" else 1, dtype)  # type: ignore[return-value]
    low = kind == "max"
    if dtype in FLOATS:
        return Const(float("-inf") if low else float("inf"), dtype)
    if dtype == "bool":
        return Const(not low, dtype)
    bits, signed = ITEM_BYTES[dtype] * 8, dtype.startswith("int")
    lo, hi = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    return Const(lo if low else hi, dtype)


def combine(kind: str, a: Expr, b: Expr) -> Expr:
    """One step of a reduction."""
    return binary({"sum": "+", "prod": "*", "max": "max", "min": "min"}[kind], a, b)
