"""Executed parallel plans: simulated against measured steps, weights of random strategies, memory, a killed rank.

`python -m benchmarks.parallel_execution [PART …] [--strategies N] [--clock cpu]
[--workers thread|process|torch] [--json FILE]`.

planned   what `burnish.plan` chooses on 2 ranks: step times of splits, pipeline and data parallelism, ms
real      step time of strategies on 2 ranks, predicted by costs that were measured here, against measured ones
weights   random strategies of an MLP, a CNN with halo, attention, an LSTM on 2 and 4 ranks against one process
memory    bytes of each rank, predicted and allocated (`benchmarks.parallel_memory`)
accuracy  a small Inception and an LSTM on scikit-learn's digits: losses and accuracies by epochs of one process, data
          parallelism, the plan for 2 K80 and a strategy drawn at random (thesis-jia table 3.3, figure 3.8 by epochs)
overlap   how many kernels run while sums of gradients are under way, by the size of buckets
killed    a rank killed in the middle of a step: seconds until it is named, and the weights after resuming

Bars: 17 of 20 strategies within 15 %, rank correlation >= 0.85, the best predicted among the two best measured; weights
within 1e-6 after 3 steps; memory within 5 %; a killed rank named within 2 s. `real` by the wall clock needs a machine
that nobody else uses; `--clock cpu` compares the seconds that the busiest rank computes, and says so.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import burnish as bn
from benchmarks.harness import run_parts
from benchmarks.parallel_memory import memory
from burnish.base.optional import require
from burnish.comm import launch
from burnish.errors import WorkerError
from burnish.fitting.fit import fit
from burnish.fitting.planned import step_inputs
from burnish.fitting.ranks import faster_plan
from burnish.graph.graph import Graph
from burnish.machines.target import target
from burnish.parallel.model.operations import operations
from burnish.parallel.model.presets import machine
from burnish.parallel.model.space import StrategySpace
from burnish.parallel.programs.calibration import LaunchConfig, calibrate
from burnish.parallel.programs.plans import TensorSplits, splits_of
from burnish.parallel.programs.ranks import Settings, compile_ranks, split_programs
from burnish.parallel.simulate.baselines import data_parallel
from burnish.parallel.simulate.simulate import Simulator
from burnish.parallel.simulate.taskgraph import Problem
from burnish.runtime.executable import Collective, Executable, KernelCall, Wait
from tests.parallel import networks as small
from tests.parallel import test_execute as killing

Row = dict[str, Any]
NEAR = 1e-6


# --- simulated and measured -------------------------------------------------------------------------------------------


def real(count: int, ranks: LaunchConfig) -> list[Row]:
    """Predicted against measured time of a step on 2 ranks of this machine."""
    rows = []
    for name, graph in wide().items():
        model, here = operations(graph), machine("host:2")
        begun = time.monotonic()
        with tempfile.TemporaryDirectory() as cache:  # not what was measured once, with other load
            own = replace(ranks, cache_dir=cache)
            known = calibrate(StrategySpace(model, here, also=[data_parallel(model, here)]), own)
            took = time.monotonic() - begun
            space = StrategySpace(model, known.machine, also=[data_parallel(model, here)])
            sim = Simulator(Problem(space, known.costs))
        choices = [space.choice(data_parallel(model, known.machine))]
        choices += [space.random(seed) for seed in range(count - 1)]
        plans = {str(i): splits_of(model, space.strategy(c)) for i, c in enumerate(choices)}
        _, times = faster_plan(graph, step_inputs(graph, ranks.train), plans, 2, ranks)
        predicted = np.array([predicted_ms(sim, c, ranks.clock) for c in choices])
        measured = np.array([1e3 * seconds for seconds in times.values()])
        rows.append({"network": name, "clock": ranks.clock, "strategies": count, **compared(predicted, measured),
                     "timed": known.timed, "calibration_s": took, "guessed": len(known.costs.missing)})  # fmt: skip
        show(rows[-1])
    return rows


def planned(ranks: LaunchConfig) -> list[Row]:
    """Splits, the best pipeline and data parallelism on 2 ranks, as predicted and as measured in turns."""
    rows = []
    for name, graph in wide().items():
        plan = bn.plan(graph, devices="host:2", measure=ranks)
        predicted = {**plan.considered, **plan.baselines}
        rows.append({"network": name, "chosen": plan.name, "predicted": predicted, "measured": dict(plan.measured)})
        show(rows[-1])
    return rows


def predicted_ms(sim: Simulator, choice: np.ndarray, clock: str) -> float:
    """Predicted milliseconds of a step; by the clock of threads, the computation and messages of the busiest device."""
    return (sim.full(choice) if clock == "wall" else int(sim.loads(choice).max())) / 1e6


def compared(predicted: np.ndarray, measured: np.ndarray) -> Row:
    """Errors of predictions, and whether they order strategies as measurements do."""
    ratio = predicted / measured
    ranks = [np.argsort(np.argsort(v)) for v in (predicted, measured)]
    return {
        "within_15": int((np.abs(ratio - 1) <= 0.15).sum()), "median_ratio": float(np.median(ratio)),
        "mean_error": float(np.abs(ratio - 1).mean()), "worst": float(np.abs(ratio - 1).max()),
        "within_15_scaled": int((np.abs(ratio / np.median(ratio) - 1) <= 0.15).sum()),
        "spearman": float(np.asarray(np.corrcoef(np.stack(ranks)))[0, 1]),
        "place_of_best": int(ranks[1][predicted.argmin()]) + 1,
        "predicted_ms": predicted.tolist(), "measured_ms": measured.tolist(),
    }  # fmt: skip


def wide() -> dict[str, Graph]:
    """Networks whose steps take tens of milliseconds."""
    return {"mlp": wide_mlp(), "cnn": wide_cnn()}


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


# --- weights ----------------------------------------------------------------------------------------------------------


def weights(count: int, kind: str, names: Sequence[str]) -> list[Row]:
    """Random strategies against one process: compiled programs on ranks. The first are those of the plans' space,
    each third one splits single tensors of the whole step at random.
    """
    rows = []
    for name in names:
        model, begun = small.NETWORKS[name](), time.process_time()
        step = small.step_of(model)
        batch = small.batch_of(step)
        wanted = small.trained_alone(step, batch, 3)
        with tempfile.TemporaryDirectory() as cache:  # a small one is looked through faster
            errors = [error_of(model, step, batch, wanted, seed, kind, cache) for seed in range(count)]
        rows.append({"network": name, "strategies": count, "ranks": kind, "worst": max(errors), "bar": NEAR,
                     "cpu_s": time.process_time() - begun,
                     "beyond": [seed for seed, error in enumerate(errors) if error > NEAR]})  # fmt: skip
        show(rows[-1])
    return rows


def error_of(
    model: Graph, step: Graph, batch: Mapping[str, np.ndarray], wanted: Mapping[str, np.ndarray], seed: int, kind: str,
    cache: str | None = None,
) -> float:  # fmt: skip
    """The largest difference of a state after three steps, relative to the state's largest element."""
    devices = 2 + 2 * (seed % 2)
    if seed % 3 == 0:
        plan = TensorSplits(small.random_splits(step, [node.outputs[0] for node in step.nodes], devices, seed))
    else:
        found = operations(model)
        space = StrategySpace(found, machine(f"host:{devices}"))
        plan = splits_of(found, space.strategy(space.random(seed)))
    settings = Settings(bucket=1 << (seed % 20), cache_dir=cache)
    made = split_programs(step, plan, devices, target("cpu"), settings).executables()
    (states, *_) = launch(killing.run_steps, [(executable, dict(batch), 3) for executable in made], kind, 120.0)
    return max(
        float(np.abs(states[n].astype(np.float64) - value).max()) / max(float(np.abs(value).max()), 1e-30)
        for n, value in wanted.items()
    )


# --- accuracy ---------------------------------------------------------------------------------------------------------


def small_inception(b: small.GraphBuilder, batch: int) -> str:
    """Two modules of four branches each behind a convolution, on images of 8 x 8."""
    count = iter(range(99))

    def conv(x: str, channels: int, size: int) -> str:
        w = small.weight(b, f"w{next(count)}", channels, b.types[x].shape[1], size, size)
        w = b.add("mul", w, b.constant(1.4))  # what ReLU takes from the size of activations
        return b.add("relu", b.add("conv2d", x, w, pads=(size // 2,) * 4))

    h = conv(b.input("x", (batch, 1, 8, 8)), 16, 3)
    for _ in range(2):
        pooled = b.add("avg_pool2d", h, kernel=(3, 3), pads=(1, 1, 1, 1))
        branches = [
            conv(h, 8, 1),
            conv(conv(h, 8, 1), 16, 3),
            conv(conv(conv(h, 8, 1), 16, 3), 16, 3),
            conv(pooled, 8, 1),
        ]
        h = b.add("concat", *branches, axis=1)
    h = b.add("reduce_mean", h, axes=(2, 3), keepdims=False)
    return b.add("matmul", h, small.weight(b, "head", b.types[h].shape[1], 10))


def small_lstm(b: small.GraphBuilder, batch: int) -> str:
    """A layer of 32 units that reads an image row by row."""
    x = b.input("x", (batch, 1, 8, 8))
    w, r = small.weight(b, "w", 8, 128), small.weight(b, "r", 4, 32, 32)
    h = c = b.constant(np.zeros((batch, 32), np.float32), "zero")
    for t in range(8):
        row = b.add("reshape", b.add("slice", x, starts=(0, 0, t, 0), extents=(batch, 1, 1, 8)), shape=(batch, 8))
        h, c = b.add_many("lstm_cell", b.add("matmul", row, w), h, c, r)
    return b.add("matmul", h, small.weight(b, "head", 32, 10))


def accuracy(epochs: int = 10, batch: int = 32) -> list[Row]:
    """Losses and test accuracies, and how far each way is from one process."""
    digits = require("sklearn.datasets", "bench").load_digits()
    images, labels = (digits.images / 16).astype(np.float32)[:, None], digits.target.astype(np.int64)
    order = np.random.default_rng(0).permutation(len(labels))
    part = {"train": order[:1408], "test": order[1408:]}
    data, test = ({"x": images[part[name]], "label": labels[part[name]]} for name in ("train", "test"))
    train = bn.Train(loss="softmax_cross_entropy", optimizer=bn.Adam(0.002))
    rows: list[Row] = []
    for name, network in (("inception", small_inception), ("lstm", small_lstm)):
        b = small.GraphBuilder()
        graph = b.build(network(b, batch))
        model, here = operations(graph), machine("k80:1x2")
        space = StrategySpace(model, here)
        drawn = splits_of(model, space.strategy(space.random(1)))
        found = bn.plan(graph, None, train, here, seconds=3.0, pipelines=False)
        how: dict[str, Any] = {"epochs": epochs, "validation_data": test, "metrics": ["accuracy"]}
        ways: dict[str, dict[str, Any]] = {
            "one process": {}, "data parallelism": {"workers": 2}, f"plan: {found.name}": {"plan": found},
            "drawn": {"plan": drawn, "workers": 2},
        }  # fmt: skip
        alone: Any = None
        for way, more in ways.items():
            kind: dict[str, Any] = {"worker_kind": "thread"} if more else {}
            report = fit(graph, data, train, **how, **more, **kind).report
            alone = report if alone is None else alone
            losses, first = np.asarray(report.losses), np.asarray(alone.losses)
            rows.append({
                "network": name, "way": way, "epochs": epochs, "apart": float(np.abs(losses - first).max() / first[0]),
                "apart in 20 updates": float(np.abs(losses - first)[:20].max() / first[0]),
                "last loss": float(losses[-1]), "test accuracy": report.evaluations[-1].metrics["accuracy"],
                "curve": [[e.metrics["accuracy"], e.loss] for e in report.evaluations],
            })  # fmt: skip
            show({key: value for key, value in rows[-1].items() if key != "curve"})
    return rows


# --- overlap ----------------------------------------------------------------------------------------------------------


def overlap() -> list[Row]:
    """Data parallelism on 2 ranks: kernels between the sending of each message and the wait for its answer."""
    rows = []
    for name, graph in wide().items():
        model, here = operations(graph), machine("host:2")
        plan = splits_of(model, data_parallel(model, here))
        for bucket in (1 << 62, 1 << 22, 1 << 16):
            made = compile_ranks(small.step_of(graph), plan, 2, target("cpu"), bucket=bucket)
            found = [kernels_under_way(executable) for executable in made]
            calls = sum(isinstance(step, KernelCall) for step in made[0].steps)
            rows.append({"network": name, "bucket": bucket, "kernels": calls, "messages": len(found[0]),
                         "under_way": found[0], "bytes_overlapped": bytes_overlapped(made[0])})  # fmt: skip
            show(rows[-1])
    return rows


def kernels_under_way(executable: Executable) -> list[int]:
    """For every message that is sent, the kernels behind it that come before anything is waited for."""
    found = []
    for number, step in enumerate(executable.steps):
        if isinstance(step, Collective) and step.operation == "send":
            found.append(
                sum(isinstance(s, KernelCall) for s in executable.steps[number : _next_wait(executable, number)])
            )
    return found


def bytes_overlapped(executable: Executable) -> float:
    """The share of the bytes sent behind which a kernel runs before anything is waited for."""
    sent = [s for s in executable.steps if isinstance(s, Collective) and s.operation == "send"]
    pairs = zip(sent, kernels_under_way(executable), strict=True)
    return sum(s.spec.nbytes for s, count in pairs if count) / max(sum(s.spec.nbytes for s in sent), 1)


def _next_wait(executable: Executable, number: int) -> int:
    steps = executable.steps
    return next((n for n in range(number, len(steps)) if isinstance(steps[n], Wait)), len(steps))


# --- a killed rank ----------------------------------------------------------------------------------------------------


def killed() -> list[Row]:
    """Seconds between the death of a rank and its name, and whether training goes on to the same weights."""
    model, data = small.NETWORKS["mlp"](), killing.rows()
    how: dict[str, Any] = {"steps": 12, "save_every": 3, "plan": killing.MIXED, "workers": 2}
    whole = fit(model, data, small.TRAIN, **how, worker_kind="thread")
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as other:
        os.environ[killing.DEATH] = f"{other}/time"
        killing.ranks_module.train_rank = killing.dies
        named = None
        try:
            fit(model, data, small.TRAIN, **how, checkpoint=folder)
        except WorkerError as error:
            named = error.rank
        seconds = time.time() - float(Path(f"{other}/time").read_text(encoding="utf-8"))
        killing.ranks_module.train_rank = killing.train_rank
        again = fit(model, data, small.TRAIN, **how, resume=True, worker_kind="thread", checkpoint=folder)
    same = all(np.array_equal(again.states[name], value) for name, value in whole.states.items())
    row = {"named": named, "seconds": seconds, "bar": 2.0, "same_weights": same}
    show(row)
    return [row]


# --- the command ------------------------------------------------------------------------------------------------------


def show(row: Mapping[str, Any]) -> None:
    """One row as a line."""
    texts = {k: f"{v:.4g}" if isinstance(v, float) else v for k, v in row.items() if not isinstance(v, list) or not v}
    print("  ".join(f"{key} {text}" for key, text in texts.items()), flush=True)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "parts", nargs="*", default=["real", "planned", "weights", "memory", "accuracy", "overlap", "killed"]
    )
    parser.add_argument("--strategies", type=int, default=0, help="of weights (200), real (20), memory (10)")
    parser.add_argument("--networks", default=",".join(small.NETWORKS), help="of weights")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="of real")
    parser.add_argument("--workers", choices=("thread", "process", "torch"), help="of weights (thread), real (process)")
    parser.add_argument("--steps", type=int, default=7, help="of each strategy that are timed")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    ranks = LaunchConfig(small.TRAIN, given.workers or "process", steps=given.steps, clock=given.clock)
    parts: Mapping[str, Callable[[], list[Row]]] = {
        "real": lambda: real(given.strategies or 20, ranks),
        "planned": lambda: planned(ranks),
        "weights": lambda: weights(given.strategies or 200, given.workers or "thread", given.networks.split(",")),
        "memory": lambda: memory(wide(), given.strategies or 10), "accuracy": accuracy,
        "overlap": overlap, "killed": killed,
    }  # fmt: skip
    run_parts(parser, given.parts, parts, given.json)


if __name__ == "__main__":
    main()
