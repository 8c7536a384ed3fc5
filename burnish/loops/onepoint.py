"""The one-point rule: of a sum over a variable whose value an equation demands, one term is left."""

from __future__ import annotations

from collections.abc import Sequence

from burnish.loops.expr import INDEX, Binary, Expr, Reduce, Select, Var, wrap
from burnish.loops.linear import from_linear, to_linear
from burnish.loops.reduction import is_neutral
from burnish.loops.tensor import Tensor
from burnish.loops.traverse import conjuncts


def demanded(conditions: Sequence[Expr], name: str) -> tuple[Expr, tuple[Expr, ...]] | None:
    """The value that one of ``conditions`` demands of the variable ``name``, and the other conditions.

    ``index[r] == y`` demands ``index[r]`` of ``y``. None where no equation does.
    """
    for number, cond in enumerate(conditions):
        if not (isinstance(cond, Binary) and cond.op == "==" and cond.a.dtype == INDEX):
            continue
        terms, const = to_linear(wrap(cond.a - cond.b))
        rest = {atom: c for atom, c in terms.items() if atom != Var(name)}
        factor = terms.get(Var(name), 0)
        if abs(factor) == 1 and not any(name in atom.variables for atom in rest):
            value = from_linear({atom: -factor * c for atom, c in rest.items()}, -factor * const)
            return value, (*conditions[:number], *conditions[number + 1 :])
    return None


def padding(value: Expr, reduce: str) -> tuple[Expr, list[Expr]]:
    """Padding of a reduction: the value it combines, and the conditions without which that is its identity."""
    if isinstance(value, Select) and is_neutral(value.b, reduce):
        return value.a, conjuncts(value.cond)
    return value, []


def scattered_axes(t: Tensor) -> tuple[int, ...]:
    """The axes of a reduction at which what is loaded demands one position of each term: ``y[index[r]] += x[r]``."""
    if not isinstance(t.body, Reduce):
        return ()
    _, conditions = padding(t.body.body, t.body.kind)
    found = []
    for d, axis in enumerate(t.axes):
        point = demanded(conditions, axis.name)
        if point is not None and point[0].buffers:
            found.append(d)
            conditions = list(point[1])
    return tuple(found)
