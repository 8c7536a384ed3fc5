"""Maps by matrices of literals, as fast transforms have them: sums written out, what rows have in common taken once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, product
from math import prod

from burnish.errors import ScheduleError
from burnish.loops.expr import FLOATS, INDEX, Binary, Const, Expr, Literal, Select
from burnish.loops.program import NOTHING, For, LoopProgram, Stmt, Store, rebuild_stmt, walk_stmt
from burnish.loops.regions import accesses
from burnish.loops.simplify import simplify
from burnish.loops.traverse import loads, substitute
from burnish.schedule.dependence import undetermined
from burnish.schedule.nest import all_loops, replace_site, stage_nests
from burnish.schedule.reduce import update_of

MOST_TERMS = 64  # of one sum

Row = tuple[float, ...]


def expand(program: LoopProgram, stage: str) -> LoopProgram:
    """Turns the sums of ``stage``, of products of numbers and literals, into one expression for every row of literals.

    Nothing is left of a term with the zero of a matrix (:class:`Literal`; one of data makes NaN of an infinite number),
    and terms are summed in another order: rows, or columns, that differ by signs alone are taken in pairs, as the sum
    and the difference of two parts, which code generation computes once::

        for s.init.i in 2:
          s[s.init.i] = 0.0
        for s.i in 2:
          for s.k in 2:
            s[s.i] += (((1.0 if (s.k == 0) else 3.0) if (s.i == 0) else (1.0 if (s.k == 0) else -3.0)) * x[s.k])

        for s.i in 2:
          s[s.i] = ((x[0] + (x[1] * 3.0)) if (s.i == 0) else (x[0] + (x[1] * -3.0)))
    """
    nest, update = update_of(program, stage, "expand")
    kept = frozenset[str]().union(*(i.variables for i in update.indices))
    axes = {loop.var: loop.extent for loop in all_loops(nest.stmt) if loop.var not in kept}
    value, terms = update.value, prod(axes.values())
    summed = update.reduce == "sum" and value.dtype in FLOATS and terms <= MOST_TERMS
    if not (summed and isinstance(value, Binary) and value.op == "*"):
        raise ScheduleError(f"expand: stage '{stage}' is no sum of at most {MOST_TERMS} products of floating numbers")
    nests = stage_nests(program, stage, "expand")
    if len(nests) != 2 or any(not isinstance(s, (For, Store)) for each in nests for s in walk_stmt(each.stmt)):
        raise ScheduleError(f"expand: stage '{stage}' has conditions, parts, or other stages inside; expand it before")
    stored = [a for a in accesses(nest.stmt, nest.ranges, of=stage) if a.writes]
    both = undetermined(stored, {loop.var: loop.extent for loop in all_loops(nest.stmt) if loop.var in kept})
    if both:
        raise ScheduleError(
            f"expand: stage '{stage}' is summed along loop '{both[0]}', which its index depends on, too"
        )
    literal, number = (value.b, value.a) if loads(value.a) else (value.a, value.b)
    places: list[dict[str, Expr]] = [
        dict(zip(axes, (Const(i, INDEX) for i in place), strict=True)) for place in product(*map(range, axes.values()))
    ]

    def row(e: Expr) -> Row:
        found = [simplify(substitute(e, place), {}) for place in places]
        if not all(isinstance(c, Const) and (c.value or isinstance(c, Literal)) for c in found):
            raise ScheduleError(f"expand: stage '{stage}' sums products with {e}, which is no literal")
        return tuple(float(c.value) for c in found if isinstance(c, Const))

    rows = [row(e) for e in _cases(literal, axes)]
    sums = iter(_sums(rows, [substitute(number, place) for place in places]))
    written = _map_cases(literal, axes, lambda _: next(sums))

    def rewrite(s: Stmt) -> Stmt:
        if isinstance(s, Store):
            return Store(s.buffer, s.indices, written)
        return rewrite(s.body) if isinstance(s, For) and s.var in axes else rebuild_stmt(s, rewrite)

    program = replace_site(program, nest, rewrite(nest.stmt))
    return replace_site(program, stage_nests(program, stage, "expand")[0], NOTHING)  # no sum to begin from zero


def _cases(e: Expr, axes: dict[str, int]) -> Iterator[Expr]:
    """The branches of ``e`` by conditions that do not depend on ``axes``."""
    if isinstance(e, Select) and e.cond.variables.isdisjoint(axes):
        yield from _cases(e.a, axes)
        yield from _cases(e.b, axes)
    else:
        yield e


def _map_cases(e: Expr, axes: dict[str, int], fn: Callable[[Expr], Expr]) -> Expr:
    """``e`` with ``fn`` applied to each of :func:`_cases`, in their order."""
    if isinstance(e, Select) and e.cond.variables.isdisjoint(axes):
        return Select(e.cond, _map_cases(e.a, axes, fn), _map_cases(e.b, axes, fn))
    return fn(e)


# --- matrix times vector ----------------------------------------------------------------------------------------------


def _sums(rows: Sequence[Row], numbers: Sequence[Expr]) -> list[Expr]:
    """The product of a matrix, by its rows, and a vector."""
    rows, numbers = _pair_columns(rows, numbers)
    made: dict[int, Expr] = {}
    for i, j in combinations(range(len(rows)), 2):
        if i in made or j in made:
            continue
        alike, opposite = _parts(rows[i], rows[j])
        if alike and opposite:
            first = rows[i][opposite[0]]
            even = _sum([(rows[i][k], numbers[k]) for k in alike])
            odd = _sum([(rows[i][k] / first, numbers[k]) for k in opposite])
            made[i], made[j] = _plus(even, first, odd), _plus(even, -first, odd)
    return [made[i] if i in made else _sum([*zip(row, numbers, strict=True)]) for i, row in enumerate(rows)]


def _pair_columns(rows: Sequence[Row], numbers: Sequence[Expr]) -> tuple[list[Row], list[Expr]]:
    """The same product by the sums and the differences of numbers whose columns differ by signs alone."""
    columns = list(zip(*rows, strict=True))
    left, found = dict(enumerate(numbers)), list[tuple[Row, Expr]]()
    for i, j in combinations(range(len(columns)), 2):
        if i not in left or j not in left:
            continue
        alike, opposite = _parts(columns[i], columns[j])
        if len(alike) + len(opposite) > 1:
            a, b = left.pop(i), left.pop(j)
            for op, at in (("+", alike), ("-", opposite)):
                if at:
                    found.append((tuple(c if k in at else 0.0 for k, c in enumerate(columns[i])), Binary(op, a, b)))
    found += [(columns[k], number) for k, number in left.items()]
    return [*zip(*(column for column, _ in found), strict=True)], [number for _, number in found]


def _parts(a: Row, b: Row) -> tuple[list[int], list[int]]:
    """Equal and opposite positions of two rows, zeros aside; none if they differ by more than signs."""
    if any(abs(x) != abs(y) for x, y in zip(a, b, strict=True)):
        return [], []
    places = [k for k, x in enumerate(a) if x]
    return [k for k in places if a[k] == b[k]], [k for k in places if a[k] != b[k]]


def _sum(terms: Sequence[tuple[float, Expr]]) -> Expr:
    """A chain of multiply-adds, from terms without a factor if there are any; zero of no terms."""
    if not any(c for c, _ in terms):
        return Const(0.0, terms[0][1].dtype)
    (c, total), *rest = sorted(((c, e) for c, e in terms if c), key=lambda term: (term[0] != 1, abs(term[0]) != 1))
    total = total if c == 1 else Binary("*", total, Const(c, total.dtype))
    for c, e in rest:
        total = _plus(total, c, e)
    return total


def _plus(total: Expr, c: float, e: Expr) -> Expr:
    """``total + c e``; a sum where there is a factor, which is one multiply-add, as no difference is."""
    if abs(c) == 1:
        return Binary("-" if c < 0 else "+", total, e)
    return Binary("+", total, Binary("*", e, Const(c, e.dtype)))
