"""Memory budgets of graph networks: whole graphs of full size within stated budgets, and plans against their baselines.

Parts of `python -m benchmarks.gnn memory budgets`. Every training is a process of its own, whose resident peak is
measured; so is the generation of its graph, which goes piece by piece into a file.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import burnish as bn
from burnish.base.sizes import parse_budget
from burnish.errors import ParameterError
from burnish.fitting.fit import fit
from burnish.gnn.data.regions import peak_bytes
from burnish.gnn.model.models import network
from burnish.gnn.run.train import GraphOptions
from burnish.memory.swap import PLANNERS

Row = dict[str, Any]
BUDGETS = 10
BASELINES = ("streaming", "lru", "lru drop dead")
LEAST_RATIO = 1.4  # of what streaming and LRU by history move, over the best plan, at the tightest budget (figure 4.10)
NO_BUDGET = "none"
SHARE = 0.6  # of the memory that is free, up to which a training without a budget is tried


@dataclass(frozen=True)
class Case:
    """A network on a data set's whole graph, and the budget that it is to be trained within at full size."""

    data: str
    network: str
    layers: int
    hidden: int
    budget: str


CASES = (
    Case("reddit", "gcn", 2, 128, "700MB"),
    Case("reddit", "gcn", 4, 256, "2GB"),
    Case("reddit", "gat", 2, 128, "2GB"),
    Case("amazon", "gcn", 2, 128, "6GB"),
)


def memory(arguments: argparse.Namespace) -> list[Row]:
    """Each case within its budget, after the generation of its graph; and without, where there is memory for it."""
    rows: list[Row] = []
    chosen = [case for case in CASES if arguments.data in ("all", case.data)]
    for data, cases in itertools.groupby(chosen, key=lambda case: case.data):
        with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
            path = Path(folder) / "graph.bngraph"
            rows.append({"data": data, "scale": arguments.scale, **generated(path, data, arguments)})
            for case in cases:
                found = child(path, case, case.budget, arguments)
                rows.append(found)
                if "refused" not in found and found["everything MB"] * 1e6 < SHARE * free_bytes():
                    rows.append(child(path, case, NO_BUDGET, arguments))
    return rows


def budgets(arguments: argparse.Namespace) -> list[Row]:
    """Ten budgets from the least possible one on; the baselines at the tightest; and one that is too small."""
    case = Case("reddit", arguments.network, arguments.layers, arguments.hidden, arguments.memory_budget)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        path = Path(folder) / "graph.bngraph"
        generated(path, case.data, arguments)
        first = child(path, case, case.budget, arguments)
        if "refused" in first:
            return [first]
        least, most = first["least MB"], first["everything MB"]
        many = np.linspace(1.02 * least, max(most, 1.1 * least), BUDGETS)
        rows = [child(path, case, f"{budget:.0f}MB", arguments) for budget in many]
        tight = [child(path, case, rows[0]["budget"], arguments, planner) for planner in BASELINES]
        refused = child(path, case, f"{0.8 * least:.0f}MB", arguments)
        return [first, *rows, *tight, refused]


def generated(path: Path, data: str, arguments: argparse.Namespace) -> Row:
    """The graph in a file, made in a process of its own: its peak, and its seconds."""
    options = [f"--{name}={getattr(arguments, name)}" for name in ("scale", "threads")]
    return run_child([*options, "--generate", data, str(path)])


def write(arguments: argparse.Namespace) -> Row:
    """The process of ``generated``: a data set drawn and written in pieces, with its resident peak."""
    data, path = arguments.generate
    began = time.monotonic()
    bn.gnn.write_dataset(path, data, threads=arguments.threads, scale=arguments.scale)
    seconds, file = time.monotonic() - began, bn.gnn.GraphFile.open(path)
    return {
        "what": "generation", "vertices": file.vertices, "edges": file.edges, "peak MB": peak_bytes() / 1e6,
        "s": seconds, "file MB": Path(path).stat().st_size / 1e6,
    }  # fmt: skip


def child(path: Path, case: Case, budget: str, arguments: argparse.Namespace, planner: str = "best") -> Row:
    """One training in a new process."""
    more = [f"--{name}={getattr(case, name)}" for name in ("hidden", "network", "layers")]
    more += [f"--{name}={getattr(arguments, name)}" for name in ("rounds", "threads")]
    more += [f"--planner={planner}", *([f"--folder={arguments.folder}"] if arguments.folder else [])]
    found = run_child([*more, "--child", str(path), budget])
    return {"data": case.data, "scale": arguments.scale, **found}


def run_child(options: list[str]) -> Row:
    """Runs `benchmarks.gnn` with these options in a subprocess, and parses the JSON that it prints."""
    command = [sys.executable, "-m", "benchmarks.gnn", *options]
    found = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    result: Row = json.loads(found.stdout.splitlines()[-1])
    return result


def trained_within(arguments: argparse.Namespace) -> Row:
    """The process of ``child``: training for some epochs; resident peak, seconds, bytes moved by each planner."""
    path, budget = arguments.child
    file = bn.gnn.GraphFile.open(path)
    width, shape = file.sections["features"].shape[1], {"hidden": arguments.hidden, "depth": arguments.layers}
    net = network(arguments.network, width, file.classes, **shape)
    marks: list[tuple[float, float]] = []
    steps: list[Any] = []
    row: Row = {"what": str(net), "budget": budget, "planner": arguments.planner}

    def note(now: Any) -> None:
        if now.evaluation is None:
            marks.append((now.seconds, time.process_time()))

    def begin(step: Any) -> None:
        steps.append(step)
        marks.append((0.0, time.process_time()))

    try:
        train = bn.Train(optimizer=bn.Adam(0.01), memory_budget=None if budget == NO_BUDGET else budget)
        options = GraphOptions(planner=arguments.planner, folder=arguments.folder)
        found = fit(
            net, path, train, epochs=arguments.rounds, threads=arguments.threads, graph_options=options,
            evaluate_every=10**6, progress=note, on_step=begin,
        )  # fmt: skip
    except ParameterError as error:
        return {**row, "refused": str(error)}
    (step,) = steps
    epochs = np.diff(np.array(marks), axis=0)
    row |= {
        "peak MB": peak_bytes() / 1e6, "epoch s": float(np.median(epochs[:, 0])),
        "epoch CPU s": float(np.median(epochs[:, 1])), "losses": [float(loss) for loss in found.report.losses],
        "load": os.getloadavg()[0],
    }  # fmt: skip
    if budget == NO_BUDGET:
        return row
    problem, capacity = step.problem, step.capacity
    moved = {f"{name} MB": make(problem, capacity).moved / 1e6 for name, make in PLANNERS.items()}
    return row | {
        "least MB": step.least / 1e6, "everything MB": (step.budget - capacity + sum(problem.nbytes.values())) / 1e6,
        "moved MB": (step.moved.loaded + step.moved.stored) / 1e6, **moved,
    }  # fmt: skip


def free_bytes() -> float:
    """Main memory that is there for a new process."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith("MemAvailable"))) * 1024


# --- promises ---------------------------------------------------------------------------------------------------------


def over(rows: list[Row]) -> list[str]:
    """Cases that are refused, whose peak, or that of the generation, is above the budget, or whose losses differ."""
    found, peaks = [], dict[str, float]()
    wanted: dict[str, list[float]] = {row["what"]: row["losses"] for row in rows if row.get("budget") == NO_BUDGET}
    for row in rows:
        if row["what"] == "generation":
            peaks[row["data"]] = row["peak MB"]
            continue
        name = f"{row['data']}, {row['what']}"
        if "refused" in row:
            found.append(f"{name}: {row['refused']}")
        elif row["budget"] != NO_BUDGET:
            found += above(name, row)
            if peaks[row["data"]] > megabytes(row["budget"]):
                found.append(f"{row['data']}: generation: peak {peaks[row['data']]:.0f} MB of {row['budget']}")
            expected = wanted.get(row["what"]) or row["losses"]
            if not np.allclose(row["losses"], expected, rtol=1e-5):
                found.append(f"{name}: losses {row['losses']}; allowed: {expected}")
    return found


def broken(rows: list[Row]) -> list[str]:
    """Promises of memory budgets that rows break: peaks above them, more moved with more memory, no refusal."""
    if len(rows) < 2:
        return [row["refused"] for row in rows]
    ran = [row for row in rows if "refused" not in row]
    plans = [row for row in ran if row["planner"] == "best"][1:]
    found = [text for row in ran for text in above(f"{row['budget']}, {row['planner']}", row)]
    found += [
        f"{more['budget']} moves {more['best MB']:.0f} MB, {less['budget']} moved {less['best MB']:.0f}"
        for less, more in itertools.pairwise(plans) if more["best MB"] > less["best MB"] + 1e-6
    ]  # fmt: skip
    if "allowed:" not in rows[-1].get("refused", ""):
        found.append(f"{rows[-1]['budget']} was not refused")
    found += [
        f"{name} moves {plans[0][f'{name} MB']:.0f} MB, the best plan {plans[0]['best MB']:.0f}"
        for name in ("streaming", "lru") if plans[0][f"{name} MB"] < LEAST_RATIO * plans[0]["best MB"]
    ]  # fmt: skip
    losses = np.array([row["losses"] for row in ran])
    spread = float((losses.max(axis=0) / losses.min(axis=0) - 1).max())
    return found + ([f"losses that differ by {spread:.1e}"] if spread > 1e-5 else [])


def above(name: str, row: Row) -> list[str]:
    """A peak above its budget."""
    fits = row["peak MB"] <= megabytes(row["budget"])
    return [] if fits else [f"{name}: peak {row['peak MB']:.0f} MB of {row['budget']}"]


def megabytes(text: str) -> float:
    """Megabytes of a budget as written on the command line."""
    return parse_budget("budget", text) / 1e6
