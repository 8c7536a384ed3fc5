"""The timing loops call kernels as often as they say, and flushing changes no byte."""

import ctypes

import numpy as np
import pytest

from burnish.errors import TargetError
from burnish.machines.target import host, target
from burnish.runtime.buffers import address_of
from burnish.tune.evaluate.timer import Timer, image

KERNEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)


@pytest.mark.parametrize("runs", [1, 2, 7])
@pytest.mark.parametrize("cold", [False, True])
def test_every_run_is_a_call_with_the_same_arguments(runs: int, cold: bool) -> None:
    calls = []
    kernel = KERNEL(lambda args, runtime: calls.append((args, runtime)))
    memory = np.arange(1000, dtype=np.int64)
    flushed = [(address_of(memory) + 5, 7000), (address_of(memory), 1), (address_of(memory), 0)] if cold else None
    address = ctypes.cast(kernel, ctypes.c_void_p).value
    assert address is not None
    seconds = Timer(host()).seconds(address, 123, 456, runs, flushed)
    assert calls == [(123, 456)] * runs
    assert seconds > 0
    np.testing.assert_array_equal(memory, np.arange(1000))


def test_the_clock_is_the_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(10))

    def clock(number: int, place: int) -> int:
        assert number == 1
        np.ctypeslib.as_array(ctypes.cast(place, ctypes.POINTER(ctypes.c_int64)), (2,))[:] = next(now), 500_000_000
        return 0

    watch = Timer(host())
    fake = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int32, ctypes.c_void_p)(clock)
    monkeypatch.setattr(watch, "_clock", ctypes.cast(fake, ctypes.c_void_p).value)
    nothing = KERNEL(lambda args, runtime: None)
    kernel = ctypes.cast(nothing, ctypes.c_void_p).value
    assert kernel is not None
    assert watch.seconds(kernel, 0, 0, 5) == pytest.approx(1.0)  # two looks at the clock in all
    assert watch.seconds(kernel, 0, 0, 3, []) == pytest.approx(3.0)  # two a run


def test_other_machines_have_no_cold_loop() -> None:
    arm = target("aarch64-neoverse-n1")
    assert set(image(arm).symbols) == {"now", "burnish_time_hot"}
    watch = Timer(host())
    watch._cold = None
    with pytest.raises(TargetError, match="x86-64 only"):
        watch.seconds(0, 0, 0, 1, [])
