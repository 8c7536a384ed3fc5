"""Work of `burnish plan memory`: what a training step needs by each strategy, within budgets, and over time."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from burnish.base.sizes import RECOMPUTING, parse_budget, text_of
from burnish.cli.compile_options import CompileOptions
from burnish.cli.compiling import progress_bar
from burnish.cli.output import check_input, print_json, print_table
from burnish.driver.compilation import compile_kernels, import_model
from burnish.driver.recompute import StepWork, call_seconds, training_step
from burnish.errors import ParameterError
from burnish.graph.graph import Graph
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
    whole, step = _compiled(model, train, options)
    planner = Planner(step.work, seconds=solve)
    kept = planner if whole is step else Planner(whole.work)
    plans = [
        (step, by_strategy(planner, name)) if name in RECOMPUTING else (whole, by_strategy(kept, name))
        for name in STRATEGIES
    ]
    refused: list[str] = []
    for limit in limits:
        try:
            plans.append((step, replace(planner.within(limit), strategy=f"budget {text_of(limit)}")))
        except ParameterError as error:
            refused.append(str(error))
    if options.as_json:
        print_json({"model": str(model), "operations": len(whole.work), "seconds": whole.work.seconds,
                    "strategies": [_row(whole, of, p) for of, p in plans], "refused": refused})  # fmt: skip
    else:
        print_table(_table(whole, plans))
        print(picture(*(plans[-1] if limits and len(refused) < len(limits) else (whole, kept.unplanned))))
    if refused:
        raise ParameterError(refused[0])


def _compiled(model: Path, train: Train, options: CompileOptions) -> tuple[StepWork, StepWork]:
    """The training step of a model, and the one with its recurrences in segments; the same where it has none."""
    machine = target(options.target)
    found = import_model(model, options.arguments["shapes"], options.arguments["fix"])

    def compiled(graph: Graph) -> StepWork:
        with progress_bar(options.as_json) as report:
            made = compile_kernels(graph, machine, options.exact, options.cache_dir, report)
        return training_step(made, call_seconds(made.graph, machine))

    graph, divided = (training_graph(found.graph, train, segments=segments) for segments in (False, True))
    whole = compiled(graph)
    return whole, whole if len(divided.nodes) == len(graph.nodes) else compiled(divided)


def _row(whole: StepWork, step: StepWork, plan: Recomputation) -> dict[str, Any]:
    seconds, live = live_over_time(step, plan, POINTS)
    return {
        "strategy": plan.strategy, "bytes": plan.arena, "live": plan.live, "seconds": plan.seconds,
        "extra": plan.extra(whole.work), "repeated": len(plan.order) - len(step.work),
        "over_time": {"seconds": seconds, "bytes": live},
    }  # fmt: skip


def _table(whole: StepWork, plans: Sequence[tuple[StepWork, Recomputation]]) -> Table:
    table = Table(title=f"memory of a training step of {len(whole.work)} operations")
    for heading in ("strategy", "memory", "of none", "repeated", "extra time"):
        table.add_column(heading, justify="left" if heading == "strategy" else "right")
    most = plans[0][1].arena or 1
    for step, plan in plans:
        repeated = len(plan.order) - len(step.work)
        share, extra = f"{plan.arena / most:.3f}", f"{plan.extra(whole.work):+.1%}"
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
