"""Differences of what is computed twice, once in a product that a kernel holds: exactly 0, as where it is stored."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import burnish as bn
from burnish.graph.graph import GraphBuilder
from burnish.machines.target import target
from burnish.runtime.module import Module
from burnish.simulators.emulator import CpuEmulator
from burnish.simulators.gpu.emulator import emulated

Make = Callable[[GraphBuilder, str, str], str]


def row(b: GraphBuilder, op: str, x: str) -> str:
    return b.add(f"reduce_{op}", x, axes=(1,), keepdims=True)


def without(op: str) -> Make:
    """The extreme of a row of products, less the same of these differences."""

    def make(b: GraphBuilder, x: str, y: str) -> str:
        p = b.add("mul", x, y)
        return row(b, op, b.add("sub", p, row(b, op, p)))

    return make


def variance(b: GraphBuilder, x: str, y: str) -> str:
    p = b.add("mul", x, y)
    away = b.add("sub", p, row(b, "mean", p))
    return row(b, "mean", b.add("mul", away, away))


def normalized(b: GraphBuilder, x: str, y: str) -> str:
    one, zero = (b.constant(np.full(b.types[x].shape[1], v), dtype=b.types[x].dtype) for v in (1, 0))
    return b.add("layer_norm", b.add("mul", x, y), one, zero, axis=1, epsilon=1e-30)


def distances(b: GraphBuilder, x: str, y: str) -> str:
    """Of every point to itself."""
    p, (rows, features) = b.add("mul", x, y), b.types[x].shape
    left, right = (b.add("reshape", p, shape=s) for s in ((rows, 1, features), (1, rows, features)))
    apart = b.add("reduce_l2", b.add("sub", left, right), axes=(2,), keepdims=False)
    return b.add("mul", apart, b.constant(np.eye(rows), dtype=b.types[x].dtype))


CASES: dict[str, tuple[tuple[int, int], Make]] = {
    "log-softmax of one": ((64, 1), lambda b, x, y: b.add("log_softmax", b.add("mul", x, y), axis=1)),
    "log-softmax of one, outer": ((1, 40), lambda b, x, y: b.add("log_softmax", b.add("mul", x, y), axis=0)),
    "maximum": ((33, 17), without("max")), "minimum": ((33, 17), without("min")),
    "variance of one": ((40, 1), variance), "layer norm of one": ((40, 1), normalized),
    "distances": ((20, 17), distances),
    "products in either order": (
        (33, 17), lambda b, x, y: b.add("sub", b.add("mul", x, y), b.add("mul", y, x))),
    "a sum with the negative": (
        (33, 17), lambda b, x, y: b.add("add", b.add("mul", x, y), b.add("neg", b.add("mul", y, x)))),
    "the negative first": (
        (33, 17), lambda b, x, y: b.add("add", b.add("neg", b.add("mul", y, x)), b.add("mul", x, y))),
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("machine", ["host", "aarch64-cortex-a53", "grid"])
@pytest.mark.parametrize("name", CASES)
def test_what_equals_its_other_operand_leaves_nothing(name: str, machine: str, dtype: str) -> None:
    shape, make = CASES[name]
    b = GraphBuilder()
    graph = b.build(make(b, *(b.input(name, shape, dtype) for name in "xy")))
    rng = np.random.default_rng(5)
    given = [rng.normal(size=shape).astype(dtype) for _ in "xy"]
    if machine == "grid":
        y = bn.compile(graph, target=emulated(target("cuda:sm_80")))(*given)
    elif machine == "host":
        y = bn.compile(graph, threads=1)(*given)
    else:
        y = Module(bn.compile(graph, target=machine, threads=1).executable, 1, device=CpuEmulator())(*given)
    assert not np.any(y), np.abs(y).max()
