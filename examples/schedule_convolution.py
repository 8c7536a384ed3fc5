"""Define a convolution as an expression, schedule it, compile it, run it. `python examples/schedule_convolution.py`"""

import time

import numpy as np

from burnish.loops.evaluate import evaluate
from burnish.loops.expr import Expr, Var, all_of, maximum, select
from burnish.loops.layout import Layout, layout
from burnish.loops.program import LoopProgram
from burnish.loops.tensor import Tensor, compute, create_program, placeholder, reduce_axis
from burnish.loops.tensor import sum as sum_over
from burnish.machines.target import host
from burnish.pipeline.kernel import compile_program
from burnish.runtime.build import build
from burnish.runtime.executable import KernelCall, Slot, TensorSpec
from burnish.runtime.host import fingerprint
from burnish.runtime.module import Module
from burnish.schedule.schedule import Schedule

CHANNELS, OUTPUTS, SIZE = 64, 64, 28
TILE = 14 if host().vector_registers >= 32 else 4  # output columns of a register tile: two accumulators each


def convolution() -> tuple[Tensor, Tensor, Tensor]:
    """x, w, and y[c, h, v] = relu(sum over (i, r, s) of x padded by one, times w)."""
    x, w = placeholder((CHANNELS, SIZE, SIZE), name="x"), placeholder((OUTPUTS, CHANNELS, 3, 3), name="w")

    def padded(c: Var, h: Var, v: Var) -> Expr:
        inside = all_of(h >= 1, h < SIZE + 1, v >= 1, v < SIZE + 1)
        return select(inside, x[c, h - 1, v - 1], 0.0)

    pad = compute((CHANNELS, SIZE + 2, SIZE + 2), padded, "pad")
    i, r, s = reduce_axis(CHANNELS, "i"), reduce_axis(3, "r"), reduce_axis(3, "s")

    def window(c: Var, h: Var, v: Var) -> Expr:
        return sum_over(pad[i.var, h + r.var, v + s.var] * w[c, i.var, r.var, s.var], (i, r, s))

    conv = compute((OUTPUTS, SIZE, SIZE), window, "conv")
    return x, w, compute(conv.shape, lambda c, h, v: maximum(conv[c, h, v], 0.0), "y")


def schedule(program: LoopProgram) -> Schedule:
    """Register tiles of some columns times two vectors of channels, in parallel over channel groups and rows."""
    lanes = host().lanes
    s = Schedule(program)
    s.compute_inline("pad")  # the padding becomes a condition in the convolution

    # Layouts: activations in blocks of channels, weights so that a step reads consecutive vectors.
    s.transform_layout("x", f"ABC{lanes}a")
    s.transform_layout("y", f"ABC{lanes}a")
    s.transform_layout("w", f"ABCD{lanes}b{2 * lanes}a")

    # The output: groups of channels and rows outside, a tile of columns and channels inside.
    c, h, v = s.loops("y")
    group, c = s.split(c, 2 * lanes)
    half, lane = s.split(c, lanes)
    tile, v = s.split(v, TILE)
    s.reorder(group, h, tile, v, half, lane)
    s.unroll(v)
    s.unroll(half)
    s.vectorize(lane)

    # The convolution: computed for one tile at a time, in registers, over the whole window.
    s.compute_at("conv", tile)
    s.set_scope("conv", "register")
    for c, h, v, *window in (s.init_loops("conv"), s.loops("conv")):
        half, lane = s.split(c, lanes)
        if window:
            i, r, q = window
            block, i = s.split(i, lanes)
            window = [block, r, q, i]  # as the input and the weights lie in memory
        s.reorder(*window, h, v, half, lane)
        s.unroll(v)
        s.unroll(half)
        s.vectorize(lane)
    s.parallel(s.fuse(*s.loops("y")[:2]))
    return s


def module_of(program: LoopProgram) -> Module:
    """One kernel as a callable module: x and w in, y out."""
    machine = host()
    kernel = compile_program(program, machine, {}, "example", {})
    x, w, y = (TensorSpec(p.name, p.shape, p.dtype) for p in program.params)
    places = Slot("input", 0, 0, x.nbytes), Slot("input", 1, 0, w.nbytes), Slot("output", 0, 0, y.nbytes)
    call = KernelCall(kernel.symbol, places, "conv")
    return Module(
        build(
            inputs=[x, w], outputs=[y], steps=[call], objects={kernel.symbol: kernel.code},
            params=np.empty(0, np.uint8), arena_bytes=0, scratch_bytes=kernel.scratch_bytes,
            target=fingerprint(machine.triple, machine.cpu, machine.features),
        ),
        threads=1,
    )  # fmt: skip


def layout_of(s: Schedule, buffer: str) -> Layout:
    """The layout that the schedule gave to a buffer."""
    return next(layout(args[1]) for name, args in s.trace if name == "transform_layout" and args[0] == buffer)


def gflops(module: Module, *arrays: np.ndarray) -> float:
    """Billions of operations a second, of the fastest of many calls."""
    best = float("inf")
    for _ in range(20):
        start = time.perf_counter()
        module(*arrays)
        best = min(best, time.perf_counter() - start)
    return 2 * 9 * CHANNELS * OUTPUTS * SIZE * SIZE / best / 1e9


def main() -> None:
    x, w, y = convolution()
    naive = create_program("conv", [x, w], [y])
    print("The definition, as loops:\n", naive, sep="\n")
    scheduled = schedule(naive)
    print("The same, scheduled:\n", scheduled, sep="\n")
    print(f"The schedule is data, {len(scheduled.trace)} calls:", *scheduled.trace[:4], "...\n", sep="\n  ")

    random = np.random.default_rng(0)
    values = {t.name: random.standard_normal(t.shape).astype("float32") for t in (x, w)}
    expected = evaluate([y], values)[0]

    plain = module_of(naive)
    error = abs(plain(values["x"], values["w"]) - expected).max()
    print(f"as defined: {gflops(plain, values['x'], values['w']):7.1f} GFLOP/s, max error {error:.1e}")

    packed = {name: layout_of(scheduled, name).pack(array) for name, array in values.items()}
    fast = module_of(scheduled.program)
    result = layout_of(scheduled, "y").unpack(fast(packed["x"], packed["w"]), y.shape)
    error = abs(result - expected).max()
    print(f"scheduled:  {gflops(fast, packed['x'], packed['w']):7.1f} GFLOP/s, max error {error:.1e} (one thread)")
    assert error < 1e-4 * abs(expected).max()


if __name__ == "__main__":
    main()
