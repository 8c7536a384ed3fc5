"""A model rewritten by substitutions, and compiled so where that is measured to be faster than the model as it is."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from math import isnan
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from burnish import rewrite
from burnish.base.cache import ObjectCache, cache_key
from burnish.driver.compilation import Compilation, KernelStage, Progress, assemble, compile_kernels
from burnish.errors import ParameterError
from burnish.graph.align import align_parts
from burnish.graph.fuse import Group
from burnish.graph.graph import Graph
from burnish.graph.passes import optimize
from burnish.machines.target import Target
from burnish.measure.comparison import Comparison
from burnish.measure.sandbox import Sandbox
from burnish.pipeline.kernel import code_version
from burnish.pipeline.plan import DEFAULTS, Choices
from burnish.rewrite.language.terms import RewriteRule
from burnish.rewrite.proofs.verify import read_proofs, read_rules
from burnish.rewrite.search.backtracking import Rewritten, rewrite_graph
from burnish.rewrite.search.cost import TargetCost
from burnish.rewrite.search.match import both_ways, forwards, reassociates
from burnish.rewrite.search.measured import MeasuredCost
from burnish.rewrite.search.objective import RewriteObjective, operations, total
from burnish.rewrite.search.table import Cost
from burnish.runtime.module import Module
from burnish.search.budget import Budget
from burnish.workers import Failure

SECONDS = 0.5  # of a search
LEAST_GAIN = 0.02  # of the predicted time: less is within the error of predictions, and of comparing modules
ATTEMPTS = 2  # searches, each knowing what the kernels of the one before it took
SHARE = 0.5  # of the time that compiling took is left to what a rewriting costs
LEAST_COMPARING = 0.2  # seconds, where the time for rewriting has run out before
SQUEEZES = 6  # searches for a graph that fits a limit of memory, under which each lets a byte cost more
FIRST_SQUEEZE = 0.03  # of the model's time is what all of its bytes cost first; then four times as much each time


@dataclass(frozen=True)
class Chosen:
    """The better of a model and its rewriting.

    ``graph`` is the one that was chosen. ``gain``: the rewriting's time over the model's, or what else came of
    comparing them; None where they were not compared: nothing was found that should be better, or the target is another
    machine. Both ``gain`` and ``found`` are None where an earlier compilation of the same graph has chosen already: the
    choice is the same. ``proposed``: a rewriting that should be better, where that cannot be measured: the target is
    another machine. ``price``: the costs by which ``found`` was found.
    """

    module: Module
    graph: Graph
    found: Rewritten | None = None
    gain: Comparison | None = None
    proposed: Graph | None = None
    price: Cost | None = None


@lru_cache(maxsize=1)
def shipped_rules() -> tuple[RewriteRule, ...]:
    """The substitutions that come with Burnish. Their proofs are checked by the tests, not by every compilation."""
    return tuple(both_ways(read_rules("substitutions.txt")))


def rewrite_model(
    graph: Graph,
    rules: Sequence[RewriteRule],
    *,
    target: Target,
    threads: int | None = None,
    exact: bool = False,
    cache_dir: str | Path | None = None,
    progress: Progress | None = None,
    choices: Choices = DEFAULTS,
    seconds: float = SECONDS,
    objective: RewriteObjective | None = None,
) -> Chosen:
    """Compiles a model and, if substitutions should make it faster, the rewritten model too; the faster one is chosen.

    Both run on made-up inputs in a process of their own, where they may crash. A rewritten model that does, or whose
    answers are others, is not chosen, which a RuntimeWarning tells; nor is one that could not be tried.
    ``exact`` allows only rules that re-associate. ``seconds``: of a search; where what the first one found does not
    win, a second one knows what its kernels took, if there is time: all that is done for a rewriting shall take no
    longer than half of what compiling the model did, and twice ``seconds``. ``objective``: what shall be less than now,
    by default the time. The module's ``rewrites`` tell what was found. Raises ParameterError where no graph was found
    that fits the objective's limit of memory.
    """

    def compiled(source: Graph, optimized: bool) -> _Compiled:
        aligned = source if optimized else align_parts(source, target.lanes)
        made = compile_kernels(aligned, target, exact, cache_dir, progress, choices, optimized)
        return _Compiled(source, made, Module(assemble(made), threads))

    tell = progress or (lambda stage, done, total: None)
    tell("optimize", 0, 1)
    ready, objective = optimize(graph, exact, target), objective or RewriteObjective()
    store = ObjectCache(cache_dir)
    key = _key(ready, rules, target, threads, f"{exact} {seconds} {objective} {choices.name}")
    allowed, cost = [rule for rule in rules if not exact or reassociates(rule)], MeasuredCost(TargetCost(target))
    tell("rewrite", 0, 1)
    known = store.get(key)
    if known is not None:
        chosen = json.loads(known)
        if not chosen["report"]["kept"]:
            _warn(chosen["report"])
            return Chosen(_with_report(compiled(ready, True).module, chosen["report"]), graph)
        cost = replace(cost, times=chosen["times"], factors=chosen["factors"])
        price = objective.cost(cost, target.flops, chosen["pressure"])
        kept = rewrite_graph(ready, allowed, price, Budget(), walks=chosen["walks"]).graph
        return Chosen(_with_report(compiled(kept, False).module, chosen["report"]), kept)
    began = time.perf_counter()
    plain = compiled(ready, True)
    clock = _Clock(time.perf_counter() - began, 2 * seconds)
    recorded = [choices.seconds(s.task, target) if isinstance(s, KernelStage) else None for s in plain.made.computed]
    if any(recorded):
        cost = cost.learned(ready, _observed(plain.made, recorded))
    with Sandbox() as sandbox:
        best = _choose(plain, allowed, cost, objective, target, seconds, compiled, _Court(sandbox, exact, clock))
    report = described(best.found, best.gain, best.kept)
    _warn(report)
    if best.lasting:
        store.put(key, json.dumps({"report": report, **best.repeatable}).encode())
    price = objective.cost(best.cost, target.flops, best.pressure)
    if best.kept and best.other is not None:
        return Chosen(_with_report(best.other.module, report), best.found.graph, best.found, best.gain, None, price)
    proposed = best.found.graph if best.other is not None and not _is_here(target) else None
    return Chosen(_with_report(plain.module, report), graph, best.found, best.gain, proposed, price)


@dataclass(frozen=True)
class _Compiled:
    """A graph, and what it became."""

    graph: Graph
    made: Compilation
    module: Module

    @property
    def nbytes(self) -> int:
        """Bytes of arena, parameters and scratch: all that a limit of memory is about."""
        memory = self.module.memory
        return memory["arena"] + memory["params"] + memory["scratch"]


@dataclass(frozen=True)
class _Attempt:
    """A graph that was found by a cost and, if it should be better, compiled and compared. ``pressure``: seconds that
    a byte cost besides.
    """

    found: Rewritten
    cost: MeasuredCost
    pressure: float
    other: _Compiled | None = None
    gain: Comparison | None = None
    kept: bool = False

    @property
    def lasting(self) -> bool:
        """Whether another compilation should take this outcome as it is: all but what was not tried to its end.

        Also a comparison that does not decide is one: the noise that hid a gain would cost as much the next time.
        """
        if self.kept or self.other is None:
            return True
        return self.gain is not None and self.gain.outcome in ("ok", "crashed", "wrong")

    @property
    def repeatable(self) -> dict[str, Any]:
        """Parameters with which another search finds the same graph: walks, pressure, measured times and factors."""
        cost = self.cost
        return {"walks": self.found.walks, "pressure": self.pressure, "times": cost.times, "factors": cost.factors}


class _Clock:
    """Time that a rewriting may take: half of what compiling the model took, and ``more`` seconds."""

    def __init__(self, compiling: float, more: float) -> None:
        self.compiling = compiling
        self._end = time.perf_counter() + SHARE * compiling + more

    @property
    def left(self) -> float:
        """Seconds that are left; below 0 after the end."""
        return self._end - time.perf_counter()


@dataclass(frozen=True)
class _Court:
    """Where a model and its rewriting are compared, and for how long."""

    sandbox: Sandbox
    exact: bool
    clock: _Clock

    def compare(self, plain: _Compiled, other: _Compiled, timed: bool) -> Comparison:
        graph = plain.made.reference
        dtypes = {t.dtype for name, t in graph.types.items() if name not in graph.constants}
        most = max(self.clock.left, LEAST_COMPARING)
        return self.sandbox.compare(plain.module, other.module, dtypes, exact=self.exact, timed=timed, seconds=most)

    def learned(self, cost: MeasuredCost, *compiled: _Compiled) -> MeasuredCost:
        """The cost corrected by what kernels take. Raises Failure."""
        found = self.sandbox.kernel_seconds([each.module for each in compiled])
        for each, times in zip(compiled, found, strict=True):
            cost = cost.learned(each.graph, _observed(each.made, times))
        return cost


def _choose(
    plain: _Compiled,
    rules: Sequence[RewriteRule],
    cost: MeasuredCost,
    objective: RewriteObjective,
    target: Target,
    seconds: float,
    compiled: Callable[[Graph, bool], _Compiled],
    court: _Court,
) -> _Attempt:
    """The first attempt that wins, else the last one; each knows what the kernels of those before it took.

    Raises ParameterError where no graph fits the limit of memory.
    """
    limit, here = objective.memory_limit, _is_here(target)
    fits = limit is None or plain.nbytes <= limit
    squeeze = 0.0 if fits else FIRST_SQUEEZE * total(plain.graph, cost) / plain.nbytes
    last, tried, least = None, {str(plain.graph)}, plain.nbytes
    for number in range(ATTEMPTS if fits else SQUEEZES):
        pressure = squeeze * 4**number
        price = objective.cost(cost, target.flops, pressure)
        found = rewrite_graph(plain.graph, rules, price, Budget(seconds=seconds))
        other = None
        if found.after < found.before * (1 - LEAST_GAIN) and str(found.graph) not in tried:
            if here:
                court.sandbox.launch()
            other = compiled(found.graph, False)
        if other is None or _is_same(plain, other):
            last = last or _Attempt(found, cost, pressure)
            if fits:
                break
            continue
        tried.add(str(found.graph))
        gain = court.compare(plain, other, bool(objective.time)) if here else None
        last = _Attempt(found, cost, pressure, other, gain, _is_better(plain, other, gain, objective, target))
        if last.kept:
            return last
        least = min(least, other.nbytes)
        if gain is not None and gain.outcome != "ok":
            if fits or gain.culprit == 0:
                break
        elif here and fits and court.clock.left < court.clock.compiling + seconds:
            break  # another attempt would compile a model once more, and time two
        elif here:
            with suppress(Failure):
                cost = court.learned(cost, plain, other)
    if not fits:
        raise ParameterError(f"objective: memory_limit={limit}; the smallest graph found takes {least} bytes")
    assert last is not None
    return last


def _is_better(
    plain: _Compiled, other: _Compiled, gain: Comparison | None, objective: RewriteObjective, target: Target
) -> bool:
    """Whether a rewriting wins: it fits, and the model does not, or what shall be less surely is; and where both could
    be tried, it gives the same answers.
    """
    limit = objective.memory_limit
    if gain is not None and gain.outcome not in ("ok", "unavailable"):
        return False
    if limit is not None and max(plain.nbytes, other.nbytes) > limit:
        return other.nbytes <= limit
    if gain is not None and gain.outcome != "ok":
        return False
    if not objective.flops:
        return gain is not None and gain.second_wins
    before, after = (objective.flops * total(each.graph, operations) / target.flops for each in (plain, other))
    if not objective.time:
        return after < before
    if gain is None:
        return False
    seconds = objective.time * median(gain.times[0])
    return seconds * gain.high + after < seconds + before


def _is_same(plain: _Compiled, other: _Compiled) -> bool:
    """Whether two graphs became the same program."""
    a, b = plain.module.executable, other.module.executable
    return a.steps == b.steps and a.code.digest == b.code.digest and np.array_equal(a.params, b.params)


def _observed(made: Compilation, times: Iterable[float | None]) -> list[tuple[tuple[str, ...], float]]:
    """The tensors that each step computes, and its seconds of ``times``, one a step; what needs none takes none."""
    known, found = iter(times), []
    for step in made.steps:
        group, seconds = (step, 0.0) if isinstance(step, Group) else (step.group, next(known))
        if seconds is not None:
            found.append((tuple(name for node in group.nodes for name in node.outputs), seconds))
    return found


def _is_here(target: Target) -> bool:
    """Whether what is compiled for a target can be timed: it is this machine."""
    return target.is_host


def _key(graph: Graph, rules: Sequence[RewriteRule], target: Target, threads: int | None, options: str) -> str:
    """Cache key of all that a choice depends on but noise: values of weights are not looked at."""
    machine = f"{target.key} {target.rates} {threads}"
    return cache_key("rewriting", _code_version(), machine, options, str(graph), *map(str, rules))


@cache
def _code_version() -> str:
    """A hash of the compiler's source, the search's and this file: what another version has chosen is chosen again."""
    root = Path(rewrite.__file__).parent.parent
    files = [f for folder in ("ops", "graph", "measure", "rewrite") for f in sorted((root / folder).rglob("*.py"))]
    return cache_key(code_version(), *(f.read_bytes() for f in (*files, Path(__file__))))


def _with_report(module: Module, report: Mapping[str, Any]) -> Module:
    """The module with a report of its rewriting, which its artifact keeps."""
    module.note(rewrites=dict(report))
    return module


def described(found: Rewritten, gain: Comparison | None, kept: bool) -> dict[str, Any]:
    """The report as JSON holds it. Times in microseconds; ratios are of the rewritten model to the model as it is.

    ``proof``: the steps of the rule's, each an instance of an axiom. ``outcome``: of comparing both models, one of
    ``ok``, ``wrong`` (their answers differ), ``crashed``, ``timeout`` and ``unavailable`` (they could not be run), or
    None where they were not compared; ``error`` says what happened. ``difference``: of their answers, of their scale.
    """
    timed = gain is not None and gain.outcome == "ok" and gain.times[0]
    return {
        "applied": [
            {"rule": s.rule, "times": s.times, "saved_us": round(1e6 * s.saved, 2), "proof": _proof(s.rule)}
            for s in found.applied
        ],
        "predicted_us": [round(1e6 * found.before, 2), round(1e6 * found.after, 2)],
        "measured": {"ratio": gain.ratio, "low": gain.low, "high": gain.high} if gain is not None and timed else None,
        "difference": None if gain is None or isnan(gain.difference) else gain.difference,
        "outcome": None if gain is None else gain.outcome,
        "error": "" if gain is None or gain.outcome == "ok" else _failure(gain),
        "kept": kept,
        "graphs": found.graphs,
        "seconds": round(found.seconds, 3),
        "stop_reason": found.stop_reason,
    }  # fmt: skip


def _failure(gain: Comparison) -> str:
    """Failure message of a comparison that ended without times."""
    if gain.outcome == "unavailable":
        return f"the model and its rewriting could not be tried: {gain.error}"
    whose = {0: "the model as it is", 1: "the rewritten model", None: "the model or its rewriting"}[gain.culprit]
    if gain.outcome == "wrong":
        return f"the rewritten model gives other answers on made-up inputs: {gain.error}"
    return f"{whose} {'took too long' if gain.outcome == 'timeout' else 'crashed'} on made-up inputs: {gain.error}"


def _warn(report: Mapping[str, Any]) -> None:
    """Tells of a model that crashes, and of a rewriting that does or is wrong."""
    if report["outcome"] in ("crashed", "timeout", "wrong"):
        rules = ", ".join(f"{each['times']} × {each['rule']}" for each in report["applied"])
        warnings.warn(
            f"rewriting: {report['error']}; the model is compiled as it is, without {rules}", RuntimeWarning,
            stacklevel=4,
        )  # fmt: skip


@lru_cache(maxsize=1)
def _shipped_proofs() -> dict[str, list[str]]:
    return {name: [str(step).strip() for step in proof.steps] for name, proof in read_proofs().items()}


def _proof(rule: str) -> list[str]:
    """The steps of a shipped rule's proof, which proves the rule read backwards, too; of other rules none."""
    return _shipped_proofs().get(forwards(rule), [])
