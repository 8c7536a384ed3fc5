"""State of a model on a GPU: it stays there from call to call, and comes when somebody reads it."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import burnish as bn
from burnish.codegen.gridcode import GridCode
from burnish.graph import GraphBuilder
from burnish.runtime.device import unpacked
from burnish.runtime.gpu import cuda
from tests.gpu.driver import EmulatedDriver, emulated_gpu
from tests.gpu.test_arrays import Foreign

X = np.arange(64, dtype=np.float32)


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[bn.Module, Any, EmulatedDriver]:
    """``total += x``, which is the output."""
    b = GraphBuilder()
    total = b.state("total", np.zeros(64, np.float32))
    y = b.add("add", total, b.input("x", (64,)))
    b.update("total", y)
    compiled = bn.compile(b.build(b.add("neg", y)), target="cuda:sm_80", cache_dir=tmp_path)
    codes = [GridCode.unpacked(code) for code in unpacked(compiled.executable.code).values()]
    gpu, driver = emulated_gpu(monkeypatch, codes)
    monkeypatch.setattr(cuda, "first_gpu", lambda: gpu)
    return compiled, gpu, driver


def copies(driver: EmulatedDriver) -> tuple[int, int]:
    """Copies to the GPU and from it since the last question."""
    found = driver.calls.count("cuMemcpyHtoDAsync"), driver.calls.count("cuMemcpyDtoHAsync")
    driver.calls.clear()
    return found


def test_state_stays_on_the_gpu(counting: Any, tmp_path: Path) -> None:
    m, gpu, driver = counting
    m(X)
    copies(driver)
    for _ in range(3):
        found = m(X)
    assert copies(driver) == (3, 3)  # x and y alone
    np.testing.assert_array_equal(found, -4 * X)
    x, stream = Foreign(gpu, X), int(gpu.ask("cuStreamCreate", 1))
    for _ in range(3):
        there = m(x, stream=stream)
    assert copies(driver) == (0, 0)
    for _ in range(2):
        np.testing.assert_array_equal(m.state["total"], 7 * X)
    assert copies(driver) == (0, 1)  # read once, after what the stream was asked for
    np.testing.assert_array_equal(there.numpy(), -7 * X)
    twin = copy.copy(m)
    m.state["total"] = X
    np.testing.assert_array_equal(m(X), -2 * X)
    np.testing.assert_array_equal(twin(X), -8 * X)
    m.save(tmp_path / "m.bn")
    np.testing.assert_array_equal(bn.load(tmp_path / "m.bn").state["total"], 2 * X)
    m.reset()
    np.testing.assert_array_equal(m(x, stream=stream).numpy(), -X)
    assert not driver.races


def test_state_is_captured_by_somebody_else_as_it_lies(counting: Any) -> None:
    m, gpu, driver = counting
    x, stream = Foreign(gpu, X), int(gpu.ask("cuStreamCreate", 1))
    m.state["total"] = X
    gpu.ask("cuStreamBeginCapture", stream, 0)
    y = m(x, stream=stream)  # loaded here, with the state
    graph = gpu.ask("cuStreamEndCapture", stream)
    for count in (2, 3):
        gpu.ask("cuGraphLaunch", graph, stream)
        gpu.ask("cuStreamSynchronize", stream)
        np.testing.assert_array_equal(y.numpy(), -count * X)
        np.testing.assert_array_equal(m.state["total"], count * X)
    assert not driver.races
