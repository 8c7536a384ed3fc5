"""The training loop: steps over epochs of batches, with evaluation, early stopping, checkpoints and a report."""

from __future__ import annotations

import json
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from burnish.base.arguments import check_count, check_flag, check_number
from burnish.errors import CheckpointError, DataError, DivergenceError, InputError, ParameterError
from burnish.fitting.checkpoint import Checkpoint, Folder
from burnish.fitting.companions import Companions
from burnish.fitting.data import Batch, Source, bound
from burnish.fitting.report import Evaluation, StopReason, TrainingProgress, TrainingReport
from burnish.loops.sizes import greatest, least
from burnish.runtime.module import Module
from burnish.runtime.steps import TensorSpec
from burnish.train.evaluation import Metric
from burnish.train.updates import CALLS, LEARNING_RATE, SCALE, SKIPPED, STEP


@dataclass(frozen=True)
class TrainingLimits:
    """When training ends, and what it does on the way.

    The first limit that is reached ends it. ``steps``: calls of the step, each of a batch. ``epochs``: passes over the
    data. ``evaluate_every``: calls between evaluations; None: the end of each epoch. ``patience``: evaluations in a row
    without a smaller loss after which training ends. ``min_gain``: by how much a smaller loss is less.
    ``save_every``: calls between checkpoints, the last of which is at the end; None: the end of each epoch. ``keep``:
    checkpoints that stay. ``resume``: goes on from the newest checkpoint, if there is one.
    """

    steps: int | None = None
    epochs: int | None = None
    evaluate_every: int | None = None
    patience: int | None = None
    min_gain: float = 0.0
    save_every: int | None = None
    keep: int = 2
    resume: bool = False

    def __post_init__(self) -> None:
        """Raises ParameterError, naming the field, what was found and what is allowed."""
        if self.steps is None and self.epochs is None:
            raise ParameterError("steps, epochs: found neither; allowed: one of them, or both")
        for name in ("steps", "epochs", "evaluate_every", "patience", "save_every"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name), 1)
        check_number("min_gain", self.min_gain, 0)
        check_count("keep", self.keep, 1)
        check_flag("resume", self.resume)


@dataclass
class _Place:
    """Where training is. ``begun``: the random state with which the epoch began; ``left_out``: rows of no call."""

    call: int = 0
    epoch: int = 0
    batch: int = 0
    begun: Mapping[str, np.ndarray] = field(default_factory=dict)
    left_out: int = 0
    losses: list[float] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)

    @property
    def best(self) -> Evaluation | None:
        return min(self.evaluations, key=lambda e: e.loss) if self.evaluations else None


class States(Protocol):
    """States by name; what is set replaces the value."""

    def __getitem__(self, name: str) -> np.ndarray:
        """The value."""

    def __setitem__(self, name: str, value: np.ndarray) -> None:
        """Replaces the value."""

    def __iter__(self) -> Iterator[str]:
        """The names."""

    def __contains__(self, name: object) -> bool:
        """Whether there is one of this name."""


class TrainableStep(Protocol):
    """Step that a trainer calls: a module of one step, or one device's share of it (``parallel.execute.RankStep``)."""

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """The arrays of a batch."""

    @property
    def states(self) -> tuple[TensorSpec, ...]:
        """The types of the states."""

    @property
    def state(self) -> States:
        """Parameters, and what else lasts."""

    @property
    def memory(self) -> dict[str, int]:
        """Bytes by use."""

    @property
    def info(self) -> Mapping[str, Any]:
        """Facts stored with the model, by name."""

    def __call__(self, *arrays: np.ndarray) -> Any:
        """The loss."""


class Trainer:
    """Runs a compiled training step over data until its limits, see :class:`TrainingLimits`.

    ``step``: a module of ``burnish.compile(model, train=)``. ``evaluation``: one of ``evaluation_graph``, for
    ``validation_data``. ``checkpoint``: a folder, or one that is open; ``facts`` of the training are kept in it, JSON.
    ``progress`` is called after every call of the step, and ends training by returning true. A batch of other rows than
    the step takes goes to the one that ``companions`` has for it, with the present states; without one it is left out,
    and counted.
    """

    def __init__(
        self,
        step: TrainableStep,
        data: Source,
        limits: TrainingLimits,
        *,
        evaluation: Module | None = None,
        validation_data: Source | None = None,
        metrics: Mapping[str, Metric] | None = None,
        checkpoint: str | Path | Folder | None = None,
        progress: Callable[[TrainingProgress], object] | None = None,
        facts: Mapping[str, Any] | None = None,
        companions: Companions | None = None,
    ) -> None:
        """Raises ParameterError; DataError for ``validation_data`` that does not fit; CheckpointError for a checkpoint
        that is not to go on from; OSError.
        """
        if (evaluation is None) != (validation_data is None):
            raise ParameterError("evaluation, validation_data: found one of them; allowed: both or none")
        if limits.patience is not None and validation_data is None:
            raise ParameterError(
                "patience: found a number without data to evaluate with; allowed: with validation_data"
            )
        if limits.resume and checkpoint is None:
            raise ParameterError("resume: found True without a folder; allowed: with checkpoint")
        self.step, self._data, self.limits = step, data, limits
        self._evaluation, self._valid, self._metrics = evaluation, validation_data, dict(metrics or {})
        self._progress, self._facts = progress, dict(facts or {})
        self._companions = companions or Companions()
        if validation_data is not None and evaluation is not None:
            self._check_valid(validation_data, evaluation)
        self._place = _Place()
        self._initial_rate = float(step.state[LEARNING_RATE])
        self._given = {
            spec.name for spec in step.states if not _is_finite(step.state[spec.name])
        }  # not finite at first
        self._resumed = 0
        self._now: TrainingProgress | None = None  # after the latest call
        self._folder: Folder | None = None
        self._written: Path | None = None
        if checkpoint is not None:
            self._folder = checkpoint if isinstance(checkpoint, Folder) else Folder(checkpoint, limits.keep)
            self._begin(self._folder)

    def run(self) -> TrainingReport:
        """Trains. Ctrl-C ends it after the call under way, with a checkpoint; a second one at once.

        Raises DivergenceError at a loss that is not finite, DataError for batches that do not fit, and for labels that
        are no class.
        """
        began = time.monotonic()
        place = self._place
        with _interruptible() as interrupted:
            try:
                reason = self._run(began, interrupted)
            except DivergenceError as error:
                error.module = self.step
                raise
        if reason not in ("interrupted", "early stop") and not any(e.call == place.call for e in place.evaluations):
            self._evaluate()
        if self._folder is not None and place.call:
            self._save()  # with what is accumulated, to go on from
        if reason != "interrupted" and self._update_by_the_rest():
            self._evaluate()
        state = self.step.state
        return TrainingReport(
            np.array(place.losses), tuple(place.evaluations), place.call, int(state[STEP]), place.epoch,
            int(state[SKIPPED]) if SKIPPED in state else 0, time.monotonic() - began, reason, place.best, self._written,
            self.step.memory, tuple(self.step.info.get("live", ())), self._resumed, place.left_out,
            int(state[CALLS]) if CALLS in state else 0,
        )  # fmt: skip

    def _update_by_the_rest(self) -> bool:
        """Makes the update by gradients that are accumulated since the last one; whether there was one."""
        state = self.step.state
        if CALLS not in state or not int(state[CALLS]):
            return False
        last = self._companions.last()
        if last is not None:
            self._with_states(last, ())
        return last is not None

    def _with_states(self, module: Module, arrays: Sequence[np.ndarray]) -> Any:
        """The result of a companion's call; its states are the step's, before and after."""
        own, given = self.step.state, module.state
        for name in given:
            given[name] = own[name]
        result = module(*arrays)
        for name in given:
            own[name] = given[name]
        return result

    def _run(self, began: float, interrupted: Callable[[], bool]) -> StopReason:
        place, limits = self._place, self.limits
        while True:
            if limits.epochs is not None and place.epoch >= limits.epochs:
                return "epochs"
            start, called = place.batch, False
            if start:
                self._data.restore(place.begun)
            else:
                place.begun = self._data.random()
            for batch in self._data.epoch(place.epoch, start):
                if limits.steps is not None and place.call >= limits.steps:
                    return "steps"
                called = self._call(batch, began) or called
                if (reason := self._after(interrupted)) is not None:
                    return reason
            if not called and not start:
                raise DataError(f"data: found no batch of {self._size} rows in epoch {place.epoch}")
            place.epoch, place.batch = place.epoch + 1, 0
            if limits.evaluate_every is None and self._evaluate():
                return "early stop"
            if limits.save_every is None and self._folder is not None:
                self._save()

    def _call(self, batch: Batch, began: float) -> bool:
        """One call of the step; False for a batch of fewer rows that no step takes."""
        place = self._place
        place.batch += 1
        arrays = bound(batch, self.step.inputs)
        rows = arrays[0].shape[0] if arrays[0].ndim else 0
        own = _takes(self.step.inputs, rows)
        other = None if own else self._companions.step(rows)
        if not own and other is None:
            place.left_out += rows
            return False
        try:
            loss = float(self.step(*arrays) if other is None else self._with_states(other, arrays))
        except InputError as error:
            raise self._refused(error) from error
        self._check(loss, arrays)
        place.call += 1
        place.losses.append(loss)
        self._now = TrainingProgress(
            place.call, place.epoch, place.batch, self._data.batches, self._calls(), loss, time.monotonic() - began
        )
        return True

    @property
    def _size(self) -> int:
        """Rows of a whole batch."""
        shape = self.step.inputs[0].shape
        return greatest(shape[0]) if shape else 0

    def _refused(self, error: InputError) -> DataError:
        """The error of a batch that the step refuses; what was trained before it is kept."""
        place = self._place
        where = f"batch {place.batch} of epoch {place.epoch + 1}"
        return DataError(f"data: {where}: {error}{self._rescue()}")

    def _rescue(self) -> str:
        """Saves what was trained before the batch at hand, with which training would go on; words that say where."""
        self._place.batch -= 1
        if self._folder is not None and self._place.call:
            self._save()
        return f"; the last checkpoint is '{self._written}'" if self._written is not None else ""

    def _check(self, loss: float, arrays: Sequence[np.ndarray]) -> None:
        """Raises DivergenceError for a loss or gradients that are not finite, unless a smaller loss scale may help."""
        if math.isfinite(loss):
            return
        state, call = self.step.state, self._place.call + 1
        given = self._not_finite(arrays)
        if not given and SCALE in state and float(state[SCALE]) > 1.0:
            return
        saved = self._rescue()
        found = f"a loss of {loss}" if math.isinf(loss) else "a loss or gradients that are not finite"
        raise DivergenceError(
            call, f"step {call}: found {found}; allowed: finite numbers. Parameters are as before this step, "
            f"after {int(state[STEP])} updates{saved}; {given or 'try a smaller learning_rate, or clip_norm'}",
        )  # fmt: skip

    def _not_finite(self, arrays: Sequence[np.ndarray]) -> str:
        """Words that say where a batch has numbers that are not finite; none where it has none."""
        for spec, array in zip(self.step.inputs, arrays, strict=True):
            if not _is_finite(array):
                first = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
                where = f"batch {self._place.batch} of epoch {self._place.epoch + 1}"
                return f"the data are not finite: '{spec.name}' in {where}: {array[first]} at {list(first)}"
        return ""

    def _after(self, interrupted: Callable[[], bool]) -> StopReason | None:
        """Callback, evaluation and checkpoint where they are due after a call; the reason if training ends."""
        place, limits = self._place, self.limits
        stop: StopReason | None = None
        if self._progress is not None and self._now is not None and self._progress(self._now):
            stop = "callback"
        if _is_due(place.call, limits.evaluate_every) and self._evaluate():
            stop = "early stop"
        if _is_due(place.call, limits.save_every) and self._folder is not None:
            self._save()
        return stop or ("interrupted" if interrupted() else None)

    def _calls(self) -> int | None:
        """Number of calls to come, as far as is known."""
        limits, batches = self.limits, self._data.batches
        by_epochs = None if limits.epochs is None or batches is None else limits.epochs * batches
        known = [n for n in (limits.steps, by_epochs) if n is not None]
        return min(known) if known else None

    # --- evaluation ---

    def _evaluate(self) -> bool:
        """Evaluates; whether training shall end for want of progress."""
        if self._evaluation is None:
            return False
        place, best = self._place, self._place.best
        found = self.evaluate()
        place.evaluations.append(found)
        if self._progress is not None and self._now is not None:
            self._progress(replace(self._now, evaluation=found))
        if self._folder is not None and (best is None or found.loss < best.loss):
            self._folder.keep_best(self._checkpoint())
        return self.limits.patience is not None and self._since_gain() >= self.limits.patience

    def _since_gain(self) -> int:
        """Number of latest evaluations without a smaller loss."""
        best, since = math.inf, 0
        for found in self._place.evaluations:
            if found.loss < best - self.limits.min_gain:
                best, since = found.loss, 0
            else:
                since += 1
        return since

    def evaluate(self) -> Evaluation:
        """Mean loss and metrics over the evaluation data, by the model's form of inference with its present states.

        Raises ParameterError where there is nothing to evaluate with, and DataError.
        """
        if self._evaluation is None or self._valid is None:
            raise ParameterError("evaluate: found no data; allowed: with validation_data")
        given, own = self._evaluation.state, self.step.state
        for name in given:
            given[name] = own[name]
        random = self._data.random()
        try:
            return self._evaluated(self._evaluation, self._valid)
        finally:
            self._data.restore(random)  # what evaluation has drawn shall not change the batches that follow

    def _evaluated(self, module: Module, validation_data: Source) -> Evaluation:
        sums = dict.fromkeys(self._metrics, 0.0)
        loss, rows, left = 0.0, 0, 0
        for number, batch in enumerate(validation_data.epoch(0)):
            arrays = bound(batch, module.inputs)
            found = arrays[0].shape[0] if arrays[0].ndim else 1
            other = (
                module
                if not module.inputs[0].shape or _takes(module.inputs, found)
                else self._companions.evaluation(found)
            )
            if other is None:
                left += found
                continue
            if other is not module:
                for name in other.state:
                    other.state[name] = module.state[name]
            try:
                value, output = other(*arrays)
            except InputError as error:
                raise DataError(f"validation_data: batch {number + 1}: {error}") from error
            loss, rows = loss + float(value) * found, rows + found
            for name, metric in self._metrics.items():
                sums[name] += metric(output, arrays[-1]) * found
        if not rows:
            raise DataError("validation_data: found no whole batch; allowed: one or more")
        means = {name: total / rows for name, total in sums.items()}
        return Evaluation(self._place.call, self._place.epoch, loss / rows, means, rows, left)

    def _check_valid(self, validation_data: Source, evaluation: Module) -> None:
        """Raises DataError for data to evaluate with whose first batch does not fit."""
        random = self._data.random()
        try:
            for batch in validation_data.epoch(0):
                bound(batch, evaluation.inputs)
                return
        except DataError as error:
            raise DataError(f"validation_data: {error}") from None
        finally:
            self._data.restore(random)

    # --- checkpoints ---

    def _checkpoint(self) -> Checkpoint:
        place, state = self._place, self.step.state
        facts = {
            **self._facts, "learning_rate": self._initial_rate, "call": place.call, "epoch": place.epoch,
            "batch": place.batch, "left_out": place.left_out, "data": self._data.facts(),
            "evaluations": [asdict(e) for e in place.evaluations],
        }  # fmt: skip
        history = {"loss": np.array(place.losses, np.float64)}
        states = {name: state[name] for name in state}
        for name, value in states.items():
            if name not in self._given and not _is_finite(value):
                last = f"; the last checkpoint is '{self._written}'" if self._written is not None else ""
                found = f"step {place.call}: found state '{name}' that is not finite"
                raise DivergenceError(place.call, f"{found}; allowed: finite numbers. It is not kept{last}")
        return Checkpoint(states, facts, place.begun, history)

    def _save(self) -> None:
        assert self._folder is not None
        self._written = self._folder.add(self._place.call, self._checkpoint())

    def _begin(self, folder: Folder) -> None:
        """Goes on from the newest checkpoint, if asked for and there; with a new learning rate if it differs."""
        if not self.limits.resume:
            if folder.paths():
                found = f"found checkpoints in '{folder.path}'"
                raise ParameterError(
                    f"checkpoint: {found}; allowed: an empty folder, or resume=True to go on from them"
                )
            return
        if (latest := folder.latest()) is None:
            return
        path = self._written = latest[0]
        wanted = {s.name: (s.shape, s.dtype) for s in self.step.states}
        kept = latest[1].named_as(wanted)
        kept.check_states(wanted, path)
        saved, own = kept.facts.get("data"), json.loads(json.dumps(self._data.facts()))
        if saved != own:
            raise CheckpointError(f"{path}: data: found {own}; allowed: {saved}, as it was")
        state = self.step.state
        for name, value in kept.states.items():
            if name != LEARNING_RATE or kept.facts.get("learning_rate") == self._initial_rate:
                state[name] = value
        self._place = _Place(
            kept.facts["call"], kept.facts["epoch"], kept.facts["batch"], kept.random,
            kept.facts.get("left_out", 0), kept.history["loss"].tolist(),
            [Evaluation(**e) for e in kept.facts["evaluations"]],
        )  # fmt: skip
        self._resumed = self._place.call


def _takes(inputs: Sequence[TensorSpec], rows: int) -> bool:
    """Whether a module with these inputs takes a batch of ``rows`` rows."""
    size = inputs[0].shape[0] if inputs[0].shape else 0
    return least(size) <= rows <= greatest(size)


def _is_finite(array: np.ndarray) -> bool:
    return array.dtype.kind in "biu" or bool(np.isfinite(array).all())


def _is_due(call: int, every: int | None) -> bool:
    return every is not None and call % every == 0


@contextmanager
def _interruptible() -> Iterator[Callable[[], bool]]:
    """While it lasts, the first Ctrl-C is only noted; in other threads than the main one nothing is changed."""
    noted: list[bool] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = signal.getsignal(signal.SIGINT)

    def note(number: int, frame: Any) -> None:
        if noted:
            raise KeyboardInterrupt
        noted.append(True)

    signal.signal(signal.SIGINT, note)
    try:
        yield lambda: bool(noted)
    finally:
        signal.signal(signal.SIGINT, before)
