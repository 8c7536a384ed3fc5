"""Simulator of training steps: full, and delta (resumed and stopped by a limit) with equal results.

Source: thesis-jia section 3.4 and 3.5. Times are whole nanoseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnish.errors import PlanError
from burnish.parallel.simulate import core, loads, paths, walk
from burnish.parallel.simulate.memory import device_bytes
from burnish.parallel.simulate.memory_peak import peak_bytes
from burnish.parallel.simulate.state import EXCEEDED, OVERFLOW, Checkpoints, SimulationArrays, SimulationState, Trace
from burnish.parallel.simulate.taskgraph import Problem
from burnish.parallel.simulate.timeline import Timeline, timeline_of
from burnish.parallel.simulate.walk import MoveLists, WalkArrays

Choice = NDArray[np.int32]
CHECKPOINTS = 48  # of a step; each a copy of what all tasks wait for
FIRST_HEAP = 1 << 12


@dataclass(frozen=True, eq=False)
class WalkResult:
    """Result of a walk: times in ns, strategies as choices, and how its proposals ended.

    ``skipped``: rejected without simulation, by total work or the longest path; ``events`` were simulated.
    """

    best: Choice
    best_ns: int
    current: Choice
    current_ns: int
    proposals: int
    accepted: int
    skipped: int
    events: int


class Simulator:
    """Simulates strategies of one problem; a ``choice`` is an int32 vector of configurations' numbers."""

    def __init__(self, problem: Problem, checkpoints: int = CHECKPOINTS) -> None:
        self.problem = problem
        self.t = problem.tables
        self._count = len(problem.model.operations)
        devices, resources = problem.machine.size, problem.resources
        self._groups = len(problem.weights.nbytes)
        integers, states = np.int64, 2 * self._count * devices
        found, size = np.zeros((2, max(self.t.places.shape[1], 1)), integers)
        self.room = core.SimulationScratch(
            found, size, np.zeros(16, integers), np.zeros((problem.most_pieces, devices), np.bool_),
            np.zeros(max(self._groups, 1), np.bool_), np.zeros(self._count, np.bool_), np.zeros(resources, integers),
        )  # fmt: skip
        self._shape = (checkpoints, states, resources)
        self.no_checkpoints = self._checkpoints(0, 1)
        self.no_trace = Trace(*(np.zeros(0, integers) for _ in range(4)))
        self._known, self._changed = self._nothing(), self._nothing()
        self._counters = np.zeros(4, integers)
        self._current: Choice | None = None
        self._proposed: tuple[Choice, NDArray[np.int64], int] | None = None
        self._every = 0
        self._grow(FIRST_HEAP)

    def _nothing(self) -> core.Known:
        resources, integers = self._shape[2], np.int64
        return core.Known(
            np.zeros(resources, integers), np.zeros((self._groups, resources + 1), integers),
            np.zeros((len(self.problem.model.edges), 2), integers), np.zeros((self._count, 2), integers),
        )  # fmt: skip

    def grow(self) -> None:
        """Doubles the heap, which was too small; checkpoints are lost."""
        self._grow(2 * self.state.time.size)

    def _grow(self, heap: int) -> None:
        """State with room for ``heap`` ready tasks."""
        _, states, resources = self._shape
        integers = np.int64
        self.state = SimulationState(
            np.zeros(states, np.int32), np.zeros(states, integers), np.zeros(self._groups, np.int32),
            np.zeros(self._groups, integers), np.zeros(resources, integers), np.zeros(resources, integers),
            np.zeros(heap, integers), np.zeros(heap, integers), np.zeros(self._count, integers),
            np.zeros(3, integers),
        )  # fmt: skip
        self._ck: Checkpoints | None = None

    def _checkpoints(self, count: int, heap: int) -> Checkpoints:
        _, states, resources = self._shape
        integers = np.int64
        return Checkpoints(
            np.zeros((count, states), np.int32), np.zeros((count, states), integers),
            np.zeros((count, self._groups), np.int32), np.zeros((count, self._groups), integers),
            np.zeros((count, resources), integers), np.zeros((count, resources), integers),
            np.zeros((count, heap), integers), np.zeros((count, heap), integers), np.zeros((count, 3), integers),
        )  # fmt: skip

    def arrays(self, checkpoints: Checkpoints | None, trace: Trace | None = None) -> SimulationArrays:
        """Arrays of a compiled simulation, with the heap as large as it is now."""
        assert checkpoints is not None, "a start makes them"
        return SimulationArrays(self.state, checkpoints, self.no_trace if trace is None else trace, self.room)

    def _retried(self, attempt: Any) -> Any:
        """The result of a compiled call, repeated with a larger heap while it overflows."""
        while (result := attempt()) == OVERFLOW:
            self.grow()
        return result

    # --- whole strategies ---------------------------------------------------------------------------------------------

    def full(self, choice: Choice, limit: int | None = None) -> int:
        """Nanoseconds of a step, simulated anew; -1 where it takes longer than ``limit``."""
        checked = self._checked(choice)
        after = self._analyse(checked)
        bound = walk.UNLIMITED if limit is None else limit - after
        if bound < walk.UNLIMITED:
            if max(self._tails(checked), int(self._changed.load.max())) > bound:
                return EXCEEDED
        else:
            self._changed.tail[:] = 0
        time = self._retried(lambda: self._simulate(checked, bound, self.no_trace))
        return time + after if time >= 0 else time

    def _simulate(self, choice: Choice, bound: int, trace: Trace) -> int:
        return int(
            walk.simulate(
                self.t, choice, self._changed, self._changed.tail, bound, 0, self.arrays(self.no_checkpoints, trace)
            )
        )

    def _analyse(self, choice: Choice) -> int:
        """Loads and synchronization of a strategy; returns the nanoseconds that are added after the step."""
        self._bytes = loads.loads(self.t, choice, self._changed, self.room)
        return int(self._changed.sync[:, -1].sum())

    def _tails(self, choice: Choice) -> int:
        """Longest paths after every operation of an analysed strategy; returns that of the step."""
        known = self._changed
        return int(paths.tails(self.t, choice, known.sync, known.hop, known.tail))

    def loads(self, choice: Choice) -> NDArray[np.int64]:
        """Nanoseconds of work of every resource: devices, then links. The largest is a lower bound of the step."""
        self._analyse(self._checked(choice))
        return self._changed.load.copy()

    def path(self, choice: Choice) -> int:
        """Nanoseconds of the longest path of tasks and what they send, without contention: a lower bound."""
        checked = self._checked(choice)
        after = self._analyse(checked)
        return self._tails(checked) + after

    def bytes(self, choice: Choice) -> tuple[float, float]:
        """Bytes that cross links in a step: of activations with their gradients, and of weight gradients."""
        self._analyse(self._checked(choice))
        return float(self._bytes[0]), float(self._bytes[1])

    def memory(self, choice: Choice, slots: int = 2) -> NDArray[np.float64]:
        """Bytes that each device needs: see :func:`burnish.parallel.simulate.memory.device_bytes`."""
        return device_bytes(self.problem, self._checked(choice), slots)

    def fits(self, choice: Choice, slots: int = 2) -> bool:
        """Whether every device holds what the strategy needs of it."""
        held = [d.memory for d in self.problem.machine.devices]
        return bool((self.memory(choice, slots) <= np.array(held)).all())

    def timeline(self, choice: Choice) -> Timeline:
        """All tasks and transfers of a step with their times."""
        checked = self._checked(choice)
        trace, time = self.trace(checked)
        return timeline_of(self.problem, checked, trace, len(trace.key), time, int(self._changed.sync[:, -1].sum()))

    def trace(self, choice: Choice) -> tuple[Trace, int]:
        """All tasks and transfers of a step in the order in which they are taken up, and the end of the last in ns."""
        checked = self._checked(choice)
        self._analyse(checked)
        self._changed.tail[:] = 0
        time = self._retried(lambda: self._simulate(checked, walk.UNLIMITED, self.no_trace))
        count = int(self.state.scalars[1])
        trace = Trace(*(np.zeros(count, np.int64) for _ in range(4)))
        self._simulate(checked, walk.UNLIMITED, trace)
        return trace, int(time)

    def peak_memory(self, choice: Choice, slots: int = 2) -> NDArray[np.float64]:
        """Bytes that each device needs as the step is simulated, results and copies freed after their backward tasks.

        At most those of :meth:`memory`, which takes all to be alive at once: of pipelines far less.
        """
        checked = self._checked(choice)
        return peak_bytes(self.problem, checked, self.trace(checked)[0], slots)

    # --- proposals ----------------------------------------------------------------------------------------------------

    def start(self, choice: Choice) -> int:
        """Makes a strategy the current one, with checkpoints; returns its nanoseconds."""
        current = self._checked(choice).copy()
        total = self._retried(lambda: self._restart(current))
        self._current = current
        self._proposed = None
        return total

    def _restart(self, choice: Choice) -> int:
        after = self._analyse(choice)
        for mine, made in zip(self._known, self._changed, strict=True):
            mine[:] = made
        self._changed.tail[:] = 0
        length = self._simulate(choice, walk.UNLIMITED, self.no_trace)
        if length < 0:
            return length
        self._prepare(int(self.state.scalars[1]))
        time = walk.simulate(
            self.t, choice, self._known, self._changed.tail, walk.UNLIMITED, self._every, self.arrays(self._ck)
        )
        self._first = self.state.first.copy()
        return int(time) + after if time >= 0 else int(time)

    def _prepare(self, count: int) -> None:
        """Room for checkpoints of a step of ``count`` events."""
        if self._ck is None:
            self._ck = self._checkpoints(self._shape[0], self.state.time.size)
        self._every = max(1, -(-count // self._shape[0]))

    def propose(self, operations: Sequence[int], configurations: Sequence[int], limit: int | None = None) -> int:
        """Nanoseconds of the current strategy with other configurations of some operations; -1 over ``limit``.

        Equal to :meth:`full` of that strategy. Raises PlanError before :meth:`start`.
        """
        if self._current is None:
            raise PlanError("propose: no current strategy; allowed: after start(choice)")
        ops = np.array(list(operations), np.int64)
        new = self._current.copy()
        new[ops] = np.array(list(configurations), np.int32)
        self._checked(new)
        self.room.inside[:] = False
        self.room.inside[ops] = True
        time = self._retried(lambda: self._propose(new, ops, walk.UNLIMITED if limit is None else limit))
        self.room.inside[:] = False
        self._proposed = (new, ops, time)
        return time

    def _propose(self, new: Choice, ops: NDArray[np.int64], limit: int) -> int:
        if self._ck is None:  # a larger heap has taken their place
            assert self._current is not None
            self._retried(lambda: self._restart(self._current))
        for made, mine in zip(self._changed, self._known, strict=True):
            made[:] = mine
        return int(
            walk.propose(
                self.t, self._current, new, ops, limit, self._every, limit < walk.UNLIMITED,
                WalkArrays(self._known, self._changed, self._first, self._counters), self.arrays(self._ck),
            )
        )  # fmt: skip

    def accept(self) -> int:
        """Makes the last proposal the current strategy; returns its nanoseconds."""
        if self._proposed is None:
            raise PlanError("accept: no proposal; allowed: after propose")
        return self.start(self._proposed[0])

    # --- walks --------------------------------------------------------------------------------------------------------

    def walk(
        self,
        choice: Choice,
        proposals: int,
        temperature: float,
        seed: int = 0,
        moves: Sequence[Sequence[int]] | None = None,
        resume: bool = True,
        stop: bool = True,
    ) -> WalkResult:
        """A Metropolis walk: each proposal gives a random configuration to a random member of ``moves``.

        ``moves``: operations that change together, to the same number of their configurations (default: each alone).
        A time T is accepted with probability exp((now - T) / (temperature * now)). ``resume``, ``stop``: from
        checkpoints, and up to the limit that the drawn number implies; neither changes the walk.
        """
        current = self._checked(choice).copy()
        chosen = [[i] for i in range(self._count)] if moves is None else [list(m) for m in moves]
        flat = np.array([i for move in chosen for i in move], np.int64)
        pointer = np.cumsum([0, *map(len, chosen)]).astype(np.int64)
        lists = MoveLists(self.problem.space.first, self.problem.space.count, flat, pointer)
        best = current.copy()
        result = (OVERFLOW, 0)
        while result[0] == OVERFLOW:
            self._counters[:] = 0
            begun = current.copy()
            self.start(begun)
            result = walk.metropolis(
                self.t, begun, lists, proposals, temperature, seed, self._every if resume else 0, stop, best,
                begun.copy(), WalkArrays(self._known, self._changed, np.zeros(len(begun), np.int64), self._counters),
                self.arrays(self._ck),
            )  # fmt: skip
            if result[0] == OVERFLOW:
                self.room.inside[:] = False
                self.grow()
        self._current = None
        accepted, tried, skipped, simulated = (int(n) for n in self._counters)
        return WalkResult(best, int(result[1]), begun, int(result[0]), tried, accepted, skipped, simulated)

    def _checked(self, choice: Choice) -> Choice:
        """The choice as it is compiled for. Raises PlanError where a number is not one of its operation's."""
        given = np.ascontiguousarray(choice, np.int32)
        space = self.problem.space
        if given.shape != space.first.shape:
            raise PlanError(f"choice of shape {list(given.shape)}; allowed: {list(space.first.shape)}")
        wrong = np.flatnonzero((given < space.first) | (given >= space.first + space.count))
        if wrong.size:
            i = int(wrong[0])
            first, count = int(space.first[i]), int(space.count[i])
            name = self.problem.model.operations[i].name
            raise PlanError(f"operation '{name}': configuration {given[i]}; allowed: {first} to {first + count - 1}")
        return given
