"""Each kernel is compared by itself, so that an error shows where it arises."""

from __future__ import annotations

import numpy as np
import pytest

from burnish.driver import check as checking
from burnish.driver.check import check
from burnish.driver.compilation import Compilation, KernelStage, compile_kernels
from burnish.errors import InputError
from burnish.graph.graph import Graph, GraphBuilder
from burnish.machines.target import host
from burnish.measure.accuracy import EXACT_TOLERANCE, TOLERANCE


def small_network(dtype: str = "float32") -> Graph:
    """Two convolutions with a residual sum, of 26 channels: no whole number of vectors."""
    b, random = GraphBuilder(), np.random.default_rng(0)

    def convolution(x: str, outputs: int, name: str) -> str:
        shape = (outputs, b.types[x].shape[1], 3, 3)
        weight = b.constant((random.standard_normal(shape) / 12).astype(dtype))
        return b.add("conv2d", x, weight, pads=(1, 1, 1, 1), node=name)

    x = b.add("relu", convolution(b.input("x", (1, 3, 8, 8), dtype), 26, "first"), node="activation")
    y = b.add("add", convolution(x, 26, "second"), x, node="sum")
    return b.build(b.add("reduce_mean", y, axes=(2, 3), node="mean"))


X = {"x": np.random.default_rng(1).standard_normal((1, 3, 8, 8)).astype(np.float32)}


@pytest.mark.parametrize(("exact", "allowed"), [(False, TOLERANCE), (True, EXACT_TOLERANCE)])
def test_every_kernel_is_checked(exact: bool, allowed: float) -> None:
    rows = check(small_network(), X, exact=exact)
    assert all(row.ok and row.allowed == allowed for row in rows)
    nodes = " ".join(row.nodes for row in rows)
    assert all(name in nodes for name in ("first", "activation", "second", "sum", "mean"))
    assert all(row.template and row.kernel for row in rows)


def test_half_precision_may_err_by_its_own_rounding() -> None:
    rows = check(small_network("float16"), {"x": X["x"].astype(np.float16)})
    assert all(row.ok for row in rows)
    assert {row.allowed for row in rows} == {1e-4, 4 * 2.0**-10}  # convolutions of halves are float32


def test_a_wrong_kernel_is_found_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_wrongly(made: Compilation, stage: KernelStage, *args: object) -> list[np.ndarray]:
        outputs = run(made, stage, *args)  # type: ignore[arg-type]
        if any(node.name == "second" for node in stage.group.nodes):
            outputs[0].reshape(-1)[7] += 0.01 * np.abs(outputs[0]).max()
        return outputs

    run = checking.run_alone
    monkeypatch.setattr(checking, "run_alone", run_wrongly)
    wrong = [row for row in check(small_network(), X) if not row.ok]
    assert len(wrong) == 1
    assert "second" in wrong[0].nodes
    assert wrong[0].error == pytest.approx(0.01, rel=0.5)


def test_padding_of_a_blocked_value_is_poisoned() -> None:
    made = compile_kernels(small_network(), host(), exact=True)
    blocked = [name for name in made.layouts if made.graph.types[name].shape[1] == 26]
    assert blocked
    packed = checking.pack(made, blocked[0], np.ones(made.graph.types[blocked[0]].shape))
    assert packed.size > np.isfinite(packed).sum() == 26 * 64


def test_nan_in_the_reference_is_expected() -> None:
    x = X["x"].copy()
    x[0, 1, 4, 4] = np.nan
    assert all(row.ok for row in check(small_network(), {"x": x}, exact=True))


def test_feeds_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InputError, match=r"input 'x': found float32\[3, 8, 8\]; allowed: float32\[1, 3, 8, 8\]"):
        check(small_network(), {"x": X["x"][0]})
    with pytest.raises(InputError, match="input 'x' is missing"):
        check(small_network(), {})
