"""End-to-end validation of tuned kernels: whether the best one found beats the default, alone or inside the model."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np

from burnish.base.cache import ObjectCache
from burnish.machines.target import Target
from burnish.measure.comparison import Comparison, compare_times
from burnish.measure.sandbox import Sandbox
from burnish.pipeline.kernel import KernelConfig, keep, task_key
from burnish.pipeline.plan import DEFAULTS, Choices
from burnish.runtime.executable import Branch, KernelCall, Repeat, While
from burnish.runtime.module import Module
from burnish.tune.choices import choices_of
from burnish.tune.evaluate import Evaluator, KernelTrial
from burnish.tune.progress import KernelProgress
from burnish.tune.space import Candidate
from burnish.tune.tasks import TuningTask
from burnish.workers import Failure

FINALISTS, WITHIN = 5, 1.25  # candidates of a kernel, the default among them; times the least cost of any
ROUNDS, RUNS = (12, 36), 4  # in which all modules are profiled in turns, at least and at most; most runs in each
SECONDS = 8.0  # that profiling may take
LEAST = 1e-6  # seconds of a call, whatever its kernels take
REPLAYS = 3  # of the winners together, each without those that lose there
PARAMETERS = 1 << 30  # bytes of packed constants that the modules may hold together


class KernelValidation(NamedTuple):
    """The best of a kernel's contenders, and how it compares with the default."""

    candidate: Candidate
    found: Comparison


Validator = Callable[[Sequence[KernelProgress], float], list[KernelValidation | None]]
"""Verdicts on kernels, within so many seconds where that can be; None where nothing stands against the default."""

Compiled = Callable[[Choices], tuple[Module, list[tuple[str, ...]]]]
"""A model compiled by some choices, and of each of its kernel calls the key of what is computed."""


def trial_of(candidate: Candidate) -> KernelTrial:
    """The candidate as what is built and measured."""
    return KernelTrial(candidate.alternative.task, candidate.alternative.template.name, candidate.choice)


def standalone(evaluator: Evaluator) -> Validator:
    """Every kernel's best candidate against its default, in turns, in a process with nothing else."""

    def validate(kernels: Sequence[KernelProgress], seconds: float) -> list[KernelValidation | None]:
        found: list[KernelValidation | None] = []
        for kernel in kernels:
            best, default = kernel.tuner.best, kernel.task.space.default
            if best is None or best == default:
                found.append(None)
            else:
                found.append(KernelValidation(best, evaluator.compare(trial_of(default), trial_of(best))))
        return found

    return validate


@dataclass(frozen=True)
class InModelValidator:
    """Validation of the best candidates inside the model, where they will run: with inputs that another kernel has left
    in some cache, and weights that come from wherever they are by then. On its own a kernel finds them elsewhere: over
    the best candidates of a kernel, times alone and in a model are correlated by 0.2 to 0.7 only.

    Module number k has the k-th contender of every kernel. All are profiled in turns, and of each kernel the one wins
    that takes the least of the default's time, if that is surely less. Then the winners play together. All that happens
    in a process of their own; where that cannot be, or one crashes there, kernels are validated alone.
    """

    compiled: Compiled
    parameter_bytes: int  # of the model's constants
    cache_dir: str | Path | None  # of the compilations
    evaluator: Evaluator

    def __call__(self, kernels: Sequence[KernelProgress], seconds: float) -> list[KernelValidation | None]:
        """Verdicts on kernels: judged inside the model, or each alone where the model crashes with one of them."""
        try:
            with Sandbox() as sandbox:
                return self._validated(sandbox, kernels, seconds)
        except Failure as failure:
            what = f"{failure.kind}: {failure.detail}"
            warnings.warn(
                f"tune: the model with its fastest kernels: {what}; kernels are compared alone",
                RuntimeWarning, stacklevel=2,
            )  # fmt: skip
            return standalone(self.evaluator)(kernels, seconds)

    def _validated(
        self, sandbox: Sandbox, kernels: Sequence[KernelProgress], seconds: float
    ) -> list[KernelValidation | None]:
        """Raises Failure."""
        sandbox.launch()
        plain, keys = self.compiled(DEFAULTS)
        modules = [plain]
        usual, limit = _seconds(sandbox, plain), min(SECONDS, seconds / 2)
        most = int(min(FINALISTS, limit / (2 * ROUNDS[0] * usual), PARAMETERS / max(1, self.parameter_bytes)))
        own = self._built([finalists(kernel, max(2, most)) for kernel in kernels])
        for number in range(1, max(map(len, own), default=1)):
            assignment = [(k.task, c[number % len(c)]) for k, c in zip(kernels, own, strict=True)]
            modules.append(self.compiled(_choices(assignment, self.evaluator.target))[0])
        calls = int(limit / (len(modules) * usual))
        runs = max(1, min(RUNS, calls // ROUNDS[0] - 1))  # the first of a round does not count
        count = max(ROUNDS[0], min(ROUNDS[1], calls // (runs + 1)))
        rounds = [[_by_call(rows) for rows in each] for each in sandbox.profiles(modules, count, runs)]
        calls_of = _calls(plain, keys)
        places = [calls_of[task_key(c[0].alternative.task, self.evaluator.target)] for c in own]
        found = [
            _validation(candidates, [[_spent(m, at) for m in each] for each in rounds])
            for candidates, at in zip(own, places, strict=True)
        ]
        return self._together(sandbox, plain, [k.task for k in kernels], places, found, (count, runs))

    def _together(
        self, sandbox: Sandbox, plain: Module, tasks: Sequence[TuningTask], places: Sequence[Sequence[_Place]],
        validations: Sequence[KernelValidation | None], size: tuple[int, int],
    ) -> list[KernelValidation | None]:  # fmt: skip
        """Verdicts after compiling all winners into one model, in which those surely slower than their defaults have
        lost.

        Kernels can hinder each other: those that read one constant in packings that differ keep it in the caches twice.
        """
        found = list(validations)
        for _ in range(REPLAYS):
            winners = {n: v.candidate for n, v in enumerate(found) if v is not None and v.found.second_wins}
            if not winners:
                break
            module, _ = self.compiled(_choices([(tasks[n], c) for n, c in winners.items()], self.evaluator.target))
            rounds = [[_by_call(rows) for rows in each] for each in sandbox.profiles([plain, module], *size)]
            slower = False
            for n, candidate in winners.items():
                default, own = ([_spent(each[m], places[n]) for each in rounds] for m in (0, 1))
                beside = compare_times(default, own)
                if beside.low > 1.0:
                    found[n], slower = KernelValidation(candidate, beside), True
            if not slower:
                break
        return found

    def _built(self, finalists: Sequence[Sequence[Candidate]]) -> list[list[Candidate]]:
        """Buildable finalists, built in several processes; compiling then finds them in the cache.

        Of choices that make no difference the first.
        """
        challengers = [candidate for own in finalists for candidate in own[1:]]
        builds = iter(self.evaluator.build([trial_of(candidate) for candidate in challengers]))
        store, found, met = ObjectCache(self.cache_dir), [], set()
        for default, *others in finalists:
            found.append([default])
            for candidate in others:
                kernel = next(builds).kernel
                if kernel is not None and kernel.code not in met:
                    met.add(kernel.code)
                    key = task_key(candidate.alternative.task, self.evaluator.target)
                    keep(store, key, kernel, _recipe(candidate))
                    found[-1].append(candidate)
        return found


def finalists(kernel: KernelProgress, most: int) -> list[Candidate]:
    """Candidates for the final comparison, at most ``most``: the default, then the fastest as measured alone."""
    default, tuner = kernel.task.space.default, kernel.tuner
    found = [default]
    for row in np.argsort(tuner.costs, kind="stable").tolist():
        if len(found) == most or not tuner.costs[row] <= WITHIN * tuner.seconds < np.inf:
            break
        candidate = tuner.space.candidate(tuner.points[row])
        if candidate != default:
            found.append(candidate)
    return found


def _recipe(candidate: Candidate) -> KernelConfig:
    return KernelConfig(candidate.alternative.template.name, dict(candidate.choice))


def _choices(assignment: Sequence[tuple[TuningTask, Candidate]], target: Target) -> Choices:
    """A compilation with these candidates."""
    challengers = [(task, candidate) for task, candidate in assignment if candidate != task.space.default]
    recipes = {task_key(c.alternative.task, target): _recipe(c) for _, c in challengers}
    return choices_of(recipes, {task.signature: c.algorithm for task, c in challengers if task.signature})


def _seconds(sandbox: Sandbox, module: Module) -> float:
    """Seconds of one call, at least LEAST. Raises Failure."""
    ((calls,),) = sandbox.profiles([module], 1, 1)
    return max(sum(seconds for _, seconds in calls), LEAST)


_Place = tuple[str, int]  # a kernel call: the nodes that it computes, and which of the calls that compute such it is


def _numbered(nodes: Sequence[str]) -> Iterator[_Place]:
    met: Counter[str] = Counter()
    for node in nodes:
        yield node, met[node]
        met[node] += 1


def _by_call(rows: Sequence[tuple[str, float]]) -> dict[_Place, float]:
    return dict(zip(_numbered([node for node, _ in rows]), (seconds for _, seconds in rows), strict=True))


def _calls(module: Module, keys: Sequence[Sequence[str]]) -> dict[str, list[_Place]]:
    """Call sites of each kernel, by the keys of those of each step: of a step that repeats several, all of it."""
    found: dict[str, list[_Place]] = {}
    steps = [step.node for step in module.executable.steps if isinstance(step, (KernelCall, Repeat, Branch, While))]
    for own, place in zip(keys, _numbered(steps), strict=True):
        for key in dict.fromkeys(own):
            found.setdefault(key, []).append(place)
    return found


def _spent(module: Mapping[_Place, float], places: Sequence[_Place]) -> float:
    """Seconds of a call at these places; NaN where the module groups nodes in another way."""
    return sum(module.get(place, np.nan) for place in places) / len(places)


def _validation(candidates: Sequence[Candidate], rounds: Sequence[Sequence[float]]) -> KernelValidation | None:
    """Verdict on candidates by the seconds of each round and module; number k has candidate k, counted around."""
    many = len(candidates)
    series = [[median(times[number::many]) for times in rounds] for number in range(many)]
    best: KernelValidation | None = None
    for candidate, times in zip(candidates[1:], series[1:], strict=True):
        found = compare_times(series[0], times)
        if best is None or (found.second_wins, -found.ratio) > (best.found.second_wins, -best.found.ratio):
            best = KernelValidation(candidate, found)
    return best
