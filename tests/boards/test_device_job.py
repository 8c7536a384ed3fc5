"""Jobs on a board: uploaded code runs in a child with limits, and whatever it does is an outcome of the child alone."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from burnish.boards.board import Board
from burnish.boards.job import BoardJob
from burnish.boards.lost import DeviceLost
from burnish.boards.table import BoardEntry
from burnish.machines.target import Target, host, target
from burnish.runtime.entry import driver_image
from burnish.runtime.image import Image
from burnish.tune.evaluate import timer
from burnish.workers import Failure
from tests.tune.conftest import CRASH, HANG, copies, handmade

N = 1000


def code(body: str, machine: Target | None = None) -> Image:
    image = handmade(body, target=machine).image
    assert image is not None
    return image


@pytest.fixture(scope="module")
def board() -> Iterator[Board]:
    one = Board(BoardEntry("here", "cpu"))
    yield one
    one.close()


@pytest.fixture(scope="module")
def emulated() -> Iterator[Board]:
    one = Board(BoardEntry("arm", "aarch64-cortex-a53", "emulator"))
    yield one
    one.close()


def doubled(board: Board, image: Image, **more: object) -> tuple[np.ndarray, list[float], bool]:
    """What a kernel makes of 1000 floats, its seconds, and whether it stayed in its memory."""
    x = np.arange(N, dtype=np.float32)
    with BoardJob(board, limit=1.0) as job:
        job.code("kernel", image)
        job.buffer("x", x.nbytes, x.tobytes(), writable=False)
        job.buffer("y", x.nbytes)
        job.fill(["y"])
        if more.get("watch"):
            job.code("watch", timer.image(host()))
        if more.get("driver"):
            job.code("driver", driver_image(host().triple))
        step = ("kernel", "handmade", [("x", 0, x.nbytes), ("y", 0, x.nbytes)])
        seconds = job.call([step], **more)  # type: ignore[arg-type]
        (found,) = job.read([("y", 0, x.nbytes)])
        return np.frombuffer(found, np.float32), seconds, job.untouched()


def test_a_kernel_runs_and_is_timed_by_an_uploaded_loop(board: Board) -> None:
    for more in ({}, {"watch": "watch", "runs": 10}, {"driver": "driver", "threads": 2}):
        found, (seconds,), untouched = doubled(board, code(copies(2.0)), **more)
        assert (found == 2.0 * np.arange(N)).all()
        assert 0 < seconds < 1
        assert untouched


def test_a_cold_kernel_is_timed_with_its_constants_flushed(board: Board) -> None:
    if not timer.can_flush(host()):
        pytest.skip("this machine cannot flush its caches")
    _, (seconds,), _ = doubled(board, code(copies(2.0)), watch="watch", runs=3, flushed=[("x", 0, 4 * N)])
    assert 0 < seconds < 1


def test_instructions_are_the_time_of_an_emulated_board(emulated: Board) -> None:
    image = code(copies(2.0), target("aarch64-cortex-a53"))
    found, (seconds,), _ = doubled(emulated, image)
    assert (found == 2.0 * np.arange(N)).all()
    assert N * 3e-9 <= seconds <= N * 12e-9  # instructions of a round of the loop
    assert doubled(emulated, image)[1] == [seconds]


def test_bytes_next_to_memory_are_watched(board: Board) -> None:
    found, _, untouched = doubled(board, code(copies(2.0, 1008)))
    assert (found == 2.0 * np.arange(N)).all()
    assert not untouched


@pytest.mark.parametrize(
    ("body", "kind", "words"),
    [
        (CRASH, "crashed", "was killed by SIGSEGV"),
        (HANG, "timeout", "took longer than 1 s"),
        (copies(2.0, 100_000), "crashed", "was killed by SIGSEGV"),
        ("store float 0.0, ptr %x" + copies(2.0), "crashed", "was killed by SIGSEGV"),
    ],
)
def test_what_a_kernel_does_ends_its_child_alone(board: Board, body: str, kind: str, words: str) -> None:
    with pytest.raises(Failure) as caught:
        doubled(board, code(body))
    assert (caught.value.kind, caught.value.detail) == (kind, words)
    assert doubled(board, code(copies(2.0)))[2]


def test_an_emulated_kernel_that_hangs_or_leaves_its_memory_is_an_outcome(emulated: Board) -> None:
    machine = target("aarch64-cortex-a53")
    for body, kind, words in ((HANG, "timeout", "took longer"), (copies(2.0, 100_000), "error", "kernel 'handmade'")):
        with pytest.raises(Failure) as caught:
            doubled(emulated, code(body, machine))
        assert caught.value.kind == kind
        assert words in caught.value.detail
    assert doubled(emulated, code(copies(2.0), machine))[2]


def test_code_of_another_machine_is_refused(board: Board, emulated: Board) -> None:
    for one, image in ((board, Image("sparc", b"\x00" * 64, {"handmade": 0})), (emulated, code(copies(2.0)))):
        with pytest.raises(Failure, match="allowed") as caught:
            doubled(one, image)
        assert caught.value.kind == "error"


def test_a_child_has_limits(board: Board) -> None:
    with pytest.raises(Failure) as caught, BoardJob(board, memory=1 << 26) as job:
        job.buffer("large", 1 << 30)
    assert caught.value.kind in ("out of memory", "error")
    assert "emory" in caught.value.detail
    with pytest.raises(Failure, match="bytes 0 to 9 of 'x', which has 8"), BoardJob(board) as job:
        job.buffer("x", 8, bytes(8))
        job.read([("x", 0, 9)])
    with pytest.raises(Failure, match="without a child; allowed: begin before"):
        BoardJob(board).fill(["x"])


def test_uploads_are_kept_and_checked(board: Board) -> None:
    data = os.urandom(100_000)
    with BoardJob(board) as job:
        job.buffer("x", len(data), data)
    asked: list[str] = []

    class Watched:
        def ask(self, header: dict, payload: bytes = b"", seconds: float = 1.0, most: int = 0) -> tuple[dict, bytes]:
            asked.append(header["op"])
            return board.ask(header, payload, seconds, most)

    with BoardJob(Watched()) as job:
        job.buffer("x", len(data), data)
        assert job.read([("x", 5, 100)]) == [data[5:105]]
    assert "put" not in asked
    reply, _ = board.ask({"op": "put", "key": "0" * 64}, data)
    assert "announced: 000" in reply["detail"]


def test_a_worker_needs_the_standard_library_alone(board: Board, tmp_path: Path) -> None:
    """It is isolated from the import path, and from what is installed beside an interpreter."""
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o700)
    other = Board(BoardEntry("bare", "cpu", python=str(bare)))
    try:
        assert other.about["machine"] == board.about["machine"]
        assert doubled(other, code(copies(2.0)))[2]
    finally:
        other.close()


def test_a_board_where_no_worker_begins_tells_why(tmp_path: Path) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho 'Permission denied (publickey).' >&2\nexit 255\n")
    broken.chmod(0o700)
    with pytest.raises(DeviceLost, match=r"'here': no worker begins there.*Permission denied"):
        Board(BoardEntry("here", "cpu", python=str(broken)))
    with pytest.raises(DeviceLost, match="No such file"):
        Board(BoardEntry("here", "cpu", python=str(tmp_path / "nothing")))


def test_a_board_behind_ssh_is_loaded_through_its_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that runs the command by a shell here, as SSH does there."""
    client = tmp_path / "ssh"
    client.write_text('#!/bin/sh\nfor command; do :; done\nexec sh -c "$command"\n')
    client.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    far = Board(BoardEntry("far", "cpu", "ssh", "tuner@far.lab", python=sys.executable))
    try:
        assert doubled(far, code(copies(2.0)))[2]
    finally:
        far.close()
