"""Integer program of a fixed order in which steps may run again: kept, loaded or recomputed at every possible use.

Time is cut into slots: before each step, every earlier step whose results may be of use has one, where it may run
again (the stages of Jain et al. 2020, "Checkmate", equation 1; here with loads and stores). Between two slots that use
a tensor it stays in fast memory or not, as in the program of a fixed order.
"""

from __future__ import annotations

import numpy as np

from burnish.errors import VerificationError
from burnish.memory.swap.fixed import TO_THE_BYTE, TOLERANCE, UNIT
from burnish.memory.swap.plan import SwapPlan, replay, write_out
from burnish.memory.swap.problem import SwapProblem
from burnish.search.integer import LinearProgram


def possible_slots(problem: SwapProblem, may_repeat: list[bool]) -> list[tuple[int, bool]]:
    """Steps in order of their slots, and whether that is the first run, which is certain.

    Before step t an earlier one may run again if some step from t on reads what it writes, or one that may run again.
    """
    last = [set(step.reads) for step in problem.steps]
    for t in reversed(range(len(last) - 1)):
        last[t] |= last[t + 1]
    slots: list[tuple[int, bool]] = []
    for t, wanted in enumerate(last):
        wanted = set(wanted)
        again = []
        for i in reversed(range(t)):
            if may_repeat[i] and wanted & {*problem.steps[i].writes}:
                again.append(i)
                wanted |= {*problem.steps[i].reads}
        slots += [*((i, False) for i in reversed(again)), (t, True)]
    return slots


class RepeatedSteps:
    """Integer program of a problem.

    Variables: ``run`` by slot, ``keep`` and ``load`` by tensor and slot of use, ``store`` by tensor.
    """

    def __init__(self, problem: SwapProblem, capacity: int, bandwidth: float, seconds: tuple[float, ...]) -> None:
        self.problem, self.capacity = problem, capacity
        self.moving = {name: nbytes / bandwidth for name, nbytes in problem.nbytes.items()}
        self.slots = possible_slots(problem, [
            # A step that takes as long as storing and loading what it wrote never runs again.
            seconds[i] < 2 * sum(self.moving[n] for n in step.writes) for i, step in enumerate(problem.steps)
        ])  # fmt: skip
        self.program = LinearProgram()
        self.held: list[dict[int, float]] = [{} for _ in self.slots]  # bytes by variable
        self.over: list[list[tuple[int, str]]] = [[] for _ in self.slots]  # variables that keep a tensor over a slot
        self.run = [self.program.variable(0.0 if first else seconds[i]) for i, first in self.slots]
        for v, (_, first) in zip(self.run, self.slots, strict=True):
            if first:
                self.program.row({v: 1.0}, low=1.0)
        self.store = {
            name: self.program.variable(self.moving[name])
            for name in problem.producer
            if problem.readers[name] and name not in problem.results
        }
        uses: dict[str, list[int]] = {name: [] for name in problem.nbytes}
        for slot, (i, _) in enumerate(self.slots):
            for name in problem.needs(i):
                uses[name].append(slot)
        for name, found in uses.items():
            self._tensor(name, found)
        for sizes in self.held:
            if capacity:
                self.program.row({v: UNIT * s / capacity for v, s in sizes.items()}, high=UNIT)

    def _hold(self, slot: int, variable: int, nbytes: int) -> None:
        self.held[slot][variable] = self.held[slot].get(variable, 0.0) + nbytes

    def _tensor(self, name: str, uses: list[int]) -> None:
        """Constraints between the slots that use a tensor."""
        nbytes = self.problem.nbytes[name]
        before: list[int] = []  # variables by which it is in fast memory after its last use
        previous = -1
        for slot in uses:
            step = self.slots[slot][0]
            here: list[int] = []
            if before:
                keep = self.program.variable()
                self.program.row({**dict.fromkeys(before, -1.0), keep: 1.0}, high=0.0)
                here.append(keep)
                for between in range(previous + 1, slot):
                    self._hold(between, keep, nbytes)
                    self.over[between].append((keep, name))
                self.over[slot].append((keep, name))
            if name in self.problem.steps[step].reads:
                load = self.program.variable(self.moving[name])
                here.append(load)
                self.program.row({**dict.fromkeys(here, -1.0), self.run[slot]: 1.0}, high=0.0)
                if name in self.store:
                    self.program.row({load: 1.0, self.store[name]: -1.0}, high=0.0)
            else:
                here.append(self.run[slot])
            self._present(slot, here, nbytes)
            before, previous = here, slot

    def _present(self, slot: int, variables: list[int], nbytes: int) -> None:
        """Counts a tensor once in a slot, by whichever of ``variables`` it is there."""
        if len(variables) == 1 or self.run[slot] not in variables:
            for v in variables:
                self._hold(slot, v, nbytes)
            return
        present = self.program.variable(integer=False)
        for v in variables:
            self.program.row({v: 1.0, present: -1.0}, high=0.0)
        self._hold(slot, present, nbytes)

    def solve(self, seconds: float, method: str) -> SwapPlan | None:
        """The best plan found, or None if there is none in time, or rounding overfilled fast memory."""
        gap = TOLERANCE if len(self.program) > TO_THE_BYTE else 0.0
        found = self.program.solve(seconds, gap=gap, largest=UNIT)
        if found.values is None:
            return None
        values = np.round(found.values)
        order, kept = [], []
        for slot, (step, _) in enumerate(self.slots):
            if values[self.run[slot]]:
                order.append(step)
                kept.append([name for v, name in self.over[slot] if values[v]])
        stored = {name: bool(values[v]) for name, v in self.store.items()}
        try:
            return replay(
                self.problem, self.capacity, write_out(self.problem, order, kept, stored), method, found.optimal
            )
        except VerificationError:
            return None
