"""The emitter: compiled programs against the interpreters, in memory whose neighbours are forbidden."""

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.codegen.llvm import STACK_LIMIT, emit
from burnish.errors import ScheduleError
from burnish.loops import tensor as t
from burnish.loops.evaluate import evaluate
from burnish.loops.expr import (
    ALIGNMENT,
    DTYPES,
    FLOATS,
    INTS,
    Buffer,
    Const,
    Expr,
    Load,
    Var,
    all_of,
    cast,
    math,
    maximum,
    select,
)
from burnish.loops.interpret import run_program
from burnish.loops.numeric import numpy_dtype
from burnish.loops.program import Alloc, For, If, Intrinsic, LoopProgram, Store, seq, store
from burnish.loops.reduction import identity
from burnish.loops.tensor import Tensor, compute, create_program, placeholder, reduce_axis
from burnish.lower.pipeline import lower
from burnish.machines.target import target
from burnish.ops import OPERATORS
from burnish.schedule.schedule import Schedule

PLAIN, MASKED = target("x86-64-v3"), target("x86-64-v4")  # without and with masks
Native = Callable[..., dict[str, np.ndarray]]
TOLERANCE = {"float64": 1e-12, "float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}
I, J, K = Var("i"), Var("j"), Var("k")  # noqa: E741


def sample(shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray:
    """Small values of either sign that every dtype represents well; none is zero, so that they may divide."""
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return rng.random(shape) < 0.5
    if dtype in FLOATS:
        return rng.uniform(0.25, 2.0, shape).astype(numpy_dtype(dtype)) * rng.choice([-1, 1], shape).astype(dtype)
    low = 1 if dtype.startswith("u") else -9
    values = rng.integers(low, 12, shape)
    return np.where(values == 0, 5, values).astype(dtype)


def agree(actual: np.ndarray, expected: np.ndarray, message: str = "") -> None:
    assert actual.dtype == expected.dtype, message
    tolerance = TOLERANCE.get(str(expected.dtype))
    if tolerance is None:
        np.testing.assert_array_equal(actual, expected, message)
    else:
        a, b = actual.astype("float64"), expected.astype("float64")
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance, err_msg=message)


def check(native: Native, program: LoopProgram, arrays: dict[str, np.ndarray], **options: object) -> None:
    """The compiled program leaves what the interpreter leaves, with buffers at either edge of their pages."""
    expected = run_program(program, arrays)
    for edge in ("start", "end"):
        found = native(program, arrays, edge=edge, **options)
        for name, value in expected.items():
            agree(found[name], value, f"{name}\n{program}")


# --- naive programs of operators --------------------------------------------------------------------------------------

F = "float32"
OPERATIONS: list[tuple[str, dict[str, object], list[tuple[tuple[int, ...], str]]]] = [
    ("add", {}, [((3, 5), F), ((5,), F)]),
    ("sub", {}, [((3, 1), "int32"), ((1, 4), "int32")]),
    ("mul", {}, [((7,), "float64"), ((7,), "float64")]),
    ("div", {}, [((9,), "float16"), ((9,), "float16")]),
    ("div", {}, [((9,), "int32"), ((9,), "int32")]),
    ("mod", {}, [((12,), "int64"), ((12,), "int64")]),
    ("pow", {}, [((6,), F), ((1,), F)]),
    ("maximum", {}, [((6,), "bfloat16"), ((6,), "bfloat16")]),
    ("relu", {}, [((2, 7), "bfloat16")]),
    ("sigmoid", {}, [((13,), "float64")]),
    ("gelu", {}, [((13,), F)]),
    ("tanh", {}, [((13,), "float16")]),
    ("erf", {}, [((13,), F)]),
    ("less", {}, [((11,), "int8"), ((11,), "int8")]),
    ("equal", {}, [((11,), "uint8"), ((11,), "uint8")]),
    ("logical_not", {}, [((11,), "bool")]),
    ("where", {}, [((4, 3), "bool"), ((4, 3), F), ((3,), F)]),
    ("cast", {"to": "int16"}, [((10,), F)]),
    ("matmul", {}, [((5, 7), F), ((7, 3), F)]),
    ("matmul", {}, [((2, 3, 4), "float16"), ((4, 5), "float16")]),
    ("conv2d", {"pads": (1, 1, 1, 1), "strides": (2, 2)}, [((1, 3, 7, 6), F), ((4, 3, 3, 3), F)]),
    ("conv2d", {"groups": 2, "pads": (0, 1, 2, 0), "dilations": (1, 2)}, [((2, 4, 6, 7), F), ((6, 2, 3, 2), F)]),
    ("conv2d_transpose", {"strides": (2, 2), "pads": (1, 1, 1, 1)}, [((1, 3, 4, 5), F), ((3, 2, 3, 3), F)]),
    ("max_pool2d", {"kernel": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1)}, [((1, 2, 7, 7), F)]),
    ("avg_pool2d", {"kernel": (2, 3), "pads": (1, 0, 0, 1)}, [((2, 2, 5, 5), "float64")]),
    ("reduce_sum", {"axes": (1,)}, [((3, 9), "int16")]),
    ("reduce_mean", {"axes": (0, 2)}, [((3, 4, 5), F)]),
    ("reduce_max", {"axes": (-1,)}, [((4, 6), "uint8")]),
    ("argmax", {"axis": 1}, [((4, 6), F)]),
    ("softmax", {"axis": 1}, [((3, 8, 2), F)]),
    ("layer_norm", {}, [((4, 10), F), ((10,), F), ((10,), F)]),
    ("concat", {"axis": 1}, [((2, 3), F), ((2, 4), F)]),
    ("transpose", {"perm": (2, 0, 1)}, [((2, 3, 4), "int8")]),
    ("reshape", {"shape": (4, 6)}, [((2, 3, 4), F)]),
    ("pad", {"pads": (1, 0, 2, 3), "value": 1.5}, [((3, 4), F)]),
    ("slice", {"starts": (1, 4), "extents": (3, 2), "steps": (1, -2)}, [((5, 6), F)]),
    ("gather", {"axis": 1}, [((3, 12), F), ((4,), "int64")]),
    ("resize", {"sizes": (1, 2, 7, 9), "mode": "linear"}, [((1, 2, 4, 5), F)]),
    ("winograd_conv2d", {"m": 2}, [((1, 2, 5, 6), F), ((4, 4, 3, 2), F)]),
    ("split_matmul", {"columns": 3}, [((2, 5), F), ((2, 32, 16), "bfloat16")]),
]


@pytest.mark.parametrize(("name", "attrs", "types"), OPERATIONS, ids=lambda v: v if isinstance(v, str) else "")
def test_naive_programs_of_operators(native: Native, name: str, attrs: dict[str, object], types: list) -> None:
    inputs = [placeholder(shape, dtype, f"x{i}") for i, (shape, dtype) in enumerate(types)]
    outputs = OPERATORS[name].define("y", inputs, attrs)
    feeds = {x.name: sample(x.shape, x.dtype, i) for i, x in enumerate(inputs)}
    if name in ("gather", "pow"):
        feeds = {n: abs(a) for n, a in feeds.items()}
    found = native(create_program("kernel", inputs, outputs), feeds)
    for y, expected in zip(outputs, evaluate(outputs, feeds), strict=True):
        agree(found[y.name], expected)


# --- every dtype ------------------------------------------------------------------------------------------------------


def vectorized(out: Tensor | list[Tensor], inputs: list[Tensor], lanes: int) -> LoopProgram:
    """The last loop of every output cut into masked vectors."""
    outputs = out if isinstance(out, list) else [out]
    s = Schedule(create_program("kernel", inputs, outputs))
    for y in outputs:
        s.vectorize(s.split(s.loops(y.name)[-1], lanes)[1])
    return s.program


@pytest.mark.parametrize("lanes", [1, 8])
@pytest.mark.parametrize("dtype", DTYPES)
def test_loads_stores_and_conversions(native: Native, dtype: str, lanes: int) -> None:
    x = placeholder((21,), dtype, "x")

    def converted(target: str) -> Tensor:
        return compute((21,), lambda i: cast(target, x[i]), f"to_{target}")

    outputs = [converted(target) for target in DTYPES]
    values = abs(sample((21,), dtype)) if dtype != "bool" else sample((21,), dtype)
    check(native, vectorized(outputs, [x], lanes), {"x": values})


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d != "bool"])
@pytest.mark.parametrize("kind", ["sum", "prod", "max", "min"])
def test_horizontal_reductions(native: Native, dtype: str, kind: str) -> None:
    """A vectorized reduction loop, whose last vector is masked: lanes that are off count as the identity."""
    x, k = placeholder((3, 11), dtype, "x"), reduce_axis(11, "k")
    y = compute((3,), lambda i: getattr(t, kind)(x[i, k.var], k), "y")
    values = sample((3, 11), dtype)
    if kind == "prod":
        values = np.where(values > 0, 2, 1).astype(numpy_dtype(dtype))
        values[:, ::2] = 1
    check(native, vectorized(y, [x], 8), {"x": values})


def test_horizontal_reductions_of_booleans(native: Native) -> None:
    x, k = placeholder((3, 11), "bool", "x"), reduce_axis(11, "k")
    every = compute((3,), lambda i: t.min(x[i, k.var], k), "every")
    some = compute((3,), lambda i: t.max(x[i, k.var], k), "some")
    values = np.stack([np.zeros(11, bool), np.ones(11, bool), np.arange(11) == 9])
    check(native, vectorized([every, some], [x], 8), {"x": values})


def test_infinities_and_not_a_number_pass_through(native: Native) -> None:
    x = placeholder((6,), name="x")
    outputs = [
        compute((6,), lambda i: maximum(x[i], 0.0), "relu"),
        compute((6,), lambda i: 1.0 / x[i], "inverse"),
        compute((6,), lambda i: cast("float32", math("isnan", x[i])), "isnan"),
    ]
    values = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 1e-40], "float32")
    with np.errstate(all="ignore"):
        found = native(vectorized(outputs, [x], 4), {"x": values})
        np.testing.assert_array_equal(found["relu"], np.maximum(values, 0))
        np.testing.assert_array_equal(found["inverse"], 1 / values)
        np.testing.assert_array_equal(found["isnan"], np.isnan(values))


# --- addresses: tails, borders, steps, gathers ------------------------------------------------------------------------


@pytest.mark.parametrize("extent", [1, 15, 16, 17, 31, 33])
def test_tails_are_masked(native: Native, extent: int) -> None:
    x = placeholder((3, extent), name="x")
    y = compute((3, extent), lambda i, j: x[i, j] * 2.0 + 1.0, "y")
    check(native, vectorized(y, [x], 16), {"x": sample((3, extent), F)})


ACCESSES: dict[str, Callable[[Tensor, Var, Var], Load]] = {
    "column": lambda x, i, j: x[j, i],
    "every second": lambda x, i, j: x[i, j * 2],
    "backwards": lambda x, i, j: x[i, 15 - j],
    "broadcast": lambda x, i, j: x[i, 3],
    "diagonal": lambda x, i, j: x[j, (i + j) % 16],
    "rows apart": lambda x, i, j: x[j // 4, j % 4 * 4 + i],
    "halves": lambda x, i, j: x[i, j // 2],
    "wrapped": lambda x, i, j: x[i, (j + 13) % 16],
}


CUTS = [("int32", "int8"), ("int64", "uint16"), ("int64", "int32"), ("int64", "bool")]


@pytest.mark.parametrize("edge", ["start", "end"])
@pytest.mark.parametrize("count", [1, 2, 9])
@pytest.mark.parametrize(("wide", "narrow"), CUTS)
def test_numbers_that_are_cut_off_write_themselves_alone(
    native: Native, wide: str, narrow: str, count: int, edge: str
) -> None:
    x, y = Buffer("x", (16,), wide), Buffer("y", (count,), narrow)
    lane = Var("i")
    body = For("i", 16, "vectorize", If(lane < count, store(y, (lane,), cast(narrow, Load(x, (lane,))))))
    numbers = np.arange(3, 19).astype(wide)
    found = native(LoopProgram("cut", (x, y), body), {"x": numbers}, edge=edge, lowered=True)["y"]
    np.testing.assert_array_equal(found, numbers[:count].astype(narrow))


@pytest.mark.parametrize("dtype", ["float32", "int8", "bool", "float64"])
@pytest.mark.parametrize("access", ACCESSES)
def test_vectors_whose_lanes_lie_apart(native: Native, access: str, dtype: str) -> None:
    x = placeholder((16, 16), dtype, "x")
    y = compute((4, 8), lambda i, j: ACCESSES[access](x, i, j), "y")
    check(native, vectorized(y, [x], 8), {"x": sample((16, 16), dtype)})


@pytest.mark.parametrize("unrolled", [False, True])
def test_a_transposed_block(native: Native, unrolled: bool) -> None:
    x = placeholder((8, 8), name="x")
    s = Schedule(create_program("kernel", [x], [compute((8, 8), lambda i, j: x[j, i], "y")]))
    i, j = s.loops("y")
    s.vectorize(j)
    if unrolled:
        s.unroll(i)
    check(native, s.program, {"x": sample((8, 8), F)})


@pytest.mark.parametrize(("step", "lanes", "inside"), [(2, 16, 16), (3, 8, 8), (2, 16, 5), (4, 7, 7), (3, 8, 6)])
def test_neighbours_a_few_apart_are_whole_vectors(native: Native, step: int, lanes: int, inside: int) -> None:
    """Of rows of an odd length, none of them aligned: also of those that reach both ends of the buffer."""
    length = (inside - 1) * step + 3
    x, y = Buffer("x", (5, length)), Buffer("y", (3, 5, lanes))
    k, i, j = (Var(n) for n in "kij")
    copy = store(y, (k, i, j), Load(x, (i, j * step + k)))
    copy = If(all_of(j < inside, j + k >= 1), copy) if inside < lanes else copy
    nest = For("i", 5, "serial", For("k", 3, "unroll", For("j", lanes, "vectorize", copy)))
    program = lower(LoopProgram("kernel", (x, y), nest))
    assert "insertelement" not in emit(program, MASKED).text
    assert inside < lanes or "insertelement" not in emit(program, PLAIN).text
    check(native, program, {"x": sample(x.shape, F), "y": sample(y.shape, F, 1)})


@pytest.mark.parametrize("columns", [4, 7, 16])
def test_a_transposed_part_of_rows(native: Native, columns: int) -> None:
    """Vectors of whole columns out of as much of rows as there is, of which only some lie in the buffer."""
    x, y = Buffer("x", (16, 3, columns)), Buffer("y", (5, columns, 16))
    k, i, j = (Var(n) for n in "kij")
    copy = If(all_of(k >= 1, k < 4), store(y, (k, i, j), Load(x, (j, k - 1, i))))
    nest = For("k", 5, "serial", For("i", columns, "unroll", For("j", 16, "vectorize", copy)))
    program = lower(LoopProgram("kernel", (x, y), nest))
    assert "insertelement" not in emit(program, PLAIN).text
    check(native, program, {"x": sample(x.shape, F), "y": sample(y.shape, F, 1)})


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "uint8", "bool"])
@pytest.mark.parametrize("lanes", [3, 7, 14])
@pytest.mark.parametrize("edge", ["start", "end"])
def test_vectors_of_odd_lengths_touch_nothing_else(native: Native, edge: str, lanes: int, dtype: str) -> None:
    x = placeholder((5, lanes), dtype, "x")
    y = compute((5, lanes), lambda i, j: x[4 - i, j], "y")
    arrays = {"x": sample((5, lanes), dtype)}
    program = vectorized(y, [x], lanes)
    agree(native(program, arrays, edge=edge)["y"], arrays["x"][::-1])


def test_vectors_of_odd_lengths_are_moved_whole() -> None:
    """Loads where the buffer goes on behind the vector, or else where the target has masks, which stores need."""
    x = placeholder((3, 7), name="x")
    s = Schedule(create_program("kernel", [x], [compute((3, 7), lambda i, j: x[i, j], "y")]))
    i, j = s.loops("y")
    s.unroll(i)
    s.vectorize(j)
    without, masked = (emit(lower(s.program), machine).text for machine in (PLAIN, MASKED))
    assert (without.count("load <8 x float>"), without.count("load <7 x float>")) == (2, 1)
    assert without.count("store <7 x float>") == 3 and "masked" not in without
    assert (masked.count("load <8 x float>"), masked.count("call <8 x float> @llvm.masked.load")) == (2, 1)
    assert masked.count("call void @llvm.masked.store.v8f32") == 3


def test_gathers_read_what_the_indices_say(native: Native) -> None:
    x, at = placeholder((9, 5), name="x"), placeholder((13,), "int32", "at")
    y = compute((13, 5), lambda i, j: x[cast("int64", at[i]), j], "y")
    z = compute((5, 13), lambda j, i: x[cast("int64", at[i]), j], "z")
    rows = np.array([8, 0, 3, 3, 8, 1, 2, 7, 0, 5, 4, 6, 8], "int32")
    check(native, vectorized([y, z], [x, at], 4), {"x": sample((9, 5), F), "at": rows})


@pytest.mark.parametrize("lanes", [1, 4, 16])
@pytest.mark.parametrize(("before", "after", "step"), [(1, 1, 1), (3, 0, 1), (0, 5, 1), (2, 2, 2), (20, 20, 1)])
def test_padding_reads_nothing_outside(native: Native, before: int, after: int, step: int, lanes: int) -> None:
    """The buffer ends at a forbidden page: a vector that reaches over its border must be cut or moved."""
    n = 19
    x = placeholder((2, n), name="x")
    out = (n + before + after - 1) // step + 1

    def padded(i: Var, j: Var) -> object:
        at = j * step - before
        return select(all_of(at >= 0, at < n), x[i, at], 0.0)

    check(native, vectorized(compute((2, out), padded, "y"), [x], lanes), {"x": sample((2, n), F)})


@pytest.mark.parametrize("vector", ["oc", "ow"])
def test_padded_convolution_in_vectors(native: Native, vector: str) -> None:
    x, w = placeholder((1, 3, 5, 7), name="x"), placeholder((6, 3, 3, 3), name="w")
    (y,) = OPERATORS["conv2d"].define("y", [x, w], {"pads": (1, 1, 1, 1)})
    s = Schedule(create_program("kernel", [x, w], [y]))
    s.inline_all()
    _, oc, oh, ow, *_, kw = s.loops("y")
    loop = {"oc": oc, "ow": ow}[vector]
    _, lane = s.split(loop, 4)
    s.reorder(*[v for v in s.loops("y") if v != lane], lane)
    s.vectorize(lane)
    s.unroll(kw)
    s.parallel(oh)
    check(native, s.program, {"x": sample(x.shape, F), "w": sample(w.shape, F, 1)})


def register_tiles(width: int, tile: int, kernel: int, pad: int, step: int = 1) -> Schedule:
    """A convolution of one row whose sums over ``tile`` columns times a vector of channels stay in registers."""
    x, w = placeholder((1, 3, 2, width), name="x"), placeholder((16, 3, 1, kernel), name="w")
    attrs = {"pads": (0, pad, 0, pad), "strides": (1, step)}
    (y,) = OPERATORS["conv2d"].define("y", [x, w], attrs)
    s = Schedule(create_program("kernel", [x, w], [y]))
    s.inline_all()
    acc = s.cache_write("y", "register")
    s.transform_layout("w", "DBCA")
    n, oc, oh, ow = s.loops("y")
    outer, ow = s.split(ow, tile)
    s.reorder(n, oh, outer, ow, oc)
    s.compute_at(acc, outer)
    *_, a_oc, _, a_ow, ic, kh, kw = s.loops(acc)
    s.reorder(kh, kw, ic, a_ow, a_oc)
    *_, i_oc, _, i_ow = s.init_loops(acc)
    s.reorder(i_ow, i_oc)
    for loop in (ow, a_ow, i_ow):
        s.unroll(loop)
    for loop in (oc, a_oc, i_oc):
        s.vectorize(loop)
    return s


@pytest.mark.parametrize(
    ("width", "tile", "kernel", "pad", "step"),
    [
        (56, 14, 3, 1, 1),
        (28, 14, 3, 1, 1),
        (55, 14, 3, 1, 1),
        (15, 14, 3, 1, 1),
        (30, 29, 5, 2, 1),
        (57, 14, 3, 1, 2),
        (20, 10, 7, 3, 1),
    ],
)
def test_padding_of_register_tiles(native: Native, width: int, tile: int, kernel: int, pad: int, step: int) -> None:
    """What is read instead of padding lies within the buffer, at either border of it."""
    s = register_tiles(width, tile, kernel, pad, step)
    check(native, s.program, {"x": sample((1, 3, 2, width), F), "w": sample((kernel, 3, 1, 16), F, 1)})


def test_padding_is_a_mask_of_multiply_adds_where_there_are_masks() -> None:
    """Elsewhere the address is chosen, that of the number or of a zero."""
    program = lower(register_tiles(56, 14, 3, 1).program)
    masked, chosen = emit(program, MASKED).text, emit(program, PLAIN).text
    assert "ptr @zeros" not in masked and masked.count("select <16 x i1>") == 2
    assert "select <16 x i1>" not in chosen and chosen.count("ptr @zeros") == 2
    assert masked.count("fmuladd.v16f32(<16") == chosen.count("fmuladd.v16f32(<16") == 14 + 1  # one tile's, declared


def padded_products(x: Buffer, row: Expr, inside: Expr, w: Buffer, y: Buffer) -> For:
    """Four sums over a tile of columns ``i``, shifted by ``k``, of numbers in a row of ``x`` that are padded."""
    value = select(inside, Load(x, (row, I + K - 1)), 0.0)
    lane = Var("lane")
    return For("i", 6, "unroll", For("lane", 4, "vectorize", store(y, (lane,), value * Load(w, (lane,)), "sum")))


def zeros(y: Buffer) -> For:
    return For("z", 4, "vectorize", store(y, (Var("z"),), 0.0))


def test_padding_on_two_axes_reads_nothing_outside(native: Native) -> None:
    """Where the row is outside too, no other column of it may be read."""
    x, w, y, row = Buffer("x", (2, 8)), Buffer("w", (4,)), Buffer("y", (4,)), Var("row")
    tile = padded_products(x, row - 1, all_of(row >= 1, row < 3, I + K >= 1), w, y)
    nest = For("row", 4, "serial", For("k", 3, "serial", For("m", 2, "serial", tile)))
    program = LoopProgram("kernel", (x, w, y), seq(zeros(y), nest))
    check(native, program, {"x": sample((2, 8), F), "w": sample((4,), F, 1)}, lowered=True)


def test_padding_of_numbers_in_registers(native: Native) -> None:
    """They have no address."""
    x, w, y, r, c = Buffer("x", (2, 8)), Buffer("w", (4,)), Buffer("y", (4,)), Var("r"), Var("c")
    kept = Buffer("kept", (2, 8), scope="register")
    fill = For("r", 2, "unroll", For("c", 8, "unroll", store(kept, (r, c), Load(x, (r, c)))))
    tile = padded_products(kept, J, all_of(Var("row") >= 1, I + K >= 1), w, y)
    nest = For("row", 2, "serial", For("m", 2, "serial", For("j", 2, "unroll", For("k", 2, "unroll", tile))))
    program = LoopProgram("kernel", (x, w, y), seq(zeros(y), Alloc(kept, seq(fill, nest))))
    check(native, program, {"x": sample((2, 8), F), "w": sample((4,), F, 1)}, lowered=True)


def test_a_padded_number_is_read_again_after_it_was_written() -> None:
    """What is known of a buffer's numbers is forgotten where the buffer is stored to."""
    x, y = Buffer("x", (16,)), Buffer("y", (16,))
    at, k = Var("o") * 8 + J, Var("k")
    padded = select(at + k >= 1, Load(x, (at + k - 1,)), 0.0)
    lane = Var("lane")
    body = seq(
        For("lane", 4, "vectorize", store(y, (lane,), padded * Load(y, (lane + 4,)), "sum")),
        store(x, (at,), 2.0),
        For("lane2", 4, "vectorize", store(y, (Var("lane2"),), padded * Load(y, (Var("lane2") + 4,)), "sum")),
    )
    for_j = For("j", 8, "unroll", body)
    program = LoopProgram("kernel", (x, y), For("o", 2, "serial", For("k", 1, "serial", For("m", 2, "serial", for_j))))
    text = emit(program, MASKED).text
    assert text.count("load float") == 2 * 8


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_windows_at_any_border(native: Native, data: st.DataObject) -> None:
    """A sliding window of any size, stride and padding, in vectors of any length, unrolled or not."""
    extent, kernel, stride = (data.draw(st.integers(1, top)) for top in (20, 5, 3))
    before, after = data.draw(st.integers(0, 4)), data.draw(st.integers(0, 4))
    out = (extent + before + after - kernel) // stride + 1
    if out < 1:
        return
    x, k = placeholder((2, extent), name="x"), reduce_axis(kernel, "k")

    def window(i: Var, j: Var) -> object:
        at = j * stride + k.var - before
        return t.sum(select(all_of(at >= 0, at < extent), x[i, at], 0.0) * 0.5, k)

    s = Schedule(create_program("kernel", [x], [compute((2, out), window, "y")]))
    i, j, tap = s.loops("y")
    _, lane = s.split(j, data.draw(st.sampled_from([1, 2, 4, 8, 16])))
    if data.draw(st.booleans()):
        s.reorder(tap, lane)
    s.vectorize(lane)
    if data.draw(st.booleans()):
        s.unroll(tap)
    if data.draw(st.booleans()):
        s.parallel(i)
    arrays = {"x": sample((2, extent), F)}
    for edge in ("start", "end"):
        agree(native(s.program, arrays, edge=edge)["y"], run_program(s.program, arrays)["y"], str(s))


def test_lanes_that_are_off_are_not_read_where_vectors_are_split(native: Native) -> None:
    """A vector of twice a register's lanes with one half off: no other lane's mask may be mistaken for its."""
    x, k = placeholder((2, 1), name="x"), reduce_axis(2, "k")

    def window(i: Var, j: Var) -> object:
        return t.sum(select(j + k.var < 1, x[i, j + k.var], 0.0) * 0.5, k)

    s = Schedule(create_program("kernel", [x], [compute((2, 1), window, "y")]))
    s.vectorize(s.split(s.loops("y")[1], 16)[1])
    arrays = {"x": sample((2, 1), F)}
    agree(native(s.program, arrays, edge="end")["y"], run_program(s.program, arrays)["y"], str(s))


# --- storage and parallel loops ---------------------------------------------------------------------------------------


def copy(to: Buffer, source: Buffer, *index: Var) -> Store:
    return Store(to, index, Load(source, index))


def test_parallel_loops_capture_what_is_around_them(native: Native) -> None:
    """Outer variables, parameters and allocated memory are visible in the function of a parallel loop."""
    x, y, local = Buffer("x", (3, 20)), Buffer("y", (3, 20)), Buffer("local", (20,), scope="local")
    fill = For("j", 20, "serial", Store(local, (J,), Load(x, (I, J)) * 2.0))
    k = Var("k")
    spread = For("k", 20, "parallel", Store(y, (I, k), Load(local, (19 - k,)) + cast("float32", I)))
    program = LoopProgram("kernel", (x, y), For("i", 3, "serial", Alloc(local, seq(fill, spread))))
    for threads in (1, 2, 5):
        check(native, program, {"x": sample((3, 20), F)}, threads=threads)


def test_a_parallel_loop_inside_another_runs_serially(native: Native) -> None:
    x, y = Buffer("x", (6, 9)), Buffer("y", (6, 9))
    body = For("i", 6, "parallel", For("j", 9, "parallel", copy(y, x, I, J)))
    check(native, LoopProgram("kernel", (x, y), body), {"x": sample((6, 9), F)})


@pytest.mark.parametrize("kind", ["serial", "parallel"])
@pytest.mark.parametrize("size", [16, STACK_LIMIT // 4, STACK_LIMIT // 4 + 1])
def test_scratch_is_private_to_a_thread(native: Native, size: int, kind: str) -> None:
    """Two buffers alive at once, and one after the other, on the stack or in the scratch area."""
    x, y = Buffer("x", (4, size)), Buffer("y", (4, size))
    a, b, c = (Buffer(n, (size,), scope="local") for n in "abc")
    u, v, w = Var("u"), Var("v"), Var("w")
    both = Alloc(b, seq(
        For("u", size, "serial", Store(b, (u,), Load(a, (size - 1 - u,)) + 1.0)),
        For("v", size, "serial", Store(y, (I, v), Load(b, (v,)) - Load(a, (v,)))),
    ))  # fmt: skip
    later = Alloc(c, seq(
        For("w", size, "serial", Store(c, (w,), Load(a, (w,)) * 3.0)),
        For("z", size, "serial", Store(y, (I, Var("z")), Load(c, (Var("z"),)), "sum")),
    ))  # fmt: skip
    body = Alloc(a, seq(For("j", size, "serial", Store(a, (J,), Load(x, (I, J)))), both, later))
    program = LoopProgram("kernel", (x, y), For("i", 4, kind, body))
    values = sample((4, size), F)
    found = native(program, {"x": values})["y"]
    agree(found, (values[:, ::-1] + 1 - values + values * 3).astype(F))
    code = emit(lower(program), PLAIN)
    room = -(-4 * size // 64) * 64
    assert code.scratch_bytes == (2 * room if 4 * size > STACK_LIMIT else 0), "b and c take turns"


def test_an_entry_point_finds_a_buffer_where_its_region_has_it() -> None:
    """Two buffers of one name, one after the other, at different places of the scratch memory; none of a kernel that
    has one on its stack.
    """

    def both(size: int) -> str:
        x, y = Buffer("x", (size,)), Buffer("y", (size,))
        a, b = (Buffer(n, (size,), scope="local") for n in "ab")

        def region(to: Buffer, source: Buffer) -> For:
            return For("i", size, "parallel", copy(to, source, I))

        first = Alloc(a, seq(region(a, x), Alloc(b, seq(region(b, a), region(y, b)))))
        second = Alloc(b, seq(region(b, y), region(y, b)))
        return emit(LoopProgram("kernel", (x, y), seq(first, second)), replace(PLAIN, cores=4)).text

    size = STACK_LIMIT // 4 + 1
    above = -(-4 * size // ALIGNMENT) * ALIGNMENT
    entries = both(size).split("define void @kernel.region")[1:]
    found = [re.findall(r"ptr %scratch, i64 (\d+)", entry) for entry in entries]
    assert found == [["0"], ["0", f"{above}"], ["0", f"{above}"], ["0"], ["0"]]
    assert "kernel.region" not in both(STACK_LIMIT // 4)


def test_register_buffers_become_values(native: Native) -> None:
    """A register tile of a matrix product leaves no memory access but those of the operands and the result."""
    a, b, k = placeholder((6, 9), name="a"), placeholder((9, 16), name="b"), reduce_axis(9, "k")
    c = compute((6, 16), lambda i, j: t.sum(a[i, k.var] * b[k.var, j], k), "c")
    s = Schedule(create_program("kernel", [a, b], [c]))
    acc = s.cache_write("c", "register")
    i, j = s.loops("c")
    outer, i = s.split(i, 3)
    s.compute_at(acc, outer)
    s.reorder(s.loops(acc)[2], *s.loops(acc)[:2])
    for nest in (s.loops(acc), s.init_loops(acc), [i, j]):
        s.unroll(nest[-2])
        s.vectorize(nest[-1])
    text = emit(lower(s.program), PLAIN).text
    check(native, s.program, {"a": sample((6, 9), F), "b": sample((9, 16), F, 1)})
    vectors = [line for line in text.splitlines() if "phi <16 x float>" in line]
    stores = [line for line in text.splitlines() if "store <16 x float>" in line]
    assert "alloca" not in text
    assert len(vectors) == len(stores) == 3, "a tile is carried around the reduction, and stored once"


def test_conditions_guard_statements(native: Native) -> None:
    """Scalar conditions branch; conditions on the lane mask stores and reductions."""
    x, y, n = Buffer("x", (4, 10)), Buffer("y", (4, 10)), Buffer("n", (4,), "int64")
    clear = For("a", 4, "serial", For("b", 10, "serial", store(y, (Var("a"), Var("b")), -1.0)))
    lane = For("j", 10, "vectorize", If(Load(n, (I,)) > J, copy(y, x, I, J)))
    body = For("i", 4, "serial", If(Load(x, (I, Const(0))) > Const(0.0, F), lane))
    values = sample((4, 10), F)
    values[:, 0] = [1, -1, 2, 3]
    arrays = {"x": values, "n": np.array([0, 10, 7, 10], "int64")}
    check(native, LoopProgram("kernel", (x, n, y), seq(clear, body)), arrays)


def test_a_masked_reduction_leaves_the_rest_alone(native: Native) -> None:
    x, y = Buffer("x", (11,), "int32"), Buffer("y", (1,), "int32")
    lane = I * 8 + J
    total = For("i", 2, "serial", For("j", 8, "vectorize", If(lane < 11, store(y, (0,), Load(x, (lane,)), "max"))))
    program = LoopProgram("kernel", (x, y), seq(store(y, (0,), identity("max", "int32")), total))
    check(native, program, {"x": -abs(sample((11,), "int32"))})


@pytest.mark.parametrize("dtype", INTS)
@pytest.mark.parametrize("lanes", [1, 4])
def test_integer_division_rounds_down(native: Native, dtype: str, lanes: int) -> None:
    a, b = placeholder((12,), dtype, "a"), placeholder((12,), dtype, "b")
    outputs = [compute((12,), lambda i: a[i] // b[i], "q"), compute((12,), lambda i: a[i] % b[i], "r")]
    arrays = {"a": sample((12,), dtype, 3), "b": sample((12,), dtype, 4)}
    found = native(vectorized(outputs, [a, b], lanes), arrays)
    np.testing.assert_array_equal(found["q"], arrays["a"] // arrays["b"])
    np.testing.assert_array_equal(found["r"], arrays["a"] % arrays["b"])


# --- refusals ---------------------------------------------------------------------------------------------------------

X, Y = Buffer("x", (8, 8)), Buffer("y", (8, 8))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (For("i", 8, "vectorize", For("j", 8, "vectorize", copy(Y, X, I, J))), "'j' is vectorized inside .* 'i'"),
        (seq(*(For("i", n, "serial", copy(Y, X, I, I)) for n in (8, 4))), None),
        (For("i", 8, "serial", Intrinsic("nonsense", (Load(Y, (I, I)),))), "intrinsic 'nonsense' has no code; known"),
    ],
)
def test_refusals(body: object, message: str | None) -> None:
    program = LoopProgram("kernel", (X, Y), body)  # type: ignore[arg-type]
    if message is None:
        message = "loop 'i' occurs with extents 8 and 4"
    with pytest.raises(ScheduleError, match=message):
        emit(program, PLAIN)


def test_a_fence_catches_what_it_should(native: Native) -> None:
    """The harness of this file fails for a program that leaves its buffers."""
    ahead = For("i", 8, "serial", Store(Y, (I, Const(0)), Load(X, (I, I + 1))))
    with pytest.raises(AssertionError, match="killed by signal"):
        native(LoopProgram("kernel", (X, Y), ahead), {"x": sample((8, 8), F)}, edge="end")
