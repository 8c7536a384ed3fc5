"""Greedy choice between keeping, recomputing and moving, for graphs of any size, by simulating the execution.

Where room is needed, the tensor leaves that costs the least to bring back for its bytes and the steps until its next
use (the rule of Kirisame et al. 2021, "Dynamic tensor rematerialization", with known uses in place of staleness). It is
stored if that is to cost less than running its steps again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Mapping

from burnish.memory.swap.plan import Action
from burnish.memory.swap.problem import SwapProblem

DEPTH = 64  # steps in a chain that is run again


class NoRoom(Exception):  # noqa: N818 - ends one simulation, and is never seen outside
    """Fast memory is full of what running steps hold."""


class Simulation:
    """One execution; ``caution`` multiplies what recomputation seems to cost where it competes with a store."""

    def __init__(
        self,
        problem: SwapProblem,
        capacity: int,
        moving: Mapping[str, float],
        seconds: tuple[float, ...],
        caution: float,
    ) -> None:
        self.problem, self.capacity, self.caution = problem, capacity, caution
        self.moving, self.seconds = moving, seconds
        self.actions: list[Action] = []
        self.fast: set[str] = set()
        self.slow = set(problem.nbytes.keys() - problem.producer.keys())
        self.used = self.now = 0

    def execute(self) -> list[Action]:
        """All steps in order. Raises NoRoom if recomputations need more than there is."""
        for number, step in enumerate(self.problem.steps):
            self.now = number
            self._run(number, (), DEPTH)
            for name in step.writes:
                if name in self.problem.results:
                    self._store(name)
        return self._without_idle_stores()

    def _run(self, step: int, pinned: Collection[str], depth: int) -> None:
        pinned = {*pinned, *self.problem.needs(step)}
        for name in self.problem.steps[step].reads:
            if name in self.fast:
                continue
            if name in self.slow and (
                name not in self.problem.producer or self.moving[name] <= self._again(name, depth)
            ):
                self._claim(name, pinned)
                self.actions.append(Action("load", name))
            elif depth:
                self._run(self.problem.producer[name], pinned, depth - 1)
            else:
                raise NoRoom
        for name in self.problem.steps[step].writes:
            self._claim(name, pinned)
        self.actions.append(Action("run", "", step))

    def _claim(self, name: str, pinned: Collection[str]) -> None:
        """Makes room for a tensor that is not in fast memory yet."""
        if name in self.fast:
            return
        while self.used + self.problem.nbytes[name] > self.capacity:
            leaving = min((v for v in self.fast if v not in pinned), key=self._worth, default=None)
            if leaving is None:
                raise NoRoom
            self._evict(leaving)
        self.fast.add(name)
        self.used += self.problem.nbytes[name]

    def _evict(self, name: str) -> None:
        if name not in self.slow and self._distance(name) and self._stores(name):
            self._store(name)
        self.actions.append(Action("drop", name))
        self.fast.remove(name)
        self.used -= self.problem.nbytes[name]

    def _store(self, name: str) -> None:
        self.actions.append(Action("store", name))
        self.slow.add(name)

    def _stores(self, name: str) -> bool:
        return 2 * self.moving[name] < self.caution * self._again(name, DEPTH)

    def _distance(self, name: str) -> int:
        """Steps until a tensor is read next; 0 if it never is."""
        readers = self.problem.readers[name]
        at = bisect_left(readers, self.now + 1)
        return readers[at] - self.now if at < len(readers) else 0

    def _worth(self, name: str) -> tuple[float, str]:
        """Seconds to bring a tensor back, for each byte and step that it would stay."""
        distance = self._distance(name)
        if not distance:
            return 0.0, name
        back = self.moving[name]
        if name not in self.slow:
            back = min(2 * back, self.caution * self._again(name, DEPTH))
        return back / (max(self.problem.nbytes[name], 1) * distance), name

    def _again(self, name: str, depth: int) -> float:
        """Seconds to compute a tensor again from what is in the memories now."""
        found: dict[str, float] = {}

        def back(wanted: str, left: int) -> float:
            if wanted in self.fast and wanted != name:
                return 0.0
            if wanted in found:
                return found[wanted]
            again = self.moving[wanted] if wanted in self.slow and wanted != name else float("inf")
            if wanted in self.problem.producer and left:
                step = self.problem.producer[wanted]
                run = self.seconds[step]
                for read in self.problem.steps[step].reads:
                    if run >= again:
                        break
                    run += back(read, left - 1)
                again = min(again, run)
            found[wanted] = again
            return again

        return back(name, depth)

    def _without_idle_stores(self) -> list[Action]:
        """The actions without stores of what is never loaded and no result."""
        needed = {a.tensor for a in self.actions if a.kind == "load"} | self.problem.results
        return [a for a in self.actions if a.kind != "store" or a.tensor in needed]
