"""The clock of `benchmarks.gpu`, on a GPU that is a queue: both sides are queued, and measured in both orders."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import pytest

import burnish
from benchmarks import gpu
from burnish.errors import ParameterError


class Queue:
    """A GPU that begins a call as soon as the one before has ended; an idle one begins late."""

    WAKE = 5e-3  # milliseconds

    def __init__(self) -> None:
        self.now, self.idle, self.waited = 0.0, True, 0

    def work(self, milliseconds: float) -> None:
        self.now += milliseconds + (self.WAKE if self.idle else 0.0)
        self.idle = False

    def torch(self) -> Any:
        """What the benchmark calls of PyTorch."""
        queue = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing

            def record(self) -> None:
                self.at = queue.now

            def elapsed_time(self, other: Event) -> float:
                return other.at - self.at

        def synchronize() -> None:
            queue.idle, queue.waited = True, queue.waited + 1

        return SimpleNamespace(cuda=SimpleNamespace(Event=Event, synchronize=synchronize))


def test_replays_of_the_peer_are_queued_and_pay_for_no_idle_gpu() -> None:
    queue = Queue()
    found = gpu.seconds(queue.torch(), lambda: queue.work(2e-3))
    assert found == pytest.approx(2e-6) and queue.waited == 1


def test_sides_are_measured_in_both_orders() -> None:
    order: list[str] = []

    def side(name: str, first: float, second: float) -> Any:
        values = iter((first, second))
        return lambda: (order.append(name), next(values))[1]

    assert gpu.least({"ours": side("ours", 2.0, 3.0), "torch": side("torch", 5.0, 4.0)}) == {"ours": 2.0, "torch": 4.0}
    assert order == ["ours", "torch", "torch", "ours"]


def test_rows_with_tf32_stand_behind_those_of_float32() -> None:
    names = ["product:float32:512:512:512", "product:float16:8:8:8", "convolution:C1:1"]
    if "precision" not in inspect.signature(burnish.compile).parameters:
        with pytest.raises(ParameterError, match="precision"):
            gpu.with_tf32(names)
    else:
        assert gpu.with_tf32(names) == [names[0], names[0] + "@tf32", names[1], names[2], names[2] + "@tf32"]
