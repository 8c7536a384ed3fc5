"""Normalizations that are written out: one kernel, which reads a row once; what others read is kept."""

from __future__ import annotations

import numpy as np
import pytest

import burnish as bn
from burnish.driver.compilation import compile_kernels
from burnish.graph import GraphBuilder
from burnish.graph.graph import Graph
from burnish.machines.target import target
from burnish.pipeline.kernel import outline
from burnish.simulators.gpu.emulator import emulated

SM80 = target("cuda:sm_80")


def normalized(rows: int, width: int, seen: bool = False, dtype: str = "bfloat16") -> Graph:
    """``gelu(x * rsqrt(mean(x * x) + eps) * w)`` in float32, of halves; ``seen``: the mean is a result, too."""
    b = GraphBuilder()
    x = b.add("cast", b.input("x", (rows, width), dtype), to="float32")
    mean = b.add("reduce_mean", b.add("mul", x, x), axes=(1,), keepdims=True)
    scale = b.add("rsqrt", b.add("add", mean, b.constant(np.array(1e-5, "float32"))))
    y = b.add("cast", b.add("mul", x, scale), to=dtype)
    weights = b.constant(np.linspace(0.5, 2, width).astype("float32"))
    y = b.add("gelu", b.add("mul", b.add("cast", y, to="float32"), weights))
    return b.build(y, *([mean] if seen else []))


def templates_of(graph: Graph) -> list[str]:
    found: list[str] = []

    def made(task, machine, store, recipe=None):  # type: ignore[no-untyped-def]
        kernel = outline(task, machine, None, recipe)
        found.append(kernel.template)
        return kernel

    compile_kernels(graph, SM80, make=made)
    return found


def test_a_normalization_with_what_follows_is_one_kernel() -> None:
    assert templates_of(normalized(64, 256)) == ["rows"]
    assert len(templates_of(normalized(64, 256, seen=True))) > 1


@pytest.mark.parametrize(("rows", "width"), [(3, 64), (5, 40)])
def test_it_is_right(rows: int, width: int) -> None:
    graph = normalized(rows, width, dtype="float16")
    x = np.random.default_rng(0).standard_normal((rows, width)).astype("float16")
    found = np.asarray(bn.compile(graph, target=emulated(SM80))(x))
    wanted = np.asarray(bn.compile(graph)(x))
    np.testing.assert_allclose(found, wanted, rtol=2e-3, atol=2e-3)
