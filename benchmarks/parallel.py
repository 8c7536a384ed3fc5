"""Quality of parallel plans (found, data, expert, bound, gap), exactness on small problems, and executed strategies.

`python -m benchmarks.parallel [quality|exact …] [--networks …] [--seconds N] [--json FILE]`; execution is measured by
`benchmarks.parallel_execution`.

quality   six networks at 16 P100 (4 nodes), both models of synchronization, each row saying which; simulated
exact     LeNet and RNNLM of 2 steps on 4 devices: proved by branch and bound, and the planner's own answer beside it

Bars: gap <= 5 % on AlexNet, ResNet-101, Inception-v3, <= 25 % on RNNTC, RNNLM, <= 40 % on NMT; LeNet proved in < 1 s,
RNNLM in < 10 s.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.parallel_networks import NETWORKS, lenet, rnnlm
from burnish.parallel.baselines import data_parallel, expert
from burnish.parallel.bound import lower_bound
from burnish.parallel.costs import Roofline
from burnish.parallel.exact import optimum
from burnish.parallel.operations import Model
from burnish.parallel.presets import machine
from burnish.parallel.search import search
from burnish.parallel.simulate import Simulator
from burnish.parallel.space import Space
from burnish.parallel.taskgraph import Problem
from burnish.search.budget import Budget

GAPS = {"alexnet": 0.05, "resnet101": 0.05, "inception_v3": 0.05, "rnntc": 0.25, "rnnlm": 0.25, "nmt": 0.40}
Row = dict[str, Any]


def simulated(model: Model, cluster: str, synchronization: str = "overlapped", strided: bool = True) -> Simulator:
    """The simulator of a model, its space with both baselines."""
    own = machine(cluster)
    also = [data_parallel(model, own), expert(model, own)]
    return Simulator(Problem(Space(model, own, strided=strided, also=also), Roofline(), synchronization))


def starts_of(sim: Simulator) -> dict[str, np.ndarray]:
    """Choices of the baselines."""
    problem = sim.problem
    made = {"data": data_parallel, "expert": expert}
    return {name: problem.space.choice(make(problem.model, problem.machine)) for name, make in made.items()}


def quality(names: list[str], seconds: float) -> list[Row]:
    """Found against baselines and bound at 16 devices."""
    rows = []
    for name in names:
        for synchronization in ("overlapped", "after"):
            sim = simulated(NETWORKS[name](16), "p100:4x4", synchronization)
            begun = time.process_time()
            found = search(sim, starts_of(sim), Budget(seconds=seconds))
            took = time.process_time() - begun
            begun = time.process_time()
            bound = lower_bound(sim.problem)
            rows.append({
                "network": name, "synchronization": synchronization, "found": found.ns / 1e6,
                "data": found.times["data"] / 1e6, "expert": found.times["expert"] / 1e6, "bound": bound.ns / 1e6,
                "gap": bound.gap(found.ns), "bar": GAPS.get(name), "speedup": found.times["data"] / found.ns,
                "gigabytes": sum(sim.bytes(found.choice)) / 1e9, "search_cpu_s": took,
                "bound_cpu_s": time.process_time() - begun,
            })  # fmt: skip
            show(rows[-1])
    return rows


def exact(seconds: float) -> list[Row]:
    """Proved optima beside the planner's answer."""
    rows = []
    for name, model in (("lenet", lenet(4)), ("rnnlm, 2 steps", rnnlm(4, steps=2))):
        sim = simulated(model, "p100:1x4", strided=False)
        starts = starts_of(sim)
        optimum(sim, starts["data"], 0.0)  # compiles
        found = search(sim, starts, Budget(seconds=seconds))
        begun = time.process_time()
        best = optimum(sim, found.choice, 60.0)
        rows.append({
            "network": name, "log10_space": sim.problem.log10_size, "planner": found.ns / 1e6, "optimum": best.ns / 1e6,
            "proven": best.proven, "equal": best.ns == found.ns, "proof_cpu_s": time.process_time() - begun,
            "nodes": best.nodes, "leaves": best.leaves,
        })  # fmt: skip
        show(rows[-1])
    return rows


def show(row: Mapping[str, Any]) -> None:
    """One row as a line."""
    texts = {k: f"{v:.4g}" if isinstance(v, float) else v for k, v in row.items() if not isinstance(v, list)}
    print("  ".join(f"{key} {text}" for key, text in texts.items()), flush=True)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=["quality", "exact"])
    parser.add_argument("--networks", default=",".join(GAPS))
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    parts: Mapping[str, Callable[[], list[Row]]] = {
        "quality": lambda: quality(given.networks.split(","), given.seconds), "exact": lambda: exact(given.seconds),
    }  # fmt: skip
    unknown = [part for part in given.parts if part not in parts]
    if unknown:
        sys.exit(f"parallel: found {unknown}; allowed: {', '.join(parts)}")
    found = {part: parts[part]() for part in given.parts}
    if given.json is not None:
        given.json.write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
