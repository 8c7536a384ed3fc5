"""Quality of parallel plans, simulated: the thesis' comparisons on models of its clusters, against what it reports.

`python -m benchmarks.parallel_quality [WHAT …] [--seconds N] [--json FILE]`; WHAT: NETWORK, NETWORK@MACHINE, or a part:

networks   eight networks on 4x4 P100 and 16x4 K80, both models of synchronization, each row saying which
embeddings DLRM and Candle Uno on 16, 48, 96 V100 (Summit), dense and sparse gradients of embeddings
placement  the whole space against placement only (one device an operation), 4 K80
spaces     four networks on 4 P100 in the spaces of earlier approaches (table 3.5): the dimensions that each splits
bytes      NMT on 64 K80, a transferred byte costing some time as well
memory     batches beyond the devices' memory: the plan that recomputes
pipelines  the best pipeline (1F1B) against the best plan without

Seconds are of CPU, for each search; the results are deterministic but for how far these reach. All numbers are of a
roofline model of the devices (`burnish.parallel.model.costs`), none is a measurement.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.parallel_networks import NETWORKS
from benchmarks.provenance import stored
from burnish.errors import PlanError
from burnish.parallel.model.costs import Roofline
from burnish.parallel.model.operations import Operation, OperationGraph
from burnish.parallel.model.presets import machine
from burnish.parallel.model.space import StrategySpace
from burnish.parallel.model.strategy import Configuration
from burnish.parallel.programs.pipelines import best_pipeline
from burnish.parallel.simulate.baselines import data_parallel, expert, model_parallel
from burnish.parallel.simulate.bound import lower_bound
from burnish.parallel.simulate.search import FASTEST, Found, PlanObjective, search
from burnish.parallel.simulate.simulate import Simulator
from burnish.parallel.simulate.taskgraph import SYNCHRONIZATIONS, Problem
from burnish.search.budget import Budget

GAPS = {"alexnet": 0.05, "resnet101": 0.05, "inception_v3": 0.05, "rnntc": 0.25, "rnnlm": 0.25, "nmt": 0.40}
SIX = tuple(GAPS)
THESIS = {  # times of data or expert parallelism by the thesis' found strategies (figures 3.6, 3.7, 3.9, 3.11)
    "alexnet": "1.3", "inception_v3": "1.3", "resnet101": "1.0", "rnntc": "1.5-3.3", "rnnlm": "1.5-3.3",
    "nmt": "1.5-3.3, 64 K80: 1.7-2.4", "dlrm": "10 at 96", "candle_uno": "7.8 at 96",
}  # fmt: skip
CLUSTERS = ("p100:4x4", "k80:16x4")
PENALTY = 0.02  # ns a byte: 67 GB, what data parallelism sends for NMT on 64 devices, count as 1.3 s
Row = dict[str, Any]


def simulated(
    model: OperationGraph,
    cluster: str,
    synchronization: str = "overlapped",
    strided: bool = True,
    sparse: bool = False,
    recompute: bool = False,
) -> Simulator:
    """The simulator of a model, its space with both baselines."""
    own = machine(cluster)
    also = [data_parallel(model, own), expert(model, own)]
    space = StrategySpace(model, own, strided=strided, also=also, recompute=recompute)
    return Simulator(Problem(space, Roofline(), synchronization, sparse))


def starts_of(sim: Simulator) -> dict[str, np.ndarray]:
    """Choices of the baselines."""
    problem = sim.problem
    made = {"data": data_parallel, "expert": expert}
    return {name: problem.space.choice(make(problem.model, problem.machine)) for name, make in made.items()}


def cpu(seconds: float) -> Budget:
    """A budget of CPU seconds."""
    return Budget(seconds=seconds, clock=time.process_time)


def row_of(name: str, cluster: str, sim: Simulator, found: Found, bounded: bool = True) -> Row:
    """Report of a search against its baselines: step times in ms, work of devices, bytes sent, the optimality gap."""
    starts = starts_of(sim)
    times = {key: found.times[key] / 1e6 for key in starts}
    size = sim.problem.machine.size
    row: Row = {
        "network": name, "machine": cluster, "synchronization": sim.problem.synchronization,
        "embeddings": "sparse" if sim.problem.sparse else "dense", "found": found.ns / 1e6, **times,
        "x data": times["data"] / (found.ns / 1e6), "x best": min(times.values()) / (found.ns / 1e6),
        "thesis x": THESIS.get(name, ""), "GB": sum(sim.bytes(found.choice)) / 1e9,
        "GB data": sum(sim.bytes(starts["data"])) / 1e9, "GB expert": sum(sim.bytes(starts["expert"])) / 1e9,
        "work x": float(sim.loads(found.choice)[:size].sum() / sim.loads(starts["data"])[:size].sum()),
        "trials": found.report.trials,
    }  # fmt: skip
    if bounded:
        bound = lower_bound(sim.problem)
        row |= {"bound": bound.ns / 1e6, "gap": bound.gap(found.ns)}
        if size == 16 and name in GAPS:
            row["bar"] = GAPS[name]
    return row


def networks(
    seconds: float, names: tuple[str, ...] = SIX, clusters: tuple[str, ...] = ("p100:4x4", "k80:16x4")
) -> list[Row]:
    """Found against baselines and bound."""
    rows = []
    for cluster in clusters:
        size = machine(cluster).size
        for name in names:
            model = NETWORKS[name](size)
            for synchronization in SYNCHRONIZATIONS:
                sim = simulated(model, cluster, synchronization)
                found = search(sim, starts_of(sim), cpu(seconds))
                rows.append(show(row_of(name, cluster, sim, found, size <= 16)))
    return rows


def embeddings(seconds: float) -> list[Row]:
    """DLRM and Candle Uno, by how gradients of embeddings are summed: whole tables, or the rows that a step reads."""
    rows = []
    for nodes in (16, 8, 3):
        cluster = f"summit:{nodes}x6"
        for name in ("dlrm", "candle_uno"):
            model = NETWORKS[name](6 * nodes)
            for sparse in (False, True) if name == "dlrm" else (False,):
                sim = simulated(model, cluster, "overlapped", strided=False, sparse=sparse)
                found = search(sim, starts_of(sim), cpu(seconds))
                rows.append(show(row_of(name, cluster, sim, found, False)))
    return rows


def splits(op: Operation, chosen: Configuration) -> set[str]:
    """The dimensions that a configuration splits: sample, parameter, attribute."""
    return {axis.role for axis, degree in zip(op.axes, chosen.degrees, strict=True) if degree > 1}


def fixed(chosen: Configuration) -> bool:
    """Whether its tasks are on the first devices, in order: no operation chooses where it runs."""
    return chosen.devices == tuple(range(len(chosen.devices)))


SPACES: Mapping[str, Callable[[Operation, Configuration], bool]] = {  # table 3.5; O is a choice of the devices
    "O (ColocRL)": lambda op, c: not splits(op, c),
    "O, P (model parallelism)": lambda op, c: splits(op, c) <= {"parameter"},
    "S, O (Wu et al.)": lambda op, c: splits(op, c) <= {"sample"},
    "S, P (one weird trick)": lambda op, c: fixed(c) and splits(op, c) in (set(), {"sample"}, {"parameter"}),
    "S, A, P (OptCNN)": lambda _, c: fixed(c),
    "S, O, A, P": lambda *_: True,
}


def within(name: str, model: OperationGraph, cluster: str) -> tuple[Simulator, dict[str, np.ndarray]]:
    """The simulator of a space of ``SPACES``, and starts in it: the baselines that it has, and random strategies."""
    own = machine(cluster)
    space = StrategySpace(model, own, allowed=SPACES[name])
    starts = {str(seed): space.random(seed) for seed in range(4)}
    for baseline in (data_parallel, model_parallel, expert):
        with suppress(PlanError):
            starts[baseline.__name__] = space.choice(baseline(model, own))
    return Simulator(Problem(space, Roofline())), starts


def spaces(seconds: float, names: Sequence[str] = ("alexnet", "inception_v3", "rnnlm", "nmt")) -> list[Row]:
    """The best strategy found in each space of table 3.5, whether it fits or not, and its time over the whole space's.

    8 steps of a recurrent layer are one operation, as in the published simulator.
    """
    rows = []
    for name in names:
        model = NETWORKS[name](4, **({"chunk": 8} if name in ("rnnlm", "nmt") else {}))
        found = {}
        for kind in SPACES:
            sim, starts = within(kind, model, "p100:1x4")
            found[kind] = search(sim, starts, cpu(seconds), objective=PlanObjective(memory=False)).ns / 1e6
        whole = found["S, O, A, P"]
        rows.append(show({
            "network": name, "machine": "p100:1x4", **found, **{f"x {kind}": ms / whole for kind, ms in found.items()},
        }))  # fmt: skip
    return rows


def placement(seconds: float) -> list[Row]:
    """The whole space against strategies that only place operations."""
    rows = []
    for name in ("inception_v3", "nmt"):
        model = NETWORKS[name](4)
        whole = simulated(model, "k80:1x4")
        found = search(whole, starts_of(whole), cpu(seconds))
        only, starts = within("O (ColocRL)", model, "k80:1x4")
        placed = search(only, starts, cpu(seconds), objective=PlanObjective(memory=False))
        rows.append(show({
            "network": name, "machine": "k80:1x4", "synchronization": "overlapped", "found": found.ns / 1e6,
            "placement": placed.ns / 1e6, "x placement": placed.ns / found.ns, "thesis x": "3.4-3.8",
        }))  # fmt: skip
    return rows


def penalized(seconds: float) -> list[Row]:
    """NMT on 64 K80 where a byte costs time as well; 8 steps of a layer are one operation, as in the published
    simulator: with a step each, the seconds end before the search has looked at more than its starts.
    """
    sim = simulated(NETWORKS["nmt"](64, chunk=8), "k80:16x4")
    rows = []
    for objective in (FASTEST, PlanObjective(per_byte=PENALTY)):
        found = search(sim, starts_of(sim), cpu(seconds), objective=objective)
        row = row_of("nmt", "k80:16x4", sim, found, False)
        less = row["GB data"] / row["GB"]
        rows.append(show({**row, "ns a byte": objective.per_byte, "x bytes": less, "thesis bytes": "2-5.5"}))
    return rows


def memory(seconds: float) -> list[Row]:
    """Batches that no strategy holds without recomputation, or that data parallelism does not."""
    rows = []
    for name, batch in (("inception_v3", 256), ("resnet101", 160)):
        model = NETWORKS[name](4, batch=batch)
        row: Row = {"network": name, "machine": "p100:1x4", "samples a device": batch}
        for recompute in (False, True):
            sim = simulated(model, "p100:1x4", strided=False, recompute=recompute)
            key = "recomputed" if recompute else "kept"
            try:
                found = search(sim, starts_of(sim), cpu(seconds))
                row |= {key: found.ns / 1e6, f"{key} GB": float(sim.memory(found.choice).max()) / 1e9}
                again = found.choice >= sim.problem.space.first + sim.problem.space.plain
                row |= {"operations recomputed": int(again.sum())} if recompute else {}
            except PlanError as error:
                row[key] = str(error).split(";", maxsplit=1)[0]
        rows.append(show(row))
    return rows


def pipelines(seconds: float) -> list[Row]:
    """The best pipeline against the best plan without one."""
    rows = []
    for name, cluster in (("alexnet", "k80:4x4"), ("rnnlm", "p100:4x4")):
        size, batch = machine(cluster).size, 256 if name == "alexnet" else 64
        sim = simulated(NETWORKS[name](size), cluster)
        found = search(sim, starts_of(sim), cpu(seconds))

        def micro(
            count: int, devices: int, name: str = name, size: int = size, batch: int = batch
        ) -> OperationGraph | None:
            whole = size * batch // (count * devices) * (count * devices) == size * batch
            return NETWORKS[name](size, batch=batch // count) if count <= 8 and whole else None

        made = best_pipeline(micro, machine(cluster), Roofline(), cpu(seconds))
        rows.append(show({
            "network": name, "machine": cluster, "synchronization": "overlapped", "data": found.times["data"] / 1e6,
            "found": found.ns / 1e6, "pipeline": made.ns / 1e6, "stages": made.stages,
            "micro-batches": made.micro_batches, "plain pipeline": min(made.times.values()) / 1e6,
        }))  # fmt: skip
    return rows


def show(row: Row) -> Row:
    """Prints one row as a line, and returns it."""
    texts = {k: f"{v:.4g}" if isinstance(v, float) else v for k, v in row.items()}
    print("  ".join(f"{key} {text}" for key, text in texts.items()), flush=True)
    return row


PARTS: Mapping[str, Callable[[float], list[Row]]] = {
    "networks": networks, "embeddings": embeddings, "placement": placement, "spaces": spaces, "bytes": penalized,
    "memory": memory, "pipelines": pipelines,
}  # fmt: skip


def part(word: str) -> Callable[[float], list[Row]] | None:
    """The function that makes the rows of an argument (NETWORK, NETWORK@MACHINE, or a part); None for any other."""
    name, _, cluster = word.partition("@")
    if name in NETWORKS:
        return partial(networks, names=(name,), clusters=(cluster,) if cluster else CLUSTERS)
    return PARTS.get(word)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", default=[*PARTS])
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    asked = {word: part(word) for word in given.rows}
    unknown = [word for word, make in asked.items() if make is None]
    if unknown:
        sys.exit(f"parallel_quality: found {unknown}; allowed: {', '.join([*PARTS, *NETWORKS])}")
    found = {word: make(given.seconds) for word, make in asked.items() if make is not None}
    if given.json is not None:
        given.json.write_text(stored(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
