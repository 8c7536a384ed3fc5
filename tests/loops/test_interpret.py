"""The statement interpreter of loop programs."""

import numpy as np
import pytest

from burnish.errors import InputError, VerificationError
from burnish.loops.expr import Buffer, Call, Const, Load, Select, Var, cast, wrap
from burnish.loops.interpret import evaluate, run_program
from burnish.loops.program import Alloc, For, If, Intrinsic, LoopProgram, seq, store
from burnish.loops.tensor import compute, create_program, placeholder, reduce_axis, sum

X, Y = Buffer("x", (6,)), Buffer("y", (6,))
I = Var("i")  # noqa: E741
ONE_TO_SIX = np.arange(1, 7, dtype="float32")


def over_i(body, extent=6, kind="serial"):
    return For("i", extent, kind, body)


def run(body, *buffers, **arrays):
    return run_program(LoopProgram("p", buffers, body), arrays)


def test_a_naive_program_equals_its_definition():
    a, b = placeholder((3, 4), name="a"), placeholder((4, 5), name="b")
    k = reduce_axis(4, "k")
    y = compute((3, 5), lambda i, j: sum(a[i, k.var] * b[k.var, j], k), "y")
    rng = np.random.default_rng(0)
    feeds = {n: rng.standard_normal(s).astype("float32") for n, s in (("a", (3, 4)), ("b", (4, 5)))}
    result = run_program(create_program("p", [a, b], [y]), feeds)
    assert list(result) == ["y"]
    np.testing.assert_allclose(result["y"], evaluate([y], feeds)[0], rtol=1e-6)


def test_inputs_are_not_modified_and_in_place_results_are_returned():
    x = ONE_TO_SIX.copy()
    result = run(over_i(store(X, (I,), 2.0, "prod")), X, x=x)
    np.testing.assert_array_equal(result["x"], 2 * ONE_TO_SIX)
    np.testing.assert_array_equal(x, ONE_TO_SIX)


@pytest.mark.parametrize(("kind", "expected"), [("sum", 7), ("prod", 10), ("max", 5), ("min", 2)])
def test_reducing_stores(kind, expected):
    body = seq(store(Y, (0,), 2.0), store(Y, (0,), 5.0, kind))
    assert run(body, Y)["y"][0] == expected


def test_what_is_not_written_is_garbage():
    result = run(store(Y, (1,), 1.0), Y)["y"]
    assert result[1] == 1
    assert np.isnan(np.delete(result, 1)).all()
    counts = Buffer("n", (2,), "int16")
    assert run(store(counts, (0,), 1), counts)["n"].tolist() == [1, 0x5555]


def test_allocations_start_uninitialised_every_time():
    t = Buffer("t", (1,))
    body = over_i(Alloc(t, seq(store(t, (0,), 1.0, "sum"), store(Y, (I,), Load(t, (wrap(0),))))))
    assert np.isnan(run(body, Y)["y"]).all()


def test_conditions_and_lazy_selection():
    guarded = over_i(If(I < 2, store(Y, (I,), Load(X, (I + 4,)))))
    np.testing.assert_array_equal(run(guarded, X, Y, x=ONE_TO_SIX)["y"][:2], [5, 6])
    shifted = Select(I < 5, Load(X, (I + 1,)), Const(0.0, "float32"))
    np.testing.assert_array_equal(run(over_i(store(Y, (I,), shifted)), X, Y, x=ONE_TO_SIX)["y"], [2, 3, 4, 5, 6, 0])


@pytest.mark.parametrize("index", [I + 1, I - 1])
def test_out_of_bounds_is_an_error(index):
    with pytest.raises(VerificationError, match=r"x\[.*\]: index (6|-1) in dimension 0 is outside 0 to 5"):
        run(over_i(store(Y, (I,), Load(X, (index,)))), X, Y, x=ONE_TO_SIX)
    with pytest.raises(VerificationError, match=r"y\[.*\]: index (6|-1)"):
        run(over_i(store(Y, (index,), 0.0)), Y)


def test_independent_parallel_iterations():
    body = over_i(store(Y, (I,), Load(X, (I,))), kind="parallel")
    np.testing.assert_array_equal(run(body, X, Y, x=ONE_TO_SIX)["y"], ONE_TO_SIX)


@pytest.mark.parametrize(
    "body",
    [
        store(Y, (0,), Load(X, (I,))),
        store(Y, (I // 2,), 1.0, "sum"),
        seq(store(Y, (I,), 0.0), store(X, (I,), Load(X, (5 - I,)))),
    ],
    ids=["two writes", "reduction", "read and write"],
)
def test_races_are_reported(body):
    body = seq(over_i(store(Y, (I,), 0.0)), For("i", 6, "parallel", body))
    with pytest.raises(VerificationError, match="parallel loop: two iterations touch element"):
        run(body, X, Y, x=ONE_TO_SIX)


def test_scratch_inside_a_parallel_iteration_is_no_race():
    t = Buffer("t", (1,), scope="local")
    body = over_i(Alloc(t, seq(store(t, (0,), Load(X, (I,))), store(Y, (I,), Load(t, (wrap(0),))))), kind="parallel")
    np.testing.assert_array_equal(run(body, X, Y, x=ONE_TO_SIX)["y"], ONE_TO_SIX)


def test_values_are_rounded_and_wrapped_when_stored():
    narrow, half = Buffer("n", (1,), "int8"), Buffer("h", (1,), "float16")
    assert run(store(narrow, (0,), Const(200, "int8")), narrow)["n"][0] == -56
    assert run(store(half, (0,), Const(2049.0, "float16")), half)["h"][0] == 2048
    truncated = cast("int8", Const(-1.9, "float32"))
    assert run(store(narrow, (0,), truncated), narrow)["n"][0] == -1
    sum_wraps = Const(100, "int8") + Const(100, "int8")
    wide = Buffer("w", (1,), "int32")
    assert run(store(wide, (0,), cast("int32", sum_wraps)), wide)["w"][0] == -56


def test_special_values():
    zero = Const(0.0, "float32")
    values = [Const(1.0, "float32") / zero, Const(-1.0, "float32") / zero, Call("exp", (Const(1e4, "float32"),))]
    for value, expected in zip(values, [np.inf, -np.inf, np.inf], strict=True):
        assert run(store(Y, (0,), value), Y)["y"][0] == expected
    assert np.isnan(run(store(Y, (0,), zero / zero), Y)["y"][0])


def test_intrinsics_come_from_a_table():
    def copy_two(operands, attrs):
        (target, to), (source, at) = operands
        target[to[0] : to[0] + attrs["count"]] = source[at[0] : at[0] + attrs["count"]]

    call = Intrinsic("copy", (Load(Y, (wrap(2),)), Load(X, (wrap(0),))), (("count", 2),))
    program = LoopProgram("p", (X, Y), call)
    np.testing.assert_array_equal(run_program(program, {"x": ONE_TO_SIX}, {"copy": copy_two})["y"][2:4], [1, 2])
    with pytest.raises(VerificationError, match="'copy' has no interpretation"):
        run_program(program, {"x": ONE_TO_SIX})


def test_parameters_are_checked():
    body = over_i(store(Y, (I,), Load(X, (I,))))
    with pytest.raises(InputError, match="no array for parameter 'x'"):
        run(body, X, Y)
    with pytest.raises(InputError, match=r"'x' is float32\[3\], expected float32\[6\]"):
        run(body, X, Y, x=np.zeros(3, "float32"))
    with pytest.raises(InputError, match=r"'x' is float64\[6\]"):
        run(body, X, Y, x=np.zeros(6))
