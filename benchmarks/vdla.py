"""ResNet-18 in int8 on the decoupled accelerator: every layer with and without virtual threads, and the whole network.

    python -m benchmarks.vdla [--image N] [--json FILE] [--svg FILE]

Layers (thesis-chen Figure 4.10): utilization of the core by the best tile of one thread, and of two virtual threads,
each compared with NumPy bit by bit. The network (Figure 4.19): its offloaded convolutions in simulated time beside a
Cortex-A9 at 667 MHz, modelled as `CortexA9` says; the rest on the CPU is modelled so too. Fails where a result differs,
a layer is slower with virtual threads, peak utilization with them is under 88 %, or offloaded layers are not 40 times
as fast.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import burnish as bn
from benchmarks.provenance import stored
from benchmarks.quantized import (
    Layer,
    Weights,
    blocks,
    drawn,
    graph_of,
    graph_of_layer,
    least_shift,
    network,
    requantized,
    sums,
)
from benchmarks.vdla_roofline import Point, roofline
from burnish.kernels.task import ScheduleSpace
from burnish.kernels.vdla import CONVOLUTION
from burnish.kernels.vdla.tiling import best_tile
from burnish.machines.target import Target, target
from burnish.machines.vdla.config import Config
from burnish.machines.vdla.device import Run, VdlaDevice

CONFIG = Config()
THREADS = {"serial": (1,), "virtual": (1, 2)}
ALLOWED_PEAK = 0.88
ALLOWED_SPEEDUP = 40.0


@dataclass(frozen=True)
class CortexA9:
    """One core of the CPU of the board. Its NEON unit multiplies and adds two float32 numbers a cycle; good kernels
    reach ``efficiency`` of that. Other layers take ``cycles`` for each element that they write.
    """

    clock: float = 667e6
    products: float = 2.0
    efficiency: float = 0.6
    cycles: float = 2.0

    def convolution(self, layer: Layer) -> float:
        """Seconds of a convolution."""
        return layer.products / (self.clock * self.products * self.efficiency)

    def elements(self, count: int) -> float:
        """Seconds of an element-wise layer or pooling."""
        return count * self.cycles / self.clock


def with_device(device: VdlaDevice, threads: Sequence[int]) -> Target:
    """The accelerator with tiles of these numbers of threads only."""
    machine = target("vdla")

    def space(task: Any, there: Target, form: Any) -> ScheduleSpace:
        best = best_tile(form.work, there.machine.config, tuple(threads))
        assert best is not None
        return ScheduleSpace({}, best.choice)

    own = machine.machine
    changed = own.with_(
        device=lambda: device, templates=(replace(CONVOLUTION, space=space),), version=f"{own.version} {threads}"
    )
    return replace(machine, machine=changed)


def run_layer(layer: Layer, random: np.random.Generator) -> dict[str, Any]:
    """A layer of random weights with and without virtual threads. Fails where a result differs."""
    x = random.integers(-128, 128, (1, layer.inputs, layer.size, layer.size), dtype=np.int8)
    raw = drawn(layer, random)
    total = sums(layer, x, raw)
    weights = Weights(raw.weight, raw.bias, least_shift(total))
    expected = requantized(layer, total, weights.shift, x if layer.added else None)
    graph = graph_of_layer(layer, weights)
    row: dict[str, Any] = {"name": layer.name, "products": layer.products}
    for name, threads in THREADS.items():
        device = VdlaDevice()
        module = bn.compile(graph, target=with_device(device, threads), threads=1)
        begin = time.process_time()
        found = module(x)
        seconds = time.process_time() - begin
        run: Run = device.runs[0]
        choice = next(k["choice"] for k in module.executable.info["kernels"] if k["template"] == CONVOLUTION.name)
        row[name] = {
            **asdict(run), "utilization": run.utilization, "choice": choice, "exact": bool((found == expected).all()),
            "simulated_mcycles_a_second": run.cycles / 1e6 / seconds,
        }  # fmt: skip
    return row


def layers_of(image: int) -> list[Layer]:
    """The different convolutions that are offloaded."""
    found: dict[Layer, Layer] = {}
    for layer in (each for block in blocks(image) for each in block):
        found.setdefault(replace(layer, name=""), layer)
    return list(found.values())


def run_network(image: int, cpu: CortexA9) -> dict[str, Any]:
    """The network on the accelerator and the CPU, every convolution and the result compared."""
    made = network(image)
    device = VdlaDevice()
    tapped = bn.compile(graph_of(made, taps=True), target=with_device(device, THREADS["virtual"]), threads=1)
    result, *taps = tapped(made.sample)
    exact = [bool(np.array_equal(tap, made.results[name])) for tap, name in zip(taps, made.results, strict=True)]
    device.runs.clear()
    module = bn.compile(graph_of(made), target=with_device(device, THREADS["virtual"]), threads=1)
    same = np.array_equal(module(made.sample), result)
    plain = bn.compile(graph_of(made), threads=1)(made.sample)
    layers = [each for block in blocks(image) for each in block]
    first = Layer("first", 3, 64, image, 7, 2)
    accelerated = sum(run.cycles for run in device.runs) / CONFIG.clock
    by_cpu = sum(map(cpu.convolution, layers))
    pool = cpu.elements(64 * (image // 4) ** 2 * 9)
    classifier = 512 * 1000 / (cpu.clock * cpu.products * cpu.efficiency)
    rest = cpu.convolution(first) + pool + classifier
    return {
        "offloaded": len(device.runs), "exact": exact, "same": bool(same),
        "error": float(abs(plain - result).max() / abs(plain).max()),
        "first_convolution_seconds": cpu.convolution(first), "pool_and_classifier_seconds": pool + classifier,
        "convolutions_cpu_seconds": by_cpu, "convolutions_accelerator_seconds": accelerated,
        "speedup_of_offloaded": by_cpu / accelerated, "speedup_of_all": (by_cpu + rest) / (accelerated + rest),
        "cycles": sum(run.cycles for run in device.runs), "dram_bytes": sum(run.bytes for run in device.runs),
    }  # fmt: skip


def points(rows: Sequence[dict[str, Any]], kind: str) -> list[Point]:
    """Operations per byte of DRAM, and operations a second, of each layer."""
    return [
        Point(
            row["name"],
            2 * row["products"] / row[kind]["bytes"],
            2 * row["products"] / row[kind]["cycles"] * CONFIG.clock / 1e9,
        )
        for row in rows
    ]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--image", type=int, default=224, help="rows and columns of the image")
    parser.add_argument("--json", type=Path, help="where to write the numbers")
    parser.add_argument("--svg", type=Path, help="where to draw the roofline")
    arguments = parser.parse_args()
    random, cpu = np.random.default_rng(0), CortexA9()
    rows = []
    print(f"{'layer':14}{'serial':>9}{'virtual':>9}   busy load, compute, store with virtual threads")
    for layer in layers_of(arguments.image):
        rows.append(row := run_layer(layer, random))
        one, two = row["serial"], row["virtual"]
        busy = ", ".join(f"{n / two['cycles']:.0%}" for n in two["busy"])
        print(f"{row['name']:14}{one['utilization']:9.1%}{two['utilization']:9.1%}   {busy}", flush=True)
    peaks = {kind: max(row[kind]["utilization"] for row in rows) for kind in THREADS}
    print(f"{'peak':14}{peaks['serial']:9.1%}{peaks['virtual']:9.1%}")
    means = {k: sum(r[k]["products"] for r in rows) / sum(r[k]["cycles"] for r in rows) for k in THREADS}
    print(f"{'of all cycles':14}{means['serial']:9.1%}{means['virtual']:9.1%}")
    whole = run_network(arguments.image, cpu)
    for name, value in whole.items():
        if name != "exact":
            print(f"{name:36}{value:.6g}" if isinstance(value, float) else f"{name:36}{value}")
    if arguments.svg:
        rate = CONFIG.bandwidth / 1e9
        arguments.svg.write_text(
            roofline(CONFIG.operations / 1e9, rate, {kind: points(rows, kind) for kind in THREADS}), encoding="utf-8"
        )
    if arguments.json:
        facts = {"config": str(CONFIG), "cortex_a9": asdict(cpu), "peaks": peaks, "means": means}
        arguments.json.write_text(stored({**facts, "layers": rows, "network": whole}, indent=1) + "\n", "utf-8")
    bars = {
        "a layer differs": all(row[kind]["exact"] for row in rows for kind in THREADS),
        "the network differs": all(whole["exact"]) and whole["same"] and whole["error"] < 1e-5,
        "a layer is slower with virtual threads": all(r["virtual"]["cycles"] <= r["serial"]["cycles"] for r in rows),
        "peak utilization is too low": peaks["virtual"] >= ALLOWED_PEAK,
        "the speedup is too low": whole["speedup_of_offloaded"] >= ALLOWED_SPEEDUP,
        "a number is none": math.isfinite(whole["speedup_of_all"]),
    }
    missed = [what for what, held in bars.items() if not held]
    if missed:
        sys.exit("; ".join(missed))


if __name__ == "__main__":
    main()
