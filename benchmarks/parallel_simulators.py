"""Simulators of parallel training steps: proposals a second, full against resumed and stopped by a limit, and equality.

`python -m benchmarks.parallel_simulators [NETWORK …] [--devices 4,16,64] [--steps N] [--proposals N] [--equal N]
[--json FILE]`.
Machines are models of thesis-jia section 3.7.1: 4 and 16 devices of 4 P100 a node, 64 K80. Each row starts near an
optimum, found in --seconds, at temperature 0.02 / operations; the same proposals are drawn in every mode, in CPU
seconds. Seconds beside table 3.4's are for 250,000 proposals, what the published simulator does (the thesis gives no
number), and with --steps 8 for its operations of 8 steps of a recurrent layer, 5 a layer; else each step is one.
Fails if a simulation of delta and full differ, or modes walk differently; bars: both >= 10 times full on convolutional
networks at 64 devices, >= 2 times on recurrent ones.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import check_names
from benchmarks.parallel_networks import NETWORKS
from benchmarks.provenance import stored
from burnish.parallel.model.costs import Roofline
from burnish.parallel.model.presets import machine
from burnish.parallel.model.space import StrategySpace
from burnish.parallel.simulate.baselines import data_parallel, expert
from burnish.parallel.simulate.simulate import Simulator
from burnish.parallel.simulate.taskgraph import Problem

MACHINES = {4: "p100:1x4", 8: "p100:2x4", 16: "p100:4x4", 32: "k80:8x4", 64: "k80:16x4"}
MODES = {"full": (False, False), "resume": (True, False), "stop": (False, True), "both": (True, True)}
TEMPERATURE = 0.02  # of the step's time, divided by the number of operations
PUBLISHED = 250_000  # proposals of flexflow/FlexFlow's scripts/simulator.cc
THESIS = {  # table 3.4: seconds of full and delta simulation at 4, 8, 16, 32, 64 devices
    "alexnet": ((0.11, 0.40, 1.4, 5.3, 18), (0.04, 0.13, 0.48, 1.8, 5.9)),
    "resnet101": ((1.4, 4.5, 22, 107, 515), (0.4, 1.4, 7.3, 33, 158)),
    "inception_v3": ((14, 66, 388, 1746, 8817), (4.1, 17, 77, 298, 1278)),
    "rnntc": ((16, 91, 404, 1358, 4404), (7.5, 39, 170, 516, 1489)),
    "rnnlm": ((21, 76, 327, 1102, 3406), (9.2, 31, 121, 342, 969)),
    "nmt": ((40, 178, 998, 2698, 8982), (16, 65, 328, 701, 2190)),
}
SIZES = (4, 8, 16, 32, 64)
RECURRENT = ("rnntc", "rnnlm", "nmt")
Row = dict[str, Any]


def simulator(name: str, devices: int, synchronization: str = "overlapped", steps: int = 1) -> Simulator:
    """The simulator of a network on a preset machine of ``devices`` devices; ``steps`` of a recurrent layer as one."""
    model = NETWORKS[name](devices, chunk=steps) if name in RECURRENT else NETWORKS[name](devices)
    cluster = machine(MACHINES[devices])
    baselines = [baseline(model, cluster) for baseline in (data_parallel, expert)]
    return Simulator(Problem(StrategySpace(model, cluster, also=baselines), Roofline(), synchronization))


def near_optimum(sim: Simulator, seconds: float) -> np.ndarray:
    """A good strategy: walks over repeated blocks, then single operations, from the better of two baselines."""
    problem = sim.problem
    space = problem.space
    made = [baseline(problem.model, problem.machine) for baseline in (data_parallel, expert)]
    choice = min((space.choice(strategy) for strategy in made), key=sim.full)
    blocks = problem.model.blocks()
    begin, seed, count = time.process_time(), 0, 64
    moves: list[list[int]] | None = blocks
    while time.process_time() - begin < seconds:
        before = time.process_time()
        choice = sim.walk(choice, count, TEMPERATURE / len(choice), seed, moves).best
        count = max(16, int(count * min(4.0, seconds / 8 / max(time.process_time() - before, 1e-3))))
        moves = blocks if time.process_time() - begin < seconds / 2 else None
        seed += 1
    return choice


def speeds(sim: Simulator, choice: np.ndarray, proposals: int) -> Row:
    """Proposals a CPU second of each mode from one strategy, the same proposals in each."""
    temperature = TEMPERATURE / len(choice)
    row: Row = {"proposals": proposals}
    ends = {}
    for mode, (resume, stop) in MODES.items():
        sim.walk(choice, 2, temperature, 1, None, resume, stop)
        begin = time.process_time()
        walk = sim.walk(choice, proposals, temperature, 1, None, resume, stop)
        row[mode] = round(proposals / (time.process_time() - begin), 1)
        ends[mode] = walk.current_ns
        row[f"{mode}_events"] = walk.events
        row["accepted"], row["skipped"] = walk.accepted, walk.skipped
    row["equal_walks"] = len(set(ends.values())) == 1
    row["ratio"] = round(row["both"] / row["full"], 2)
    return row


def unequal(sim: Simulator, choice: np.ndarray, count: int, seed: int = 0) -> int:
    """Random proposals, half of them with a random limit, whose delta simulation differs from the full one."""
    rng = np.random.default_rng(seed)
    space, differ = sim.problem.space, 0
    current = choice
    time_now = sim.start(current)
    for n in range(count):
        i = int(rng.integers(len(space.count)))
        number = int(space.first[i] + rng.integers(space.count[i]))
        other = current.copy()
        other[i] = number
        limit = int(time_now * rng.uniform(0.98, 1.1)) if n % 2 else None
        got, want = sim.propose([i], [number], limit), sim.full(other)
        differ += got != (want if limit is None or want <= limit else -1)
        if n % 97 == 96:
            current, time_now = other, sim.accept() if got >= 0 else sim.start(other)
    return int(differ)


def measure(name: str, devices: int, seconds: float, proposals: int, equal: int, steps: int) -> Row:
    """All of one network on one machine. ``proposals`` 0: as many as full simulation does in about ``seconds``."""
    begin = time.process_time()
    sim = simulator(name, devices, steps=steps)
    made = time.process_time() - begin
    choice = near_optimum(sim, seconds)
    begin = time.process_time()
    step = sim.full(choice)
    each = max(time.process_time() - begin, 1e-5)
    count = proposals or int(np.clip(seconds / each, 50, 20_000))
    row: Row = {"network": name, "devices": devices, "machine": MACHINES[devices], "setup_seconds": round(made, 2)}
    row |= {"operations": len(choice), "log10_space": round(sim.problem.log10_size, 1), "step_ms": round(step / 1e6, 2)}
    row["steps_an_operation"] = steps if name in RECURRENT else None
    row |= speeds(sim, choice, count)
    row |= {"compared": equal, "unequal": unequal(sim, choice, equal)}
    if name in THESIS:
        at = SIZES.index(devices)
        row |= {"thesis_full_s": THESIS[name][0][at], "thesis_delta_s": THESIS[name][1][at]}
        row |= {"full_s": round(PUBLISHED / row["full"], 1), "both_s": round(PUBLISHED / row["both"], 1)}
    return row


def failed(rows: Sequence[Row]) -> list[str]:
    """A sentence for each row whose results are unequal or whose ratio is below its bar."""
    found = []
    for row in rows:
        where = f"{row['network']} on {row['devices']}"
        if row["unequal"] or not row["equal_walks"]:
            found.append(f"{where}: delta and full simulation differ")
        bar = 2.0 if row["network"] in RECURRENT else 10.0
        if row["devices"] == 64 and row["network"] in THESIS and row["ratio"] < bar:
            found.append(f"{where}: {row['ratio']} times full, bar {bar}")
    return found


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", default=list(THESIS))
    parser.add_argument("--devices", default="4,16,64")
    parser.add_argument("--seconds", type=float, default=10.0, help="of search, and of full simulation, for each row")
    parser.add_argument("--steps", type=int, default=1, help="of a recurrent layer that are one operation")
    parser.add_argument("--proposals", type=int, default=0)
    parser.add_argument("--equal", type=int, default=10_000, help="proposals whose two simulations are compared")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args(words)
    check_names(parser, arguments.networks, NETWORKS)
    rows = []
    for devices in map(int, arguments.devices.split(",")):
        for name in arguments.networks:
            row = measure(name, devices, arguments.seconds, arguments.proposals, arguments.equal, arguments.steps)
            rows.append(row)
            print(_line(row), flush=True)
    wrong = failed(rows)
    if arguments.json:
        arguments.json.write_text(stored({"rows": rows, "failed": wrong}, indent=1) + "\n")
    print(*wrong, sep="\n")
    return bool(wrong)


def _line(row: Row) -> str:
    speed = " ".join(f"{mode} {row[mode]:,.0f}/s" for mode in MODES)
    text = f"{row['network']:>13} {row['devices']:>3}, {row['operations']} operations: {speed}, {row['ratio']}x; "
    text += f"{row['proposals']} proposals, "
    text += f"{row['unequal']} of {row['compared']} unequal; step {row['step_ms']} ms"
    if "both_s" in row:
        text += f"; 250,000: {row['full_s']} -> {row['both_s']} s (thesis {row['thesis_full_s']} -> "
        text += f"{row['thesis_delta_s']})"
    return text


if __name__ == "__main__":
    sys.exit(main())
