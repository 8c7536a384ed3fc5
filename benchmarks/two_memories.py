"""Bytes between two memories: the best plans against streaming and LRU, on steps of graph and residual networks.

`python -m benchmarks.two_memories [gnn|resnet|long|choose|execute …] [--seconds S] [--json FILE]`. Graph networks are
those of thesis-jia section 4.5 at Reddit's size, full batch, forward and backward; residual networks have batch 32.
Capacities are multiples of the least possible one. Seconds are of CPU. "execute" runs a step between main memory and a
file. Fails if a plan of a fixed order takes more than 5 s or moves more than a baseline.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.provenance import stored
from benchmarks.two_memories_networks import GRAPHS, chain, resnet, small_step
from benchmarks.yardsticks.swap_choice import MOST_EXACT, Rates, choose
from benchmarks.yardsticks.swap_exact import exact
from burnish.errors import ParameterError
from burnish.graph.evaluate import evaluate, evaluate_node
from burnish.memory.swap import (
    SwapFile,
    SwapPlan,
    SwapProblem,
    execute,
    fixed,
    least_recently_used,
    streaming,
)  # fmt: skip
from burnish.memory.swap.problem import of_graph

FACTORS = (1.05, 1.3, 1.6, 2.0)
ALLOWED_SECONDS = 5.0
EXACT_STEPS = 30  # of the plan over all orders; 41 (GIN of 6 layers) took 2 and 16 s, 80 were not done in half a minute
BANDWIDTHS = (2e9, 2e8)  # of a fast and a slow disk, bytes a second
Row = dict[str, Any]


def timed(method: Callable[..., SwapPlan], *args: Any, **options: Any) -> tuple[SwapPlan, float]:
    """A plan and the seconds of CPU it took."""
    begin = time.process_time()
    plan = method(*args, **options)
    return plan, round(time.process_time() - begin, 3)


def compare(name: str, problem: SwapProblem, factor: float, seconds: float) -> Row:
    """Moved bytes of every method at one capacity, and how many times the best fixed order's the baselines' are."""
    capacity = int(problem.least_capacity * factor)
    best, took = timed(fixed, problem, capacity, seconds)
    row: Row = {"name": name, "steps": len(problem.steps), "factor": factor, "capacity": capacity}
    row |= {"fixed": best.moved, "fixed_loaded": best.loaded, "fixed_seconds": took, "proven": best.proven}
    if len(problem.steps) <= EXACT_STEPS:
        try:
            free, took = timed(exact, problem, capacity, limit=5_000)
            row |= {"exact": free.moved, "exact_seconds": took, "fixed_by_exact": round(best.moved / free.moved, 3)}
            same, _ = timed(exact, problem, capacity, reorder=False, limit=5_000)
            row["equal"] = same.moved == best.moved
        except ParameterError as error:
            row["exact"] = str(error)
    baselines = {
        "streaming": streaming(problem, capacity),
        "lru": least_recently_used(problem, capacity),
        "lru_dead": least_recently_used(problem, capacity, drop_dead=True),
    }
    for key, plan in baselines.items():
        row[key] = plan.moved
        row[f"{key}_ratio"] = round(plan.moved / best.moved, 3)
        row[f"{key}_loads_ratio"] = round(plan.loaded / max(best.loaded, 1), 3)
    return row


def gnn(seconds: float) -> list[Row]:
    return [compare(name, make().problem(), factor, seconds) for name, make in GRAPHS.items() for factor in FACTORS]


def residual(seconds: float) -> list[Row]:
    found = []
    for depth in (18, 50):
        problem = resnet(depth, batch=32)
        found += [compare(f"ResNet-{depth}", problem, factor, seconds) for factor in FACTORS]
    return found


def long(seconds: float) -> list[Row]:
    """About a thousand steps."""
    return [compare("chain of residual blocks", chain(340), factor, seconds) for factor in FACTORS]


def chosen(seconds: float) -> list[Row]:
    """Moving alone against moves with recomputation, by extra seconds of a step."""
    found = []
    for name, make in GRAPHS.items():
        network = make()
        problem = network.problem()
        if len(problem.steps) > MOST_EXACT:
            continue
        for factor, bandwidth in product(FACTORS[:2], BANDWIDTHS):
            rates = Rates(bandwidth, tuple(network.seconds))
            capacity = int(problem.least_capacity * factor)
            moves, _ = timed(fixed, problem, capacity, seconds)
            both, took = timed(choose, problem, capacity, rates, seconds)
            greedy, took_greedy = timed(choose, problem, capacity, rates, seconds, most=0)
            found.append({
                "name": name, "steps": len(problem.steps), "factor": factor, "bandwidth": bandwidth,
                "moves_s": rates.extra(moves),
                "chosen_s": rates.extra(both), "greedy_s": rates.extra(greedy), "runs": both.runs,
                "proven": both.proven, "seconds": took, "greedy_seconds": took_greedy,
            })  # fmt: skip
    return found


def executed(seconds: float) -> list[Row]:
    """A training step of a convolutional network by the reference interpreter, its tensors in a file."""
    graph = small_step(batch=64, size=32)
    problem = of_graph(graph)
    random = np.random.default_rng(0)
    feeds = {name: state.initial for name, state in graph.states.items()}
    for name in graph.inputs:
        if name not in feeds:
            t = graph.types[name]
            drawn = random.integers(0, 10, t.shape) if t.dtype.startswith("int") else random.normal(size=t.shape)
            feeds[name] = drawn.astype(t.dtype)
    expected = evaluate(graph, feeds)

    def compute(step: int, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        by_name = dict(zip(problem.steps[step].reads, inputs, strict=True))
        node = graph.nodes[step]
        for out, value in zip(outputs, evaluate_node(node, [by_name[n] for n in node.inputs]), strict=True):
            np.copyto(out, value)

    found = []
    for factor in FACTORS:
        plan = fixed(problem, int(problem.least_capacity * factor), seconds)
        with tempfile.TemporaryDirectory() as folder, SwapFile(Path(folder) / "slow", graph.types) as store:
            for name, array in {**graph.constants, **feeds}.items():
                store.write(name, np.asarray(array))
            done = execute(problem, plan, store, compute)
            equal = all(np.array_equal(store.read(name), expected[name]) for name in problem.results)
        found.append({
            "name": "training step", "steps": len(problem.steps), "factor": factor, "capacity": plan.capacity,
            "all_tensors": sum(problem.nbytes.values()), "planned": plan.moved, "moved": done.loaded + done.stored,
            "peak": done.peak, "equal_bits": equal,
            "resident_peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        })  # fmt: skip
    return found


PARTS: dict[str, Callable[[float], list[Row]]] = {
    "gnn": gnn, "resnet": residual, "long": long, "choose": chosen, "execute": executed,
}  # fmt: skip


def failures(parts: dict[str, list[Row]]) -> list[str]:
    """Rows that miss their requirement."""
    found = []
    for row in [row for part in ("gnn", "resnet", "long") for row in parts.get(part, ())]:
        where = f"{row['name']} at {row['factor']}"
        if row["fixed_seconds"] > ALLOWED_SECONDS:
            found.append(f"{where}: {row['fixed_seconds']} s; allowed: {ALLOWED_SECONDS}")
        if row["proven"] and min(row["streaming"], row["lru"], row["lru_dead"]) < row["fixed"]:
            found.append(f"{where}: a baseline moves less")
        if row.get("equal") is False:
            found.append(f"{where}: the integer program differs from dynamic programming")
    for row in parts.get("execute", ()):
        if not row["equal_bits"] or row["moved"] != row["planned"] or row["peak"] > row["capacity"]:
            found.append(f"execution at {row['factor']}: other bits or bytes than planned")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help=", ".join(PARTS))
    parser.add_argument("--seconds", type=float, default=5.0, help="of the solver for each plan")
    parser.add_argument("--json", type=Path, help="writes the rows to this file")
    arguments = parser.parse_args()
    if unknown := set(arguments.parts) - PARTS.keys():
        parser.error(f"parts: found {', '.join(sorted(unknown))}; allowed: {', '.join(PARTS)}")
    parts: dict[str, list[Row]] = {}
    for name in arguments.parts or PARTS:
        parts[name] = PARTS[name](arguments.seconds)
        for row in parts[name]:
            print(name, " ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    if arguments.json:
        arguments.json.write_text(stored(parts, indent=1) + "\n", encoding="utf-8")
    if missed := failures(parts):
        sys.exit("\n".join(missed))


if __name__ == "__main__":
    main()
