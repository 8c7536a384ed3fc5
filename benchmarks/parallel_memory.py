"""Memory of parallel plans: what plans and the search say of ranks, against allocated; searches within budgets.

`python -m benchmarks.parallel_execution memory [--strategies N] [--json FILE]`

Bars: what a plan says before machine code is made within 5 % of what its ranks allocate; what the search finds within a
budget has room in it by that, and is found at least where data parallelism itself has room.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.parallel_quality import show
from burnish.comm import Comm, launch
from burnish.errors import PlanError
from burnish.graph.graph import Graph
from burnish.machines.target import target
from burnish.parallel.model.costs import Roofline
from burnish.parallel.model.operations import OperationGraph, operations
from burnish.parallel.model.presets import machine
from burnish.parallel.model.space import StrategySpace
from burnish.parallel.programs.execute import RankStep
from burnish.parallel.programs.plans import splits_of
from burnish.parallel.programs.ranks import compile_ranks, kept_bytes, rank_memory
from burnish.parallel.simulate.baselines import data_parallel
from burnish.parallel.simulate.memory import program_bytes
from burnish.parallel.simulate.search import PlanObjective, search
from burnish.parallel.simulate.simulate import Simulator
from burnish.parallel.simulate.taskgraph import Problem
from burnish.runtime.executable import Executable
from burnish.runtime.module import Module
from burnish.search.budget import Budget
from tests.parallel import networks as small

Row = dict[str, Any]
SHARES = (1.0, 0.36, 0.32, 0.28)  # of the memory of data parallelism
SLOTS = 1  # of the optimizer of ``tests.parallel.networks``: a velocity


def memory(graphs: Mapping[str, Graph], count: int) -> list[Row]:
    """Bytes of ranks: what plans say before machine code is made, and the search's own estimate, against allocated.

    Then what the search finds within shares of the bytes of data parallelism, and what its programs need.
    """
    rows = []
    for name, graph in graphs.items():
        step, model, here = small.step_of(graph), operations(graph), machine("host:2")
        space = StrategySpace(model, here, also=[data_parallel(model, here)])
        problem = Problem(space, Roofline())
        choices = [space.choice(data_parallel(model, here)), *(space.random(seed) for seed in range(count - 1))]
        errors, estimates, most = list[float](), list[float](), 0.0
        for number, choice in enumerate(choices):
            plan = splits_of(model, space.strategy(choice))
            said = np.array([kept_bytes(m) for m in rank_memory(step, plan, 2, target("cpu"))])
            made = compile_ranks(step, plan, 2, target("cpu"))
            real = np.array([kept_bytes(m) for m in launch(allocated_memory, [(e,) for e in made])])
            errors.append(float(np.abs(said / real - 1).max()))
            estimates += (program_bytes(problem, choice, SLOTS).total / real).tolist()
            most = float(real.max()) if number == 0 else most
        rows.append(show({
            "network": name, "strategies": count, "worst_error": max(errors), "bar": 0.05,
            "estimate_least": min(estimates), "estimate_most": max(estimates),
        }))  # fmt: skip
        rows += [show({"network": name, **within(step, model, most, share)}) for share in SHARES]
    return rows


def within(step: Graph, model: OperationGraph, most: float, share: float) -> Row:
    """Plan found by the search within a share of a device's memory, and the bytes that its programs need."""
    here = machine("host:2")
    room = int(share * most)
    tight = replace(here, devices=tuple(replace(d, memory=room) for d in here.devices))
    plain = data_parallel(model, tight)
    space = StrategySpace(model, tight, also=[plain])
    sim = Simulator(Problem(space, Roofline()))
    starts = {"data": space.choice(plain), "random": space.random(0)}
    row: Row = {"share": share, "room": room}
    try:
        found = search(sim, starts, Budget(trials=2000), objective=PlanObjective(slots=SLOTS))
    except PlanError as error:
        return {**row, "refused": str(error).split(";", maxsplit=1)[0]}
    plan = splits_of(model, space.strategy(found.choice))
    needed = max(kept_bytes(m) for m in rank_memory(step, plan, 2, target("cpu")))
    estimated = float(sim.memory(found.choice, SLOTS).max())
    return {**row, "estimated": estimated, "needed": needed, "fits": needed <= room, "ms": found.ns / 1e6}


def allocated_memory(comm: Comm, executable: Executable) -> dict[str, int]:
    """Bytes of one rank, as allocated."""
    return RankStep(Module(executable, 1, comm=comm), comm).memory
