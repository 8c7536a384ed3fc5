"""Plain values travel as text and arrays, what is shared stays shared, and reading calls nothing but dataclasses."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from burnish.errors import ParameterError
from burnish.machines.target import target
from burnish.machines.x86.machine import X86
from burnish.workers.plain import decode, dtype_called, encode
from tests.workers import jobs
from tests.workers.jobs import Ordinary, Pair


def sent(value: Any) -> Any:
    return decode(*encode(value, "value"))


@pytest.mark.parametrize(
    "value",
    [
        None, True, 3, -(1 << 70), 0.1, float("inf"), "text ü\0", b"", b"\0\xff", [1, [2]], (1, (2, [3])),
        frozenset({"a", "b"}), {"a": {"b": (1,)}, "": 2}, Pair(1, (Pair("x", None),)), jobs.add, Pair, X86,
    ],
)  # fmt: skip
def test_plain_values_come_back(value: Any) -> None:
    found = sent(value)
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint64", "float16", "float64", "complex64", "bfloat16"])
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
def test_arrays_come_back(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape).astype(dtype_called(dtype))
    found = sent({"array": array, "across": array.T})
    assert found["array"].dtype == array.dtype and found["array"].shape == shape
    np.testing.assert_array_equal(found["array"], array)
    np.testing.assert_array_equal(found["across"], array.T)


def test_scalars_keep_their_type() -> None:
    for scalar in (np.float32(0.1), np.int8(3), np.bool_(True), ml_dtypes.bfloat16(2.0)):
        assert type(sent(scalar)) is type(scalar) and sent(scalar) == scalar


def test_what_is_shared_stays_shared_and_small() -> None:
    value: Any = Pair(0, 1)
    for _ in range(60):
        value = Pair(value, value)  # 2^60 leaves
    text, _ = encode(value, "value")
    found = decode(text, [])
    assert len(text) < 5000 and found.first is found.second and found.first.first is found.second.second


def test_partial_calls_and_machines_come_back() -> None:
    found = sent(partial(jobs.add, 1, second=2))
    assert (found.func, found.args, found.keywords) == (jobs.add, (1,), {"second": 2})
    assert sent(target("x86-64-v4")).machine is X86


@pytest.mark.parametrize(
    "value", [object(), {1: 2}, {1, 2}, np.array(["text"]), np.zeros(3, ">f4"), np.array([None]), lambda: 0, 1j]
)
def test_other_values_are_refused(value: object) -> None:
    with pytest.raises(ParameterError, match=r"^here: "):
        encode([value], "here")


@pytest.mark.parametrize(
    "change",
    [
        {"classes": [["tests.workers.jobs", "", "Ordinary"]]},
        {"classes": [["os", "", "abort"]]},
        {"classes": [["tests.workers.jobs", "", "nothing"]]},
        {"objects": [[0, 1]]},
        {"objects": [[0, 1, 2, 3]]},
        {"objects": [[7, 1, 2]]},
        {"value": {"object": 5}},
        {"value": {"array": 0}},
        {"value": {"call": ["os", "", "abort"]}},
        {"value": {"object": 0, "more": 1}},
    ],
)
def test_what_was_not_written_so_is_refused_and_calls_nothing(change: dict[str, Any]) -> None:
    assert isinstance(Ordinary, type)
    text, arrays = encode(Pair(1, 2), "value")
    assert decode(text, arrays) == Pair(1, 2)
    with pytest.raises((ValueError, TypeError, KeyError, IndexError, AttributeError)):
        decode(json.dumps({**json.loads(text), **change}), arrays)
