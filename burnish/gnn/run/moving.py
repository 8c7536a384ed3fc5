"""Repartitioning during training: ranges of vertices move between workers when what is left pays for it (ROC, §4.4).

All workers see the same measurements and the same model, so that they decide alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import numpy as np

from burnish.comm.protocol import Comm
from burnish.gnn.data.partition import LEAST_GAIN, Cuts, Graphs, LayerSeconds, Partitioner, occupied
from burnish.gnn.data.share import LEAST_ROWS
from burnish.gnn.run.feeds import Batch
from burnish.gnn.run.train import Made

FIRST = 2  # epochs before ranges may move for the first time: the first one finds everything cold


@dataclass(eq=False)
class Learner:
    """Learner of the costs of ranges in training: the model, and the fastest partition that was measured."""

    partitioner: Partitioner
    graph: Graphs
    best: LayerSeconds | None = None
    settled: bool = False

    def proposed(self, now: LayerSeconds, epochs: int, seconds: float) -> Cuts | None:
        """Other cuts, where they pay; ``epochs``: those that are left, ``seconds``: what it takes to move."""
        if self.settled:
            return None
        self.partitioner = self.partitioner.learned(self.graph, now)
        lost = 0.0 if self.best is None else float(now.workers.max() - self.best.workers.max())
        if self.best is not None and lost > LEAST_GAIN * self.best.workers.max():
            self.settled = True  # what the model has promised did not come: back, and no more of it
            return self.best.cuts if lost * epochs > seconds else None
        if lost <= 0:
            self.best = now
        move = self.partitioner.move(self.graph, now, epochs, seconds)
        cuts = occupied(move.cuts, LEAST_ROWS)
        return cuts if move.pays and not np.array_equal(cuts, now.cuts) else None


@dataclass(eq=False)
class Moving:
    """Training on a share of a graph that may become another: ``step``, ``source`` and what evaluates stay the same.

    ``make`` builds a share's training, closed with the stack, for cuts. ``learner``: None for ranges that stay.
    Ranges are considered before the epochs 2, 4, 8, ... of ``epochs``. Use as a context manager.
    """

    comm: Comm
    make: Callable[[Cuts, ExitStack], Made]
    cuts: Cuts
    epochs: int
    vertices: int
    learner: Learner | None = None
    moves: int = 0
    _stack: ExitStack = field(default_factory=ExitStack)
    _seconds: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Builds the first share."""
        self._build(self.cuts)

    def _build(self, cuts: Cuts) -> None:
        began = time.monotonic()
        self.made, self.cuts = self.make(cuts, self._stack), cuts
        took = np.array([time.monotonic() - began])
        self._building = float(self.comm.all_reduce(took, "max")[0])

    @property
    def step(self) -> Current:
        """The step of the current share."""
        return Current(self, "step")

    @property
    def evaluation(self) -> Any:
        """Evaluation of the current share, if there is something to evaluate with, else None."""
        return None if self.made.evaluation is None else Current(self, "evaluation")

    @property
    def source(self) -> Labels:
        """The labels to train on; where an epoch begins, ranges move."""
        return Labels(self, "source")

    @property
    def validation_data(self) -> Labels | None:
        """The labels to evaluate with."""
        return None if self.made.validation_data is None else Labels(self, "validation_data")

    def called(self, seconds: float) -> None:
        """A call of the step took so long, without what waits for others."""
        self._seconds.append(seconds)

    def begin(self, epoch: int) -> None:
        """Move to other ranges before an epoch, where one is due and pays."""
        due = epoch >= FIRST and epoch & (epoch - 1) == 0
        if self.learner is None or not due or not self._seconds or self.comm.size == 1:
            return
        seconds = np.concatenate(self.comm.all_gather_v(np.array([min(self._seconds)])))
        self._seconds.clear()
        now = LayerSeconds(np.asarray(self.cuts, np.int64), np.maximum(seconds, 1e-9)[None])
        cuts = self.learner.proposed(now, self.epochs - epoch, self._building)
        if cuts is not None:
            self.move(cuts)

    def move(self, cuts: Cuts) -> None:
        """Gives this share's memory back, and goes on with another; states stay."""
        modules = {name: getattr(self.made, name) for name in ("step", "evaluation")}
        states = {name: dict(module.state) for name, module in modules.items() if module is not None}
        self._stack.close()
        self._stack = ExitStack()
        self._build(cuts)
        for name, values in states.items():
            state = getattr(self.made, name).state
            for key, value in values.items():
                state[key] = value
        self.moves += 1

    def __enter__(self) -> Moving:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()


@dataclass(frozen=True)
class Current:
    """The module of this name of the share that there is: a :class:`burnish.fitting.loop.TrainableStep`."""

    moving: Moving
    name: str

    @property
    def _module(self) -> Any:
        return getattr(self.moving.made, self.name)

    @property
    def inputs(self) -> Any:
        """The arrays of a batch."""
        return self._module.inputs

    @property
    def states(self) -> Any:
        """The types of the states."""
        return self._module.states

    @property
    def state(self) -> Any:
        """Parameters, and what else lasts."""
        return self._module.state

    @property
    def memory(self) -> dict[str, int]:
        """Bytes by use."""
        found: dict[str, int] = self._module.memory
        return found

    @property
    def info(self) -> Mapping[str, Any]:
        """Facts stored with the model, by name."""
        found: Mapping[str, Any] = self._module.info
        return found

    def __call__(self, *arrays: np.ndarray) -> Any:
        """Calls it; of the step, its seconds are noted."""
        found = self._module(*arrays)
        if self.name == "step":
            self.moving.called(self._module.seconds)
        return found


@dataclass(frozen=True)
class Labels:
    """The one batch of the share that there is: a :class:`burnish.fitting.data.Source`."""

    moving: Moving
    name: str

    @property
    def batches(self) -> int:
        """One."""
        return 1

    def facts(self) -> dict[str, Any]:
        """Shapes of the whole graph's labels: training goes on with any number of workers."""
        (batch,) = getattr(self.moving.made, self.name).epoch(0)
        return {"shapes": {name: [self.moving.vertices, *array.shape[1:]] for name, array in batch.items()}}

    def random(self) -> dict[str, np.ndarray]:
        """None."""
        return {}

    def restore(self, found: Mapping[str, np.ndarray]) -> None:
        """Nothing is to be set."""

    def epoch(self, number: int, skip: int = 0) -> Iterator[Batch]:
        """The batch. Before it, where it is to train on, ranges may move."""
        if self.name == "source":
            self.moving.begin(number)
        yield from getattr(self.moving.made, self.name).epoch(number, skip)
