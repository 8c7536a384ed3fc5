"""Models in two memories: the same bits as in one, within the budget by what is counted, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import burnish as bn
from burnish.driver.paged import KEPT, PagedBySize, PagedModule, compile_paged
from burnish.errors import ArtifactError, InputError, ParameterError, UnsupportedOperator
from burnish.graph.graph import Graph, GraphBuilder
from burnish.loops.sizes import dim
from burnish.machines.target import target
from burnish.memory.swap import PLANNERS
from burnish.simulators import emulator


def network() -> Graph:
    """Convolutions in blocked layouts, a join, a slice, an alias, an opaque operator, a product, and two outputs."""
    random = np.random.default_rng(0)
    b = GraphBuilder()

    def weight(*shape: int) -> str:
        return b.constant(random.normal(size=shape).astype("f4") / 8, b.fresh("w"))

    x = b.input("x", (1, 3, 20, 20))
    first = b.add("relu", b.add("conv2d", x, weight(32, 3, 3, 3), pads=(1, 1, 1, 1)))
    left, right = (b.add("relu", b.add("conv2d", first, weight(16, 32, 1, 1))) for _ in range(2))
    joined = b.add("concat", left, right, axis=1)
    y = b.add("conv2d", b.add("add", joined, first), weight(32, 32, 3, 3), pads=(1, 1, 1, 1))
    part = b.add("slice", y, starts=(0, 0, 0, 0), extents=(1, 32, 4, 20))
    flat = b.add("reshape", part, shape=(32, 80))
    running = b.add("cumprod", b.add("tanh", flat), axis=1)
    return b.build(b.add("matmul", running, weight(80, 10)), b.add("reduce_max", y, axes=(2, 3), keepdims=False))


def image(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((1, 3, 20, 20)).astype("f4")


@pytest.mark.parametrize("planner", PLANNERS)
def test_a_call_in_two_memories_gives_the_same_bits(planner: str) -> None:
    graph = network()
    whole = bn.compile(graph, threads=1, rewrite=False)
    with compile_paged(graph, "1GB", planner=planner, threads=1) as paged:
        least = paged.problem.least_capacity
    for memory in (least, 2 * least):
        with bn.compile_paged(graph, memory, planner=planner, threads=1) as paged:
            for seed in (0, 1):  # and again: what the first call left in the file does not count
                for found, wanted in zip(paged(x=image(seed)), whole(image(seed)), strict=True):
                    np.testing.assert_array_equal(found, wanted)
            assert paged.moved is not None and paged.moved.peak <= memory
            assert paged.moved.loaded + paged.moved.stored == paged.plan.moved


def test_the_best_plan_moves_no_more_than_others_and_every_weight() -> None:
    graph = network()
    moved = {}
    for planner in PLANNERS:
        with compile_paged(graph, "300KB", planner=planner, threads=1) as paged:
            moved[planner] = paged.plan.moved
            weights = sum(n for name, n in paged.problem.nbytes.items() if name not in paged.problem.producer)
    assert weights <= moved["best"] == min(moved.values()) < moved["streaming"]


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    graph = network()
    with pytest.raises(
        ParameterError, match=r"found 1000 bytes \(1 KB\); allowed: at least \d+ bytes \(.*B\), which step"
    ):
        compile_paged(graph, "1KB")
    with pytest.raises(ParameterError, match="planner: found 'good'; allowed: best, streaming, lru"):
        compile_paged(graph, "1GB", planner="good")
    with compile_paged(graph, "1GB", folder=tmp_path, threads=1) as paged:
        assert [*tmp_path.iterdir()]
        with pytest.raises(InputError, match="input 'x' is"):
            paged(np.zeros((2, 3, 20, 20), "f4"))
        assert len(paged(image())) == 2  # nothing was lost
    assert not [*tmp_path.iterdir()]
    with pytest.raises(ArtifactError, match="closed"):
        paged(image())
    b = GraphBuilder()
    total = b.add("add", b.state("s", np.zeros(4, "f4")), b.input("x", (4,)))
    b.update("s", total)
    with pytest.raises(UnsupportedOperator, match="two memories: found states s"):
        compile_paged(b.build(b.add("relu", total)), "1GB")


def test_compile_takes_a_budget() -> None:
    graph = network()
    with bn.compile(graph, memory_budget="300KB", threads=1) as paged:
        assert isinstance(paged, PagedModule) and paged.plan.capacity == 300_000 and paged.memory["arena"] <= 300_000
        for found, wanted in zip(paged(image()), bn.compile(graph, threads=1, rewrite=False)(image()), strict=True):
            np.testing.assert_array_equal(found, wanted)
    with pytest.raises(ParameterError, match=r"memory_budget: found '1MB'; allowed: None beside train="):
        bn.compile(graph, memory_budget="1MB", train=bn.Train("mse"))
    with pytest.raises(ParameterError, match="weights: found 'bfloat16'; allowed: None for a memory budget"):
        bn.compile(graph, memory_budget="1MB", weights="bfloat16")
    with pytest.raises(ParameterError, match="memory_budget: found 'much'; allowed: bytes, a number with a unit"):
        bn.compile(graph, memory_budget="much")


@pytest.mark.parametrize("emulated", [False, True])
def test_open_sizes_keep_to_the_budget_of_the_greatest(emulated: bool, tmp_path: Path) -> None:
    weights = [np.random.default_rng(n).normal(size=(64, 64)).astype("f4") / 8 for n in range(3)]
    b = GraphBuilder()
    y = b.input("x", (dim("rows", 1, 40), 64))
    for number, value in enumerate(weights):
        y = b.add("relu", b.add("matmul", y, b.constant(value, f"w{number}")))
    graph = b.build(y)
    machine = emulator.emulated(target("aarch64-cortex-a53")) if emulated else target("cpu")
    given: dict[str, Any] = {"target": machine, "threads": 1, "cache_dir": tmp_path / "cache"}
    with pytest.raises(
        ParameterError, match=r"found 30000 bytes \(30 KB\); allowed: at least \d+ bytes \(.*B\), which step"
    ):
        compile_paged(graph, 30_000, **given)
    with compile_paged(graph, 40_000, folder=tmp_path, **given) as paged:
        assert isinstance(paged, PagedBySize) and "1 sizes kept; 40 KB of main memory" in repr(paged)
        counts = [40, 1, 7] if emulated else [40, 1, 7, 16, 33, 7]
        for count in counts:
            x = np.random.default_rng(count).normal(size=(count, 64)).astype("f4")
            wanted = x.astype("f8")
            for value in weights:
                wanted = np.maximum(wanted @ value.astype("f8"), 0)
            np.testing.assert_allclose(paged(x=x), wanted, atol=1e-5)
            assert paged.moved is not None and paged.moved.peak <= 40_000 and paged.memory["arena"] <= paged.plan.peak
        assert len([*tmp_path.glob("burnish-paged-*")]) == min(len({*counts}), KEPT)
        assert paged.profile(x, repeat=1)[-1].kernel == "loads and stores"
        with pytest.raises(InputError, match="found 41; allowed: rows from 1 to 40"):
            paged(np.zeros((41, 64), "f4"))
    assert not [*tmp_path.glob("burnish-paged-*")]
