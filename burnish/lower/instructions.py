"""Instruction count of a lowered program: a static estimate of its time, for saying that a schedule is slow.

Vectors count once, loops as often as they run, conditions and selects too; what computes addresses is free, and so is
what a tensor intrinsic does. No clock, no caches: it tells scalar code from vector code, not good from better.
"""

from __future__ import annotations

from burnish.loops.expr import Binary, Call, Expr, Load, Not, Select
from burnish.loops.loaded import is_loaded
from burnish.loops.program import Alloc, For, If, LoopProgram, Seq, Stmt, Store
from burnish.loops.sizes import hinted

FUNCTION = 10.0  # instructions of an exponential, a logarithm, ...
PER_CYCLE = 4.0  # instructions that a core begins in a cycle: two loads, two operations


def instructions(program: LoopProgram, lanes: int) -> tuple[float, bool]:
    """Instructions of one call, on all threads together, and whether threads share them. Open sizes at their hints."""
    shared = False

    def count(s: Stmt) -> float:
        nonlocal shared
        match s:
            case Seq(stmts):
                return sum(map(count, stmts))
            case For(_, extent, kind, body):
                shared = shared or kind == "parallel"
                times = float(extent.hint if is_loaded(extent) else hinted(extent))
                return count(body) * (-(-times // lanes) if kind == "vectorize" else times)
            case If(cond, body):
                return _of(cond) + count(body)
            case Alloc(_, body):
                return count(body)
            case Store(_, _, value, reduce):
                product = reduce == "sum" and isinstance(value, Binary) and value.op == "*"
                return _of(value) + (0.0 if product else 1.0)  # a product that is summed is one instruction
        return 0.0

    return count(program.body), shared


def _of(e: Expr) -> float:
    """Instructions of an expression, in which equal parts are computed once."""
    total, waiting, seen = 0.0, [e], {e}
    while waiting:
        top = waiting.pop()
        total += FUNCTION if isinstance(top, Call) else float(isinstance(top, (Binary, Select, Not, Load)))
        below = () if isinstance(top, Load) else top.children
        fresh = [child for child in dict.fromkeys(below) if child not in seen]
        seen.update(fresh)
        waiting.extend(fresh)
    return total
