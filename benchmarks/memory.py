"""Memory plans of training steps: thesis-chen figures 3.7 and 3.8, budgets, arenas, and planners against the optimum.

`python -m benchmarks.memory [offsets|optimum|residual|recurrent|budgets|speed|lengths|deep …] [--depths N …]
[--lengths N …] [--json FILE]`. Steps of "residual" and "recurrent" are planned at the thesis' sizes, on kernels that
are laid out but not built; those of "budgets", "speed" and "lengths" (figure 3.9, and 3.7 at a quarter of the units),
and "deep" are compiled and run (`memory_steps.py`). Seconds of planners are of CPU; those of plans are estimates by
`graph/costs.py`, but for "measured". Fails if a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import burnish as bn
from benchmarks.harness import check_names
from benchmarks.memory_networks import NETWORKS, THESIS, residual, resnet
from benchmarks.memory_steps import contract, cpu, deep, lengths_run, speed
from benchmarks.provenance import stored
from burnish.driver.recompute import StepWork, call_seconds, outline, training_step
from burnish.errors import ParameterError
from burnish.graph.graph import Graph
from burnish.graph.passes import optimize
from burnish.machines.target import target
from burnish.memory import Interval, plan
from burnish.memory.budget import Planner
from burnish.memory.greedy import evict
from burnish.memory.optimal import optimum
from burnish.memory.strategies import STRATEGIES, by_strategy
from burnish.memory.work import Work, WorkItem
from burnish.pipeline.plan import plan_kernels
from burnish.train.step import Train, training_graph

DEPTHS = (18, 34, 50, 101, 152, 200, 500, 1001, 1202)
SPEED_DEPTHS, LENGTHS = (50, 98, 194, 386), (16, 32, 64, 128)
BATCH, SIZE = 32, 224
GB = 10**9
LINE = 64


def planned(graph: Graph, segments: bool = False) -> StepWork:
    """A training step whose kernels are laid out, but not built; ``segments``: as it is within a budget of memory."""
    machine = target("cpu")
    step = optimize(training_graph(graph, Train(optimizer=bn.SGD(0.1)), segments=segments))
    made = outline(plan_kernels(step, machine, False), machine)
    return training_step(made, call_seconds(made.graph, machine))


def within(work: Work, budget: int) -> dict[str, Any]:
    """The plan of one budget by a new planner, which has seen no other budget."""
    try:
        found, seconds = cpu(Planner(work).within, budget)
    except ParameterError as error:
        return {"budget": budget, "refused": str(error)}
    return {
        "budget": budget, "arena": found.arena, "of_live": found.arena / found.live, "extra": found.extra(work),
        "strategy": found.strategy, "planner_seconds": seconds,
    }  # fmt: skip


# --- figure 3.8 ---


def figure_residual(depths: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Residual networks of growing depth: every strategy, and the budgets of the bars.

    "operators": bytes if every operator of the model, and its gradient, has a result of its own, which is what the
    thesis starts from; "none" has one for each of our kernels, into which several operators are fused.
    """
    for depth in depths:
        graph = resnet(residual(depth), BATCH, SIZE)
        step, laying = cpu(planned, graph)
        work = step.work
        evict(work, 1 << 60)  # compiles the simulation
        planner = Planner(work)
        whole = planner.unplanned.arena
        forward = work.order_seconds(sorted(work.forward)) / work.seconds
        row: dict[str, Any] = {
            "depth": depth, "operations": len(work), "laying_seconds": laying, "forward_share": forward,
            "operators": 2 * sum(graph.types[name].nbytes for node in graph.nodes for name in node.outputs),
            "arena_of_live": whole / planner.unplanned.live,
        }  # fmt: skip
        for name in STRATEGIES:
            if name != "least" or depth < 200:
                found, seconds = cpu(by_strategy, planner, name)
                row[name] = {"bytes": found.arena, "extra": found.extra(work), "planner_seconds": seconds}
        budgets = [6 * GB, 4 * GB] if depth >= 900 else [whole // 2, int(0.3 * whole)]
        row["budgets"] = [within(work, budget) for budget in budgets]
        yield row


# --- figure 3.7 ---


def figure_recurrent(lengths: Sequence[int]) -> Iterator[dict[str, Any]]:
    """An LSTM of four layers of 1024 units, batch 64, unrolled, with a softmax of 5000 classes at every step."""
    for length in lengths:
        graph = THESIS.graph(length)
        work, divided = planned(graph).work, planned(graph, segments=True).work
        evict(work, 1 << 60)  # compiles the simulation
        planner = Planner(work)
        row: dict[str, Any] = {"length": length, "operations": len(work), "gradients": THESIS.gradient_bytes}
        row |= {name: by_strategy(planner, name).arena for name in ("none", "inplace", "sharing", "packed")}
        found, seconds = cpu(by_strategy, Planner(divided), "sublinear")
        row["sublinear"] = {
            "bytes": found.arena, "extra": found.seconds / work.seconds - 1, "planner_seconds": seconds,
            "times_below_sharing": row["sharing"] / found.arena,
        }  # fmt: skip
        if len(divided) <= 4000:
            row["quarter"] = within(divided, row["sharing"] // 4)
        yield row


# --- arenas ---


def arenas() -> Iterator[dict[str, Any]]:
    """Fifty thousand buffers of a layered program with long lives across it, against the lower bound."""
    for seed in range(3):
        r = random.Random(seed)
        count = 50_000
        sizes = [LINE * r.choice((1, 4, 64, 512, 512, 2048)) for _ in range(40)]
        buffers = []
        for i in range(count):
            first = r.randrange(count)
            life = r.choice((1, 2, 2, 3, 8)) if r.random() < 0.9 else r.randrange(1, 2000)
            buffers.append(Interval(f"b{i}", r.choice(sizes), first, first + life))
        found, seconds = cpu(plan, buffers)
        yield {"buffers": count, "of_bound": found.arena_bytes / found.lower_bound, "seconds": seconds}


# --- optimum ---


def drawn(length: int, seed: int) -> Work:
    """A chain of layers of random sizes and costs, and its backward pass."""
    r = random.Random(seed)
    nbytes = [LINE * r.randint(4, 64) for _ in range(length)]
    costs = [float(r.randint(4, 20)) for _ in range(length)]
    operations = [WorkItem((i - 1,) if i else (), (i,), costs[i]) for i in range(length)]
    for i in reversed(range(length)):
        reads = [v for v in (i - 1 if i else None, i, len(nbytes) - 1 if i < length - 1 else None) if v is not None]
        nbytes.append(nbytes[i - 1] if i else LINE)
        operations.append(WorkItem(tuple(reads), (len(nbytes) - 1,), 2 * costs[i]))
    return Work(tuple(operations), tuple(nbytes), frozenset(), frozenset(range(length)))


def beside_the_optimum(seconds: float) -> Iterator[dict[str, Any]]:
    """Planners on chains of up to 48 operations against the integer program."""
    for length in (8, 12, 16, 24):
        for share in (0.7, 0.55):
            work = drawn(length, 0)
            planner = Planner(work)
            budget = int(share * planner.unplanned.arena)
            if planner.least.arena > budget:
                continue
            own, own_seconds = cpu(planner.within, budget)
            best, solving = cpu(optimum, work, budget, seconds, own.seconds)
            yield {
                "operations": len(work), "share": share, "planner": own.seconds, "planner_seconds": own_seconds,
                "optimum": best.seconds if best.order else None, "bound": best.bound, "proven": best.proven,
                "solver_seconds": solving, "ratio": own.seconds / max(best.bound, work.seconds),
            }  # fmt: skip


# --- bars ---


def slope_of(rows: Sequence[dict[str, Any]], by: str = "depth") -> float:
    """Exponent of the growth of the sublinear plan's bytes, a fit on logarithmic scales; less the bytes of weight
    gradients where rows have them. 0 for a single row.
    """
    if len(rows) < 2:
        return 0.0
    points = np.log([[row[by], row["sublinear"]["bytes"] - row.get("gradients", 0)] for row in rows])
    return float(np.polyfit(points[:, 0], points[:, 1], 1)[0])


def missed(report: dict[str, Any]) -> list[str]:
    """The bars that a report misses."""
    wrong = []
    for row in report.get("offsets", ()):
        if row["of_bound"] > 1.03 or row["seconds"] > 2.0:
            wrong.append(f"50,000 buffers: {row['of_bound']:.3f} of the bound in {row['seconds']} s")
    for row in report.get("optimum", ()):
        if row["ratio"] > 1.05:
            wrong.append(f"{row['operations']} operations at {row['share']}: {row['ratio']:.3f} of the bound")
    for row in report.get("residual", ()):
        bars = {50: (0.08, 0.21), 1001: (0.30, 0.36)}.get(row["depth"], ())
        for found, most in zip(row["budgets"], bars, strict=False):
            if "refused" in found or found["extra"] > most:
                wrong.append(f"depth {row['depth']}: {found} (allowed: {most:+.0%})")
        if row["arena_of_live"] > 1.01 or 3 * row["sharing"]["bytes"] > row["operators"]:
            wrong.append(f"depth {row['depth']}: arena {row['arena_of_live']:.3f} of live, or above a third of none")
        slowest = max(one.get("planner_seconds", 0.0) for one in row["budgets"])
        if slowest > 5.0 and row["operations"] <= 4000:
            wrong.append(f"depth {row['depth']}: {row['operations']} operations planned in {slowest} s (allowed: 5)")
    if (slope := slope_of(report.get("residual", ()))) > 0.6:
        wrong.append(f"slope of the sublinear plan: {slope:.2f} (allowed: 0.6)")
    if (slope := slope_of(report.get("recurrent", ()), "length")) > 0.75:
        wrong.append(f"slope of the sublinear plan over the length: {slope:.2f} (allowed: 0.75)")
    for row in report.get("lengths", ()):
        if not row["equal"] or row["measured"] > 0.4 or (row["size"] >= 64 and row["times_below_sharing"] < 4):
            wrong.append(f"LSTM of {row['size']} steps: {row}")
    for row in report.get("budgets", ()):
        if row["violations"] or row["slower_with_more"] or row["unequal"]:
            wrong.append(f"{row['model']}: {row['violations']} violations, {row['slower_with_more']} slower with more")
        off = max((one["process"]["off"] for one in row["plans"] if "process" in one), default=0.0)
        if off > 0.05:
            wrong.append(f"{row['model']}: a process's resident peak is {off:.1%} off (allowed: 5 %)")
    wrong += [f"{row['network']} {row['size']}: other losses" for row in report.get("speed", ()) if not row["equal"]]
    for one in (one for row in report.get("deep", ()) for one in row["plans"]):
        if one["arena"] > one["budget"] or one["process"]["off"] > 0.05 or not one["equal"]:
            wrong.append(f"deep: {one}")
    return wrong


def main() -> int:
    parts = ("offsets", "optimum", "residual", "recurrent", "budgets", "speed", "lengths", "deep")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(parts)} (default: all)")
    parser.add_argument("--depths", type=int, nargs="*", default=DEPTHS)
    parser.add_argument("--lengths", type=int, nargs="*", default=LENGTHS)
    parser.add_argument("--models", nargs="*", default=[*NETWORKS])
    parser.add_argument("--solve", type=float, default=60.0, help="seconds for one integer program")
    parser.add_argument("--json", type=Path, help="write the figures there, beside those of other parts")
    args = parser.parse_args()
    chosen = args.parts or parts
    check_names(parser, chosen, parts)
    measure: dict[str, Callable[[], Iterator[dict[str, Any]]]] = {
        "offsets": arenas, "optimum": lambda: beside_the_optimum(args.solve),
        "residual": lambda: figure_residual(args.depths), "recurrent": lambda: figure_recurrent(args.lengths),
        "budgets": lambda: contract(args.models), "speed": lambda: speed(SPEED_DEPTHS),
        "lengths": lambda: lengths_run(args.lengths), "deep": deep,
    }  # fmt: skip
    report: dict[str, Any] = {}
    if args.json and args.json.exists():
        report = json.loads(args.json.read_text())
    report["machine"] = target("cpu").cpu
    for part in chosen:
        report[part] = []
        for row in measure[part]():
            report[part].append(row)
            print(part, json.dumps({k: v for k, v in row.items() if k != "plans"}), flush=True)
            if args.json:
                args.json.write_text(stored(report, indent=1) + "\n")
    wrong = missed({part: report[part] for part in chosen})
    print("\n".join(wrong) or "all bars are met")
    return int(bool(wrong))


if __name__ == "__main__":
    raise SystemExit(main())
