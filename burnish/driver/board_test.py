"""Self-test of a device: a kernel compiled for it, checked and timed there as tuners do; and its link."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from burnish.boards.job import BoardJob
from burnish.boards.leasing import Devices
from burnish.boards.lost import DeviceLost
from burnish.boards.pool import DevicePool
from burnish.boards.table import BoardEntry
from burnish.errors import BurnishError
from burnish.kernels.task import KernelTask
from burnish.loops.tensor import compute, placeholder, reduce_axis
from burnish.loops.tensor import sum as sum_of
from burnish.machines.target import target
from burnish.tune.evaluate import Evaluator, Fixed
from burnish.tune.evaluate.building import build
from burnish.tune.evaluate.reference import examples
from burnish.workers import Failure

PINGS, CHUNK = 20, 4 << 20  # questions; bytes of an upload
SIZE = 32  # of the matrices


@dataclass(frozen=True)
class BoardReport:
    """Test result of a device. ``problem`` is empty where it works; then ``seconds`` are those of a product of two
    matrices of SIZE there, ``round_trip`` those of a question, and ``upload`` bytes a second.
    """

    name: str
    kind: str
    problem: str = ""
    machine: str = ""
    cores: int = 0
    seconds: float = 0.0
    round_trip: float = 0.0
    upload: float = 0.0

    def plain(self) -> dict[str, Any]:
        """As JSON holds it."""
        return asdict(self)


def test_device(device: BoardEntry) -> BoardReport:
    """Test of a device: a measured kernel, round trips and an upload; any error is the report's ``problem``."""
    try:
        machine, task = target(device.target_name), product()
        with DevicePool([device]) as pool:
            devices = Devices(pool, device.name, "test")
            with Evaluator(machine, workers=1, rule=Fixed(3), run_limit=30.0, devices=devices) as evaluator:
                evaluator.prepare(task, examples(task))
                trial = evaluator.default(task)
                made = evaluator.measure(trial, build(task, machine, trial.template, trial.choice))
            problem = "" if made.outcome == "ok" else f"a kernel there: {made.outcome}: {made.error}"
            with pool.lease(device.name, "test") as lease:
                trips = [_seconds(lambda: lease.ask({"op": "ping"})) for _ in range(PINGS)]
                with BoardJob(lease) as job:
                    data = np.random.default_rng(1).bytes(CHUNK)
                    upload = CHUNK / _seconds(lambda: job.buffer("chunk", CHUNK, data))
                return BoardReport(
                    device.name, device.kind, problem, str(lease.about.get("machine")),
                    int(lease.about.get("cores", 0)), made.seconds, statistics.median(trips), upload,
                )  # fmt: skip
    except (BurnishError, DeviceLost) as error:
        return BoardReport(device.name, device.kind, str(error))
    except Failure as failure:
        return BoardReport(device.name, device.kind, f"an upload: {failure.kind}: {failure.detail}")


def product() -> KernelTask:
    """``y = x w`` of float32 matrices."""
    x, w = placeholder((SIZE, SIZE), "float32", "x"), placeholder((SIZE, SIZE), "float32", "w")
    k = reduce_axis(SIZE, "k")
    y = compute((SIZE, SIZE), lambda i, j: sum_of(x[i, k.var] * w[k.var, j], k), "y")
    return KernelTask("self-test", (x, w), (y,), "self-test", {}, frozenset())


def _seconds(function: Callable[[], object]) -> float:
    began = time.perf_counter()
    function()
    return time.perf_counter() - began
