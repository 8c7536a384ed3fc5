"""Work of `burnish plan memory`: what a training step needs by each strategy, within budgets, and over time."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from burnish.base.sizes import parse_budget, text_of
from burnish.cli.compile_options import CompileOptions
from burnish.cli.compiling import progress_bar
from burnish.cli.output import check_input, print_json, print_table
from burnish.driver.compilation import compile_kernels, import_model
from burnish.driver.recompute import StepWork, call_seconds, training_step
from burnish.errors import ParameterError
from burnish.machines.target import target
from burnish.memory.budget import Planner, Recomputation
from burnish.memory.strategies import STRATEGIES, by_strategy
from burnish.train.step import Train, training_graph

BARS = " ▁▂▃▄▅▆▇█"
COLUMNS = 72  # of the picture of live memory
POINTS = 200  # of it in JSON


def plan(model: Path, train: Train, options: CompileOptions, memory_budget: Sequence[str], solve: float) -> None:
    """Prints the plans of a model's training step. Raises ParameterError for a budget that cannot be kept."""
    check_input(model, "model")
    limits = [parse_budget("--memory-budget", text) for text in memory_budget]
    step = _compiled(model, train, options)
    planner = Planner(step.work, seconds=solve)
    plans = [by_strategy(planner, name) for name in STRATEGIES]
    refused: list[str] = []
    for limit in limits:
        try:
            plans.append(replace(planner.within(limit), strategy=f"budget {text_of(limit)}"))
        except ParameterError as error:
            refused.append(str(error))
    if options.as_json:
        print_json({"model": str(model), "operations": len(step.work), "seconds": step.work.seconds,
                    "strategies": [_row(step, p) for p in plans], "refused": refused})  # fmt: skip
    else:
        print_table(_table(step, plans))
        shown = plans[-1] if limits and len(refused) < len(limits) else planner.unplanned
        print(picture(step, shown))
    if refused:
        raise ParameterError(refused[0])


def _compiled(model: Path, train: Train, options: CompileOptions) -> StepWork:
    """The training step of a model."""
    machine = target(options.target)
    found = import_model(model, options.arguments["shapes"], options.arguments["fix"])
    graph = training_graph(found.graph, train)
    with progress_bar(options.as_json) as report:
        made = compile_kernels(graph, machine, options.exact, options.cache_dir, report)
    return training_step(made, call_seconds(made.graph, machine))


def _row(step: StepWork, plan: Recomputation) -> dict[str, Any]:
    seconds, live = live_over_time(step, plan, POINTS)
    return {
        "strategy": plan.strategy, "bytes": plan.arena, "live": plan.live, "seconds": plan.seconds,
        "extra": plan.extra(step.work), "repeated": len(plan.order) - len(step.work),
        "over_time": {"seconds": seconds, "bytes": live},
    }  # fmt: skip


def _table(step: StepWork, plans: Sequence[Recomputation]) -> Table:
    table = Table(title=f"memory of a training step of {len(step.work)} operations")
    for heading in ("strategy", "memory", "of none", "repeated", "extra time"):
        table.add_column(heading, justify="left" if heading == "strategy" else "right")
    most = plans[0].arena or 1
    for plan in plans:
        repeated = len(plan.order) - len(step.work)
        share, extra = f"{plan.arena / most:.3f}", f"{plan.extra(step.work):+.1%}"
        table.add_row(plan.strategy, text_of(plan.arena), share, str(repeated), extra)
    return table


def live_over_time(step: StepWork, plan: Recomputation, points: int) -> tuple[list[float], list[int]]:
    """Estimated seconds since the begin of a step, and the most bytes that are live until the next of them."""
    live = step.work.copies(plan.order)[3]
    times = np.concatenate([[0.0], np.cumsum(step.work.costs[list(plan.order)])])[:-1]
    edges = np.linspace(0.0, plan.seconds, points + 1)[:-1]
    place = np.searchsorted(edges, times, side="right") - 1
    most = np.zeros(points, np.int64)
    np.maximum.at(most, place, live)
    at = np.maximum(np.searchsorted(times, edges, side="right") - 1, 0)  # what runs when a column begins
    return edges.tolist(), np.maximum(most, live[at]).tolist()


def picture(step: StepWork, plan: Recomputation) -> str:
    """Live memory over time as a line of bars."""
    _, live = live_over_time(step, plan, COLUMNS)
    top = max(live) or 1
    bars = "".join(BARS[round((len(BARS) - 1) * nbytes / top)] for nbytes in live)
    return f"live memory over time ({plan.strategy}), at most {text_of(top)}:\n|{bars}|"
