"""Tensorization: hands a loop nest to a tensor intrinsic of the machine (thesis-chen section 4.3.3)."""

from __future__ import annotations

from burnish.errors import ScheduleError
from burnish.loops.expr import INDEX, Binary, Buffer, Const, Expr, Load, Var
from burnish.loops.linear import to_linear
from burnish.loops.program import For, If, Intrinsic, LoopProgram, Seq, Stmt, Store, seq
from burnish.loops.simplify import Ranges, simplify
from burnish.loops.traverse import children, free_vars, substitute
from burnish.machines.intrinsics import TensorIntrinsic, stride_name
from burnish.schedule.nest import find_loop, replace_at, replace_site


def tensorize(program: LoopProgram, loop: str, intrinsic: TensorIntrinsic) -> LoopProgram:
    """Replaces the nest of ``loop``, which must compute what ``intrinsic`` declares, by the intrinsic.

    One that is declared as several nests, such as a reset and an update, replaces as many, the last that of ``loop``.
    Loops must agree in number, order and extent, operands in dtype and strides::

        for y.init.i in 16:
          y[y.init.i] = 0
        for y.i in 16:
          for y.k in 4:
            y[y.i] += (int32(x[y.k]) * int32(w[y.i, y.k]))

        for y.init.i in 16:
          y[y.init.i] = 0
        dot_u8s8_i32(y[0], x[0], w[0, 0])
    """
    site = find_loop(program, loop, "tensorize")
    matcher = _Matcher(loop, intrinsic, site.ranges)
    declared = intrinsic.program.body
    if not isinstance(declared, Seq):
        matcher.nest(declared, site.loop)
        return replace_site(program, site, matcher.call())
    parent, count = site.path[-1] if site.path else None, len(declared.stmts)
    at = next((i for i, s in enumerate(parent.parts) if s is site.loop), 0) if parent else 0
    if not isinstance(parent, Seq) or at + 1 < count:
        raise matcher.fail(f"before it stand not the other {count - 1} of the declared nests")
    first = at + 1 - count
    for nest, actual in zip(declared.stmts, parent.stmts[first : at + 1], strict=True):
        matcher.nest(nest, actual)
    return replace_at(program, parent, seq(*parent.stmts[:first], matcher.call(), *parent.stmts[at + 1 :]))


class _Matcher:
    """One attempt to match a nest; collects which access stands for which operand."""

    def __init__(self, loop: str, intrinsic: TensorIntrinsic, ranges: Ranges) -> None:
        self.loop, self.intrinsic, self.ranges = loop, intrinsic, ranges
        self.found: dict[str, Load] = {}
        self.renamed: dict[str, Expr] = {}
        self.attrs: dict[str, int | str] = {}
        self.moving: set[str] = set()  # loops of the nests

    def fail(self, reason: str) -> ScheduleError:
        return ScheduleError(f"tensorize: the nest of loop '{self.loop}' is not '{self.intrinsic.name}': {reason}")

    def nest(self, declared: Stmt, actual: Stmt) -> None:
        """Notes which access stands for which operand in a nest; ScheduleError where it differs from the declared."""
        ranges = dict(self.ranges)
        while isinstance(declared, For):
            if not isinstance(actual, For):
                raise self.fail(f"it has no loop for the declared '{declared.var}' of {declared.extent} iterations")
            if actual.extent != declared.extent:
                raise self.fail(f"loop '{actual.var}' has {actual.extent} iterations, declared are {declared.extent}")
            ranges[actual.var] = actual.extent
            self.moving.add(actual.var)
            self.renamed[declared.var] = Var(actual.var)
            declared, actual = declared.body, actual.body
        if not isinstance(actual, Store) or not isinstance(declared, Store):
            found = "a condition" if isinstance(actual, If) else "more than one statement or more loops"
            raise self.fail(f"inside its loops stands {found}, not one store")
        if actual.reduce != declared.reduce:
            raise self.fail(f"its store combines by {actual.reduce}, declared is {declared.reduce}")
        self.ranges = ranges  # with those of nests before: their names differ
        self._access(Load(actual.buffer, actual.indices), Load(declared.buffer, declared.indices))
        self._expr(actual.value, declared.value)

    def call(self) -> Intrinsic:
        """The intrinsic call that replaces what was matched."""
        operands = tuple(self._begin(self.found[b.name]) for b in self.intrinsic.operands)
        return Intrinsic(self.intrinsic.name, operands, tuple(self.attrs.items()))

    def _expr(self, actual: Expr, declared: Expr) -> None:
        if isinstance(declared, Load) and isinstance(actual, Load):
            self._access(actual, declared)
            return
        if isinstance(actual, Const) and actual == declared:
            return
        a, d = children(actual), children(declared)
        if type(actual) is not type(declared) or len(a) != len(d) or actual.dtype != declared.dtype or not a:
            raise self.fail(f"found '{actual}' where '{declared}' is declared")
        if isinstance(actual, Binary) and isinstance(declared, Binary):
            if actual.op != declared.op:
                raise self.fail(f"found '{actual}' where '{declared}' is declared")
            if actual.op in ("+", "*"):  # operands may stand in either order
                self._either_order(a, d)
                return
        for x, y in zip(a, d, strict=True):
            self._expr(x, y)

    def _either_order(self, a: tuple[Expr, ...], d: tuple[Expr, ...]) -> None:
        """Matches two operands as they stand or exchanged; when neither fits, says what is wrong as they stand."""
        before = dict(self.found)
        try:
            self._expr(a[0], d[0])
            self._expr(a[1], d[1])
        except ScheduleError as first:
            self.found = before
            try:
                self._expr(a[1], d[0])
                self._expr(a[0], d[1])
            except ScheduleError:
                raise first from None

    def _access(self, actual: Load, declared: Load) -> None:
        tile = declared.buffer
        if actual.dtype != tile.dtype:
            raise self.fail(
                f"buffer '{actual.buffer.name}' holds {actual.dtype}, operand '{tile.name}' is {tile.dtype}"
            )
        moving = {str(v) for v in self.renamed.values()}
        strides = _strides(actual, moving, self.ranges)
        wanted = _strides(Load(tile, tuple(substitute(i, self.renamed) for i in declared.indices)), moving, self.ranges)
        if strides is not None and wanted is not None and tile.name in self.intrinsic.free:
            for dimension, index in enumerate(declared.indices[:-1]):
                row = str(self.renamed[str(index)])
                if strides.get(row, 0) > 0:
                    self.attrs[stride_name(tile, dimension)] = wanted[row] = strides[row]
        if strides is None or strides != wanted:
            raise self.fail(f"'{actual}' does not step through memory like operand '{tile.name}' {list(tile.shape)}")
        before = self.found.setdefault(tile.name, actual)
        if self._begin(before) != self._begin(actual):
            raise self.fail(f"operand '{tile.name}' is both '{before}' and '{actual}'")

    def _begin(self, access: Load) -> Load:
        """Origin of an access's tile."""
        zeros: dict[str, Expr] = {str(v): Const(0, INDEX) for v in self.moving}
        return Load(access.buffer, tuple(simplify(substitute(i, zeros), self.ranges) for i in access.indices))


def _strides(access: Load, moving: set[str], ranges: Ranges) -> dict[str, int] | None:
    """Elements by which the address of ``access`` moves with each variable of ``moving``; None when not linear."""
    terms, _ = to_linear(simplify(_address(access.buffer, access.indices), ranges))
    strides = {}
    for atom, c in terms.items():
        if isinstance(atom, Var) and atom.name in moving:
            strides[atom.name] = c
        elif free_vars(atom) & moving:
            return None
    return strides


def _address(buffer: Buffer, indices: tuple[Expr, ...]) -> Expr:
    address: Expr = Const(0, INDEX)
    for extent, index in zip(buffer.shape, indices, strict=True):
        address = address * extent + index
    return address
