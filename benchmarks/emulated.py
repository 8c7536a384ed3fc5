"""Layers for ARM CPUs in an emulator: right answers, and instructions as the proxy of speed.

`python -m benchmarks.emulated [LAYER ...] [--target aarch64-cortex-a53] [--size 14] [--exact] [--json]`: the
convolutions of the TVM paper's Table 4.2, depthwise ones and products, with images of at most `--size` pixels a side
(0: as they are), or rows likewise. `share` are the instructions that multiply and add vectors or numbers: of all, and
of the block that most instructions are of, the innermost loop. Needs unicorn (`pip install "burnish[emulator]"`).
"""

import argparse
import sys
from dataclasses import asdict, dataclass, replace

import burnish as bn
from benchmarks import harness, layers
from benchmarks.provenance import stored
from burnish.frontend.onnx import from_onnx
from burnish.graph.evaluate import evaluate
from burnish.measure.accuracy import scaled_error
from burnish.runtime.module import Module
from burnish.simulators.emulator import CpuEmulator


@dataclass(frozen=True)
class Row:
    """One layer: instructions, the shares of those that multiply and add, and the error of the largest element."""

    layer: str
    instructions: int
    share: float
    inner_share: float
    error: float


def smaller(layer: layers.Layer, size: int) -> layers.Layer:
    """The layer on fewer pixels or rows; its channels stay, on which schedules depend."""
    if not size:
        return layer
    if isinstance(layer, layers.Product):
        return replace(layer, rows=min(layer.rows, size))
    return replace(layer, size=min(layer.size, size))


def measure(layer: layers.Layer, target: str, exact: bool) -> Row:
    """Runs a layer once in the emulator, and compares it with the definitions of its operators."""
    graph = from_onnx(layers.model(layer))
    array = layers.input_array(layer)
    emulator = CpuEmulator(count=True)
    executable = bn.compile(graph, target=target, threads=1, exact=exact).executable
    found = Module(executable, 1, device=emulator)(array)
    (wanted,) = evaluate(graph, {graph.inputs[0]: array}).values()
    blocks = list(emulator.blocks.values())
    total = sum(b.runs * b.instructions for b in blocks)
    inner = max(blocks, key=lambda b: b.runs * b.instructions)
    share = sum(b.runs * b.multiply_adds for b in blocks) / total
    error = scaled_error([found], [wanted])
    return Row(layer.name, total, share, inner.multiply_adds / inner.instructions, error)


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.emulated", description=__doc__)
    parser.add_argument("names", nargs="*", help="what to run (default: everything)")
    parser.add_argument("--target", default="aarch64-cortex-a53")
    parser.add_argument("--size", type=int, default=14, help="pixels a side, or rows, at most")
    parser.add_argument("--exact", action="store_true", help="no Winograd convolution")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    harness.check_names(parser, arguments.names, layers.LAYERS)
    rows = []
    for name in arguments.names or layers.LAYERS:
        rows.append(measure(smaller(layers.LAYERS[name], arguments.size), arguments.target, arguments.exact))
        if not arguments.json:
            row = rows[-1]
            print(
                f"{row.layer:>4} {row.instructions:>12,} instructions, multiply-adds {row.share:.0%}, "
                f"inner loop {row.inner_share:.0%}, error {row.error:.0e}",
                flush=True,
            )
    if arguments.json:
        print(stored({"target": arguments.target, "size": arguments.size, "rows": [asdict(r) for r in rows]}))
    return int(any(row.error > 1e-4 for row in rows))


if __name__ == "__main__":
    sys.exit(main())
