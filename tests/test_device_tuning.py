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
from burnish.measure.boards import compare_on_board
from burnish.tune.records import RecordFile

ARM = "aarch64-cortex-a53"


def model(scale: float = 1.0) -> Graph:
    random = np.random.default_rng(0)
    b = GraphBuilder()
    w = b.constant((scale * random.standard_normal((16, 32))).astype("float32"))
    return b.build(b.add("relu", b.add("matmul", b.input("x", (2, 16)), w)))


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
