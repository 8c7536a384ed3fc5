"""Swap plan: loads, stores, drops and runs in order; replaying it counts the bytes and finds every violation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from burnish.errors import VerificationError
from burnish.memory.swap.problem import SwapProblem

Kind = Literal["load", "store", "drop", "run"]


class Action(NamedTuple):
    """``load``, ``store`` or ``drop`` a tensor of this name, or ``run`` the step of this number."""

    kind: Kind
    tensor: str = ""
    step: int = -1


@dataclass(frozen=True)
class SwapPlan:
    """Actions that execute every step within ``capacity`` bytes, and the bytes that they load and store.

    ``proven``: no plan of the same kind moves fewer (or takes less time). ``runs``: steps run, repetitions included.
    """

    method: str
    capacity: int
    actions: tuple[Action, ...]
    loaded: int
    stored: int
    peak: int
    runs: int
    proven: bool = False

    @property
    def moved(self) -> int:
        """Bytes between the two memories."""
        return self.loaded + self.stored

    def __str__(self) -> str:
        return (
            f"{self.method}: {self.moved} bytes moved ({self.loaded} loaded, {self.stored} stored), peak {self.peak} "
            f"of {self.capacity} bytes, {self.runs} runs{', proven least' if self.proven else ''}"
        )


def replay(
    problem: SwapProblem, capacity: int, actions: Iterable[Action], method: str = "plan", proven: bool = False
) -> SwapPlan:
    """The plan of ``actions``, after it was executed on paper.

    Raises VerificationError if fast memory overflows, a step runs without one of its inputs, a tensor is loaded that
    slow memory lacks, a step is left out, or a result is not in slow memory at the end.
    """
    actions = tuple(actions)
    fast: set[str] = set()
    slow = problem.nbytes.keys() - problem.producer.keys()
    used = peak = loaded = stored = runs = 0
    done: set[int] = set()

    def wrong(position: int, text: str) -> VerificationError:
        return VerificationError(f"{method}: action {position} ({' '.join(map(str, actions[position]))}): {text}")

    for position, action in enumerate(actions):
        name = action.tensor
        if action.kind == "run":
            step = problem.steps[action.step]
            if missing := [r for r in step.reads if r not in fast]:
                raise wrong(position, f"{missing} are not in fast memory")
            used += sum(problem.nbytes[w] for w in step.writes if w not in fast)
            fast.update(step.writes)
            done.add(action.step)
            runs += 1
        elif action.kind == "load":
            if name not in slow or name in fast:
                raise wrong(position, "not in slow memory, or in fast memory already")
            fast.add(name)
            used += problem.nbytes[name]
            loaded += problem.nbytes[name]
        elif name not in fast:
            raise wrong(position, "not in fast memory")
        elif action.kind == "store":
            slow |= {name}
            stored += problem.nbytes[name]
        else:
            fast.remove(name)
            used -= problem.nbytes[name]
        peak = max(peak, used)
        if used > capacity:
            raise wrong(position, f"{used} bytes in fast memory; allowed: {capacity}")
    if left := sorted(set(range(len(problem.steps))) - done):
        raise VerificationError(f"{method}: steps {left} never run")
    if missing := sorted(problem.results - slow):
        raise VerificationError(f"{method}: results {missing} are not in slow memory at the end")
    return SwapPlan(method, capacity, actions, loaded, stored, peak, runs, proven)


def live_bytes(problem: SwapProblem, plan: SwapPlan) -> list[int]:
    """Bytes of tensors in fast memory at each run of a step."""
    now, found = 0, []
    fast: set[str] = set()
    for action in plan.actions:
        if action.kind == "run":
            new = {*problem.steps[action.step].writes} - fast
            fast |= new
            now += sum(problem.nbytes[n] for n in new)
            found.append(now)
        elif action.kind == "load":
            fast.add(action.tensor)
            now += problem.nbytes[action.tensor]
        elif action.kind == "drop":
            fast.discard(action.tensor)
            now -= problem.nbytes[action.tensor]
    return found


def write_out(
    problem: SwapProblem, order: Sequence[int], kept: Sequence[Iterable[str]], stored: Mapping[str, bool]
) -> list[Action]:
    """The actions of an order: ``kept[i]`` stays in fast memory while ``order[i]`` runs, with all that this step needs.

    What a step reads and fast memory lacks is loaded; tensors in ``stored``, and results, are stored when a step has
    written them for the first time; what the next step neither keeps nor needs is dropped.
    """
    actions: list[Action] = []
    fast: set[str] = set()
    done: set[int] = set()
    for step, beside in zip(order, kept, strict=True):
        stay = {*beside, *problem.needs(step)}
        actions += [Action("drop", name) for name in sorted(fast - stay)]
        fast &= stay
        actions += [Action("load", name) for name in problem.steps[step].reads if name not in fast]
        actions.append(Action("run", "", step))
        fast |= {*problem.needs(step)}
        if step not in done:
            written = problem.steps[step].writes
            actions += [Action("store", name) for name in written if stored.get(name) or name in problem.results]
        done.add(step)
    return [*actions, *(Action("drop", name) for name in sorted(fast))]
