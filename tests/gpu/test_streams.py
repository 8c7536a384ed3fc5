"""Streams of a process's modules: each its own, beside those of others, also where a capture or the driver fails."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import burnish as bn
from burnish.driver import api
from burnish.errors import TargetError
from burnish.runtime.gpu import driver as driver_module
from tests.gpu.test_arrays import Running, X, compiled, running

__all__ = ["compiled", "running"]  # fixtures


def right(m: bn.Module, x: np.ndarray) -> bool:
    y, w = m(x, 2 * x)
    return bool(np.array_equal(y, np.maximum(x, 0) + 2 * x) and np.array_equal(w, -x))


def test_first_calls_of_six_threads_with_a_module_each(running: Running, compiled: Any) -> None:
    _, _, driver = running
    modules = [bn.Module(compiled) for _ in range(6)]
    begin, found = threading.Barrier(6), dict[int, Any]()

    def work(number: int) -> None:
        begin.wait()
        try:
            found[number] = all(right(modules[number], X + number) for _ in range(3))
        except TargetError as error:
            found[number] = error

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == dict.fromkeys(range(6), True)
    own = {m._runner._loaded.gpu.stream for m in modules}  # type: ignore[union-attr]
    assert len(own) == 6 and not any(driver.blocking[stream] for stream in own) and not driver.captures


def test_the_default_stream_of_another_library_is_left_alone(running: Running, monkeypatch: Any) -> None:
    """Work on it during a capture is no error of either side."""
    m, _, driver = running
    launch, errors = driver._launch, list[int]()

    def beside(code: Any, *args: int) -> Any:
        errors.append(driver.on_default_stream())
        return launch(code, *args)

    monkeypatch.setattr(driver, "_launch", beside)
    assert right(m, X) and right(m, -X)
    assert errors and not any(errors) and driver.on_default_stream() == 0


def test_a_capture_that_fails_is_ended(running: Running, monkeypatch: Any) -> None:
    m, _, driver = running
    launch = driver._launch
    monkeypatch.setattr(driver, "_launch", lambda code, *args: (1,))
    with pytest.raises(TargetError, match="cuLaunchKernel: error 1"):
        m(X, X)
    assert not driver.captures and driver.on_default_stream() == 0
    monkeypatch.setattr(driver, "_launch", launch)
    assert right(m, X)


def test_a_capture_that_is_made_invalid_costs_its_stream_alone(running: Running, monkeypatch: Any) -> None:
    m, _, driver = running
    launch = driver._launch

    def breaking(code: Any, *args: int) -> Any:
        for capture in driver.captures.values():
            capture.valid = False
        return launch(code, *args)

    monkeypatch.setattr(driver, "_launch", breaking)
    with pytest.raises(TargetError, match="error 901"):
        m(X, X)
    before = m._runner._loaded.gpu.stream  # type: ignore[union-attr]
    monkeypatch.setattr(driver, "_launch", launch)
    assert right(m, X) and right(m, 3 * X)
    assert not driver.captures and m._runner._loaded.gpu.stream == before  # type: ignore[union-attr]


def test_a_lost_gpu_is_said_to_be_so(running: Running) -> None:
    m, _, driver = running
    assert right(m, X)
    driver.dead = True
    for _ in range(2):
        with pytest.raises(TargetError, match="error 700; the GPU is lost to this process: start another one"):
            m(X, X)


def test_streams_end_with_their_modules(running: Running, compiled: Any) -> None:
    _, _, driver = running
    before = len(driver.blocking)
    m = bn.Module(compiled)
    assert right(m, X) and len(driver.blocking) == before + 1
    m.close()
    del m
    import gc

    gc.collect()
    assert len(driver.blocking) == before


@pytest.mark.parametrize(
    ("capability", "name"),
    [
        ((8, 0), "sm_80"),
        ((8, 6), "sm_86"),
        ((8, 7), "sm_86"),
        ((9, 0), "sm_90a"),
        ((10, 0), "sm_89"),
        ((12, 0), "sm_89"),
    ],
)
def test_the_gpu_at_hand_is_a_target(running: Running, monkeypatch: Any, capability: Any, name: str) -> None:
    """Of its own architecture, else of an older one, as PTX; features of one architecture alone run nowhere else."""
    _, gpu, _ = running
    monkeypatch.setattr(driver_module, "first_gpu", lambda: gpu)
    monkeypatch.setattr(gpu, "capability", lambda: capability)
    assert driver_module.gpu_target() == f"cuda:{name}"


def test_a_gpu_that_is_too_old_is_refused_by_name(running: Running, monkeypatch: Any) -> None:
    _, gpu, _ = running
    monkeypatch.setattr(driver_module, "first_gpu", lambda: gpu)
    monkeypatch.setattr(gpu, "capability", lambda: (7, 5))
    with pytest.raises(TargetError, match=r"has compute capability 7\.5; allowed: cuda:sm_80, .* and newer"):
        driver_module.gpu_target()


def test_networks_on_a_gpu_are_compiled_for_it(running: Running, monkeypatch: Any) -> None:
    _, gpu, _ = running
    monkeypatch.setattr(driver_module, "first_gpu", lambda: gpu)

    class There:
        is_cuda = True

    assert api._placed("cpu", {"x": [There()]}) == api._placed("cuda", None) == "cuda:sm_80"
    assert api._placed("cpu", (X,)) == "cpu" and api._placed("x86-64-v3", There()) == "x86-64-v3"
