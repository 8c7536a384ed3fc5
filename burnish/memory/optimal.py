"""Optimal recomputation by an integer program: Checkmate's formulation (Jain et al. 2020), solved by HiGHS.

Stage t is the time until operation t runs first. In a stage an operation may run again, and a value may be kept to the
next. Memory is counted behind every run. For up to about 48 operations; beyond, the program is too large to be solved.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from burnish.errors import ParameterError
from burnish.memory.work import Work
from burnish.search.integer import LinearProgram

LARGEST = 64  # operations: beyond, the program has hundreds of thousands of variables


@dataclass(frozen=True)
class FastestOrder:
    """The fastest order, None where none was found; seconds of it and of a bound that no order is faster than.

    ``proven``: they are the same, or, without an order, there is none.
    """

    order: tuple[int, ...] | None
    seconds: float
    bound: float
    proven: bool


def optimum(work: Work, budget: int, seconds: float = 60.0, known: float | None = None) -> FastestOrder:
    """The order of fewest seconds whose live bytes are at most ``budget``, or the best that ``seconds`` allow to find.

    ``known``: seconds of an order that is known: one that takes longer is not looked for. Raises ParameterError for
    more operations than ``LARGEST``; MissingDependencyError without scipy.
    """
    if len(work) > LARGEST:
        raise ParameterError(f"optimum: found {len(work)} operations; allowed: up to {LARGEST}")
    made = _Formulation(work, budget)
    program = made.program
    if known is not None and (terms := {i: c for i, c in enumerate(program.costs) if c}):
        scale = work.seconds or 1.0
        most = max(0.0, known - work.seconds) / scale + 1e-9
        program.row({i: c / scale for i, c in terms.items()}, high=most)
    if not len(program):
        fits = work.live(range(len(work))) <= budget
        return FastestOrder(tuple(range(len(work))) if fits else None, work.seconds, work.seconds, True)
    answer = program.solve(seconds)
    bound = work.seconds + max(answer.bound, 0.0)
    if answer.values is None:
        return FastestOrder(None, np.inf, bound, answer.infeasible)
    order = made.order(answer.values)
    return FastestOrder(tuple(order), work.order_seconds(order), bound, answer.optimal)


class _Formulation:
    """The program of a work and a budget, and the order that a solution of it is."""

    def __init__(self, work: Work, budget: int) -> None:
        self.work, self.budget = work, budget
        self.program = LinearProgram()
        self.size = [float(n) / max(budget, 1) for n in work.rounded]
        self.readers: list[list[int]] = [[] for _ in work.nbytes]
        for n, operation in enumerate(work.operations):
            for v in dict.fromkeys(operation.reads):
                self.readers[v].append(n)
        self.sized = [v for v, size in enumerate(self.size) if size and work.producer[v] >= 0]
        self.run: dict[tuple[int, int], int] = {}
        self.kept: dict[tuple[int, int], int] = {}
        self._variables()
        self._dependences()
        for stage in range(len(work)):
            self._memory(stage)

    def _variables(self) -> None:
        """Variables of a stage: what may run again, since it is used then or later, and what may be kept for it."""
        work, count = self.work, len(self.work)
        for stage in range(count):
            for n in range(stage - 1, -1, -1):
                made = work.operations[n].writes
                used = any(r >= stage or (stage, r) in self.run for v in made for r in self.readers[v])
                if work.operations[n].again and used and any(self.size[v] for v in made):
                    self.run[stage, n] = self.program.variable(work.operations[n].seconds)
        for v in self.sized:
            later = [stage for (stage, n) in self.run if n in self.readers[v]]
            last = max([*self.readers[v], *later], default=-1)
            last = count if v in work.keep else last
            for stage in range(work.producer[v] + 1, last + 1):
                if stage < count:
                    self.kept[stage, v] = self.program.variable()
            if v in work.keep:
                self.program.row(self._kept(count - 1, v)[0], 1.0, 1.0) if work.producer[v] < count - 1 else None

    def _runs(self, stage: int, n: int) -> tuple[dict[int, float], float]:
        """Whether an operation runs in a stage: terms and a number."""
        if n == stage:
            return {}, 1.0
        return ({self.run[stage, n]: 1.0}, 0.0) if (stage, n) in self.run else ({}, 0.0)

    def _kept(self, stage: int, v: int) -> tuple[dict[int, float], float]:
        """Whether a value is there when a stage begins."""
        return ({self.kept[stage, v]: 1.0}, 0.0) if (stage, v) in self.kept else ({}, 0.0)

    def _at_most(self, one: tuple[dict[int, float], float], *others: tuple[dict[int, float], float]) -> None:
        """``one <= sum(others)``."""
        terms = dict(one[0])
        for more, _ in others:
            for i, x in more.items():
                terms[i] = terms.get(i, 0.0) - x
        self.program.row(terms, high=sum(number for _, number in others) - one[1])

    def _dependences(self) -> None:
        work = self.work
        sized = {*self.sized}
        for stage in range(len(work)):
            for n in range(stage + 1):
                one = self._runs(stage, n)
                if one == ({}, 0.0):
                    continue
                for v in dict.fromkeys(work.operations[n].reads):
                    if v in sized:
                        self._at_most(one, self._runs(stage, work.producer[v]), self._kept(stage, v))
        for (stage, v), _ in self.kept.items():
            before = [self._runs(stage - 1, work.producer[v]), self._kept(stage - 1, v)]
            self._at_most(self._kept(stage, v), *before)

    def _memory(self, stage: int) -> None:
        """Memory constraints: at each run of a stage at most the budget is live."""
        work, program = self.work, self.program
        start: dict[int, float] = {}
        for v in self.sized:
            for i in self._kept(stage, v)[0]:
                start[i] = self.size[v]
        level, number = start, 0.0  # terms and number: what is live
        for n in range(stage + 1):
            runs, always = self._runs(stage, n)
            if not runs and not always:
                continue
            operation = work.operations[n]
            made = sum(self.size[v] for v in operation.writes)
            level, number = dict(level), number + always * made
            for i in runs:
                level[i] = level.get(i, 0.0) + made
            freed = {v: self._freed(stage, n, v) for v in dict.fromkeys((*operation.reads, *operation.writes))}
            peak = dict(level)
            first = self.size[operation.writes[0]] if operation.writes else 0.0
            fitting = [x for v in operation.in_place if (x := freed.get(v)) is not None and self.size[v] >= first > 0]
            if fitting:
                saved = program.variable(integer=False)
                program.row({saved: 1.0, **dict.fromkeys(fitting, -1.0)}, high=0.0)
                peak[saved] = -first
            program.row(peak, high=1.0 - number)
            for v, variable in freed.items():
                if variable is not None:
                    level[variable] = level.get(variable, 0.0) - self.size[v]

    def _freed(self, stage: int, n: int, v: int) -> int | None:
        """The variable that says that a value is needed no more behind a run; None where it always is."""
        if not self.size[v] or self.work.producer[v] < 0:
            return None
        if v in self.work.keep and stage == len(self.work) - 1:
            return None
        freed = self.program.variable(integer=False)
        one: tuple[dict[int, float], float] = ({freed: 1.0}, 0.0)
        self._at_most(one, self._runs(stage, n))
        others = [self._kept(stage + 1, v)] if stage + 1 < len(self.work) else []
        others += [self._runs(stage, r) for r in self.readers[v] if n < r <= stage]
        for terms, number in others:
            self._at_most(one, ({i: -x for i, x in terms.items()}, 1.0 - number))
        return freed

    def order(self, solution: np.ndarray) -> list[int]:
        """The runs of a solution."""
        result = []
        for stage in range(len(self.work)):
            for n in range(stage + 1):
                terms, number = self._runs(stage, n)
                if number or any(solution[i] > 0.5 for i in terms):
                    result.append(n)
        return result
