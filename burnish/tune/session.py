"""Whole-model tuning: every distinct kernel once, time where the model gains most, winners judged against defaults."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf, isfinite
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from burnish.base.arguments import check_count, check_flag, check_number, typed
from burnish.machines.target import Target
from burnish.pipeline.kernel import task_key
from burnish.search.space import Points
from burnish.tune.evaluate import Evaluator, KernelTrial, Measurement, PairedMeasurer
from burnish.tune.features import extract
from burnish.tune.models.base import CostModel
from burnish.tune.pretrained import fit_nests, fit_transfer
from burnish.tune.progress import KernelProgress
from burnish.tune.records import Record, RecordFile, machine, record
from burnish.tune.space import Candidate
from burnish.tune.strategy import TuningStrategy, strategy_named
from burnish.tune.tasks import TuningTask
from burnish.tune.tuner import Tuner, defaults
from burnish.tune.validation import KernelValidation, Validator, standalone, trial_of

NEWS = 1.25  # times the records that a model was taught by: then it is taught anew
_AT_ONCE = 8  # kernels whose defaults are built together
CONFIRMATION = 0.4  # seconds a kernel, kept back from the budget for the finals

StopReason = Literal["seconds", "trials", "gain", "exhausted", "interrupted"]


@typed
@dataclass(frozen=True)
class Tune:
    """Tuning settings: until a budget is used up, or until what remains is worth less.

    ``seconds``: the time to tune; None: no limit. ``trials``: the most candidates to try; None: no limit.
    ``min_gain``: the share of the model's time; tuning stops when all further trials that the budget has room for are
    expected to save less, and never so with 0. ``strategy``: how candidates are found (``strategy.STRATEGIES``).
    ``cold``: whether weights come from memory in every timed run, as of a model whose weights exceed the second cache;
    None: by their size. ``seed``: of the search.

    >>> import tempfile
    >>> graph = bn.sym.graph(bn.sym.relu(bn.sym.variable("x")), {"x": (3,)})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     model = bn.compile(graph, tune=bn.Tune(seconds=0.1), records=f"{folder}/records.jsonl", rewrite=False)
    >>> model(np.array([-1, 0, 2], "f4"))
    array([0., 0., 2.], dtype=float32)
    """

    seconds: float | None = 120.0
    trials: int | None = None
    min_gain: float = 0.005
    strategy: str = "burnish"
    seed: int = 0
    cold: bool | None = None

    def __post_init__(self) -> None:
        """Raises ParameterError, naming the field, what was found and what is allowed."""
        if self.seconds is not None:
            check_number("Tune: seconds", self.seconds, 0, open_below=True)
        if self.trials is not None:
            check_count("Tune: trials", self.trials, 1)
        check_number("Tune: min_gain", self.min_gain, 0, 1)
        strategy_named(self.strategy)
        check_count("Tune: seed", self.seed, 0)
        if self.cold is not None:
            check_flag("Tune: cold", self.cold)


@dataclass(frozen=True)
class SessionOutcome:
    """Session result: seconds it took, trials, why it stopped; ``expected``: the share of the model's time that going
    on as long again was expected to save.
    """

    kernels: Sequence[KernelProgress]
    seconds: float
    trials: int
    stop_reason: StopReason
    expected: float


class Session:
    """Tunes the kernels of a model on this machine. ``records`` get every trial as soon as it is measured.

    ``prior`` is a model that other kernels have taught (by tables of features: none for a TreeGRU, which this session's
    own kernels teach); what the records hold of any kernel, those of this session
    among them, teaches more, where the strategy transfers. ``strategy`` takes the place of that of the options.
    ``validate`` says which candidates beat the default, by default each kernel alone. ``progress`` is called first and
    after every batch. An interrupt (Ctrl-C) ends tuning, not the session: winners are confirmed.
    """

    def __init__(
        self,
        tasks: Iterable[TuningTask],
        records: RecordFile,
        evaluator: Evaluator,
        options: Tune,
        progress: Callable[[Session], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        prior: CostModel | None = None,
        strategy: TuningStrategy | None = None,
        validate: Validator | None = None,
    ) -> None:
        self.options, self.records, self.evaluator = options, records, evaluator
        self.strategy: TuningStrategy = strategy or strategy_named(options.strategy)
        evaluator.rule = self.strategy.rule
        self.trials = 0
        self._given, self._taught, self._heard = prior, prior, 0
        self._heard_of: dict[int, int] = {}  # by kernel: trials of the others that its prior was taught by
        self._clock, self._began = clock, clock()
        self._progress = progress or (lambda session: None)
        self._validator = validate or standalone(evaluator)
        self.kernels = [KernelProgress(t, Tuner(t.space, self.strategy, options.seed)) for t in tasks]
        for kernel in self.kernels:
            self._recall(kernel)

    @property
    def target(self) -> Target:
        """The machine that kernels are tuned for."""
        return self.evaluator.target

    @property
    def elapsed(self) -> float:
        """Seconds since the session began."""
        return self._clock() - self._began

    @property
    def seconds_left(self) -> float:
        """Seconds that may still be spent on trials; those kept for confirming winners are not among them."""
        if self.options.seconds is None:
            return inf
        kept = min(0.2 * self.options.seconds, CONFIRMATION * len(self.kernels))
        return max(0.0, self.options.seconds - kept - self.elapsed)

    @property
    def trials_left(self) -> float:
        """Trials that may still be made."""
        return inf if self.options.trials is None else max(0, self.options.trials - self.trials)

    @property
    def model_seconds(self) -> float:
        """Time of all kernel calls of the model, by the best found so far, or what is known of it."""
        return sum(k.total for k in self.kernels if isfinite(k.total))

    @property
    def expected(self) -> float:
        """The share of the model's time that the rest of the budget (or as long again) is expected to save."""
        if any(not k.tuner.costs for k in self.kernels):
            return 1.0
        left = min(self.seconds_left, max(self.elapsed, 1.0)) if self.seconds_left else self.elapsed
        each = left / max(1, len(self.kernels))
        usual = self._usual_pace()
        saved = sum(k.saving(max(1, round(each / k.pace(usual)))) for k in self.kernels)
        return saved / self.model_seconds if self.model_seconds else 0.0

    def run(self) -> SessionOutcome:
        """Tunes until the budget ends or little is left to gain, then confirms the winners."""
        reason: StopReason
        self._progress(self)
        try:
            reason = self._search()
        except KeyboardInterrupt:
            reason = "interrupted"
        expected = self.expected
        left = inf if self.options.seconds is None else self.options.seconds - self.elapsed
        for kernel, validation in zip(self.kernels, self._validator(self.kernels, left), strict=True):
            self._conclude(kernel, validation)
        self._progress(self)
        return SessionOutcome(self.kernels, self.elapsed, self.trials, reason, expected)

    def _search(self) -> StopReason:
        fresh = [k for k in self.kernels if not k.tuner.costs]
        for first in range(0, len(fresh), _AT_ONCE):
            if self._stop():
                break
            self._try([(k, defaults(k.task.space)) for k in fresh[first : first + _AT_ONCE]])
        while not (reason := self._stop()):
            usual = self._usual_pace()
            count = self.strategy.batch
            unfinished = [k for k in self.kernels if not k.tuner.exhausted]
            best = max(unfinished, key=lambda k: k.saving(count) / (count * k.pace(usual)))
            self._batch(best, count)
        return reason

    def _stop(self) -> StopReason | None:
        if self.seconds_left <= 0:
            return "seconds"
        if self.trials_left <= 0:
            return "trials"
        if all(k.tuner.exhausted for k in self.kernels):
            return "exhausted"
        return "gain" if self.options.min_gain and self.expected < self.options.min_gain else None

    def _usual_pace(self) -> float:
        made = sum(k.tried for k in self.kernels)
        return sum(k.spent for k in self.kernels) / made if made else 0.1

    def _batch(self, kernel: KernelProgress, count: int) -> None:
        """The kernel's next trials: fewer than ``count`` where time or trials end sooner."""
        room = min(self.trials_left, self.seconds_left / max(kernel.pace(self._usual_pace()), 1e-3))
        began = self._clock()
        self._teach(kernel)
        points = kernel.tuner.propose(max(1, int(min(count, room))))
        kernel.spent += self._clock() - began
        self._try([(kernel, points)])

    def _teach(self, kernel: KernelProgress) -> None:
        """Gives a kernel what all have taught; learns that anew where there are many more records than before."""
        if not self.strategy.transfer:
            return
        if self.strategy.common == "sequence":
            tuners = [k.tuner for k in self.kernels if k is not kernel]
            known_trials = sum(len(t.costs) for t in tuners)
            if known_trials > NEWS * self._heard_of.get(id(kernel), 0):
                kernel.tuner.prior = fit_nests([(t.space, t.points, t.costs) for t in tuners], self.options.seed)
                self._heard_of[id(kernel)] = known_trials
            return
        known = self.records.all()
        if len(known) > NEWS * self._heard:
            self._taught, self._heard = fit_transfer(self._given, known, self.options.seed), len(known)
        kernel.tuner.prior = self._taught

    def _try(self, batch: Sequence[tuple[KernelProgress, Points]]) -> None:
        """Builds points of some kernels together, then measures, records and learns each kernel's.

        This process has nothing to do while others build: features, for which much is loaded the first time, come then.
        """
        began = self._clock()
        trials = [[trial_of(k.task.space.candidate(point)) for point in points] for k, points in batch]
        with ThreadPoolExecutor(1) as beside:
            waited = beside.submit(lambda: [extract(k.task.space, "invariant", points) for k, points in batch])
            builds = iter(self.evaluator.build([trial for own in trials for trial in own]))
            features = waited.result()
        shared = (self._clock() - began) / max(1, sum(map(len, trials)))
        for (kernel, points), own, rows in zip(batch, trials, features, strict=True):
            began = self._clock()
            costs: list[float] = []
            race = kernel.race = kernel.race or self._race(kernel)
            for trial, build, row in zip(own, builds, rows, strict=False):
                made, cost = race.measure(trial, build)
                costs.append(cost)
                self._remember(kernel, trial, made, row, cost)
            kernel.tuner.observe(points, costs)
            self.trials += len(own)
            kernel.tried += len(own)
            kernel.spent += self._clock() - began + shared * len(own)
            self._progress(self)

    def _race(self, kernel: KernelProgress) -> PairedMeasurer:
        """The race of a kernel's candidates, led by the best of earlier sessions."""
        best = kernel.tuner.best
        if best is None:
            return PairedMeasurer(self.evaluator)
        trial = trial_of(best)
        (build,) = self.evaluator.build([trial])
        return PairedMeasurer(self.evaluator, (trial, build), kernel.tuner.seconds)

    def _recall(self, kernel: KernelProgress) -> None:
        """Learns what earlier sessions measured of the same kernel on this machine."""
        space = kernel.task.space
        known: dict[tuple[int, ...], float] = {}
        for alternative in space.alternatives:
            key = task_key(alternative.task, self.target)
            found = self.records.measurements(machine(self.target), self.evaluator.threads, key, self.evaluator.cold)
            for each in found:
                if each.template == alternative.template.name and not each.won:
                    with suppress(ValueError):  # a choice that this version's space has not
                        point = space.point(Candidate(alternative, each.choice))
                        known.setdefault(tuple(point.tolist()), each.ranked)
        if known:
            kernel.tuner.observe(np.array(list(known), np.int32), list(known.values()))

    def _conclude(self, kernel: KernelProgress, validation: KernelValidation | None) -> None:
        """Keeps the best candidate only if it beats the default.

        A winner of an earlier session that has come to lose gives its place back to the default.
        """
        if kernel.tuner.best is None:
            return
        if validation is not None:
            kernel.confirmed = found = validation.found
            if found.second_wins:
                kernel.winner = validation.candidate
                self._declare(kernel, validation.candidate, found.times[1])
                return
            if not found.ratio >= 1.0:
                return
        if self._has_winner(kernel):
            self._declare(kernel, kernel.task.space.default)

    def _remember(
        self, kernel: KernelProgress, trial: KernelTrial, made: Measurement, features: NDArray[np.float32], cost: float
    ) -> None:
        """Adds a trial to the records, with what other kernels can learn from it."""
        own = record(
            trial, made, self.target, self.evaluator.threads, cold=self.evaluator.cold, tuner=self.strategy.name,
            kernel=kernel.task.key, features=features.tolist(), cost=cost,
        )  # fmt: skip
        self.records.append([own])

    def _known(self, candidate: Candidate) -> list[Record]:
        """Records of the candidate on this machine."""
        trial = trial_of(candidate)
        key = task_key(trial.task, self.target)
        known = self.records.measurements(machine(self.target), self.evaluator.threads, key, self.evaluator.cold)
        return [r for r in known if (r.template, dict(r.choice)) == (trial.template, dict(trial.choice))]

    def _has_winner(self, kernel: KernelProgress) -> bool:
        """Whether an earlier session has declared a winner for this kernel."""
        keys = {task_key(a.task, self.target) for a in kernel.task.space.alternatives}
        here = (machine(self.target), self.evaluator.threads, self.evaluator.cold)
        return any(r.won and r.key in keys and (r.target, r.threads, r.cold) == here for r in self.records.all())

    def _declare(self, kernel: KernelProgress, candidate: Candidate, times: Sequence[float] = ()) -> None:
        """Records what is to be compiled from now on: of several winners, the last counts."""
        tried = self._known(candidate)[0]
        times = tuple(times) or tried.times
        won = replace(tried, times=times, won=True, node=kernel.task.signature, algorithm=candidate.algorithm)
        self.records.append([won])
