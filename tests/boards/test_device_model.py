"""Whole models on a board: the answers and states of the module here, its profile, and clear refusals."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import burnish as bn
from burnish.boards.board import Board
from burnish.boards.job import BoardJob
from burnish.boards.model import module_on
from burnish.boards.table import BoardEntry
from burnish.errors import TargetError
from burnish.graph.evaluate import evaluate
from burnish.graph.graph import Graph, GraphBuilder


@pytest.fixture(scope="module")
def boards() -> Iterator[dict[str, Board]]:
    made = {"cpu": Board(BoardEntry("here", "cpu")), "aarch64-cortex-a53": Board(BoardEntry("arm", "a53", "emulator"))}
    yield made
    for board in made.values():
        board.close()


def network() -> Graph:
    random = np.random.default_rng(0)
    b = GraphBuilder()
    x = b.input("x", (5, 24))
    y = b.add("relu", b.add("matmul", x, b.constant(random.standard_normal((24, 40)).astype("float32"))))
    y = b.add("softmax", b.add("matmul", y, b.constant(random.standard_normal((40, 12)).astype("float32"))), axis=1)
    return b.build(y)


@pytest.mark.parametrize("target", ["cpu", "aarch64-cortex-a53"])
def test_a_model_runs_on_a_board(boards: dict[str, Board], target: str) -> None:
    graph, board = network(), boards[target]
    x = np.random.default_rng(1).standard_normal((5, 24)).astype("float32")
    (wanted,) = evaluate(graph, {"x": x}).values()
    with BoardJob(board) as job:
        model, device = module_on(job, board.about, bn.compile(graph, target=target, threads=1).executable)
        for factor in (1.0, 2.0):
            (wanted,) = evaluate(graph, {"x": factor * x}).values()
            assert np.abs(model(factor * x) - wanted).max() < 1e-5
        assert 0 < device.seconds < 1
        rows = model.profile(x, repeat=2)
        assert len(rows) == len(model.executable.steps)
        assert all(row.microseconds > 0 for row in rows)


def test_two_models_share_a_job(boards: dict[str, Board]) -> None:
    graph, board = network(), boards["cpu"]
    x = np.ones((5, 24), np.float32)
    executable = bn.compile(graph, threads=1).executable
    with BoardJob(board) as job:
        one, other = (module_on(job, board.about, executable, name=name)[0] for name in ("one", "other"))
        assert (one(x) == other(x)).all()


def test_what_a_board_cannot_run_is_refused(boards: dict[str, Board]) -> None:
    board, here = boards["aarch64-cortex-a53"], bn.compile(network(), threads=1).executable
    with pytest.raises(TargetError, match="allowed: aarch64"), BoardJob(board) as job:
        module_on(job, board.about, here)
    with BoardJob(boards["cpu"]) as job:
        model, _ = module_on(job, boards["cpu"].about, here)
    with pytest.raises(TargetError, match="without a child"):
        model(np.ones((5, 24), np.float32))
