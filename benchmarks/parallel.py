"""Quality of parallel plans (found, data, expert, bound, gap), exactness on small problems, and executed strategies.

`python -m benchmarks.parallel [quality|exact …] [--networks …] [--seconds N] [--json FILE]`; execution is measured by
`benchmarks.parallel_execution`.

quality   what `benchmarks.parallel_quality` does of six networks on 16 P100 (4 nodes); simulated
speed     NMT on 16 P100: the planner in 10 s of CPU against plain MCMC in 80
exact     LeNet and RNNLM of 2 steps on 4 devices: proved by branch and bound, and the planner's own answer beside it

Bars: gap <= 5 % on AlexNet, ResNet-101, Inception-v3, <= 25 % on RNNTC, RNNLM, <= 40 % on NMT; LeNet proved in < 1 s,
RNNLM in < 10 s.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.harness import run_parts
from benchmarks.parallel_networks import NETWORKS, lenet, rnnlm
from benchmarks.parallel_quality import GAPS, cpu, networks, show, simulated, starts_of
from burnish.parallel.simulate.exact import optimum
from burnish.parallel.simulate.search import search

Row = dict[str, Any]


def exact(seconds: float) -> list[Row]:
    """Proved optima against the planner's answer."""
    rows = []
    for name, model in (("lenet", lenet(4)), ("rnnlm, 2 steps", rnnlm(4, steps=2))):
        sim = simulated(model, "p100:1x4", strided=False)
        starts = starts_of(sim)
        optimum(sim, starts["data"], 0.0)  # compiles
        found = search(sim, starts, cpu(seconds))
        begun = time.process_time()
        best = optimum(sim, found.choice, 60.0)
        rows.append({
            "network": name, "log10_space": sim.problem.log10_size, "planner": found.ns / 1e6, "optimum": best.ns / 1e6,
            "proven": best.proven, "equal": best.ns == found.ns, "proof_cpu_s": time.process_time() - begun,
            "nodes": best.nodes, "leaves": best.leaves,
        })  # fmt: skip
        show(rows[-1])
    return rows


def speed(seconds: float) -> list[Row]:
    """The planner within its seconds against plain MCMC from the same starts within eight times as many."""
    sim = simulated(NETWORKS["nmt"](16), "p100:4x4")
    found = search(sim, starts_of(sim), cpu(seconds))
    plain = search(sim, starts_of(sim), cpu(8 * seconds), blocks=False)
    row = {"network": "nmt", "planner": found.ns / 1e6, "seconds": seconds, "mcmc": plain.ns / 1e6}
    return [show({**row, "mcmc_seconds": 8 * seconds, "no_worse": found.ns <= plain.ns})]


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=["quality", "exact"])
    parser.add_argument("--networks", default=",".join(GAPS))
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    parts: Mapping[str, Callable[[], list[Row]]] = {
        "quality": lambda: networks(given.seconds, tuple(given.networks.split(",")), ("p100:4x4",)),
        "speed": lambda: speed(given.seconds), "exact": lambda: exact(given.seconds),
    }  # fmt: skip
    run_parts(parser, given.parts, parts, given.json)


if __name__ == "__main__":
    main()
