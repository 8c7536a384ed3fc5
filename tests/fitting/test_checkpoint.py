"""Checkpoints: what is written is read, whole or refused by name, also when the writer is killed at any moment."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from burnish.errors import CheckpointError
from burnish.fitting.checkpoint import Checkpoint, Folder

ROOT = Path(__file__).parents[2]
STATES = {
    "w": np.arange(6, dtype="f4").reshape(2, 3), "optimizer.step": np.array(7), "empty": np.zeros((0, 2)),
    "half": np.arange(3).astype(ml_dtypes.bfloat16), "flag": np.array(True),
}  # fmt: skip


def checkpoint(number: int = 7) -> Checkpoint:
    random = {"numpy": np.arange(4, dtype=np.uint64)}
    return Checkpoint(STATES, {"call": number, "text": 'a "b"'}, random, {"loss": np.array([np.nan, 2.0])})


def test_all_comes_back(tmp_path: Path) -> None:
    checkpoint().write(tmp_path / "a.safetensors")
    found = Checkpoint.read(tmp_path / "a.safetensors")
    assert found.facts == {"call": 7, "text": 'a "b"'}
    for group in ("states", "random", "history"):
        wanted, own = getattr(checkpoint(), group), getattr(found, group)
        assert wanted.keys() == own.keys()
        for name, value in wanted.items():
            assert value.dtype == own[name].dtype and value.shape == own[name].shape
            assert value.tobytes() == own[name].tobytes()


def test_names_of_torch_export_become_those_of_the_network() -> None:
    kept = {"p_0_weight": 1, "p_0_weight.velocity": 2, "b_1_running_mean": 3, "p_lstm_weight_ih_l0": 4, "p_x": 5,
            "optimizer.step": 6}  # fmt: skip
    wanted = {"0.weight": 1, "0.weight.velocity": 2, "1.running_mean": 3, "LSTM.weight_ih_l0": 4, "p_x": 5,
              "optimizer.step": 6}  # fmt: skip
    found = Checkpoint({name: np.array(value) for name, value in kept.items()}, {}).named_as(wanted)
    assert {name: int(value) for name, value in found.states.items()} == wanted
    again = Checkpoint({"p_a_b": np.array(1)}, {}).named_as(["a.b", "a_b"])
    assert [*again.states] == ["p_a_b"]  # of two it may be either


def test_a_folder_keeps_the_last_ones(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "run" / "inner", keep=2)
    assert folder.latest() is None
    for number in (5, 10, 100):
        folder.add(number, checkpoint(number))
    assert [path.name for path in folder.paths()] == ["step-0000000010.safetensors", "step-0000000100.safetensors"]
    latest = folder.latest()
    assert latest is not None and latest[1].facts["call"] == 100


def test_every_truncation_and_alteration_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    checkpoint().write(path)
    whole = path.read_bytes()
    for length in [*range(24), *range(24, len(whole), 13), len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match=r"a\.safetensors: found"):
            Checkpoint.read(path)
    for place in range(8, len(whole), 11):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        try:
            found = Checkpoint.read(path)
        except CheckpointError as error:
            assert "a.safetensors" in str(error)
        else:  # what is not covered says nothing: other spaces in the header
            assert found.facts == checkpoint().facts
            assert all(found.states[name].tobytes() == value.tobytes() for name, value in STATES.items())


def test_other_files_are_refused_by_name(tmp_path: Path) -> None:
    save_file({"w": np.ones(3)}, tmp_path / "weights.safetensors")
    with pytest.raises(CheckpointError, match=r"weights.safetensors: found form none; allowed: a checkpoint"):
        Checkpoint.read(tmp_path / "weights.safetensors")
    wanted = {name: (value.shape, str(value.dtype)) for name, value in STATES.items()}
    checkpoint().check_states(wanted, tmp_path)
    with pytest.raises(CheckpointError, match=r"state 'w': found float32\[2, 3\]; allowed: float32\[3, 3\]"):
        checkpoint().check_states({**wanted, "w": ((3, 3), "float32")}, tmp_path)
    with pytest.raises(CheckpointError, match="state 'more': found nothing; allowed: int64"):
        checkpoint().check_states({**wanted, "more": ((), "int64")}, tmp_path)


def test_a_broken_newest_one_is_named_and_so_is_the_one_before(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    for number in (1, 2):
        folder.add(number, checkpoint(number))
    newest = folder.paths()[-1]
    newest.write_bytes(newest.read_bytes()[:100])
    with pytest.raises(CheckpointError, match=r"step-0000000002.*'step-0000000001.safetensors' is whole"):
        folder.latest()


KILLED = """
    import os, sys
    from pathlib import Path
    import numpy as np
    from burnish.fitting import checkpoint
    from burnish.fitting.checkpoint import Checkpoint, Folder
    from tests.train.killing import die_at

    def made(number):
        return Checkpoint({"w": np.full((64, 1024), number, np.float32)}, {"call": number})

    checkpoint._CHUNK = 1 << 16
    home = Path(sys.argv[1])
    for moment in map(int, sys.argv[2:]):
        folder = home / str(moment)
        Folder(folder).add(1, made(1))
        child = os.fork()
        if not child:
            die_at(moment, sys.argv[1])
            for number in range(2, 9):
                Folder(folder).add(number, made(number))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print(moment, os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0)
"""


def test_a_writer_that_is_killed_leaves_the_last_good_one(tmp_path: Path) -> None:
    """The child kills itself in the middle of a write, or at a sync, a rename or a removal: one of 20 drawn moments."""
    moments = sorted(np.random.default_rng(11).choice(np.arange(1, 50), 20, replace=False).tolist())
    script = [sys.executable, "-c", textwrap.dedent(KILLED), str(tmp_path), *map(str, moments)]
    printed = subprocess.run(script, capture_output=True, text=True, check=True, cwd=ROOT).stdout.split()
    assert set(printed[1::2]) == {"9"}, "every child was killed by its own hand"
    reached = []
    for moment in moments:
        folder = Folder(tmp_path / str(moment))
        latest = folder.latest()
        assert latest is not None
        number = latest[1].facts["call"]
        assert np.array_equal(latest[1].states["w"], np.full((64, 1024), number, np.float32))
        assert not [*folder.path.glob(".*")], "what the dead have left is removed"
        reached.append(number)
    assert reached == sorted(reached) and reached[-1] > reached[0], "later moments find later checkpoints"


def test_the_facts_are_json(tmp_path: Path) -> None:
    checkpoint().write(tmp_path / "a.safetensors")
    data = (tmp_path / "a.safetensors").read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    assert json.loads(header["__metadata__"]["facts"])["call"] == 7
