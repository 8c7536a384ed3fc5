"""Programs to lower, and the check that a pass keeps their meaning."""

from collections.abc import Callable

import numpy as np
import pytest

from burnish.loops import tensor as t
from burnish.loops.expr import Expr, Var, all_of, select
from burnish.loops.interpret import run_program
from burnish.loops.program import LoopProgram
from burnish.loops.tensor import compute, create_program, placeholder, reduce_axis
from burnish.loops.verify import verify
from burnish.schedule.schedule import Schedule


def padded_conv(height: int, width: int, kernel: int = 3, pad: int = 1, step: int = 1, channels: int = 4) -> Schedule:
    """y[o, h, v] = sum over (c, r, s) of x, zero outside, times w: padding inlined, nothing else scheduled."""
    x, w = placeholder((2, height, width), name="x"), placeholder((channels, 2, kernel, kernel), name="w")

    def padded(c: Var, h: Var, v: Var) -> Expr:
        inside = all_of(h >= pad, h < height + pad, v >= pad, v < width + pad)
        return select(inside, x[c, h - pad, v - pad], 0.0)

    p = compute((2, height + 2 * pad, width + 2 * pad), padded, "p")
    c, r, s = reduce_axis(2, "c"), reduce_axis(kernel, "r"), reduce_axis(kernel, "s")

    def window(o: Var, h: Var, v: Var) -> Expr:
        return t.sum(p[c.var, h * step + r.var, v * step + s.var] * w[o, c.var, r.var, s.var], (c, r, s))

    out = [(extent + 2 * pad - kernel) // step + 1 for extent in (height, width)]
    y = compute((channels, *out), window, "y")
    schedule = Schedule(create_program("conv", [x, w], [y]))
    schedule.compute_inline("p")
    return schedule


def register_tile(s: Schedule, tile: int) -> Schedule:
    """The convolution of :func:`padded_conv` in register tiles of ``tile`` columns times all channels."""
    acc = s.cache_write("y", "register")
    o, h, v = s.loops("y")
    outer, v = s.split(v, tile)
    s.reorder(h, outer, v, o)
    s.compute_at(acc, outer)
    ao, ah, av, c, row, column = s.loops(acc)
    s.reorder(c, row, column, ah, av, ao)
    io, ih, iv = s.init_loops(acc)
    s.reorder(ih, iv, io)
    for loop in (v, av, iv):
        s.unroll(loop)
    for loop in (o, ao, io):
        s.vectorize(loop)
    return s


@pytest.fixture
def conv() -> Callable[..., Schedule]:
    return padded_conv


@pytest.fixture
def tiled() -> Callable[..., Schedule]:
    """``tiled(schedule, tile)``: see :func:`register_tile`."""
    return register_tile


@pytest.fixture
def same() -> Callable[[LoopProgram, LoopProgram], None]:
    """``same(before, after)``: both are valid and compute the same."""

    def check(before: LoopProgram, after: LoopProgram) -> None:
        verify(after)
        rng = np.random.default_rng(0)
        arrays = {p.name: rng.uniform(-1, 1, p.shape).astype(p.dtype) for p in before.params if p.name != "y"}
        expected, found = run_program(before, arrays), run_program(after, arrays)
        np.testing.assert_allclose(found["y"], expected["y"], rtol=1e-6, atol=1e-6, err_msg=str(after))

    return check
