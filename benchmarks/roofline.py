"""Roofline of a model's kernels: what each does and moves, which resource bounds it, and what share of that it reaches.

`python -m benchmarks.roofline [MODEL[@EXTENTS] ...] [--threads N] [--rows N] [--json]`; `bert_base@4x384` is four
sequences of 384, `lstm_lm@35x8` eight of 35 words (needs torch). By default BERT and the LSTM at their usual sizes.

`flops` are operations of the algorithm that the kernel computes (Winograd's are fewer than the definition's), `moved`
the least bytes of its operands and results, of which weights come from memory where all weights of the model exceed the
second cache. `bound` is the longest of arithmetic, bytes through the caches and weights from memory, at rates measured
on this machine; `reached` its share of the kernel's median time, in a profile of the whole model.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks import models
from benchmarks.provenance import stored
from burnish.base.optional import require
from burnish.driver.compilation import compile_kernels, import_graph, make_module
from burnish.driver.stages import KernelStage
from burnish.frontend.torch.export import import_torch
from burnish.graph.graph import Graph
from burnish.machines.target import target
from burnish.measure.roofline import bound, work_of
from burnish.tune.choices import runs_cold

DEFAULT = (
    *(f"bert_base@{batch}x{sequence}" for batch in (1, 8) for sequence in (16, 64, 128, 384)),
    *(f"lstm_lm@35x{batch}" for batch in (1, 8, 32)),
)
PROFILES, REPEAT = 3, 8  # of each model
WANTED = 0.9  # of the bound


@dataclass(frozen=True)
class KernelBound:
    """A distinct kernel: how often a call runs it, operations and bytes of one run, microseconds in all of a call.

    ``reached``: share of the time that its bound explains; ``lost``: microseconds of a call beyond bound / 0.9.
    """

    kernel: str
    template: str
    calls: int
    flops: float
    moved: int
    resource: str
    bound: float
    microseconds: float

    @property
    def reached(self) -> float:
        """Bound over time."""
        return self.bound / self.microseconds if self.microseconds else 1.0

    @property
    def lost(self) -> float:
        """Microseconds that a kernel at 0.9 of its bound would save."""
        return max(0.0, self.microseconds - self.bound / WANTED)


def graph_of(name: str) -> tuple[Graph, dict[str, np.ndarray]]:
    """A model, where its name says so with an input of other extents, and inputs by name."""
    plain, _, extents = name.partition("@")
    if not extents:
        return import_graph(models.build(plain)), models.inputs(plain, 0)
    torch = require("torch", extra="torch")
    spec = replace(models.INPUTS[plain], shape=tuple(map(int, extents.split("x"))))
    value = spec.draw(np.random.default_rng(0))
    network, _ = models.network(plain)
    graph = import_torch(network, (torch.from_numpy(value),)).graph
    return graph, {graph.inputs[0]: value}


def measured(name: str, threads: int) -> list[KernelBound]:
    """The distinct kernels of a model, those that lose most first."""
    graph, arrays = graph_of(name)
    own = target("cpu", threads=threads)
    rated = target("cpu", rates="measured", threads=threads)
    made = compile_kernels(graph, own)
    module = make_module(made, threads)
    cold = runs_cold(made.graph, own)
    stages = {s.kernel.symbol: s for s in made.stages if isinstance(s, KernelStage)}
    times: dict[str, list[float]] = {}
    calls: dict[str, int] = {}
    for _ in range(PROFILES):
        spent: dict[str, float] = {}
        calls = {}
        for row in module.profile(repeat=REPEAT, **arrays):
            spent[row.kernel] = spent.get(row.kernel, 0.0) + row.microseconds
            calls[row.kernel] = calls.get(row.kernel, 0) + 1
        for kernel, microseconds in spent.items():
            times.setdefault(kernel, []).append(microseconds)
    found = []
    for kernel, spans in times.items():
        stage = stages.get(kernel)
        if stage is None:
            continue
        work = work_of(stage.task)
        least = bound(work, stage.kernel.template, rated, cold)
        found.append(
            KernelBound(
                str(stage.group), stage.kernel.template, calls[kernel], float(work["flops"]), work["moved"],
                least.resource, least.microseconds * calls[kernel], statistics.median(spans),
            )
        )  # fmt: skip
    return sorted(found, key=lambda k: -k.lost)


def summary(name: str, found: list[KernelBound]) -> dict[str, Any]:
    """Share of a model's time that the bounds of its kernels explain, and by which resource the rest is held."""
    total = sum(k.microseconds for k in found)
    held = {r: sum(k.lost for k in found if k.resource == r) / total for r in sorted({k.resource for k in found})}
    return {
        "model": name, "microseconds": round(total, 1), "reached": round(sum(k.bound for k in found) / total, 3),
        "lost": {r: round(share, 3) for r, share in held.items() if share >= 0.005},
    }  # fmt: skip


def show(name: str, found: list[KernelBound], rows: int) -> None:
    """Prints the kernels that lose most."""
    table = Table(title=f"{name}: kernels beside their bounds")
    for heading in ("kernel", "template", "calls", "MFLOP", "MB", "bound by", "bound µs", "µs", "reached"):
        table.add_column(heading, justify="left" if heading in ("kernel", "template", "bound by") else "right")
    for k in found[:rows]:
        table.add_row(
            k.kernel[:40], k.template, str(k.calls), f"{k.flops / 1e6:.2f}", f"{k.moved / 1e6:.2f}", k.resource,
            f"{k.bound:.1f}", f"{k.microseconds:.1f}", f"{k.reached:.2f}",
        )  # fmt: skip
    Console(width=150).print(table)
    print(summary(name, found))


def main() -> None:
    """Prints a table for each model, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=DEFAULT)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rows", type=int, default=8, help="kernels of each table")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    reports = []
    for name in given.names:
        found = measured(name, given.threads)
        if not given.json:
            show(name, found, given.rows)
        kernels = [asdict(k) | {"reached": round(k.reached, 3)} for k in found[: given.rows]]
        reports.append(summary(name, found) | {"kernels": kernels})
    if given.json:
        print(stored({"threads": given.threads, "models": reports}, indent=1))


if __name__ == "__main__":
    main()
