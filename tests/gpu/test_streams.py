"""Streams of a process's modules: each its own, beside those of others, also where a capture or the driver fails."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import burnish as bn
from burnish.driver import api
from burnish.errors import InputError, TargetError
from burnish.runtime.device import bytes_at
from burnish.runtime.dlpack import tensor_of
from burnish.runtime.gpu import driver as driver_module
from burnish.runtime.gpu.arrays import GpuArray
from burnish.runtime.gpu.streams import handle_of
from tests.gpu.driver import DEFAULT, GLOBAL, THREAD_LOCAL
from tests.gpu.test_arrays import Foreign, Running, X, compiled, running

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
        errors.append(driver.others(DEFAULT))
        return launch(code, *args)

    monkeypatch.setattr(driver, "_launch", beside)
    assert right(m, X) and right(m, -X)
    assert errors and not any(errors) and driver.others(DEFAULT) == 0


def test_a_capture_that_fails_is_ended(running: Running, monkeypatch: Any) -> None:
    m, _, driver = running
    launch = driver._launch
    monkeypatch.setattr(driver, "_launch", lambda code, *args: (1,))
    with pytest.raises(TargetError, match="cuLaunchKernel: error 1"):
        m(X, X)
    assert not driver.captures and driver.others(DEFAULT) == 0
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


def new_stream(gpu: Any) -> int:
    """A stream of somebody else, which waits for none."""
    return int(gpu.ask("cuStreamCreate", 1))


def test_a_call_is_made_on_the_stream_that_is_given(running: Running) -> None:
    """After what that was asked for before, without waiting, and before what it is asked for then."""
    m, gpu, driver = running
    x, s = Foreign(gpu, X), new_stream(gpu)
    m(x, x, stream=s)
    driver.calls.clear()
    assert driver.others(s, writes=[x.place]) == 0
    y, w = m(x, z=x, stream=s)
    assert driver.others(s, reads=[y.place, w.place], writes=[x.place]) == 0
    assert "cuStreamSynchronize" not in driver.calls and "cuStreamWaitEvent" not in driver.calls
    t = new_stream(gpu)
    assert tensor_of(y, t)[0] == y.place and driver.others(t, reads=[y.place]) == 0 and not driver.races
    np.testing.assert_array_equal(y.numpy(), np.maximum(X, 0) + X)


def test_the_driver_finds_what_nothing_orders(running: Running) -> None:
    m, gpu, driver = running
    x, s = Foreign(gpu, X), new_stream(gpu)
    _, w = m(x, x, stream=s)
    assert driver.others(new_stream(gpu), reads=[w.place]) == 0 and len(driver.races) == 1
    driver.races.clear()


def test_streams_in_turn_share_the_memory_of_a_module(running: Running) -> None:
    m, gpu, _ = running
    streams, found = [new_stream(gpu) for _ in range(3)], []
    for number in range(6):
        x = Foreign(gpu, X + number)
        found.append(m(x, x, stream=streams[number % 3])[1])
    mixed = m(found[0], 2 * X, stream=DEFAULT)[0]
    for number, w in enumerate(found):
        np.testing.assert_array_equal(w.numpy(), -X - np.float32(number))
    np.testing.assert_array_equal(mixed.numpy(), np.maximum(-X, 0) + 2 * X)
    np.testing.assert_array_equal(m(X, X)[1], -X)


def test_modules_on_streams_of_their_own_overlap(running: Running, compiled: Any) -> None:
    m, gpu, driver = running
    other, s, t = bn.Module(compiled), new_stream(gpu), new_stream(gpu)
    x, z = Foreign(gpu, X), Foreign(gpu, X)
    out = [GpuArray(gpu, X.shape, X.dtype) for _ in range(4)]
    for _ in range(3):
        driver.calls.clear()
        m.run_into([x, x], out[:2], stream=s)
        other.run_into([z, z], out[2:], stream=t)
    assert driver.calls == ["cuCtxSetCurrent", "cuStreamIsCapturing", "cuGraphLaunch", "cuEventRecord"] * 2
    assert all(np.array_equal(y.numpy(), np.maximum(X, 0) + X) for y in out[::2])


def test_results_take_the_memory_of_earlier_ones(running: Running) -> None:
    """What still reads that on the GPU is waited for there."""
    m, gpu, driver = running
    x, s, t = Foreign(gpu, X), new_stream(gpu), new_stream(gpu)
    y, w = m(x, x, stream=s)
    places = {y.place, w.place}
    again = m(y, w, stream=t)
    del y, w
    driver.calls.clear()
    taken = m(x, x, stream=s)
    assert {a.place for a in taken} == places and "cuMemAlloc" not in driver.calls
    exported = tensor_of(taken[0], t)
    place = taken[0].place
    del taken, exported
    assert place not in {a.place for a in m(x, x, stream=s)}  # who has it works on a stream that may be gone
    gpu.pool.clear()
    assert place not in driver.memory and again


def test_memory_of_results_is_given_up_before_more_is_refused(running: Running) -> None:
    m, gpu, driver = running
    x = Foreign(gpu, X)
    m(x, x)
    driver.limit = sum(array.nbytes - 256 for array in driver.memory.values()) + 1024
    big = GpuArray(gpu, (1536,), np.dtype(np.uint8))
    with pytest.raises(TargetError, match="cuMemAlloc: error 2"):
        GpuArray(gpu, (1 << 14,), np.dtype(np.uint8))
    driver.limit = 1 << 40
    assert right(m, X) and big.nbytes == 1536


@pytest.mark.parametrize("mode", [GLOBAL, THREAD_LOCAL])
def test_a_capture_of_somebody_else_stays_valid(running: Running, compiled: Any, mode: int) -> None:
    """Loading, memory and first calls are none of its errors, in its thread and in others."""
    m, gpu, driver = running
    s = new_stream(gpu)
    gpu.ask("cuStreamBeginCapture", s, mode)
    assert right(m, X)
    thread = threading.Thread(target=lambda: right(bn.Module(compiled), X))
    thread.start()
    thread.join()
    assert driver.captures[s].valid and gpu.ask("cuStreamEndCapture", s) == []


def test_calls_are_captured_by_somebody_else(running: Running) -> None:
    m, gpu, driver = running
    x, s = Foreign(gpu, X), new_stream(gpu)
    assert right(m, X)
    gpu.ask("cuStreamBeginCapture", s, GLOBAL)
    y, w = m(x, x, stream=s)
    with pytest.raises(InputError, match="inputs in this machine's memory while a graph is captured"):
        m(x, X, stream=s)
    graph = gpu.ask("cuStreamEndCapture", s)
    place = y.place
    del y
    for scale in (1, -2):
        bytes_at(x.place, X.nbytes).view(np.float32)[:] = scale * X.reshape(-1)
        gpu.ask("cuGraphLaunch", graph, s)
        gpu.ask("cuStreamSynchronize", s)
        np.testing.assert_array_equal(w.numpy(), -scale * X)
    gpu.pool.clear()
    assert place in driver.memory  # which the graph writes


def test_streams_are_named_by_handles_and_by_objects(running: Running) -> None:
    m, gpu, _ = running
    x, s = Foreign(gpu, X), new_stream(gpu)
    objects = SimpleNamespace(cuda_stream=s), SimpleNamespace(ptr=s), SimpleNamespace(__cuda_stream__=lambda: (0, s))
    assert {handle_of(stream) for stream in (*objects, np.int64(s))} == {s} and handle_of(1) == DEFAULT
    with pytest.raises(InputError, match="stream: found str; allowed: a stream of PyTorch"):
        m(x, x, stream="fast")
    with pytest.raises(InputError, match="stream: found one for arrays in this machine's memory"):
        m(X, X, stream=s)
    with pytest.raises(InputError, match="stream: found one for arrays in this machine's memory"):
        m.run_into([X, X], [X.copy(), X.copy()], stream=s)


def test_calls_on_a_gpu_are_asked_for_and_not_waited_for(running: Running) -> None:
    m, gpu, _ = running
    x, s = Foreign(gpu, X), new_stream(gpu)
    here = m.run_async(X, 2 * X)
    there = m.run_async(x, x, stream=s)
    assert here.done() and there.done()  # in the order in which they were asked for
    np.testing.assert_array_equal(here.result()[0], np.maximum(X, 0) + 2 * X)
    np.testing.assert_array_equal(there.result()[1].numpy(), -X)
    with pytest.raises(InputError, match=r"z: float32.* is missing"):
        m.run_async(x).result()


@pytest.mark.parametrize(
    ("capability", "name"),
    [
        ((7, 5), "sm_75"),
        ((8, 0), "sm_80"),
        ((8, 7), "sm_87"),
        ((8, 8), "sm_87"),
        ((9, 0), "sm_90a"),
        ((10, 0), "sm_100"),
        ((12, 1), "sm_120"),
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
    monkeypatch.setattr(gpu, "capability", lambda: (7, 0))
    with pytest.raises(TargetError, match=r"has compute capability 7\.0; allowed: cuda:sm_75, .* and newer"):
        driver_module.gpu_target()


def test_networks_on_a_gpu_are_compiled_for_it(running: Running, monkeypatch: Any) -> None:
    _, gpu, _ = running
    monkeypatch.setattr(driver_module, "first_gpu", lambda: gpu)

    class There:
        is_cuda = True

    assert api._placed("cpu", {"x": [There()]}) == api._placed("cuda", None) == "cuda:sm_80"
    assert api._placed("cpu", (X,)) == "cpu" and api._placed("x86-64-v3", There()) == "x86-64-v3"
