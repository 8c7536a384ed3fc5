"""Every primitive's docstring shows real text: a program before it and the same program after it."""

import inspect
import textwrap
from collections.abc import Callable

import numpy as np
import pytest

from burnish.loops import tensor as t
from burnish.loops.expr import Const, cast, equal, select
from burnish.loops.interpret import run_program
from burnish.loops.program import LoopProgram
from burnish.loops.verify import verify
from burnish.machines.intrinsics import reference
from burnish.machines.x86.dot import DOT_U8S8_I32
from burnish.schedule import (
    expand,
    loops,
    memory,
    padding,
    partition,
    pipeline,
    precompute,
    prefetch,
    reduce,
    scatter,
    stages,
    tensorize,
)


def double(n: int) -> LoopProgram:
    x = t.placeholder((n,), name="x")
    return t.create_program("double", [x], [t.compute((n,), lambda i: x[i] * 2.0, "y")])


def double2(rows: int, columns: int) -> LoopProgram:
    a = t.placeholder((rows, columns), name="a")
    return t.create_program("double2", [a], [t.compute((rows, columns), lambda i, j: a[i, j] * 2.0, "c")])


def ones() -> LoopProgram:
    return t.create_program("ones", [], [t.compute((8, 8), lambda i, j: 1.0, "c")])


def outer_sum() -> LoopProgram:
    a, b = t.placeholder((8, 4), name="a"), t.placeholder((8, 4), name="b")
    k = t.reduce_axis(8, "k")
    c = t.compute((4, 4), lambda i, j: t.sum(a[k.var, i] * b[k.var, j], k), "c")
    return t.create_program("outer_sum", [a, b], [c])


def window() -> LoopProgram:
    x = t.placeholder((10,), name="x")
    p = t.compute((10,), lambda i: x[i] * 2.0, "p")
    return t.create_program("window", [x], [t.compute((8, 3), lambda i, j: p[i + j], "y")])


def two_steps() -> LoopProgram:
    x = t.placeholder((8, 4), name="x")
    p = t.compute((8, 4), lambda i, j: x[i, j] * 2.0, "p")
    return t.create_program("two_steps", [x], [t.compute((8, 4), lambda i, j: p[i, j] + 1.0, "y")])


def shifted() -> LoopProgram:
    x = t.placeholder((10,), name="x")
    y = t.compute((10,), lambda i: select(i >= 1, x[i - 1], 0.0), "y")
    return t.create_program("shifted", [x], [y])


def row_sum() -> LoopProgram:
    x = t.placeholder((4, 16), name="x")
    k = t.reduce_axis(16, "k")
    s = t.compute((4,), lambda i: t.sum(x[i, k.var], k), "s")
    return loops.split(t.create_program("row_sum", [x], [s]), "s.k", 8)


def butterfly() -> LoopProgram:
    x, k = t.placeholder((2,), name="x"), t.reduce_axis(2, "k")
    rows = [select(equal(k.var, 0), 1.0, factor) for factor in (Const(3.0, "float32"), Const(-3.0, "float32"))]
    s = t.compute((2,), lambda i: t.sum(select(equal(i, 0), *rows) * x[k.var], k), "s")
    return t.create_program("butterfly", [x], [s])


def histogram() -> LoopProgram:
    x, index, k = t.placeholder((5,), name="x"), t.placeholder((5,), "int64", "index"), t.reduce_axis(5, "k")
    y = t.compute((8,), lambda i: t.sum(select(equal(index[k.var], i), x[k.var], 0.0), k), "y")
    return t.create_program("histogram", [x, index], [y])


def heads() -> LoopProgram:
    a, b = t.placeholder((100, 8), name="a"), t.placeholder((8,), name="b")
    x, e = t.placeholder((100, 8, 16), name="x"), t.reduce_axis(100, "e")
    y = t.compute((8, 16), lambda h, d: t.sum((a[e.var, h] + b[h]) * x[e.var, h, d], e), "y")
    return loops.reorder(t.create_program("heads", [a, b, x], [y]), "y.e", "y.h", "y.d")


def int8_dot() -> LoopProgram:
    x, w = t.placeholder((4,), "uint8", "x"), t.placeholder((16, 4), "int8", "w")
    k = t.reduce_axis(4, "k")
    y = t.compute((16,), lambda i: t.sum(cast("int32", x[k.var]) * cast("int32", w[i, k.var]), k), "y")
    return t.create_program("int8_dot", [x, w], [y])


def blocked() -> LoopProgram:
    return memory.transform_layout(memory.transform_layout(double2(4, 24), "a", "AB16b"), "c", "AB16b")


Primitive = Callable[..., LoopProgram]
EXAMPLES: list[tuple[Primitive, LoopProgram, tuple[object, ...]]] = [
    (loops.split, double(10), ("y.i", 4)),
    (loops.stride, double(10), ("y.i", 4)),
    (loops.tile, ones(), ("c.i", "c.j", 4, 4)),
    (loops.fuse, double2(4, 8), ("c.i", "c.j", "ij")),
    (loops.reorder, outer_sum(), ("c.k", "c.i", "c.j")),
    (loops.reverse, double2(4, 8), ("c.i",)),
    (loops.unroll, double2(4, 8), ("c.i",)),
    (loops.vectorize, double2(4, 8), ("c.j",)),
    (loops.parallel, double2(4, 8), ("c.i",)),
    (loops.bind, double2(4, 8), ("c.i", "blockIdx.x")),
    (loops.vthread, double2(4, 8), ("c.i",)),
    (loops.copy_async, double2(4, 8), ("c.j",)),
    (pipeline.pipeline, stages.compute_at(two_steps(), "p", "y.i"), ("y.i", 3)),
    (stages.compute_at, window(), ("p", "y.i")),
    (stages.compute_inline, window(), ("p",)),
    (stages.reverse_compute_at, two_steps(), ("y", "p.i")),
    (memory.cache_write, double2(4, 8), ("c", "register")),
    (memory.cache_read, double2(4, 8), ("a", "shared", "c")),
    (memory.set_scope, window(), ("p", "local")),
    (memory.transform_layout, double2(4, 32), ("c", "AB16b")),
    (memory.hoist_alloc, stages.compute_at(window(), "p", "y.i"), ("p", "y.i")),
    (padding.pad, blocked(), ("c.j", 16)),
    (padding.fill, window(), ("p.i", 4)),
    (prefetch.prefetch, double2(8, 32), ("a", "c.i", "c.i")),
    (partition.partition, shifted(), ("y.i", 1)),
    (partition.peel, shifted(), ("y.i", 1)),
    (partition.distribute, stages.reverse_compute_at(two_steps(), "y", "p.i"), ("p.i",)),
    (reduce.rfactor, row_sum(), ("s", "s.k.i")),
    (expand.expand, butterfly(), ("s",)),
    (scatter.scatter, histogram(), ("y.i",)),
    (precompute.precompute, heads(), ("y", "y.e", "y.d")),
    (tensorize.tensorize, int8_dot(), ("y.i", DOT_U8S8_I32)),
]


def example_of(primitive: Primitive) -> str:
    """The literal block of the docstring."""
    doc = inspect.getdoc(primitive) or ""
    return textwrap.dedent(doc.split("::\n\n", 1)[1])


def body_of(program: LoopProgram) -> str:
    return textwrap.dedent(str(program).split("\n", 1)[1])


@pytest.mark.parametrize(("primitive", "program", "args"), EXAMPLES, ids=lambda v: getattr(v, "__name__", ""))
def test_docstring_shows_before_and_after(primitive: Primitive, program: LoopProgram, args: tuple[object, ...]) -> None:
    assert example_of(primitive).strip() == f"{body_of(program)}\n{body_of(primitive(program, *args))}".strip()


@pytest.mark.parametrize(("primitive", "program", "args"), EXAMPLES, ids=lambda v: getattr(v, "__name__", ""))
def test_example_computes_the_same(primitive: Primitive, program: LoopProgram, args: tuple[object, ...]) -> None:
    changed = primitive(program, *args)
    verify(changed)
    if primitive is memory.transform_layout:
        return  # the output is arranged differently: see test_semantics
    rng = np.random.default_rng(0)
    arrays = {p.name: (rng.random(p.shape) * 9).astype(p.dtype) for p in program.params}
    before = run_program(program, arrays)
    after = run_program(changed, arrays, intrinsics={DOT_U8S8_I32.name: reference(DOT_U8S8_I32)})
    for name, array in before.items():
        if primitive is padding.pad:
            array, after[name] = array[:, 0], after[name][:, 0]
        np.testing.assert_allclose(after[name], array, rtol=1e-6)
