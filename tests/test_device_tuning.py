"""A small model tuned for another CPU on boards: records, a module to save, and a verdict from the board."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import burnish as bn
from burnish.boards.leasing import Devices
from burnish.boards.pool import DevicePool
from burnish.boards.table import BoardEntry
from burnish.driver.api import tuned
from burnish.errors import ArtifactError, ParameterError
from burnish.graph.graph import Graph, GraphBuilder
from burnish.loops.sizes import dim
from burnish.measure.boards import compare_on_board
from burnish.simulators.emulator import CpuEmulator
from burnish.tune.records import RecordFile

ARM = "aarch64-cortex-a53"


def model(scale: float = 1.0) -> Graph:
    random = np.random.default_rng(0)
    b = GraphBuilder()
    w = b.constant((scale * random.standard_normal((16, 32))).astype("float32"))
    return b.build(b.add("relu", b.add("matmul", b.input("x", (2, 16)), w)))


@pytest.mark.slow
def test_a_model_is_tuned_on_a_board_and_judged_there(tmp_path: Path) -> None:
    records = tmp_path / "records.jsonl"
    with DevicePool([BoardEntry("arm", ARM, "emulator")]) as pool:
        found = tuned(
            model(), bn.Tune(seconds=None, trials=4, min_gain=0), target=ARM, records=records, rewrite=False,
            devices=Devices(pool, ARM, "me"),
        )  # fmt: skip
    made = [record for record in RecordFile(records).all() if not record.won]
    assert len(made) == found.outcome.trials >= 4
    assert all(record.target.startswith("aarch64") and record.threads == 1 for record in made)
    assert {record.outcome for record in made} == {"ok"}
    assert found.gain.outcome == "ok"
    assert found.gain.difference < 1e-4
    found.module.save(tmp_path / "model.bn")
    with pytest.raises(ArtifactError, match="this machine is"):
        found.module(np.ones((2, 16), np.float32))


@pytest.mark.slow
def test_open_sizes_are_tuned_on_a_board_at_their_hint(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    w = random.standard_normal((16, 32)).astype("float32")
    b = GraphBuilder()
    y = b.add("relu", b.add("matmul", b.input("x", (dim("rows", 1, 8, hint=2), 16)), b.constant(w)))
    with DevicePool([BoardEntry("arm", ARM, "emulator")]) as pool:
        found = tuned(
            b.build(y), bn.Tune(seconds=None, trials=2, min_gain=0), target=ARM, records=tmp_path / "records.jsonl",
            devices=Devices(pool, ARM, "me"),
        )  # fmt: skip
    assert found.outcome.trials >= 2 and found.gain.outcome == "ok"
    found.module.save(tmp_path / "model.bn")
    module = bn.load(tmp_path / "model.bn", device=CpuEmulator())
    for rows in (1, 3, 8):
        x = random.standard_normal((rows, 16)).astype("float32")
        np.testing.assert_allclose(module(x), np.maximum(x.astype("f8") @ w, 0), atol=1e-5)


def test_models_with_other_answers_are_wrong_on_a_board() -> None:
    first, second = (bn.compile(model(scale), target=ARM, threads=1).executable for scale in (1.0, 1.01))
    with DevicePool([BoardEntry("arm", ARM, "emulator")]) as pool:
        devices = Devices(pool, ARM, "me")
        assert compare_on_board(devices, first, second, rounds=1).outcome == "wrong"
        same = compare_on_board(devices, first, first, rounds=6)
    assert same.outcome == "ok"
    assert same.times[0] == same.times[1]
    assert not same.second_wins


def test_without_boards_another_machine_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match=f"allowed: None for target '{ARM}'"):
        bn.compile(model(), target=ARM, tune=bn.Tune(trials=1), records=tmp_path / "records.jsonl")
