"""Files of every format version since 5 are kept (``stored/``): they load and answer right, or are refused by version.

``python -m tests.runtime.test_stored`` writes those of today's version, to be kept beside the others when it changes.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import burnish as bn
from burnish.errors import ArtifactError
from burnish.graph.graph import Graph, GraphBuilder
from burnish.loops.sizes import dim
from burnish.runtime import container
from burnish.runtime.host import host_machine

FOLDER = Path(__file__).parent / "stored"
TARGET = "x86-64-v2"  # which every 64-bit PC of the last fifteen years runs
FILES = sorted(FOLDER.glob("*.bn"))
WEIGHT = ((np.arange(12).reshape(4, 3) - 5) / 8).astype(np.float32)


def network(rows: Any) -> Graph:
    b = GraphBuilder()
    return b.build(b.add("relu", b.add("matmul", b.input("x", (rows, 4)), b.constant(WEIGHT, "w")), name="y"))


def write(folder: Path) -> None:
    """Files of an open size, and of a training step, whose parameters are states."""
    train = bn.Train("mse", bn.SGD(0.5))
    made = {
        "open": bn.compile(network(dim("rows", 1, 8)), target=TARGET, threads=1, rewrite=False),
        "training": bn.compile(network(2), target=TARGET, threads=1, train=train),
    }
    for name, model in made.items():
        model.save(folder / f"v{container.VERSION}-{name}.bn")


def version_of(path: Path) -> int:
    return int(struct.unpack_from("<8sI", path.read_bytes())[1])


def test_a_file_of_todays_version_is_kept() -> None:
    assert {path.stem for path in FILES} >= {f"v{container.VERSION}-open", f"v{container.VERSION}-training"}
    assert all(path.stem.startswith(f"v{version_of(path)}-") for path in FILES)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_kept_files_load_or_are_refused_by_version(path: Path) -> None:
    version = version_of(path)
    if version < container.OLDEST:
        with pytest.raises(ArtifactError, match=f"has format version {version}, written by Burnish .*; allowed by"):
            bn.load(path)
        return
    if host_machine() != "x86_64":
        pytest.skip(f"{path.name} holds code of another machine")
    model = bn.load(path)
    x = (np.arange(8).reshape(2, 4) / 4).astype(np.float32)
    y = np.maximum(x @ WEIGHT, 0)
    if path.stem.endswith("open"):
        np.testing.assert_allclose(model(x), y, rtol=1e-6)
        np.testing.assert_allclose(model(x[:1]), y[:1], rtol=1e-6)
        return
    goal = np.ones((2, 3), np.float32)
    np.testing.assert_allclose(model(x, goal), np.mean((y - goal) ** 2), rtol=1e-6)
    step = x.T @ (2 * (y - goal) / y.size * (y > 0))
    np.testing.assert_allclose(model.state["w"], WEIGHT - 0.5 * step, rtol=1e-5, atol=1e-7)


def test_what_is_written_today_is_what_is_kept(tmp_path: Path) -> None:
    """But for the code, which changes with the compiler: the same header, inputs, outputs, states, kinds of steps."""
    write(tmp_path)
    for path in sorted(tmp_path.glob("*.bn")):
        now, kept = (container.read_container(p).header for p in (path, FOLDER / path.name))
        assert now.keys() == kept.keys()
        assert all(now[key] == kept[key] for key in ("inputs", "outputs", "states", "dims", "target"))
        assert {type(part) for part in now["steps"]} == {type(part) for part in kept["steps"]}


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    write(FOLDER)
