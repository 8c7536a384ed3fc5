"""Arrays compute what NumPy computes, by the operators of the registry."""

from __future__ import annotations

import operator
import threading

import ml_dtypes
import numpy as np
import pytest

import burnish as bn
from burnish.array import lazy
from burnish.array.program import OperatorCall
from burnish.errors import BurnishError, InputError, ModelError
from burnish.ops import OPERATORS

nd = bn.nd
SIGNS = [operator.add, operator.sub, operator.mul, operator.truediv, operator.lt, operator.ge, operator.eq, operator.ne]


def some(shape: tuple[int, ...], dtype: str = "float32", seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(1, 9, shape).astype(dtype)


@pytest.mark.parametrize("sign", SIGNS, ids=lambda s: s.__name__)
@pytest.mark.parametrize(("left", "right"), [("float32", "float32"), ("int32", "float64"), ("int64", "int64")])
def test_signs_are_numpys_with_its_dtypes(sign: object, left: str, right: str) -> None:
    a, b = some((3, 4), left), some((4,), right, 1)
    expected = sign(a, b)
    for found in (sign(nd.array(a), nd.array(b)), sign(nd.array(a), b), sign(nd.array(a), nd.array(b))):
        assert found.dtype == expected.dtype
        assert found.shape == expected.shape
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-6)


@pytest.mark.parametrize("number", [2, 2.5, True, np.float64(1.5), np.int8(3)])
@pytest.mark.parametrize("dtype", ["float32", "int32", "uint8", "float64"])
def test_numbers_take_the_dtype_that_numpy_gives_them(number: object, dtype: str) -> None:
    a = some((5,), dtype)
    for found, expected in ((nd.array(a) + number, a + number), (number * nd.array(a), number * a)):
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found.numpy(), expected)


def test_negative_zero_is_not_zero() -> None:
    a = nd.ones(3)
    assert str(a * 0.0) == str(a * 0.0)
    assert np.signbit((a * -0.0).numpy()).all()
    assert not np.signbit((a * 0.0).numpy()).any()


def test_powers_negation_absolute_and_bits() -> None:
    a = some((6,)) - 4.5
    x = nd.array(a)
    np.testing.assert_allclose((x**2).numpy(), a**2, rtol=1e-6)
    np.testing.assert_allclose((abs(x) ** 0.5).numpy(), abs(a) ** 0.5, rtol=1e-6)
    np.testing.assert_allclose((abs(x) ** -1).numpy(), abs(a) ** -1, rtol=1e-6)
    np.testing.assert_allclose((2.0 ** (-x)).numpy(), 2.0**-a, rtol=1e-5)
    np.testing.assert_array_equal((~(x > 0)).numpy(), ~(a > 0))
    i = some((6,), "int32")
    np.testing.assert_array_equal((~nd.array(i)).numpy(), ~i)
    np.testing.assert_array_equal((nd.array(i) & 3).numpy(), i & 3)
    np.testing.assert_array_equal(((x > 0) | (x < -2)).numpy(), (a > 0) | (a < -2))


def test_matrix_products_and_reductions() -> None:
    a, b = some((3, 4)), some((4, 5), seed=1)
    x, y = nd.array(a), nd.array(b)
    np.testing.assert_allclose((x @ y).numpy(), a @ b)
    np.testing.assert_allclose((y.T @ x.T).numpy(), b.T @ a.T)
    np.testing.assert_allclose(nd.sum(x).numpy(), a.sum())
    np.testing.assert_allclose(nd.mean(x, axis=0).numpy(), a.mean(0))
    np.testing.assert_allclose(x.max(axis=(0, 1)).numpy(), a.max())
    np.testing.assert_allclose(x.sum(axis=-1, keepdims=True).numpy(), a.sum(-1, keepdims=True))
    np.testing.assert_array_equal(nd.argmax(x, axis=1).numpy(), a.argmax(1))


def test_every_operator_is_a_function_with_its_documentation() -> None:
    public = {name for name, operator in OPERATORS.items() if not operator.traits.internal}
    for name in public - {"reshape", "transpose"}:  # which give views
        function = getattr(nd, name)
        assert function.__name__ == name
        assert OPERATORS[name].doc.split("\n")[0] in function.__doc__
    assert public <= set(dir(nd)) and not (set(OPERATORS) - public) & set(dir(nd))
    with pytest.raises(AttributeError, match="no function 'no_such'"):
        nd.no_such  # noqa: B018


def test_functions_take_attributes_by_position_and_by_name_and_optional_operands() -> None:
    x = nd.array(some((1, 2, 5, 5)))
    w, b = nd.array(some((3, 2, 3, 3), seed=1)), nd.array(some((3,), seed=2))
    plain = nd.conv2d(x, w, pads=[1, 1, 1, 1])
    np.testing.assert_allclose(
        nd.conv2d(x, w, b, pads=(1, 1, 1, 1)).numpy(), (plain + b.reshape(3, 1, 1)).numpy(), rtol=1e-5
    )
    np.testing.assert_array_equal(nd.conv2d(x, w, bias=b).numpy(), nd.conv2d(x, w, b).numpy())
    np.testing.assert_array_equal(nd.softmax(x, -1).numpy(), nd.softmax(x, axis=-1).numpy())
    values, places = nd.top_k(nd.array([3.0, 1.0, 2.0]), k=2)
    assert (values.tolist(), places.tolist()) == ([3.0, 2.0], [0, 2])
    assert nd.concatenate([values, values], axis=0).tolist() == [3.0, 2.0, 3.0, 2.0]
    assert nd.stack([values, values]).shape == (2, 2)


def test_errors_name_the_operator_and_the_argument() -> None:
    a, b = nd.ones((2, 3)), nd.ones((4, 5))
    with pytest.raises(ModelError, match=r"add .*input 'b': found shape \[4, 5\]"):
        a + b
    with pytest.raises(ModelError, match=r"matmul .*inner extent"):
        a @ b
    with pytest.raises(ModelError, match="attribute 'axis'"):
        nd.softmax(a, axis=7)
    with pytest.raises(TypeError, match="unsupported operand"):
        a + object()
    with pytest.raises(InputError, match="found a complex"):
        nd.add(a, 1j)
    with pytest.raises(InputError, match="dtype: found complex64"):
        nd.array(np.zeros(2, "complex64"))
    with pytest.raises(InputError, match="allowed: one element"):
        bool(a)
    np.testing.assert_array_equal((a + a).numpy(), np.full((2, 3), 2))


def test_dtypes_from_bool_to_bfloat16() -> None:
    half = nd.array([1.0, 2.0], "bfloat16")
    assert (half + 1).dtype == ml_dtypes.bfloat16
    assert (half * nd.ones(2)).dtype == np.float32
    assert half.astype("float64").tolist() == [1.0, 2.0]
    assert (nd.array([True, False]) + nd.array([True, True])).tolist() == [True, True]
    assert nd.array([1, 2]).dtype == np.int64
    assert nd.array([1.0, 2]).dtype == np.float32
    assert nd.arange(3).tolist() == [0, 1, 2]


def test_conversions_to_and_from_numpy_numbers_and_lists() -> None:
    a = nd.array([[1.0, 2.0], [3.0, 4.0]])
    assert np.asarray(a).tolist() == a.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert np.asarray(a, "float64").dtype == np.float64
    assert (float(a[0, 1]), int(a[1, 0]), len(a), 3.0 in a) == (2.0, 3, 2, True)
    assert [row.tolist() for row in a] == [[1.0, 2.0], [3.0, 4.0]]
    assert repr(a + 1) == "array([[2., 3.],\n       [4., 5.]], dtype=float32)"
    copy = np.asarray(a)
    copy[:] = 0
    assert a.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert (np.ones(2, "float32") + a).tolist() == [[2.0, 3.0], [4.0, 5.0]]


def test_memory_shared_by_dlpack_is_written_where_it_is() -> None:
    mine = np.arange(4, dtype=np.float32)
    a = nd.from_dlpack(mine)
    a += 1
    a[0] = 9
    assert mine.tolist() == [9, 2, 3, 4]
    mine[1] = 7
    assert a.tolist() == [9, 7, 3, 4]
    b = nd.array([1.0, 2.0])
    theirs = np.from_dlpack(b)
    b *= 3
    assert theirs.tolist() == [3.0, 6.0]
    del b
    c = nd.array([5.0, 6.0])
    assert theirs.tolist() == [3.0, 6.0], "memory that is shared is not used again"
    assert c.tolist() == [5.0, 6.0]
    with pytest.raises(InputError, match="allowed: use array"):
        nd.from_dlpack(mine[::2])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "int64", "bool", "uint8"])
def test_memory_is_shared_with_torch_in_every_dtype(dtype: str) -> None:
    import torch

    a = nd.array([[0, 1, 2], [3, 4, 5]], dtype)
    whole, part = torch.from_dlpack(a), torch.from_dlpack(a.T[1:])
    assert str(whole.dtype) == f"torch.{dtype}"
    whole[1, 2] = 0
    assert a.tolist() == whole.tolist()
    assert part.tolist() == whole.T[1:].tolist()


def test_empty_and_scalar_arrays() -> None:
    assert (nd.zeros((0, 3)) + 1).shape == (0, 3)
    assert nd.sum(nd.zeros((0, 3))).item() == 0
    assert (nd.array(2.0) * nd.array(3.0)).item() == 6.0


def test_an_expression_that_repeats_becomes_one_program() -> None:
    lazy.wait_all()  # for what other tests have left recorded, which would be of the same program
    a = nd.array(some((7,)))
    before = set(lazy._programs)
    results = [((a * 2 - 1) * a + 0.5 * i).numpy() for i in range(4)]
    for i, found in enumerate(results):
        np.testing.assert_allclose(found, (some((7,)) * 2 - 1) * some((7,)) + 0.5 * i, rtol=1e-6)
    ((_, program),) = [(k, p) for k, p in lazy._programs.items() if k not in before]
    assert len(program.module.executable.calls) == 1


def test_results_that_are_held_are_kept_and_others_are_not() -> None:
    a = nd.array(some((7,)))
    for _ in range(3):
        first = a + 1
        second = first * first
        third = second - first
        del second
        assert third.tolist() == ((some((7,)) + 1) ** 2 - some((7,)) - 1).tolist()
        assert first.value.block is not None
    programs = [p for p in lazy._programs.values() if not isinstance(p, int | None)]
    assert len(programs[-1].outputs) == 2


def test_long_chains_run_before_they_are_asked_for() -> None:
    a = nd.zeros(3)
    for _ in range(1000):
        a = a + 1
    assert len(lazy.recorded) < lazy.MOST_RECORDED
    assert a.tolist() == [1000.0] * 3


def test_an_update_in_place_takes_no_other_memory() -> None:
    w, g = nd.ones(100_000), nd.ones(100_000)
    addresses = set()
    for _ in range(8):
        w -= 0.5 * g
        w.wait()
        addresses.add(w.value.address)
    assert len(addresses) <= 2  # the first time, the two operations run by themselves
    assert (w == -3.0).numpy().all()
    small, one, places = nd.ones(8), nd.ones(8), set()
    for _ in range(12):
        small -= one
        small.wait()
        places.add(small.value.address)
    assert len(places) == 1
    assert small.tolist() == [-11.0] * 8


def test_a_value_that_is_held_survives_an_update() -> None:
    for _ in range(4):
        w = nd.ones(50)
        before = w * 1
        kept = w + 0
        w -= 2 * kept
        assert before.tolist() == [1.0] * 50
        assert kept.tolist() == [1.0] * 50
        assert w.tolist() == [-1.0] * 50


def test_arrays_are_used_from_several_threads() -> None:
    a = nd.array(some((64,)))
    wrong: list[object] = []

    def work(seed: int) -> None:
        b = nd.array(some((64,), seed=seed))
        for i in range(60):
            found = ((a + b) * float(i) - a).numpy()
            expected = (some((64,)) + some((64,), seed=seed)) * i - some((64,))
            if not np.array_equal(found, expected):
                wrong.append((seed, i))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_what_fails_leaves_the_rest_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    original = OperatorCall.program
    a = nd.array(some((9,)))
    good = a + 3
    bad = nd.softplus(a.reshape(3, 3))
    call = lazy.recorded[-1][0]
    worse = bad + 1

    def refuse() -> None:
        raise ModelError("softplus: no such kernel")

    monkeypatch.setattr(OperatorCall, "program", lambda self: refuse() if self is call else original(self))
    assert good.tolist() == (some((9,)) + 3).tolist()
    for array in (bad, worse):
        with pytest.raises(BurnishError, match="no such kernel"):
            array.numpy()
