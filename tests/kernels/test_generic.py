"""The generic schedule: reductions, norms and maps of sizes that are and are not whole vectors."""

from __future__ import annotations

import pytest

from burnish.kernels.cpu.generic import GENERIC
from burnish.kernels.cpu.transpose import TRANSPOSE
from burnish.kernels.task import KernelTask
from burnish.loops.expr import Load, select
from burnish.loops.layout import layout
from burnish.loops.program import For, Store, walk_stmt
from burnish.loops.tensor import compute, placeholder
from burnish.loops.traverse import walk
from burnish.machines.target import host, target
from burnish.ops import OPERATORS


def define(op, *shapes, **attrs):
    return OPERATORS[op].define("y", [placeholder(s, name=f"x{i}") for i, s in enumerate(shapes)], attrs)


CASES = [
    ("softmax", [(3, 64)], {"axis": -1}),
    ("softmax", [(5, 128)], {"axis": -1}),
    ("softmax", [(2, 100)], {"axis": -1}),
    ("softmax", [(4, 9)], {"axis": -1}),
    ("softmax", [(2, 10, 48)], {"axis": 1}),
    ("log_softmax", [(4, 80)], {"axis": -1}),
    ("layer_norm", [(2, 24, 6, 20), (24,), (24,)], {"axis": 1, "trailing": 2}),
    ("rms_norm", [(2, 9, 5), (9,)], {"axis": 1, "trailing": 1}),
    ("resize", [(1, 3, 5, 20)], {"sizes": (1, 3, 10, 40), "mode": "linear"}),
    ("resize", [(2, 3, 5, 6)], {"sizes": (2, 3, 11, 33), "mode": "linear", "coordinates": "align_corners"}),
    ("cumsum", [(3, 70, 20)], {"axis": 1}),
    ("layer_norm", [(6, 96), (96,), (96,)], {"axis": 1}),
    ("layer_norm", [(3, 50), (50,), (50,)], {"axis": 1}),
    ("rms_norm", [(3, 64), (64,)], {"axis": 1}),
    ("reduce_max", [(4, 192)], {"axes": (1,), "keepdims": True}),
    ("reduce_min", [(4, 70)], {"axes": (1,), "keepdims": False}),
    ("reduce_mean", [(2, 12, 5, 7)], {"axes": (2, 3), "keepdims": True}),
    ("reduce_min", [(3, 70)], {"keepdims": False}),
    ("cumsum", [(1, 2, 1)], {"axis": 2, "exclusive": True}),  # nothing reads the sums
    ("cumsum", [(3, 5)], {"axis": 1, "exclusive": True, "reverse": True}),
    ("relu", [(3, 5, 7)], {}),
    ("add", [(3, 5, 64), (64,)], {}),
]


@pytest.mark.parametrize(("op", "shapes", "attrs"), CASES)
def test_matches_the_definition(op, shapes, attrs, check):
    check(GENERIC, op, define(op, *shapes, **attrs))


@pytest.mark.parametrize("channels", [48, 24])
def test_reductions_of_blocked_images_to_one_number_run_in_vectors(channels, check):
    (y,) = define("reduce_max", (1, channels, 5, 7), keepdims=False)
    check(GENERIC, "reduce_max", [y], layouts={"x0": "ABCD16b"})
    task = KernelTask("k", y.inputs, (y,), "reduce_max", {"x0": layout("ABCD16b")}, frozenset())
    made = GENERIC.on(task, target("x86-64-v4"))
    assert "vectorize" in str(made.apply(made.space.default).program)


@pytest.mark.parametrize("shape", [(1, 2, 1, 1), (2, 4, 3, 3)])
def test_a_norm_of_which_nothing_is_read(shape, check):
    """All elements above the diagonal: what is left is zeros."""
    x, scale = placeholder(shape, name="x0"), placeholder(shape[1:2], name="x1")
    (y,) = OPERATORS["group_norm"].define("t", [x, scale, scale], {"groups": 2})
    check(GENERIC, "group_norm", OPERATORS["trilu"].define("y", [y], {"diagonal": 7, "upper": True}))


def test_rows_that_positions_decide_are_summed_in_vectors(check):
    """As one-hot rows are: nothing is loaded along them, and many sums lose fewer digits than one long one."""
    values = placeholder((5, 2), name="x0")
    steps = compute((5, 100), lambda i, j: select(j < 7, values[i, 0], values[i, 1]), "steps")
    (y,) = OPERATORS["reduce_sumsq"].define("y", [steps], {"axes": (1,), "keepdims": True})
    check(GENERIC, "reduce_sumsq", [y])
    task = KernelTask("k", (values,), (y,), "reduce_sumsq", {}, frozenset())
    made = GENERIC.on(task, target("x86-64-v4"))
    loops = [s for s in walk_stmt(made.apply(made.space.default).program.body) if isinstance(s, For)]
    assert 16 in {s.extent for s in loops if s.kind == "vectorize"}  # of positions; there are only five rows


def test_values_of_a_row_are_computed_once():
    inputs = tuple(placeholder(s, name=f"x{i}") for i, s in enumerate([(6, 96), (96,), (96,)]))
    (y,) = OPERATORS["layer_norm"].define("y", list(inputs), {"axis": 1})
    task = KernelTask("k", inputs, (y,), "layer_norm", {}, frozenset())
    program = GENERIC.on(task, host()).apply(GENERIC.on(task, host()).space.default).program
    final = next(s for s in walk_stmt(program.body) if isinstance(s, Store) and s.buffer.name == "y")
    assert "sqrt" not in str(final)
    assert "/" not in str(final).replace("//", "")


def test_columns_that_several_rows_read_at_computed_positions_are_computed_once():
    """Of a bilinear enlargement: a row of the output reads two of rows that are resampled along the columns alone."""
    x = placeholder((1, 4, 20, 20), name="x")
    sizes = {"sizes": (1, 4, 80, 80), "mode": "linear", "coordinates": "align_corners"}
    (y,) = OPERATORS["resize"].define("y", [x], sizes)
    task = KernelTask("k", (x,), (y,), "resize", {}, frozenset())
    program = GENERIC.on(task, host()).apply(GENERIC.on(task, host()).space.default).program
    final = next(s for s in walk_stmt(program.body) if isinstance(s, Store) and s.buffer.name == "y")
    assert {load.buffer.name for load in walk(final.value) if isinstance(load, Load)} == {"y.columns"}
    (smaller,) = OPERATORS["resize"].define("z", [x], {"sizes": (1, 4, 10, 10), "mode": "linear"})
    assert smaller.inputs == (x,), "of which most columns would not be read"


def test_a_transpose_of_what_is_computed_is_not_left_to_the_template_of_copies(check):
    x = placeholder((32, 48), name="x")
    half = compute((32, 48), lambda i, j: x[i, j] * 0.5, "half")
    out = compute((48, 32), lambda i, j: half[j, i], "out")
    task = KernelTask("kernel", (x,), (out,), "transpose", {}, frozenset())
    copied = KernelTask("kernel", (x,), (compute((48, 32), lambda i, j: x[j, i], "out"),), "transpose", {}, frozenset())
    machine = target("x86-64-v4")
    assert TRANSPOSE.match(task, machine) is None
    assert TRANSPOSE.match(copied, machine) is not None
    check(GENERIC, "transpose", [out])


def test_a_column_repeated_along_rows_is_no_transpose(check):
    x = placeholder((48, 1), name="x")
    out = compute((48, 32), lambda i, j: x[i, 0], "out")
    task = KernelTask("kernel", (x,), (out,), "transpose", {}, frozenset())
    assert TRANSPOSE.match(task, target("x86-64-v4")) is None
    check(GENERIC, "expand", [out])


@pytest.mark.parametrize(("shape", "flat"), [((2, 32, 1, 50), (2, 32, 50)), ((1, 48, 6, 7), (1, 48, 42))])
def test_blocks_of_channels_become_rows_by_the_template_of_copies_also_behind_a_reshape(shape, flat, check):
    (y,) = OPERATORS["reshape"].define("y", [placeholder(shape, name="x")], {"shape": flat})
    task = KernelTask("k", y.inputs, (y,), "reshape", {"x": layout("ABCD16b")}, frozenset())
    assert TRANSPOSE.match(task, target("x86-64-v4")) is not None
    if host().lanes == 16:
        check(TRANSPOSE, "reshape", [y], layouts={"x": "ABCD16b"})
