"""Element-wise ends of kernels: computed in place on accumulators, then copied to DRAM."""

from __future__ import annotations

from burnish.errors import ScheduleError
from burnish.loops.expr import Cast, Expr, Load, cast
from burnish.loops.linear import to_linear
from burnish.loops.program import For, If, LoopProgram, Stmt, Store, rebuild_stmt, seq
from burnish.loops.simplify import simplify
from burnish.loops.traverse import loads
from burnish.machines.scopes import GLOBAL
from burnish.machines.vdla.scopes import ACC


def compute_in_place(program: LoopProgram) -> LoopProgram:
    """Divides stores of computed values to DRAM::

    for i in 16:                                 for i in 16:
      y[i] = int8(max(s[i] + b[i], 0))             s[i] = max(s[i] + b[i], 0)
                                                 for i in 16:
                                                   y[i] = int8(s[i])

    Raises ScheduleError where values come from no accumulators that are read only once.
    """
    return LoopProgram(program.name, program.params, _divide(program.body))


def _divide(s: Stmt) -> Stmt:
    loops, inner = nest_of(s)
    if isinstance(inner, Store) and inner.buffer.scope == GLOBAL.name and not _is_copy(inner.value):
        return _divided(loops, inner)
    return rebuild_stmt(s, _divide)


def nest_of(s: Stmt) -> tuple[list[For | If], Stmt]:
    """The loops and conditions of a perfect nest, outermost first, and what is in them."""
    around: list[For | If] = []
    while isinstance(s, (For, If)):
        around.append(s)
        s = s.body
    return around, s


def _is_copy(value: Expr) -> bool:
    """Whether a value is that of a memory, or its low bytes."""
    return isinstance(value.value if isinstance(value, Cast) else value, Load)


def _divided(around: list[For | If], store: Store) -> Stmt:
    value = store.value.value if isinstance(store.value, Cast) else store.value
    loops = [x for x in around if isinstance(x, For) and x.extent > 1]
    sums = [x for x in loads(value) if x.buffer.scope == ACC and x.dtype == "int32"]
    place = next((x for x in sums if _each_once(x, loops)), None)
    if place is None:
        raise ScheduleError(
            f"buffer '{store.buffer.name}': no accumulators hold what '{store.value}' needs, each for one element"
        )
    computed = Store(place.buffer, place.indices, value)
    copied = Store(store.buffer, store.indices, cast(store.buffer.dtype, place))
    return seq(_around(around, computed), _around(around, copied))


def _each_once(load: Load, loops: list[For]) -> bool:
    """Whether all iterations of the loops read different elements, by the steps of the address."""
    address: Expr | int = 0
    for extent, index in zip(load.buffer.shape, load.indices, strict=True):
        address = address * extent + index
    terms, _ = to_linear(simplify(address, {x.var: x.extent for x in loops}))  # type: ignore[arg-type]
    steps = {str(atom): abs(c) for atom, c in terms.items()}
    reach = 1
    for loop in sorted(loops, key=lambda x: steps.get(x.var, 0)):
        if steps.get(loop.var, 0) < reach:
            return False
        reach += steps[loop.var] * (loop.extent - 1)
    return True


def _around(around: list[For | If], s: Stmt) -> Stmt:
    for x in reversed(around):
        s = For(x.var, x.extent, x.kind, s) if isinstance(x, For) else If(x.cond, s)
    return s
