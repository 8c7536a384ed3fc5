"""Quality of parallel plans (found, data, expert, bound, gap), exactness on small problems, and executed strategies.

`python -m benchmarks.parallel [quality|exact|weights|killed|real …] [--networks …] [--seconds N] [--json FILE]`.

quality   what `benchmarks.parallel_quality` does of six networks on 16 P100 (4 nodes); simulated
speed     NMT on 16 P100: the planner in 10 s of CPU against plain MCMC in 80
exact     LeNet and RNNLM of 2 steps on 4 devices: proved by branch and bound, and the planner's own answer beside it
weights   random strategies of an MLP, a CNN with halo, attention, an LSTM on 2 and 4 ranks against one process
killed    a rank killed in the middle of a step: seconds until it is named, and the weights after resuming
real      simulated against measured step time of 20 strategies on 2 ranks (needs a quiet machine)

Bars: gap <= 5 % on AlexNet, ResNet-101, Inception-v3, <= 25 % on RNNTC, RNNLM, <= 40 % on NMT; LeNet proved in < 1 s,
RNNLM in < 10 s; weights within 1e-6 after 3 steps; a killed rank named within 2 s.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.parallel_networks import NETWORKS, lenet, rnnlm
from benchmarks.parallel_quality import GAPS, cpu, networks, show, simulated, starts_of
from burnish.driver.fit_ranks import faster_plan, fit_ranks
from burnish.errors import WorkerError
from burnish.graph.graph import Graph
from burnish.parallel.baselines import data_parallel
from burnish.parallel.exact import optimum
from burnish.parallel.operations import operations
from burnish.parallel.plans import splits_of
from burnish.parallel.program import programs
from burnish.parallel.search import search
from burnish.train.loop import Limits
from tests.parallel import networks as small
from tests.parallel import test_execute as killing

Row = dict[str, Any]


def exact(seconds: float) -> list[Row]:
    """Proved optima beside the planner's answer."""
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


def weights(count: int) -> list[Row]:
    """Random strategies against one process, by the definitions of their kernels."""
    rows = []
    for name, make in small.NETWORKS.items():
        worst = 0.0
        model = make()
        step = small.step_of(model)
        batch = small.batch_of(step)
        wanted = small.trained_alone(step, batch, 3)
        for seed in range(count):
            ranks = 2 + 2 * (seed % 2)
            nodes = (step if seed % 3 == 0 else model).nodes
            splits = small.random_splits(step, [node.outputs[0] for node in nodes], ranks, seed)
            made = programs(step, splits, ranks, bucket=1 << (seed % 20))
            worst = max(worst, small.worst_error(made, small.trained_apart(made, batch, 3), wanted))
        rows.append({"network": name, "strategies": count, "worst": worst, "bar": 1e-6})
        show(rows[-1])
    return rows


def killed() -> list[Row]:
    """Seconds between the death of a rank and its name, and whether training goes on to the same weights."""
    model, data = small.NETWORKS["mlp"](), killing.rows()
    limits = Limits(steps=12, save_every=3)
    whole = fit_ranks(model, data, small.TRAIN, limits, killing.MIXED, 2, kind="thread")
    with tempfile.TemporaryDirectory() as folder:
        killing.ranks_module.train_rank = killing.dies
        begun = time.monotonic()
        named = None
        try:
            fit_ranks(model, data, small.TRAIN, limits, killing.MIXED, 2, checkpoint=folder)
        except WorkerError as error:
            named = error.rank
        last = max(path.stat().st_mtime for path in Path(folder).iterdir())
        seconds = time.time() - last
        killing.ranks_module.train_rank = killing.train_rank
        resumed = Limits(steps=12, save_every=3, resume=True)
        again = fit_ranks(model, data, small.TRAIN, resumed, killing.MIXED, 2, kind="thread", checkpoint=folder)
    same = all(np.array_equal(again.states[name], value) for name, value in whole.states.items())
    row = {"named": named, "seconds_since_checkpoint": seconds, "run": time.monotonic() - begun, "same_weights": same}
    show(row)
    return [row]


def real(count: int) -> list[Row]:
    """Simulated against measured time of a step on 2 ranks of this machine; analytic costs unless calibrated."""
    rows = []
    for name, graph in {"mlp": wide_mlp(), "cnn": wide_cnn()}.items():
        model = operations(graph)
        sim = simulated(model, "host:2")
        space = sim.problem.space
        choices = [space.choice(data_parallel(model, sim.problem.machine))]
        choices += [space.random(seed) for seed in range(count - 1)]
        plans = {str(i): splits_of(model, space.strategy(c)) for i, c in enumerate(choices)}
        batch = {n: np.zeros(graph.types[n].shape, np.float32) for n in graph.inputs}
        data = {**batch, "label": np.zeros(graph.types[graph.inputs[0]].shape[0], np.int64)}
        _, times = faster_plan(graph, data, small.TRAIN, plans, 2, steps=7)
        predicted = np.array([sim.full(c) / 1e6 for c in choices])
        measured = np.array([1e3 * seconds for seconds in times.values()])
        ratio = predicted / measured
        ranks = [np.argsort(np.argsort(v)) for v in (predicted, measured)]
        rows.append({
            "network": name, "strategies": count, "within_15": int((np.abs(ratio - 1) <= 0.15).sum()),
            "within_15_scaled": int((np.abs(ratio / np.median(ratio) - 1) <= 0.15).sum()),
            "spearman": float(np.asarray(np.corrcoef(np.stack(ranks)))[0, 1]),
            "place_of_best": int(ranks[1][predicted.argmin()]) + 1,
            "predicted_ms": predicted.tolist(), "measured_ms": measured.tolist(),
        })  # fmt: skip
        show(rows[-1])
    return rows


def wide_mlp() -> Graph:
    """Four dense layers of 256 rows."""
    b = small.GraphBuilder()
    h = b.input("x", (256, 1024))
    for i, (a, c) in enumerate(((1024, 2048), (2048, 1024), (1024, 2048), (2048, 512))):
        h = b.add("matmul", h, small.weight(b, f"w{i}", a, c), name=f"d{i}")
        h = b.add("relu", h, name=f"r{i}") if i < 3 else h
    return b.build(h)


def wide_cnn() -> Graph:
    """Three convolutions of 32 images of 32 x 32 and a dense layer."""
    b = small.GraphBuilder()
    h = b.input("x", (32, 16, 32, 32))
    for i, (a, c) in enumerate(((16, 32), (32, 64), (64, 64))):
        h = b.add("relu", b.add("conv2d", h, small.weight(b, f"w{i}", c, a, 3, 3), pads=(1, 1, 1, 1)), name=f"r{i}")
    h = b.add("reshape", h, shape=(32, 64 * 1024))
    return b.build(b.add("matmul", h, small.weight(b, "w3", 64 * 1024, 128), name="y"))


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=["quality", "exact", "weights", "killed"])
    parser.add_argument("--networks", default=",".join(GAPS))
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--strategies", type=int, default=0, help="of weights (200) and real (20)")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    parts: Mapping[str, Callable[[], list[Row]]] = {
        "quality": lambda: networks(given.seconds, tuple(given.networks.split(",")), ("p100:4x4",)),
        "speed": lambda: speed(given.seconds), "exact": lambda: exact(given.seconds),
        "weights": lambda: weights(given.strategies or 200), "killed": killed,
        "real": lambda: real(given.strategies or 20),
    }  # fmt: skip
    unknown = [part for part in given.parts if part not in parts]
    if unknown:
        sys.exit(f"parallel: found {unknown}; allowed: {', '.join(parts)}")
    found = {part: parts[part]() for part in given.parts}
    if given.json is not None:
        given.json.write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
