"""The recorder: look-ups, traces that replay from JSON, and the flow of a blocked convolution template."""

import json

import numpy as np
import pytest

from burnish.loops import tensor as t
from burnish.loops.expr import all_of, maximum, select
from burnish.loops.interpret import run_program
from burnish.loops.layout import layout
from burnish.loops.program import LoopProgram
from burnish.loops.verify import verify
from burnish.schedule.schedule import Schedule, replay


def conv(channels: int, filters: int, size: int) -> LoopProgram:
    """3x3 convolution with padding 1, bias and ReLU."""
    x, w = t.placeholder((1, channels, size, size), name="x"), t.placeholder((filters, channels, 3, 3), name="w")
    b = t.placeholder((filters,), name="b")

    def padded(n, c, h, v):  # type: ignore[no-untyped-def]
        inside = all_of(h >= 1, h < size + 1, v >= 1, v < size + 1)
        return select(inside, x[n, c, h - 1, v - 1], 0.0)

    p = t.compute((1, channels, size + 2, size + 2), padded, "p")
    c, r, s = t.reduce_axis(channels, "ic"), t.reduce_axis(3, "kh"), t.reduce_axis(3, "kw")
    shape = (1, filters, size, size)
    y = t.compute(
        shape,
        lambda n, oc, oh, ow: t.sum(p[n, c.var, oh + r.var, ow + s.var] * w[oc, c.var, r.var, s.var], (c, r, s)),
        "y",
    )
    out = t.compute(shape, lambda n, oc, oh, ow: maximum(y[n, oc, oh, ow] + b[oc], 0.0), "out")
    return t.create_program("conv", [x, w, b], [out])


LAYOUTS = {"x": "ABCD4b", "w": "ABCD4b8a", "b": "A8a", "out": "ABCD4b"}


def blocked_conv(program: LoopProgram, width: int) -> Schedule:
    """The template of the direct convolution, with vectors of 4 and groups of 8 filters."""
    s = Schedule(program)
    s.compute_inline("p")
    for buffer, tag in LAYOUTS.items():
        s.transform_layout(buffer, tag)
    group, rest = s.split("out.oc", 8, ("g", "r"))
    block, lane = s.split(rest, 4, ("b", "l"))
    row, pixel = s.split("out.ow", width)
    s.reorder("out.n", group, "out.oh", row, pixel, block, lane)
    s.compute_at("y", row)
    s.set_scope("y", "register")
    s.split("y.ic", 4)
    for prefix in ("y.", "y.init."):
        s.split(f"{prefix}oc", 4)
        s.vectorize(f"{prefix}oc.i")
        s.unroll(f"{prefix}oc.o")
    s.reorder("y.ic.o", "y.kh", "y.kw", "y.ic.i", "y.ow", "y.oc.o", "y.oc.i")
    s.reorder("y.init.ow", "y.init.oc.o", "y.init.oc.i")
    s.vectorize(lane)
    s.parallel(s.fuse(group, "out.oh", "task"))
    return s


@pytest.mark.parametrize(("channels", "filters", "size", "width"), [(4, 8, 4, 4), (8, 16, 5, 3), (4, 8, 3, 4)])
def test_blocked_convolution_template(channels: int, filters: int, size: int, width: int) -> None:
    program = conv(channels, filters, size)
    s = blocked_conv(program, width)
    verify(s.program)
    rng = np.random.default_rng(0)
    arrays = {p.name: rng.standard_normal(p.shape).astype("float32") for p in program.params}
    expected = run_program(program, arrays)["out"]
    packed = {name: layout(LAYOUTS[name]).pack(a) for name, a in arrays.items()}
    found = run_program(s.program, packed)["out"]
    np.testing.assert_allclose(layout(LAYOUTS["out"]).unpack(found, expected.shape), expected, rtol=1e-4, atol=1e-5)


def test_template_prints_as_written() -> None:
    text = str(blocked_conv(conv(4, 8, 4), 2))
    head, body = text.split("\n", 1)
    assert head == (
        "program conv(x: float32[1, 1, 4, 4, 4], w: float32[1, 1, 3, 3, 4, 8], b: float32[1, 8], "
        "out: float32[1, 2, 4, 4, 4]):"
    )
    loops = [line.strip() for line in body.splitlines() if line.lstrip().startswith(("for", "alloc"))]
    assert loops == [
        "for out.n in 1:",
        "for parallel task in 4:",
        "for out.ow.o in 2:",
        "alloc y: float32[1, 8, 1, 2] @register",
        "for y.init.n in 1:",
        "for y.init.ow in 2:",
        "for unroll y.init.oc.o in 2:",
        "for y.init.oh in 1:",
        "for vectorize y.init.oc.i in 4:",
        "for y.n in 1:",
        "for y.ic.o in 1:",
        "for y.kh in 3:",
        "for y.oh in 1:",
        "for y.kw in 3:",
        "for y.ic.i in 4:",
        "for y.ow in 2:",
        "for unroll y.oc.o in 2:",
        "for vectorize y.oc.i in 4:",
        "for out.ow.i in 2:",
        "for b in 2:",
        "for vectorize l in 4:",
    ]


def test_padding_whole_blocks_changes_nothing() -> None:
    s = Schedule(conv(4, 8, 2))
    before = str(s.program)
    s.pad("out.oc", 4)
    assert str(s.program) == before


def test_padding_channels_makes_whole_blocks() -> None:
    """3 filters in blocks of 4: padded before compute_at, no guard is left."""
    program = conv(4, 3, 2)
    s = Schedule(program)
    s.compute_inline("p")
    for buffer, tag in LAYOUTS.items():
        s.transform_layout(buffer, tag)
    for loop in ("y.init.oc", "y.oc", "out.oc"):
        s.pad(loop, 4)
    s.compute_at("y", "out.n")
    assert not any(line.lstrip().startswith("if") for line in str(s).splitlines())
    assert all(s.extent(loop) == 4 for loop in ("y.init.oc", "y.oc", "out.oc"))
    verify(s.program)
    rng = np.random.default_rng(0)
    arrays = {p.name: rng.standard_normal(p.shape).astype("float32") for p in program.params}
    expected = run_program(program, arrays)["out"]
    found = run_program(s.program, {n: layout(LAYOUTS[n]).pack(a) for n, a in arrays.items()})["out"]
    np.testing.assert_allclose(layout(LAYOUTS["out"]).unpack(found, expected.shape), expected, rtol=1e-4, atol=1e-5)


def test_trace_survives_json() -> None:
    program = conv(4, 8, 4)
    s = blocked_conv(program, 2)
    assert replay(program, json.loads(json.dumps(s.trace))) == s.program


def test_lookups() -> None:
    s = Schedule(conv(4, 8, 4))
    assert s.stages() == ["p", "y", "out"]
    assert s.loops("y") == ["y.n", "y.oc", "y.oh", "y.ow", "y.ic", "y.kh", "y.kw"]
    assert s.init_loops("y") == ["y.init.n", "y.init.oc", "y.init.oh", "y.init.ow"]
    assert s.init_loops("out") == []
    assert s.extent("y.ic") == 4
    s.compute_at("y", "out.oh")
    assert s.enclosing("y") == ["out.n", "out.oc", "out.oh"]
    assert s.loops("y")[0] == "y.n"


def test_stages_inlined_together_are_those_inlined_one_by_one() -> None:
    x = t.placeholder((6, 8), name="x")
    a = t.compute((6, 10), lambda i, j: select(all_of(j >= 1, j < 9), x[i, j - 1], 0.0), "a")
    b = t.compute((6, 10), lambda i, j: maximum(a[i, j] * 2.0, 0.0), "b")
    c = t.compute((6, 8), lambda i, j: b[i, j] + a[i, j + 2] * b[i, j + 1], "c")
    program = t.create_program("chain", [x], [c])
    one, both = Schedule(program), Schedule(program)
    one.compute_inline("a")
    one.compute_inline("b")
    both.compute_inline("b", "a")  # in any order
    assert str(both) == str(one) and "alloc" not in str(both)
    assert str(replay(program, json.loads(json.dumps(both.trace)))) == str(both)
    both.compute_inline()
    assert len(both.trace) == 1
