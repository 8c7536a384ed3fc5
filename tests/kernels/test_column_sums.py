"""Sums over rows: gradients of biases and of the scales of normalizations, against the definition."""

from __future__ import annotations

from typing import Any

import pytest

from burnish.kernels.cpu.column_sums import COLUMN_SUMS
from burnish.kernels.task import KernelTask
from burnish.loops.tensor import Tensor, compute, placeholder
from burnish.machines.target import host
from burnish.ops import OPERATORS, operator_named
from burnish.ops.adjoint import derive


def summed(rows: tuple[int, ...], columns: int) -> Tensor:
    """The sum over rows alone."""
    x = placeholder((*rows, columns), name="x")
    return OPERATORS["reduce_sum"].define("y", [x], {"axes": tuple(range(len(rows))), "keepdims": False})[0]


def scale_gradient(rows: tuple[int, ...], columns: int) -> Tensor:
    """The gradient of a layer normalization by its scale."""
    types = (((*rows, columns), "float32"), ((columns,), "float32"), ((columns,), "float32"))
    found = derive(operator_named, "layer_norm", (("axis", -1),), types, 1, (0,)).result
    assert found is not None
    return found


@pytest.mark.parametrize("made", [summed, scale_gradient])
@pytest.mark.parametrize(("rows", "columns"), [((64,), 48), ((97,), 33), ((40,), 200), ((6, 50), 70), ((3, 8, 5), 64)])
def test_sums_over_rows(check: Any, made: Any, rows: tuple[int, ...], columns: int) -> None:
    check(COLUMN_SUMS, "adjoint", [made(rows, columns)], rtol=5e-5)


@pytest.mark.parametrize("choice", [{"chunks": 1}, {"chunks": 4}, {"rows": 1}, {"rows": 2, "vectors": 1}])
@pytest.mark.parametrize("edge", ["start", "end"])
def test_all_choices_compute_the_same(check: Any, choice: dict[str, int], edge: str) -> None:
    check(COLUMN_SUMS, "sum", [summed((64,), 96)], choice={"chunks": 8, **choice}, threads=3, edge=edge)
    own = {k: v for k, v in choice.items() if k != "rows"}
    check(COLUMN_SUMS, "sum", [scale_gradient((64,), 80)], choice=own, threads=3, edge=edge, rtol=5e-5)


def test_an_epilogue_follows(check: Any) -> None:
    total, old = summed((256,), 100), placeholder((100,), name="old")
    out = compute((100,), lambda i: old[i] - 0.1 * total[i], "out")
    check(COLUMN_SUMS, "sum", [out])


def test_what_is_matched() -> None:
    def match(t: Tensor) -> bool:
        inputs = tuple(sorted(t.inputs, key=lambda t: t.name))
        return COLUMN_SUMS.match(KernelTask("k", inputs, (t,), "", {}, frozenset()), host()) is not None

    x = placeholder((64, 64), name="x")
    assert match(summed((64,), 64)) and not match(summed((4,), 64)) and not match(summed((64,), 4))
    assert not match(OPERATORS["reduce_sum"].define("y", [x], {"axes": (1,), "keepdims": False})[0])
    assert not match(OPERATORS["reduce_max"].define("y", [x], {"axes": (0,), "keepdims": False})[0])
