"""Training steps that are compiled, planned and run within budgets: measured arenas, resident memory, equal bits, time.

Their peer is PyTorch with its own memory budget (`resident.py`).
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import burnish as bn
from benchmarks.memory_networks import DEEP, EXECUTED, NETWORKS, Residual, residual, resnet
from benchmarks.resident import budgeted, measured
from burnish.driver.compilation import assemble, compile_kernels
from burnish.driver.recompute import StepWork, call_seconds, training_step
from burnish.graph.graph import Graph
from burnish.machines.target import target
from burnish.memory.budget import Planner
from burnish.memory.strategies import by_strategy
from burnish.runtime.module import Module
from burnish.train.step import Train, training_graph

TORCH = (1.0, 0.75, 0.5, 0.25, 0.0)  # shares of PyTorch's memory_budget


def cpu(call: Callable[..., Any], *args: Any) -> tuple[Any, float]:
    """A result, and the seconds of CPU that it took."""
    begin = time.process_time()
    result = call(*args)
    return result, round(time.process_time() - begin, 5)


def contract(names: Sequence[str], count: int = 20) -> Iterator[dict[str, Any]]:
    """Budgets from the least to the whole: measured arenas, whether they grow slower, equal bits, measured time."""
    for name in names:
        machine = target("cpu")
        made = compile_kernels(
            training_graph(NETWORKS[name].graph(), Train(optimizer=bn.SGD(0.1, momentum=0.9))), machine
        )
        step = training_step(made, call_seconds(made.graph, machine))
        planner = step.planner()
        whole, least = planner.unplanned.arena, planner.least.arena
        plain = Module(assemble(step.made), 1)
        given = _inputs(plain)
        wanted = float(plain(*given))
        state = {key: array.copy() for key, array in plain.state.items()}
        violations, slower, unequal, before, rows = 0, 0, 0, float("inf"), []
        for i in range(count):
            budget = least + (whole - least) * i // (count - 1)
            found, seconds = cpu(planner.within, budget)
            module = Module(assemble(step.ordered(found.order)), 1)
            arena = module.memory["arena"]
            loss = float(module(*given))
            same = loss == wanted and all(np.array_equal(array, state[key]) for key, array in module.state.items())
            violations += arena > budget
            slower += found.seconds > before
            unequal += not same
            before = found.seconds
            one = {"budget": budget, "arena": arena, "extra": found.extra(step.work), "planner_seconds": seconds}
            if i % 5 == 0:
                one["measured"] = _slower(plain, module, given)
                one["process"] = in_a_process(module)
            rows.append(one)
        row = {
            "model": name, "operations": len(step.work), "whole": whole, "least": least, "violations": violations,
            "slower_with_more": slower, "unequal": unequal, "plans": rows,
            "torch": [{"share": share, **budgeted(name, share)} for share in TORCH],
        }  # fmt: skip
        yield row


def in_a_process(module: Module) -> dict[str, Any]:
    """Resident bytes of a process that loads a module and calls it, against its arena."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "step.burnish"
        module.save(path)
        found = measured(path)
    whole = found["before"] + found["growth"]
    return {**found, "off": abs(found["before"] + found["arena"] - whole) / whole}


def _inputs(module: Module) -> list[np.ndarray]:
    r = np.random.default_rng(0)
    return [
        r.standard_normal(s.shape).astype(np.float32) if s.dtype == "float32" else r.integers(0, 1000, s.shape)
        for s in module.inputs
    ]


def _slower(plain: Module, module: Module, given: Sequence[np.ndarray], rounds: int = 3) -> float:
    """CPU time of a step with the plan, relative to one without: the median of pairs in turn, less 1."""

    def seconds(of: Module) -> float:
        begin = time.process_time()
        of(*given)
        return time.process_time() - begin

    return statistics.median(seconds(module) / seconds(plain) for _ in range(rounds)) - 1


def compiled(graph: Graph, segments: bool = False) -> StepWork:
    """A training step, compiled; ``segments``: as it is within a budget of memory."""
    machine = target("cpu")
    made = compile_kernels(training_graph(graph, Train(optimizer=bn.SGD(0.01)), segments=segments), machine)
    return training_step(made, call_seconds(made.graph, machine))


def speed(depths: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Figure 3.9: seconds of CPU of a step by the sublinear plan against the plain one, over depth.

    Residual networks of a quarter of the width on images of 64 x 64.
    """
    for depth in depths:
        step = compiled(resnet(replace(residual(depth), width=16), 8, 64, 0))
        found = by_strategy(step.planner(), "sublinear")
        plain, module = Module(assemble(step.made), 1), Module(assemble(step.ordered(found.order)), 1)
        yield {
            "network": "residual", "size": depth, "calls": len(step.work), **_in_turns(plain, module),
            "extra": found.extra(step.work),
        }  # fmt: skip


def lengths_run(lengths: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Figures 3.7 and 3.9: bytes and seconds of CPU of a step by the sublinear plan against the plain one, over length.

    LSTMs of four layers of 256 units, batch 64, with a softmax of 1000 classes at every step.
    """
    for length in lengths:
        graph = EXECUTED.graph(length, 0)
        whole, divided = compiled(graph), compiled(graph, segments=True)
        sharing = by_strategy(Planner(whole.work), "sharing").arena
        found = by_strategy(divided.planner(), "sublinear")
        plain, module = Module(assemble(whole.made), 1), Module(assemble(divided.ordered(found.order)), 1)
        yield {
            "network": "lstm", "size": length, "calls": len(whole.work), "sharing": sharing,
            **_in_turns(plain, module), "gradients": EXECUTED.gradient_bytes,
            "times_below_sharing": sharing / module.memory["arena"], "extra": found.seconds / whole.work.seconds - 1,
        }  # fmt: skip


def _in_turns(plain: Module, module: Module, rounds: int = 7) -> dict[str, Any]:
    """Arenas and least seconds of CPU of two modules of a step, called in turns; whether both compute the same losses.

    Sums of gradients may be added up in another order: of two steps in a row, losses are equal up to rounding.
    """
    given = _inputs(plain)
    losses = [[float(of(*given)) for _ in range(2)] for of in (plain, module)]
    pairs = [(cpu(plain, *given)[1], cpu(module, *given)[1]) for _ in range(rounds)]
    first, second = (min(times) for times in zip(*pairs, strict=True))
    return {
        "arena": plain.memory["arena"], "sublinear": module.memory["arena"], "CPU s": first,
        "sublinear CPU s": second, "measured": second / first - 1,
        "equal": bool(np.allclose(losses[0], losses[1], rtol=1e-6)),
    }  # fmt: skip


def deep(shares: Sequence[float] = (1 / 8, 1 / 12)) -> Iterator[dict[str, Any]]:
    """A thousand layers compiled, planned and run, at shares of the arena without recomputation."""
    machine = target("cpu")
    graph = training_graph(DEEP.graph(), Train(optimizer=bn.SGD(0.01)))
    made, compiling = cpu(compile_kernels, graph, machine)
    step, ordering = cpu(training_step, made, call_seconds(made.graph, machine))
    planner = step.planner()
    plain, assembling = cpu(assemble, step.made)
    module = Module(plain, 1)
    given = _inputs(module)
    row: dict[str, Any] = {
        "layers": DEEP.form.layers if isinstance(DEEP.form, Residual) else DEEP.form, "calls": len(step.work),
        "compile_seconds": compiling, "order_seconds": ordering, "assemble_seconds": assembling,
        "arena": module.memory["arena"], "process": in_a_process(module), "plans": [],
    }  # fmt: skip
    losses = [float(module(*given)) for _ in range(2)]
    for share in shares:
        budget = int(share * planner.unplanned.arena)
        found, seconds = cpu(planner.within, budget)
        planned = Module(assemble(step.ordered(found.order)), 1)
        process = in_a_process(planned)
        same = losses == [float(planned(*given)) for _ in range(2)]
        row["plans"].append({
            "budget": budget, "arena": planned.memory["arena"], "extra": found.extra(step.work),
            "strategy": found.strategy, "planner_seconds": seconds, "process": process, "equal": same,
            "measured": _slower(module, planned, given),
        })  # fmt: skip
    yield row
