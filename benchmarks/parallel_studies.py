"""Searches and strategies of parallel plans, looked at closely; simulated (thesis-jia figures 3.13 to 3.15, 3.7.6).

`python -m benchmarks.parallel_studies [search|strategies|links …] [--seconds N] [--json FILE]`.

search      NMT on 16 P100: the best strategy of one walk over CPU time, by full and by delta simulation (figure 3.13)
strategies  the strategies found for Inception-v3 and NMT on 4 P100, operation by operation, and beside data parallelism
            their time and bytes of gradients (figures 3.14, 3.15)
links       Inception-v3 on 4 K80 in two pairs: how often an operation in two parts takes a pair with a link of its own

8 steps of a recurrent layer are one operation; `python -m benchmarks plots` draws what is stored. Fails where the walks
of the simulations differ.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import check_names
from benchmarks.parallel_networks import NETWORKS
from benchmarks.parallel_quality import cpu, show, simulated, starts_of
from benchmarks.provenance import stored
from burnish.parallel.model.operations import Operation
from burnish.parallel.simulate.search import search
from burnish.parallel.simulate.simulate import Simulator
from burnish.parallel.simulate.taskgraph import SYNCHRONIZATIONS

Row = dict[str, Any]
MODES = {"full": (False, False), "resumed": (True, False), "delta": (True, True)}
TEMPERATURE, ROUND = 0.02, 32
CHUNK = {"nmt": 8}


def model_of(name: str, devices: int) -> Any:
    """A network's operations."""
    return NETWORKS[name](devices, **({"chunk": CHUNK[name]} if name in CHUNK else {}))


# --- figure 3.13 ------------------------------------------------------------------------------------------------------


def searched(seconds: float) -> list[Row]:
    """A walk from data parallelism in each mode: CPU seconds and ms of the best strategy, round by round."""
    rows: list[Row] = []
    for mode, flags in MODES.items():
        sim = simulated(model_of("nmt", 16), "p100:4x4")
        choice = starts_of(sim)["data"]
        sim.walk(choice, 2, TEMPERATURE, 0, None, *flags)  # compiles
        curve = [(0.0, sim.full(choice) / 1e6)]
        begin, number = time.process_time(), 0
        while (now := time.process_time() - begin) < seconds:
            walked = sim.walk(choice, ROUND, TEMPERATURE / len(choice), number, None, *flags)
            choice, number = walked.current, number + 1
            curve.append((time.process_time() - begin, min(curve[-1][1], walked.best_ns / 1e6)))
        rows.append({"network": "nmt", "machine": "p100:4x4", "mode": mode, "proposals": ROUND * number,
                     "proposals a second": ROUND * number / now, "best": curve[-1][1], "curve": curve})  # fmt: skip
    full = rows[0]
    for row in rows:
        reached = next((t for t, ms in row["curve"] if ms <= full["best"]), None)
        row["CPU s to full's best"] = reached
        row["equal"] = all(a[1] == b[1] for a, b in zip(row["curve"], full["curve"], strict=False))
        show({key: value for key, value in row.items() if key != "curve"})
    return rows


# --- figures 3.14, 3.15, section 3.7.6 --------------------------------------------------------------------------------


def found_in(sim: Simulator, choice: np.ndarray) -> list[Row]:
    """The configuration of every operation: its layer, nodes, parts by dimension and devices by task."""
    layers: dict[tuple[str, ...], int] = {}
    rows = []
    for op, number in zip(sim.problem.model.operations, choice, strict=True):
        chosen = sim.problem.space.configuration(int(number))
        parts = {axis.name: degree for axis, degree in zip(op.axes, chosen.degrees, strict=True) if degree > 1}
        samples = prod(d for axis, d in zip(op.axes, chosen.degrees, strict=True) if axis.role == "sample")
        rows.append({
            "operation": op.name, "layer": layers.setdefault(op.parameters or (op.name,), len(layers)),
            "kind": kind_of(op), "parts": parts, "samples": samples, "others": len(chosen.devices) // samples,
            "devices": list(chosen.devices),
        })  # fmt: skip
    return rows


def kind_of(op: Operation) -> str:
    """Kind of an operation: its nodes' operators, in the model's order, without repetition."""
    return " ".join(dict.fromkeys(node.op for node in op.nodes))


def strategies(seconds: float) -> list[Row]:
    """The strategies found, and their time, gradients and activations over links against data parallelism's."""
    rows = []
    for name in ("inception_v3", "nmt"):
        for synchronization in SYNCHRONIZATIONS:
            sim = simulated(model_of(name, 4), "p100:1x4", synchronization)
            found = search(sim, starts_of(sim), cpu(seconds))
            data = starts_of(sim)["data"]
            row: Row = {"network": name, "machine": "p100:1x4", "synchronization": synchronization}
            row |= {
                "ms": found.ns / 1e6,
                "data ms": found.times["data"] / 1e6,
                "x time": found.ns / found.times["data"],
            }
            for what, ours, theirs in zip(
                ("activations", "gradients"), sim.bytes(found.choice), sim.bytes(data), strict=True
            ):
                row |= {f"GB of {what}": ours / 1e9, f"data GB of {what}": theirs / 1e9}
            row["x gradients"] = row["GB of gradients"] / row["data GB of gradients"]
            show(row)
            rows.append({**row, "strategy": found_in(sim, found.choice)})
    return rows


def links(seconds: float) -> list[Row]:
    """Placement of operations in two parts: their number, and that of those on two devices of one switch (K80)."""
    sim = simulated(model_of("inception_v3", 4), "k80:1x4", "after")
    found = search(sim, starts_of(sim), cpu(seconds))
    pairs = [set(one["devices"]) for one in found_in(sim, found.choice) if len(set(one["devices"])) == 2]
    near = sum(pair in ({0, 1}, {2, 3}) for pair in pairs)
    row = {"network": "inception_v3", "machine": "k80:1x4", "ms": found.ns / 1e6, "data ms": found.times["data"] / 1e6,
           "operations on two devices": len(pairs), "of these adjacent": near}  # fmt: skip
    return [show(row)]


PARTS: Mapping[str, Callable[[float], list[Row]]] = {"search": searched, "strategies": strategies, "links": links}


def main() -> int:
    """The command's exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=[*PARTS])
    parser.add_argument("--seconds", type=float, default=10.0, help="of CPU, of each search")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    check_names(parser, given.parts, PARTS)
    found = {part: PARTS[part](given.seconds) for part in given.parts}
    if given.json is not None:
        given.json.write_text(stored({"seconds": given.seconds, **found}, indent=1), encoding="utf-8")
    return int(not all(row["equal"] for row in found.get("search", ())))


if __name__ == "__main__":
    sys.exit(main())
