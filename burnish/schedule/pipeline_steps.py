"""Steps of a software pipeline: iterations of one loop, or of two, the inner one of which is pipelined."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from burnish.errors import ScheduleError
from burnish.loops.expr import INDEX, Binary, Const, Expr, Var, all_of
from burnish.loops.linear import to_linear
from burnish.loops.program import THREADS, For, If, LoopProgram, Stmt, substitute_stmt
from burnish.loops.simplify import simplify
from burnish.loops.sizes import is_size
from burnish.loops.traverse import conjuncts, substitute
from burnish.schedule.nest import LoopSite, find_loop, replace_stmt


@dataclass(frozen=True)
class PipelineSteps:
    """Steps of a pipelined loop, which are counted on over the iterations of another loop around it.

    ``site``: the pipelined loop. ``top``: the other loop, or the same one where there is none. ``given``: conditions
    between the two, under which an iteration of ``top`` has any steps.
    """

    site: LoopSite
    top: LoopSite
    given: tuple[Expr, ...] = ()

    @property
    def extent(self) -> int:
        """Steps of an iteration of the loop around, or of all."""
        return self.site.loop.extent

    @property
    def total(self) -> int:
        """All steps."""
        return self.extent * self.top.loop.extent if self._several else self.extent

    @property
    def now(self) -> Expr:
        """The number of a step."""
        inner = Var(self.site.loop.var)
        return Var(self.top.loop.var) * self.extent + inner if self._several else inner

    @property
    def _several(self) -> bool:
        return self.top is not self.site

    def first(self, s: Stmt, step: Expr, ahead: int) -> Stmt:
        """``s`` in one of the first ``ahead`` steps, outside of all loops."""
        values: dict[str, Expr] = {self.site.loop.var: step}
        end = [step < self.total] if ahead > self.total else []
        if self._several:
            around = self.site.path[len(self.top.path) :]
            values = {loop.var: Const(0, INDEX) for loop in around if isinstance(loop, For)}
            values[self.site.loop.var] = step if ahead <= self.extent else step % self.extent
            if ahead > self.extent:
                values[self.top.loop.var] = step // self.extent
            end = [step // self.extent < self.top.loop.extent] if end and not self._ends else []
        return self._under(s, values, end)

    def later(self, s: Stmt, ahead: int) -> Stmt:
        """``s`` as many steps later, inside of the pipelined loop."""
        inner = Var(self.site.loop.var) + ahead
        if not self._several:
            return self._under(s, {self.site.loop.var: inner}, [inner < self.total])
        outer = Var(self.top.loop.var) + inner // self.extent
        values = {self.site.loop.var: inner % self.extent, self.top.loop.var: outer}
        return self._under(s, values, [] if self._ends else [outer < self.top.loop.extent])

    @property
    def _ends(self) -> bool:
        """Whether the conditions leave out what would be iterations after the last one of the loop around."""
        loop = self.top.loop
        beyond = {loop.var: Const(loop.extent, INDEX)}
        return any(simplify(substitute(c, beyond), self.top.ranges) == Const(False, "bool") for c in self.given)

    def _under(self, s: Stmt, values: Mapping[str, Expr], conds: Sequence[Expr]) -> Stmt:
        """``s`` with values of loops' variables, where its step is one that there is."""
        ranges = self.top.ranges
        given = [simplify(substitute(c, values), ranges) for c in self.given]
        conds = [*conds, *(c for c in given if c != Const(True, "bool"))]
        s = substitute_stmt(s, values)
        return If(all_of(*conds), s) if conds else s

    def around(self, inner: Stmt) -> Stmt:
        """All loops, with ``inner`` in the place of the pipelined one."""
        if not self._several:
            return inner
        loop = self.top.loop
        return For(loop.var, loop.extent, loop.kind, replace_stmt(loop.body, self.site.loop, inner))

    def check(self, fetches: Sequence[Stmt], own: Collection[str]) -> None:
        """Raises ScheduleError for what cannot be fetched early, in an iteration of the loop around before its own."""
        between = self.site.path[len(self.top.path) + 1 :]
        inner = {loop.var for loop in between if isinstance(loop, For) and loop.extent > 1}
        for s in fetches:
            if used := sorted(inner & s.variables):
                raise ScheduleError(
                    f"pipeline: loop '{self.site.loop.var}' fetches what depends on loop '{used[0]}' within "
                    f"'{self.top.loop.var}'"
                )
            if self._several and (written := sorted((s.reads & self.top.loop.body.writes).difference(own))):
                raise ScheduleError(
                    f"pipeline: loop '{self.top.loop.var}' computes '{written[0]}', which an iteration ahead would "
                    f"have to know"
                )


def pipeline_steps(program: LoopProgram, loop: str, over: str | None) -> PipelineSteps:
    """Steps of ``loop``, through all iterations of the loop ``over`` where that is given.

    Raises ScheduleError unless both are serial and have a number of iterations, and each iteration of ``over`` runs
    the other loop once, if it is not one of the last ones that a condition leaves out.
    """
    site = find_loop(program, loop, "pipeline")
    top = site if over is None else find_loop(program, over, "pipeline")
    for each in {site.loop.var: site.loop, top.loop.var: top.loop}.values():
        if each.kind != "serial" or is_size(each.extent) or not isinstance(each.extent, int):
            raise ScheduleError(
                f"pipeline: loop '{each.var}' is {each.kind}, of {each.extent} iterations; allowed: serial, a number"
            )
    if top is site:
        return PipelineSteps(site, site)
    if all(s is not top.loop for s in site.path):
        raise ScheduleError(f"pipeline: loop '{loop}' is not inside of '{over}'")
    between = site.path[len(top.path) + 1 :]
    inner = {s.var: s for s in between if isinstance(s, For) and s.extent != 1}
    for s in inner.values():
        if s.kind not in THREADS:
            raise ScheduleError(f"pipeline: loop '{s.var}' repeats loop '{loop}' within '{over}'; allowed: threads")
    given = tuple(c for s in between if isinstance(s, If) for c in conjuncts(s.cond))
    for cond in given:
        if cond.buffers or cond.variables & {*inner} or not _holds_first(cond, top.loop.var):
            raise ScheduleError(
                f"pipeline: loop '{loop}' runs where '{cond}'; allowed: in the first iterations of '{over}', of all "
                f"threads"
            )
    return PipelineSteps(site, top, given)


def _holds_first(cond: Expr, loop: str) -> bool:
    """Whether a condition that holds in an iteration of a loop certainly does in those before it: ``x + i * c < n``."""
    if not isinstance(cond, Binary) or cond.op not in ("<", "<="):
        return False
    terms, _ = to_linear(cond.a - cond.b)
    own = [c for atom, c in terms.items() if loop in atom.variables]
    return all(c >= 0 for c in own) and all(isinstance(atom, Var) for atom in terms if loop in atom.variables)
