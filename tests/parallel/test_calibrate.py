"""Calibration: fitted links, and times of tasks that are measured once and kept."""

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from burnish.cache import ObjectCache
from burnish.comm.local import thread_comms
from burnish.errors import PlanError
from burnish.parallel import calibrate
from burnish.parallel.costs import Roofline, work
from burnish.parallel.presets import machine
from tests.parallel.problems import layers


def test_a_line_is_fitted():
    sizes = [1 << 10, 1 << 16, 1 << 20, 1 << 24]
    latency, bandwidth = calibrate.fit(sizes, [3e-6 + size / 5e9 for size in sizes])
    assert latency == pytest.approx(3e-6)
    assert bandwidth == pytest.approx(5e9)


def test_links_are_measured_between_workers():
    here = machine("host:2")
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda comm: calibrate.calibrated(here, comm, (1 << 10, 1 << 16)), thread_comms(2)))
    assert found[0] == found[1]
    assert found[0].links != here.links
    assert 0 < found[0].all_reduce <= 1
    (alone,) = thread_comms(1)
    with pytest.raises(PlanError, match="1 workers; allowed: 2"):
        calibrate.calibrated(here, alone)


def test_tasks_are_measured_once_and_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(calibrate, "COLD_BYTES", 1 << 10)
    op, device = layers(1).operations[0], machine("host:1").devices[0]
    part = work(op, [(1, 1), (2, 1)], gradient=False)

    def make(operation, sizes, backward):
        return (lambda: time.sleep(0.002)) if sizes[0] == 8 and not backward else None

    first = calibrate.Measured(Roofline(), make, ObjectCache(tmp_path))
    forward, backward = first.seconds(op, part, device)
    guessed = Roofline().seconds(op, part, device)
    assert first.measured == 1
    assert forward[0] >= 0.002
    assert forward[1] == guessed[0][1]
    assert (backward == guessed[1]).all()
    again = calibrate.Measured(Roofline(), make, ObjectCache(tmp_path))
    assert (again.seconds(op, part, device)[0] == forward).all()
    assert again.measured == 0
    assert np.isfinite(forward).all()
