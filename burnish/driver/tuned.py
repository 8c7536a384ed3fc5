"""A model tuned on this machine: its kernels searched for, then the whole of it measured against its untuned self."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isqrt, sqrt
from pathlib import Path
from typing import Any

import numpy as np

from burnish.boards.leasing import Devices
from burnish.driver.compilation import Progress, assemble, compile_kernels
from burnish.driver.module_by_size import ModuleBySize
from burnish.driver.stages import HostStage, KernelStage, NestedStage, RepeatStage
from burnish.errors import TargetError
from burnish.graph.domain import input_domains
from burnish.graph.graph import Graph
from burnish.graph.passes import optimize
from burnish.graph.specialize import graph_at
from burnish.graph.structures import relied_on
from burnish.machines.target import Target, host
from burnish.measure.accuracy import scaled_error, tolerance
from burnish.measure.boards import compare_on_board
from burnish.measure.comparison import Comparison, time_in_turns
from burnish.measure.samples import draw_offsets, random_inputs
from burnish.measure.sandbox import Sandbox
from burnish.pipeline.kernel import task_key
from burnish.pipeline.plan import DEFAULTS, Choices
from burnish.runtime.devices import bench_for, device_for, is_timed, usual_threads
from burnish.runtime.executable import Executable
from burnish.runtime.module import Module
from burnish.runtime.steps import TensorSpec
from burnish.tune.choices import recorded_choices, runs_cold
from burnish.tune.evaluate import Evaluator
from burnish.tune.pretrained import shipped
from burnish.tune.records import RecordFile
from burnish.tune.session import Session, SessionOutcome, Tune
from burnish.tune.strategy import strategy_named
from burnish.tune.tasks import tuning_tasks
from burnish.tune.validation import InModelValidator, Validator

BUILD_LIMIT = 3.0  # seconds of a core; a schedule that takes as long has unrolled more than any register file holds

GRID_LIMIT = 20.0  # as BUILD_LIMIT, where a thread's work is written out many times
TURNS = 2.0  # seconds of a comparison at one size
FURTHER = 16  # times the hint: the largest size that is compared, where a dimension may be far larger

RUN_LIMIT, BOARD_LIMIT = 5.0, 60.0  # seconds of a kernel with its check, here; of a call on a board


@dataclass(frozen=True)
class Tuned:
    """A tuned model. ``gain``: its time over the untuned one's; where that is not surely below 1, their answers differ,
    or one of them crashes, ``module`` is the untuned one.
    """

    module: Module | ModuleBySize
    outcome: SessionOutcome
    gain: Comparison


def tune_model(
    graph: Graph,
    options: Tune,
    records: str | Path,
    *,
    target: Target,
    threads: int | None = None,
    exact: bool = False,
    cache_dir: str | Path | None = None,
    progress: Progress | None = None,
    watch: Callable[[Session], None] | None = None,
    devices: Devices | None = None,
) -> Tuned:
    """Tunes the kernels of a model, and compiles it with the winners if it is then faster as a whole.

    ``watch`` is called before the first trial and after every batch, and ``progress`` with the stage "tune".
    ``devices``: boards that kernels, and then the model, are timed on, on one thread by default; one with open
    dimensions at the hints of these, here at two further sizes, too. Without any,
    ``target`` is this machine's CPU, or its device is here, such as a GPU, whose own clock counts; TargetError for
    others.
    """
    timed = devices is None and is_timed(target.machine)
    if timed:
        try:
            bench_for(target)
        except TargetError as error:
            raise TargetError(f"tune: {error}") from None
    elif not target.is_host and devices is None:
        raise TargetError(f"tune: the target is {target.cpu} ({target.triple}), this machine is {host().cpu}")
    opened, graph = graph, graph_at(graph, {d.name: d.hint for d in graph.dims})
    store, threads = RecordFile(records), threads or (1 if devices is not None else usual_threads(target))
    tasks = tuning_tasks(optimize(graph, exact, target), target, exact)
    usual = devices is None and runs_cold(
        graph, target
    )  # of boards it is not known whether their caches can be flushed
    cold = usual if options.cold is None else options.cold

    def follow(session: Session) -> None:
        if watch is not None:
            watch(session)
        if progress is not None:
            progress("tune", *_done(session))

    def compiled(choices: Choices, graph: Graph = graph) -> tuple[Module, list[tuple[str, ...]]]:
        made = compile_kernels(graph, target, exact, cache_dir, progress, choices)
        parts = [_kernels_of(s) for s in made.computed if not isinstance(s, HostStage)]
        return _module(assemble(made), threads, target), [
            tuple(task_key(s.task, target) for s in part) for part in parts
        ]

    limit = RUN_LIMIT if devices is None else BOARD_LIMIT
    with Evaluator(
        target,
        threads=threads,
        cold=cold,
        build_limit=GRID_LIMIT if timed else BUILD_LIMIT,
        run_limit=limit,
        devices=devices,
    ) as evaluator:
        # What comes with Burnish was taught by CPUs.
        prior = shipped(target) if strategy_named(options.strategy).transfer and not timed else None
        validator: Validator | None = None
        if devices is None and not timed:
            constants = sum(a.nbytes for a in graph.constants.values())
            validator = InModelValidator(compiled, constants, cache_dir, evaluator)
        outcome = Session(tasks, store, evaluator, options, progress=follow, prior=prior, validate=validator).run()
    plain, tuned = (compiled(choices)[0] for choices in (DEFAULTS, recorded_choices(store, target, threads, cold)))
    dtypes = {t.dtype for name, t in graph.types.items() if name not in graph.constants}
    if devices is not None:
        gain = compare_on_board(devices, plain.executable, tuned.executable, dtypes, exact=exact, threads=threads)
    else:
        with Sandbox(machine=target.machine) as sandbox:
            gain = sandbox.compare(plain, tuned, dtypes, exact=exact)
    if opened.dims and gain.second_wins:
        plain, tuned = (compiled(c, opened)[0] for c in (DEFAULTS, recorded_choices(store, target, threads, cold)))
        if devices is None:  # boards run kernels of static sizes: there the hints decide
            gain = _over_sizes(plain, tuned, opened, exact)
    elif opened.dims:
        plain = compiled(DEFAULTS, opened)[0]
    if gain.outcome != "ok":
        warnings.warn(
            f"tune: the tuned model beside the untuned one: {gain.outcome}: {gain.error}; the untuned one is taken",
            RuntimeWarning, stacklevel=2,
        )  # fmt: skip
    return Tuned(tuned if gain.second_wins else plain, outcome, gain)


def _over_sizes(plain: Module, tuned: Module, graph: Graph, exact: bool) -> Comparison:
    """Two modules with open dimensions, timed at the hints and at two further sizes: the comparison at the size that
    gains least, or at the first at which their answers differ.
    """
    allowed = tolerance({t.dtype for t in graph.types.values()}, exact) * sqrt(len(graph.nodes))
    hints = {d.name: d.hint for d in graph.dims}
    smaller = {d.name: isqrt(max(d.low, 1) * d.hint) for d in graph.dims}
    larger = {d.name: min(isqrt(d.high * d.hint), FURTHER * max(d.hint, 1)) for d in graph.dims}
    found: list[Comparison] = []
    for sizes in (hints, smaller, larger):
        fixed = graph_at(graph, sizes)
        specs = [TensorSpec(name, fixed.types[name].shape, fixed.types[name].dtype) for name in fixed.inputs]
        feeds = random_inputs(specs, 0, input_domains(fixed))
        for name, kind, limit in relied_on(fixed):
            if kind == "offsets" and name in feeds:
                random = np.random.default_rng(0)
                feeds[name] = draw_offsets(feeds[name].shape, fixed.types[name].dtype, limit, random)
        one, other = (y if isinstance(y, tuple) else (y,) for y in (plain(**feeds), tuned(**feeds)))
        if (difference := scaled_error(other, one)) > allowed:
            return Comparison(outcome="wrong", error=f"answers at {sizes} differ by {difference:.1e}")
        found.append(time_in_turns(plain, tuned, feeds, most_seconds=TURNS))
    return max(found, key=lambda each: each.high)


def _kernels_of(stage: KernelStage | RepeatStage | NestedStage) -> Sequence[KernelStage]:
    """The kernels of a step of a module: one, or those that it holds."""
    if isinstance(stage, RepeatStage):
        return stage.calls
    return stage.all_stages if isinstance(stage, NestedStage) else (stage,)


def _module(executable: Executable, threads: int, target: Target) -> Module:
    """For this machine, or one that can be saved for another."""
    return Module(executable, threads, device=device_for(target.machine, executable.target))


def _done(session: Session) -> tuple[int, int]:
    """Seconds spent of those given, or else trials; of how many is 0 where nothing limits them."""
    seconds, trials = session.options.seconds, session.options.trials
    return (session.trials, trials or 0) if seconds is None else (round(session.elapsed), round(seconds))


def described(tuned: Tuned) -> dict[str, Any]:
    """The report as JSON holds it."""
    kernels = [
        {
            "kernel": k.task.name,
            "calls": k.task.calls,
            "trials": len(k.tuner.costs),
            "candidates": k.task.space.size,
            "default_us": _microseconds(k.default),
            "best_us": _microseconds(k.seconds),
            "gflops": round(k.task.flops / k.seconds / 1e9, 1) if k.seconds < float("inf") else None,
            "kept": k.winner is not None,
            "choice": str(k.winner or k.tuner.best) if k.tuner.best else None,
        }
        for k in tuned.outcome.kernels
    ]
    return {
        "seconds": round(tuned.outcome.seconds, 1), "trials": tuned.outcome.trials,
        "stop_reason": tuned.outcome.stop_reason, "expected_gain": round(tuned.outcome.expected, 4),
        "outcome": tuned.gain.outcome,
        **{end: getattr(tuned.gain, end) if tuned.gain.outcome == "ok" else None for end in ("ratio", "low", "high")},
        "kept": tuned.gain.second_wins, "kernels": kernels,
    }  # fmt: skip


def _microseconds(seconds: float) -> float | None:
    return round(1e6 * seconds, 2) if seconds < float("inf") else None
