"""Kernels measured on a GPU, by a driver on this CPU: timed by events, checked, margins watched, faults outcomes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from burnish.codegen.gridcode import GridCode
from burnish.errors import TargetError
from burnish.kernels.task import KernelTask
from burnish.runtime.gpu.bench import CudaBench
from burnish.tune.evaluate import Fixed
from burnish.tune.evaluate.building import Build, build
from burnish.tune.evaluate.expected import WrongAnswer
from burnish.tune.evaluate.on_device import DeviceHarness
from burnish.tune.evaluate.reference import examples
from burnish.tune.evaluate.remote import TaskArrays
from burnish.tune.evaluate.worker import run
from tests.gpu.cases import SM80, Case
from tests.gpu.driver import L2_BYTES, EmulatedDriver, emulated_gpu

CASE = Case("relu", [(8, 32)], {})
LAUNCH = 1e-4  # seconds by the driver's clock


@pytest.fixture(scope="module")
def built() -> tuple[KernelTask, Build]:
    """A kernel by its default choice."""
    task = CASE.task()
    made = build(task, SM80, "elements", {"threads": 64, "vector": 1, "own": 1, "steps": 1})
    return task, made


def harness(
    monkeypatch: pytest.MonkeyPatch, built: tuple[KernelTask, Build], cold: bool = False
) -> tuple[DeviceHarness, EmulatedDriver]:
    task, made = built
    assert made.kernel is not None
    gpu, driver = emulated_gpu(monkeypatch, [GridCode.unpacked(made.kernel.code)])
    return DeviceHarness(CudaBench(gpu, "sm_80"), TaskArrays(task, examples(task)), cold), driver


def test_runs_are_one_graph_between_two_events(
    monkeypatch: pytest.MonkeyPatch, built: tuple[KernelTask, Build]
) -> None:
    bench, driver = harness(monkeypatch, built)
    assert built[1].kernel is not None
    loaded = bench.load(built[1].kernel, None)
    assert bench.check(loaded) == pytest.approx(LAUNCH)
    driver.calls.clear()
    assert bench.seconds(loaded, 5, False) == pytest.approx(5 * LAUNCH)
    assert driver.calls.count("cuGraphLaunch") == 1 and driver.calls.count("cuLaunchKernel") == 5
    assert bench.seconds(loaded, 5, False) == pytest.approx(5 * LAUNCH)
    assert driver.calls.count("cuLaunchKernel") == 5  # the graph is kept
    assert bench.untouched(loaded)


def test_cold_runs_are_timed_alone_after_the_cache_was_filled(
    monkeypatch: pytest.MonkeyPatch, built: tuple[KernelTask, Build]
) -> None:
    bench, driver = harness(monkeypatch, built, cold=True)
    assert built[1].kernel is not None
    loaded = bench.load(built[1].kernel, None)
    bench.check(loaded)
    driver.calls.clear()
    assert bench.seconds(loaded, 3, True) == pytest.approx(3 * LAUNCH)
    assert driver.calls.count("cuMemsetD8Async") == driver.calls.count("cuGraphLaunch") == 3
    assert max(array.nbytes for array in driver.memory.values()) >= 2 * L2_BYTES


def test_what_is_next_to_a_buffer_is_watched(monkeypatch: pytest.MonkeyPatch, built: tuple[KernelTask, Build]) -> None:
    bench, driver = harness(monkeypatch, built)
    assert built[1].kernel is not None
    loaded = bench.load(built[1].kernel, None)
    bench.check(loaded)
    for place in (loaded.arguments[0].place - 1, loaded.arguments[1].place + loaded.arguments[1].nbytes):  # type: ignore[attr-defined]
        driver._fill(place, 0, 1, 0)
        assert not bench.untouched(loaded)
        with pytest.raises(WrongAnswer, match="bytes next to its memory"):
            bench.check(loaded)
        driver._fill(place, 0xA5, 1, 0)
        assert bench.untouched(loaded)


def test_a_wrong_kernel_and_one_that_the_device_stops_are_outcomes(
    monkeypatch: pytest.MonkeyPatch, built: tuple[KernelTask, Build]
) -> None:
    task, made = built
    assert made.kernel is not None
    other = build(Case("neg", [(8, 32)], {}).task(), SM80, "elements", dict(made.kernel.choice)).kernel
    assert other is not None
    code = GridCode.unpacked(made.kernel.code)
    beyond = replace(code, launches=(replace(code.launches[0], grid=(99, 1, 1)),), ptx=code.ptx + "\n", cubin=b"")
    gpu, _ = emulated_gpu(monkeypatch, [code, GridCode.unpacked(other.code), beyond])
    bench = DeviceHarness(CudaBench(gpu, "sm_80"), TaskArrays(task, examples(task)), False)
    rule = Fixed(2, LAUNCH)
    assert run(bench, made.kernel, None, rule, None, 1.0).outcome == "ok"
    wrong = run(bench, other, None, rule, None, 1.0)
    assert wrong.outcome == "wrong" and "is wrong by" in wrong.error
    stopped = run(bench, replace(made.kernel, code=beyond.packed()), None, rule, None, 1.0)
    assert stopped.outcome == "crashed" and "outside of all buffers" in stopped.error


@pytest.mark.parametrize(("cpu", "runs"), [("sm_80", True), ("sm_90a", False), ("sm_75", False), ("sm_86", False)])
def test_the_gpu_must_run_the_targets_code(monkeypatch: pytest.MonkeyPatch, cpu: str, runs: bool) -> None:
    gpu, _ = emulated_gpu(monkeypatch, [])
    if runs:
        assert CudaBench(gpu, cpu).buffer(3).read().tolist() == [0, 0, 0]
        return
    with pytest.raises(TargetError, match=rf"compute capability 8\.0, not {cpu}"):
        CudaBench(gpu, cpu)


def test_memory_is_given_back(monkeypatch: pytest.MonkeyPatch, built: tuple[KernelTask, Build]) -> None:
    bench, driver = harness(monkeypatch, built)
    assert built[1].kernel is not None
    loaded = bench.load(built[1].kernel, None)
    assert driver.memory and np.any(loaded.arguments[0].read())
    del bench, loaded
    assert not driver.memory and driver.calls.count("cuModuleUnload") == 1
