"""Calibration of a plan's costs on this machine: every part of an operation is compiled and timed by all ranks at once.

Ranks are started as for training; they measure links, updates of parameters, and parts that are not known yet.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from burnish.base.cache import ObjectCache, cache_key
from burnish.comm.launchers import launcher
from burnish.comm.local import TIMEOUT
from burnish.comm.protocol import Comm
from burnish.driver.assembly import assemble
from burnish.driver.compilation import compile_kernels
from burnish.driver.loading import load_module
from burnish.errors import PlanError, UnsupportedOperator
from burnish.graph.graph import Graph, GraphBuilder
from burnish.machines.target import Target
from burnish.machines.target import target as find_target
from burnish.measure.samples import module_inputs
from burnish.measure.together import cold_seconds
from burnish.parallel.model.costs import Roofline
from burnish.parallel.model.machine import DeviceCluster
from burnish.parallel.model.space import StrategySpace
from burnish.parallel.programs.calibrate import Line, MeasuredCosts, TimedPart, Times, calibrated, fit
from burnish.parallel.programs.parts import part_program, parts_of
from burnish.pipeline.kernel import code_version
from burnish.runtime import artifact
from burnish.runtime.buffers import aligned_array, numpy_dtype
from burnish.train.step import Train
from burnish.train.updates import UpdatePlan, add_optimizer

UPDATES = (1 << 14, 1 << 18, 1 << 21)  # elements of parameters whose update is timed
EDITION = "1"  # of how parts are made and timed


@dataclass(frozen=True)
class LaunchConfig:
    """Launch configuration of a plan's devices: workers of a ``worker_kind`` ("process", "thread", "torch", "ray"),
    ``threads`` each, that train by ``train``, or infer without. ``steps`` of a plan are timed, on a ``clock`` of
    :data:`burnish.measure.together.CLOCKS`; a worker waits ``timeout`` seconds for another.
    """

    train: Train | None = None
    worker_kind: str = "process"
    threads: int = 1
    steps: int = 12
    timeout: float = TIMEOUT
    clock: str = "wall"
    target: str | Target = "cpu"
    exact: bool = False
    cache_dir: str | Path | None = None


@dataclass(frozen=True, eq=False)
class Calibration:
    """A machine with measured links, costs with measured times, and how many of these are new."""

    machine: DeviceCluster
    costs: MeasuredCosts
    timed: int


Report = Callable[[int, int], None]


def calibrate(space: StrategySpace, ranks: LaunchConfig, progress: Report = lambda done, total: None) -> Calibration:
    """Costs of all configurations of ``space`` as measured here, one worker for each device of its machine.

    Parts are kept in the cache of machine code, by the compiler's version. An operation that cannot be differentiated,
    or split as asked, keeps its analytic cost. ``progress``: parts compiled so far, and of how many.
    Raises PlanError for a machine whose devices are not this machine's, WorkerError where a rank fails.
    """
    own, model, machine = find_target(ranks.target, threads=ranks.threads), space.model, space.machine
    check_here(machine, ranks)
    settings = repr((ranks.worker_kind, ranks.threads, ranks.exact, ranks.clock, machine.size))
    times = Times(ObjectCache(ranks.cache_dir), cache_key(EDITION, code_version(), own.key, settings))
    trains = ranks.train is not None
    wanted = {TimedPart.of(part, machine.devices[0]): part for part in parts_of(space, trains)}
    todo = {timing: part for timing, part in wanted.items() if times.get(timing) is None}
    updates = {} if ranks.train is None else {size: f"update {ranks.train.optimizer} {size}" for size in UPDATES}
    with tempfile.TemporaryDirectory() as folder:
        save = partial(_saved, ranks=ranks, folder=Path(folder))
        paths: dict[Any, str] = {}
        for size, name in updates.items():
            if times.get(name) is None and ranks.train is not None:
                paths[name] = save(_update_graph(ranks.train, size), len(paths))
        for done, (timing, part) in enumerate(todo.items()):
            progress(done, len(todo))
            try:
                program = part_program(model, part)
                if program is None:
                    times.put(timing, 0.0)
                else:
                    paths[timing] = save(program.graph, len(paths))
            except (UnsupportedOperator, PlanError):
                continue
        order = (machine, [*paths.values()], ranks.threads, ranks.clock)
        found = launcher(ranks.worker_kind, ranks.timeout)(time_parts, [order] * machine.size)[0]
    for what, seconds in zip(paths, found["seconds"], strict=True):
        times.put(what, seconds)
    update = _update_line({4 * size: times.get(name) or 0.0 for size, name in updates.items()})
    return Calibration(found["machine"], MeasuredCosts(Roofline(), times, model, update), len(paths))


def check_here(machine: DeviceCluster, ranks: LaunchConfig) -> None:
    """Raises PlanError unless the devices are cores of this machine, which can be measured."""
    own = find_target(ranks.target)
    others = [d.kind for d in machine.devices if d.kind != own.cpu]
    if others:
        raise PlanError(f"machine '{machine.name}': devices '{others[0]}' cannot be measured here; allowed: host:CORES")


def _saved(graph: Graph, number: int, ranks: LaunchConfig, folder: Path) -> str:
    """The artifact of a graph."""
    made = assemble(
        compile_kernels(graph, find_target(ranks.target, threads=ranks.threads), ranks.exact, ranks.cache_dir)
    )
    path = f"{folder}/{number}.bn"
    artifact.save(made, path)
    return path


def _update_graph(train: Train, elements: int) -> Graph:
    """The update of one parameter, made only where it is applied, as in a step that is guarded."""
    b = GraphBuilder()
    b.state("parameter", np.zeros(elements, np.float32))
    gradient, applied = b.input("gradient", (elements,)), b.input("applied", (), "bool")
    plan = UpdatePlan(train.optimizer, train.schedule, skip_nonfinite=True)
    add_optimizer(b, ["parameter"], [gradient], plan, applied)
    return b.build()


def optimizer_slots(train: Train) -> int:
    """Arrays of state that the optimizer keeps for each parameter."""
    graph = _update_graph(train, UPDATES[0])
    return sum(graph.types[name].size == UPDATES[0] for name in graph.states) - 1


def _update_line(seconds: Mapping[int, float]) -> Line:
    return fit([*seconds], [*seconds.values()]) if seconds and all(seconds.values()) else (0.0, float("inf"))


def time_parts(comm: Comm, machine: DeviceCluster, paths: Sequence[str], threads: int, clock: str) -> dict[str, Any]:
    """Calibration on one rank: measures links, and the parts of these artifacts, the same as all others at the same
    time.
    """
    found = calibrated(machine, comm, clock=clock)
    return {"machine": found, "seconds": [_part_seconds(comm, path, threads, clock) for path in paths]}


def _part_seconds(comm: Comm, path: str, threads: int, clock: str) -> float:
    module = load_module(path, threads)
    given = [*module_inputs(module).values()]
    results = [aligned_array(spec.shape, numpy_dtype(spec.dtype))[0] for spec in module.outputs]
    return cold_seconds(lambda: module.run_into(given, results), comm, clock=clock)
