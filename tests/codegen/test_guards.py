"""Speculation: code under guards divides, loads and caches nothing that they forbid, in lanes that are off too."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from burnish.codegen.llvm import emit
from burnish.loops.evaluate import evaluate
from burnish.loops.expr import (
    INDEX,
    INTS,
    Buffer,
    Const,
    Expr,
    Load,
    Not,
    Var,
    all_of,
    any_of,
    cast,
    equal,
    maximum,
    minimum,
    select,
    wrap,
)
from burnish.loops.interpret import run_program
from burnish.loops.numeric import OPERATORS, numpy_dtype
from burnish.loops.program import Alloc, For, If, Intrinsic, LoopProgram, Stmt, Store, seq, store
from burnish.loops.tensor import compute, create_program, placeholder
from burnish.loops.traverse import substitute
from burnish.lower.pipeline import lower
from burnish.machines.target import target
from burnish.schedule.schedule import Schedule

PLAIN, MASKED = target("x86-64-v3"), target("x86-64-v4")  # without and with masks
Native = Callable[..., dict[str, np.ndarray]]
I, J = Var("i"), Var("j")  # noqa: E741


def check(native: Native, program: LoopProgram, arrays: dict[str, np.ndarray], lowered: bool = False) -> None:
    """The compiled program leaves what the interpreter leaves, with buffers at either edge of their pages."""
    expected = run_program(program, arrays)
    for edge in ("start", "end"):
        found = native(program, arrays, edge=edge, lowered=lowered)
        for name, value in expected.items():
            np.testing.assert_array_equal(found[name], value, f"{name}\n{program}")


def corners(dtype: str) -> np.ndarray:
    """Numbers at which division is undefined in C, or rounds, and their neighbours."""
    info = np.iinfo(dtype)
    low = [info.min, info.min + 1, -7, -2, -1] if info.min < 0 else []
    return np.array([*low, 0, 1, 2, 3, 7, info.max - 1, info.max], dtype)


# --- division ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lanes", [1, 8, 16])
@pytest.mark.parametrize("dtype", INTS)
def test_division_is_defined_for_all_integers(native: Native, dtype: str, lanes: int) -> None:
    values = corners(dtype)
    a, b = (grid.ravel() for grid in np.meshgrid(values, values))  # 49 or 144 pairs: the last vector is not whole
    x, y = placeholder(a.shape, dtype, "x"), placeholder(b.shape, dtype, "y")
    outputs = [compute(a.shape, lambda i: x[i] // y[i], "q"), compute(a.shape, lambda i: x[i] % y[i], "r")]
    s = Schedule(create_program("kernel", [x, y], outputs))
    for out in ("q", "r"):
        s.vectorize(s.split(s.loops(out)[0], lanes)[1])
    arrays = {"x": a, "y": b}
    check(native, s.program, arrays)
    quotient, rest = evaluate(outputs, arrays)
    found = native(s.program, arrays)
    np.testing.assert_array_equal(found["q"], quotient)
    np.testing.assert_array_equal(found["r"], rest)
    for p, d, q, r in zip(
        a.astype(object), b.astype(object), quotient.astype(object), rest.astype(object), strict=True
    ):
        if d == 0:
            assert (q, r) == (0, 0)
        elif p // d <= np.iinfo(dtype).max:
            assert (q, r) == divmod(p, d)
        else:
            assert (q, r) == (p, 0)


@pytest.mark.parametrize("divisor", [0, -1, -3, 5])
@pytest.mark.parametrize("dtype", ["int64", "int8"])
def test_division_by_a_literal(native: Native, dtype: str, divisor: int) -> None:
    x, values = placeholder((12,), dtype, "x"), corners(dtype)
    y = compute((12,), lambda i: x[i] // wrap(divisor, dtype), "y")
    z = compute((12,), lambda i: x[i] % wrap(divisor, dtype), "z")
    s = Schedule(create_program("kernel", [x], [y, z]))
    s.vectorize(s.split(s.loops("y")[0], 8)[1])
    check(native, s.program, {"x": values})


def test_division_of_loop_variables(native: Native) -> None:
    """Computed where the loops begin, whatever guards there are further in."""
    y = Buffer("y", (5, 6), "int64")
    value = select(I > 0, J // I, J % (I - 2)) + (J - 3) // (I - 3)
    program = LoopProgram("kernel", (y,), For("i", 5, "serial", For("j", 6, "serial", store(y, (I, J), value))))
    check(native, program, {})
    constant = store(y, (I, J), Const(7, INDEX) // Const(0, INDEX) + J)
    check(native, LoopProgram("kernel", (y,), For("i", 5, "serial", For("j", 6, "serial", constant))), {})


def test_a_divisor_that_nobody_has_written_is_no_trap(native: Native) -> None:
    """A register's lanes that are off hold nothing; LLVM must not conclude that they are never divided by."""
    x, y, r = Buffer("x", (3, 11), "int32"), Buffer("y", (3, 11), "int32"), Buffer("r", (16,), "int32", "register")
    inside = J < 11
    fill = For("j", 16, "vectorize", If(inside, store(r, (J,), Load(x, (I, J)))))
    divide = For("j", 16, "vectorize", If(inside, store(y, (I, J), Const(100, "int32") // Load(r, (J,)))))
    program = LoopProgram("kernel", (x, y), For("i", 3, "serial", Alloc(r, seq(fill, divide))))
    assert "freeze <16 x i32>" in emit(lower(program), MASKED).text
    check(native, program, {"x": np.arange(-16, 17, dtype="int32").reshape(3, 11)})


# --- what is cached ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("inner", ["serial", "unroll", "vectorize"])
def test_a_condition_that_loads_is_asked_again_under_other_guards(native: Native, inner: str) -> None:
    """A gather of a join with itself: the condition on the stored index is one expression, in either branch."""
    x, at, y = Buffer("x", (3, 5), "int32"), Buffer("at", (4,), INDEX), Buffer("y", (6, 8), "int32")
    stored, inside = Load(at, (J - 2,)), all_of(J >= 2, J < 6)
    place = select(stored < 0, stored + 5, stored)
    first, second = (select(inside, Load(x, (row, place)), wrap(0, "int32")) for row in (I, I - 3))
    body = store(y, (I, J), select(I < 3, first, second))
    arrays = {"x": np.arange(15, dtype="int32").reshape(3, 5) + 1, "at": np.array([0, -2, 4, -5])}
    check(
        native, LoopProgram("kernel", (x, at, y), For("i", 6, "serial", For("j", 8, inner, body))), arrays, lowered=True
    )


def test_a_condition_that_loads_is_asked_again_after_a_store(native: Native) -> None:
    at, y = Buffer("at", (4,), INDEX), Buffer("y", (4,), INDEX)
    put = store(y, (I,), select(Load(at, (I,)) < 2, wrap(7), wrap(8)))
    change = store(at, (I,), 3 - Load(at, (I,)))
    program = LoopProgram(
        "kernel", (at, y), For("i", 4, "unroll", seq(put, change, Store(y, (I,), put.value * 10, "sum")))
    )
    check(native, program, {"at": np.array([0, 3, 1, 2]), "y": np.zeros(4, "int64")})


def test_what_is_read_at_a_loaded_position_is_read_again_when_that_changes(native: Native) -> None:
    x, at, y = Buffer("x", (9,), "int32"), Buffer("at", (1,), INDEX), Buffer("y", (4,), "int32")
    zero = Const(0, INDEX)
    step = store(at, (zero,), Load(at, (zero,)) + 2)
    body = seq(store(y, (I,), Load(x, (Load(at, (zero,)),))), step)
    program = LoopProgram("kernel", (x, at, y), For("i", 4, "unroll", body))
    check(native, program, {"x": np.arange(9, dtype="int32") * 3, "at": np.array([1])})


@pytest.mark.parametrize("lengths", [(13, 16), (16, 13), (4, 8)])
def test_vectors_of_several_lengths_read_one_place(native: Native, lengths: tuple[int, int]) -> None:
    """In one basic block: a cached vector is one of so many lanes."""
    x, y = Buffer("x", (16, 16)), Buffer("y", (2, 16))

    def row(number: int, lanes: int) -> Stmt:
        value = Load(x, (Const(3, INDEX), J)) + Load(x, (J, Const(2, INDEX)))
        return For("j", lanes, "vectorize", store(y, (Const(number, INDEX), J), value))

    second = row(1, lengths[1])
    assert isinstance(second, For)
    renamed = For("k", second.extent, second.kind, store(y, (Const(1, INDEX), Var("k")), _at(second.body, Var("k"))))
    program = LoopProgram("kernel", (x, y), seq(row(0, lengths[0]), renamed))
    arrays = {"x": np.arange(256, dtype="float32").reshape(16, 16), "y": np.zeros((2, 16), "float32")}
    check(native, program, arrays, lowered=True)


def _at(s: Stmt, place: Var) -> Expr:
    assert isinstance(s, Store)
    return substitute(s.value, {"j": place})


def test_a_register_that_only_some_iterations_write_keeps_its_value(native: Native) -> None:
    x, y, r = Buffer("x", (6,)), Buffer("y", (6,)), Buffer("r", (1,), "float32", "register")
    zero = Const(0, INDEX)
    body = seq(If(equal(I % 3, 0), store(r, (zero,), Load(x, (I,)))), store(y, (I,), Load(r, (zero,)) + Load(x, (I,))))
    program = LoopProgram("kernel", (x, y), Alloc(r, For("i", 6, "serial", body)))
    check(native, program, {"x": np.arange(6, dtype="float32") + 1}, lowered=True)


def test_hints_load_nothing(native: Native) -> None:
    x, at, y = Buffer("x", (9,), "int32"), Buffer("at", (4,), INDEX), Buffer("y", (4,), "int32")
    hints = [Intrinsic("prefetch", (Load(x, (place,)),), ()) for place in (Load(at, (I + (1 << 20),)), I + 1)]
    program = LoopProgram("kernel", (x, at, y), For("i", 4, "serial", seq(*hints, store(y, (I,), Load(x, (I,))))))
    assert emit(program, PLAIN).text.count("call void @llvm.prefetch") == 1
    check(native, program, {"x": np.arange(9, dtype="int32"), "at": np.zeros(4, "int64")}, lowered=True)


# --- masks ------------------------------------------------------------------------------------------------------------


def test_lanes_are_on_by_all_masks_together(native: Native) -> None:
    """What is read at one place for all lanes is read if one lane is on, not if one is by each of several masks."""
    x, y, n = Buffer("x", (5,), "int32"), Buffer("y", (4, 8), "int32"), 5
    value = select(J < 3, select(J + I >= 8, Load(x, (I + n - 1,)), wrap(1, "int32")), wrap(2, "int32"))
    program = LoopProgram("kernel", (x, y), For("i", 4, "serial", For("j", 8, "vectorize", store(y, (I, J), value))))
    check(native, program, {"x": np.arange(5, dtype="int32") + 10}, lowered=True)


@pytest.mark.parametrize("reduce", [None, "sum"])
def test_a_store_at_one_place_for_all_lanes_respects_their_masks(native: Native, reduce: str | None) -> None:
    x, y = Buffer("x", (19,), "int32"), Buffer("y", (3,), "int32")
    at = I * 8 + J
    body = If(all_of(at < 19, J < 5 - I), Store(y, (I,), Load(x, (at,)), reduce))  # type: ignore[arg-type]
    program = LoopProgram("kernel", (x, y), For("i", 7, "serial", For("j", 8, "vectorize", body)))
    arrays = {"x": np.arange(19, dtype="int32") + 1, "y": np.zeros(3, "int32")}
    check(native, program, arrays, lowered=True)


@pytest.mark.parametrize("place", [J // 3, (J * 5 + I) % 4, 3 - J // 4], ids=str)
@pytest.mark.parametrize("reduce", ["sum", "max"])
def test_lanes_that_share_an_element_are_combined_in_turn(native: Native, reduce: str, place: Expr) -> None:
    x, y = Buffer("x", (2, 11)), Buffer("y", (2, 5))
    body = If(J + I < 11, Store(y, (I, place), Load(x, (I, J)), reduce))  # type: ignore[arg-type]
    program = LoopProgram("kernel", (x, y), For("i", 2, "serial", For("j", 11, "vectorize", body)))
    arrays = {"x": np.arange(22, dtype="float32").reshape(2, 11) % 7, "y": np.ones((2, 5), "float32")}
    check(native, program, arrays, lowered=True)


@pytest.mark.parametrize("lanes", [4, 8, 16])
@pytest.mark.parametrize("extent", [1, 15, 17, 31])
def test_gathers_load_indices_only_in_lanes_that_are_on(native: Native, extent: int, lanes: int) -> None:
    x, at = placeholder((7, extent), name="x"), placeholder((extent,), "int32", "at")

    def element(i: Var, j: Var) -> Expr:
        return x[minimum(maximum(cast(INDEX, at[j]), 0), 6), j]

    s = Schedule(create_program("kernel", [x, at], [compute((2, extent), element, "y")]))
    s.vectorize(s.split(s.loops("y")[1], lanes)[1])
    rng = np.random.default_rng(extent)
    arrays = {"x": rng.standard_normal((7, extent)).astype("float32"), "at": rng.integers(-20, 20, extent, "int32")}
    check(native, s.program, arrays, lowered=True)


# --- random programs --------------------------------------------------------------------------------------------------


class Drawn:
    """A random expression over buffers of ``n`` elements, in which whatever may be outside is guarded.

    ``place``: of the element that is computed; a guard around the store says that it is less than ``n``.
    """

    def __init__(self, draw: Callable[..., object], n: int, dtype: str, place: Expr) -> None:
        self.draw, self.n, self.dtype, self.place = draw, n, dtype, place
        self.buffers = {name: Buffer(name, (n,), dtype) for name in ("a", "b")}
        self.at = Buffer("at", (n,), INDEX)

    def number(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, high))  # type: ignore[return-value]

    def pick(self, options: Sequence[str]) -> str:
        return self.draw(st.sampled_from(options))  # type: ignore[return-value]

    def shifted(self) -> tuple[Expr, Expr]:
        """A place that may be outside, and the condition that it is not."""
        at = self.place + self.number(-4, 4)
        return at, all_of(at >= 0, at < self.n)

    def load(self, index: Expr) -> Expr:
        return Load(self.buffers[self.pick("ab")], (index,))

    def value(self, depth: int) -> Expr:
        kind = self.pick(("load", "const") if depth == 0 else ("//", "%", "min", "gather", "select", "guarded", "+"))
        match kind:
            case "load":
                return self.load(self.place)
            case "const":
                return wrap(self.number(0, 3), self.dtype)
            case "gather":
                return self.load(self.index(depth - 1))
            case "select":
                return select(self.condition(depth - 1), self.value(depth - 1), self.value(depth - 1))
            case "guarded":
                at, inside = self.shifted()
                return select(inside, self.load(at), self.value(depth - 1))
        a, b = self.value(depth - 1), self.value(depth - 1)
        return {"//": lambda: a // b, "%": lambda: a % b, "min": lambda: minimum(a, b), "+": lambda: a + b}[kind]()

    def index(self, depth: int) -> Expr:
        """A loaded position: clamped, or of those that are in range chosen by a condition."""
        at, inside = self.shifted()
        loaded = select(inside, Load(self.at, (at,)), wrap(self.number(0, 3)))
        loaded = select(loaded < 0, loaded + self.n, loaded)
        if depth > 0 and self.pick(("clamped", "chosen")) == "chosen":
            ok = all_of(loaded >= 0, loaded < self.n)
            return select(ok, loaded, self.place)
        return minimum(maximum(loaded, 0), self.n - 1)

    def condition(self, depth: int) -> Expr:
        at, inside = self.shifted()
        kind = self.pick(("data", "loaded index", "place", "and", "or", "not"))
        match kind:
            case "data":
                return self.value(max(depth - 1, 0)) > wrap(self.number(0, 2), self.dtype)
            case "loaded index":
                return self.index(depth) < self.number(0, self.n)
            case "place":
                return at >= self.number(0, self.n)
            case "and":
                return all_of(inside, self.load(at) > wrap(1, self.dtype))
            case "or":
                return any_of(Not(inside), self.load(at) > wrap(1, self.dtype))
        return Not(self.load(self.place) > wrap(1, self.dtype))


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_random_programs_with_traps_and_guards(native: Native, data: st.DataObject) -> None:
    draw = data.draw
    n, lanes = draw(st.sampled_from([1, 3, 8, 17, 31])), draw(st.sampled_from([4, 8, 16]))
    kinds = draw(
        st.sampled_from([("serial", "vectorize"), ("unroll", "vectorize"), ("serial", "unroll"), ("serial",) * 2])
    )
    dtype = draw(st.sampled_from(["int64", "int32", "int8", "uint8", "uint16"]))
    place = I * lanes + J
    drawn = Drawn(draw, n, dtype, place)
    y = Buffer("y", (n,), dtype)
    value = drawn.value(draw(st.integers(1, 3)))
    reduce = draw(st.sampled_from([None, "sum", "max"]))
    outer, inner = kinds
    scope = draw(st.sampled_from(["", "register", "local"]))
    if scope:  # a part of the value is computed beforehand, for as many lanes, and perhaps read from another of them
        part, to = Buffer("part", (lanes,), dtype, scope), draw(st.sampled_from([J, (J + 1) % lanes]))
        before = For("j", lanes, inner, If(place < n, store(part, (J,), drawn.value(1))))
        chosen = select(all_of(place + 1 < n, to <= J + 1, drawn.condition(0)), Load(part, (to,)), value)
        stored = If(place < n, Store(y, (place,), chosen, reduce))
        body: Stmt = Alloc(part, seq(before, For("j", lanes, inner, stored)))
    else:
        body = For("j", lanes, inner, If(place < n, Store(y, (place,), value, reduce)))
    nest = For("i", -(-n // lanes), outer, body)
    program = LoopProgram("kernel", (*drawn.buffers.values(), drawn.at, y), nest)
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    arrays = {name: rng.choice(corners(dtype), n).astype(numpy_dtype(dtype)) for name in ("a", "b", "y")}
    arrays["at"] = rng.integers(-2 * n, 2 * n, n)
    check(native, program, arrays)


def test_numpy_divides_as_definitions_do() -> None:
    with np.errstate(all="ignore"):
        for dtype in INTS:
            values = corners(dtype)
            a, b = np.meshgrid(values, values)
            assert (OPERATORS["//"](a, b)[b == 0] == 0).all() and (OPERATORS["%"](a, b)[b == 0] == 0).all()
