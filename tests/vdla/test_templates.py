"""Convolutions and products by their templates: bit-exact for any tile, and what is not theirs runs on the CPU."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

import burnish as bn
from burnish.errors import ScheduleError, TargetError
from burnish.graph import GraphBuilder
from burnish.graph.evaluate import evaluate
from burnish.kernels.vdla.tiling import BlockedConv, VdlaTile, best_tile, candidates, checked_tile, cycles
from burnish.machines.target import target
from burnish.machines.vdla.config import Config
from burnish.machines.vdla.device import VdlaDevice
from tests.vdla.conftest import Check
from tests.vdla.layers import convolution, integers, product, requantize

LAYERS = {
    "3x3": convolution((1, 32, 8, 8), (32, 32, 3, 3), pads=(1, 1, 1, 1)),
    "strided": convolution((1, 32, 8, 8), (64, 32, 3, 3), pads=(1, 1, 1, 1), strides=(2, 2)),
    "1x1, added to": convolution((2, 32, 6, 6), (32, 32, 1, 1), beside=True, relu=False),
    "1x1, strided": convolution((1, 48, 7, 9), (16, 48, 1, 1), strides=(2, 2)),
    "5x3, dilated": convolution((1, 16, 12, 10), (16, 16, 5, 3), dilations=(2, 1), pads=(4, 0, 0, 2)),
    "batch": convolution((3, 16, 5, 6), (32, 16, 3, 3), pads=(0, 1, 2, 1), beside=False),
    "product": product(24, 64, 48),
    "one row": product(1, 32, 16),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_are_exact(check: Check, name: str) -> None:
    (found,) = check(LAYERS[name])
    assert found.products > 0


@pytest.mark.parametrize(
    ("threads", "axis"), [(1, "channels"), (2, "channels"), (2, "rows"), (2, "columns"), (4, "channels"), (4, "rows")]
)
def test_virtual_threads_are_exact(check: Check, threads: int, axis: str) -> None:
    graph = convolution((1, 32, 8, 8), (64, 32, 3, 3), pads=(1, 1, 1, 1), beside=False)
    choice = {"channels": 1, "rows": 2, "columns": 4, "depth": 1, "threads": threads, "axis": axis}
    (found,) = check(graph, choice=choice)
    assert found.products == 4 * 2 * 9 * 64


def test_virtual_threads_hide_transfers(check: Check) -> None:
    graph = convolution((1, 64, 14, 14), (64, 64, 3, 3), pads=(1, 1, 1, 1))
    tile = {"channels": 2, "rows": 7, "columns": 14, "depth": 1, "axis": "channels"}
    (one,), (two,) = check(graph, choice={**tile, "threads": 1}), check(graph, choice={**tile, "threads": 2})
    assert one.products == two.products and one.cycles > 1.25 * two.cycles
    assert two.utilization > 0.75 > 0.65 > one.utilization


def random_schedule(check: Check, seed: int) -> None:
    """A random layer by a random tile that fits."""
    source = random.Random(seed)
    if source.random() < 0.25:
        rows, depth, columns = source.randint(1, 12), 16 * source.randint(1, 4), 16 * source.randint(1, 6)
        graph, work = product(rows, depth, columns), BlockedConv(1, columns // 16, depth // 16, rows, 1)
    else:
        c, o, k = source.randint(1, 3), source.randint(1, 4), source.choice((1, 2, 3))
        h, w, s, n = source.randint(k, 9), source.randint(k, 9), source.choice((1, 2)), source.choice((1, 1, 2))
        pads = tuple(source.randint(0, k - 1) for _ in range(4))
        beside = source.random() < 0.3 and (s, c) == (1, o) and (pads[0] + pads[2], pads[1] + pads[3]) == (k - 1, k - 1)
        graph = convolution((n, 16 * c, h, w), (16 * o, 16 * c, k, k), beside=beside, strides=(s, s), pads=pads)
        rows, columns = (h + pads[0] + pads[2] - k) // s + 1, (w + pads[1] + pads[3] - k) // s + 1
        if k == s == 1 and not any(pads):  # pixels of pointwise convolutions are one dimension
            rows, columns = 1, rows * columns
        work = BlockedConv(n, o, c, rows, columns, (k, k), (s, s), beside=int(beside))
    tiles = sorted(candidates(work, Config(), (1, 2, 4)), key=str)
    check(graph, choice=source.choice(tiles).choice)


@pytest.mark.parametrize("seed", range(12))
def test_random_schedules_are_exact_and_end(check: Check, seed: int) -> None:
    random_schedule(check, seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(100, 600, 50))
def test_five_hundred_random_schedules_are_exact_and_end(check: Check, first: int) -> None:
    for seed in range(first, first + 50):
        random_schedule(check, seed)


def test_a_network_runs_on_both(tmp_path: object) -> None:
    """The first convolution, pooling, a cast to floats behind the last convolution and the classifier are the CPU's."""
    g = GraphBuilder()
    x = g.input("x", (1, 3, 16, 16), "int8")
    bias = integers(32, 1, 1, seed=5, high=900, dtype="int32")
    y = g.add("conv2d", x, g.constant(integers(32, 3, 3, 3)), pads=(1, 1, 1, 1))
    y = g.add("max_pool2d", requantize(g, y, bias, 7), kernel=(2, 2), strides=(2, 2))
    z = g.add("conv2d", y, g.constant(integers(32, 32, 3, 3, seed=1)), pads=(1, 1, 1, 1))
    z = requantize(g, z, bias, 10)
    z = g.add("conv2d", z, g.constant(integers(32, 32, 3, 3, seed=2)), pads=(1, 1, 1, 1))
    z = requantize(g, z, bias, 10, beside=y)
    mean = g.add("reduce_mean", g.add("cast", z, to="float32"), axes=(2, 3))
    graph = g.build(g.add("matmul", g.add("reshape", mean, shape=(1, 32)), g.constant(np.eye(32, 10, dtype="float32"))))
    device = VdlaDevice()
    machine = target("vdla")
    machine = replace(machine, machine=machine.machine.with_(device=lambda: device))
    module, feed = bn.compile(graph, target=machine, cache_dir=tmp_path), integers(1, 3, 16, 16, seed=9)  # type: ignore[arg-type]
    np.testing.assert_allclose(module(feed), next(iter(evaluate(graph, {"x": feed}).values())), rtol=1e-5)
    assert len(device.runs) == 2 and all(run.products == 2 * 2 * 9 * 64 for run in device.runs)
    templates = [row["template"] for row in module.executable.info["kernels"]]
    assert templates.count("vdla_convolution") == 2 and len(templates) > 4
    module.save(tmp_path / "m.bn")  # type: ignore[operator]
    loaded = bn.load(tmp_path / "m.bn", device=VdlaDevice())  # type: ignore[operator]
    np.testing.assert_array_equal(loaded(feed), module(feed))
    assert len(module.profile(feed, repeat=1)) == len(module.executable.steps)


@pytest.mark.parametrize(
    "graph",
    [
        convolution((1, 24, 8, 8), (32, 24, 3, 3)),  # no whole blocks of channels
        convolution((1, 32, 8, 8), (32, 16, 3, 3), groups=2),
        product(4, 24, 32),
    ],
)  # fmt: skip
def test_what_is_not_for_the_core_runs_on_the_cpu(check: Check, graph: object) -> None:
    assert check(graph) == []


def test_tiles_that_do_not_fit_are_refused_by_name() -> None:
    work, config = BlockedConv(1, 4, 4, 56, 56, (3, 3)), Config()
    with pytest.raises(ScheduleError, match="channels 3 does not divide 4"):
        checked_tile(work, VdlaTile(3, 1, 1, 1).choice, config)
    with pytest.raises(ScheduleError, match="2 x 810 entries of 'inp' do not fit"):
        checked_tile(
            replace(work, rows=25), VdlaTile(1, 25, 28, 1, 2, "columns").choice, replace(config, inp_bytes=1 << 14)
        )
    with pytest.raises(ScheduleError, match="1 tiles along rows are not for 2 threads"):
        checked_tile(work, VdlaTile(1, 56, 1, 1, 2, "rows").choice, config)


def test_the_model_prefers_two_threads_where_transfers_matter() -> None:
    work, config = BlockedConv(1, 32, 32, 7, 7, (3, 3), vectors=4), Config()
    best, serial = best_tile(work, config), best_tile(work, config, (1,))
    assert best is not None and serial is not None and best.threads == 2
    assert cycles(work, best, config) < 0.7 * cycles(work, serial, config)


def test_the_target_has_a_name_and_no_features() -> None:
    there = target("vdla")
    assert (there.kind, there.lanes, there.machine.config) == ("vdla", 16, Config())
    assert there.driver is target("cpu").driver and target("cpu").driver == target("cpu")
    with pytest.raises(TargetError, match="found features to leave out; allowed for an accelerator: vdla"):
        target("vdla,-amx")
