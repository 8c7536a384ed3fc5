"""An accelerator of one's own from the package's parts: another core, other memories, and one more instruction.

`python examples/integer_accelerator.py`

The core multiplies 8 x 8, its ALU has also a multiplication, so that sums can be requantized by any factor
``m / 2^s`` and not only by powers of two. Everything else follows from the configuration: the encoding, the simulator,
the scopes, the schedule templates and their tiles.
"""

from dataclasses import replace

import numpy as np

import burnish as bn
from burnish.graph import Graph, GraphBuilder
from burnish.graph.evaluate import evaluate
from burnish.machines.target import accelerator
from burnish.machines.vdla.config import ALU, MUL, Config
from burnish.machines.vdla.device import VdlaDevice
from burnish.machines.vdla.machine import machine

EDGE = Config(
    name="edge", block=8, clock=100e6, inp_bytes=8 << 10, wgt_bytes=4 << 10, uop_bytes=4 << 10, acc_bytes=32 << 10,
    dram_bytes=4, alu=(*ALU, MUL),
)  # fmt: skip


def model(random: np.random.Generator) -> Graph:
    """Three convolutions of int8, each requantized by a factor and rounded; the last one is added to the second's."""
    g = GraphBuilder()

    def integers(high: int, *shape: int, dtype: str = "int8") -> str:
        return g.constant(random.integers(-high, high, shape, dtype=dtype))

    def conv(x: str, channels: int, factor: int, shift: int, beside: str = "", stride: int = 1) -> str:
        depth = g.types[x].shape[1]
        y = g.add("conv2d", x, integers(100, channels, depth, 3, 3), pads=(1, 1, 1, 1), strides=(stride, stride))
        y = g.add("mul", g.add("add", y, integers(500, channels, 1, 1, dtype="int32")), g.constant(np.int32(factor)))
        y = g.add("shift_right", g.add("add", y, g.constant(np.int32(1 << shift - 1))), g.constant(np.int32(shift)))
        y = g.add("add", y, g.add("cast", beside, to="int32")) if beside else y
        return g.add("cast", g.add("clip", y, min=-128, max=127), to="int8")

    x = conv(g.input("x", (1, 16, 20, 20), "int8"), 32, 93, 16)
    y = conv(x, 24, 77, 17, stride=2)
    return g.build(conv(y, 24, 57, 17, beside=y))


def main() -> None:
    random, device = np.random.default_rng(0), VdlaDevice(EDGE)
    graph = model(random)
    module = bn.compile(graph, target=accelerator(machine(EDGE, device=lambda: device)))
    x = random.integers(-128, 128, (1, 16, 20, 20), dtype=np.int8)
    (expected,) = evaluate(graph, {"x": x}).values()
    found = module(x)
    for number, run in enumerate(device.runs):
        print(f"convolution {number}: {run.cycles} cycles, the core is busy in {run.utilization:.0%} of them")
    assert len(device.runs) == 3 and (found == expected).all()
    without = replace(EDGE, name="plain", alu=ALU)
    other = VdlaDevice(without)
    bn.compile(graph, target=accelerator(machine(without, device=lambda: other)))(x)
    print(f"exact; without the multiplication {len(other.runs)} of 3 convolutions run on the accelerator")
    assert not other.runs


if __name__ == "__main__":
    main()
