"""Workers of boards with one fault each, as processes; and a fixture's helpers to have them in a pool."""

from __future__ import annotations

import os
import signal
import sys
import time

from burnish.boards import agent, frames
from burnish.boards.board import Board
from burnish.boards.link import start
from burnish.boards.table import BoardEntry

SILENCE = 3.0  # seconds: beats come each half second
UPLOAD = 20_000  # bytes: a board whose link drops in mid-upload takes no longer frame


class Faulty(agent.Agent):
    """Answers as a worker does, but for what it was told to do wrong."""

    fault = ""

    def answer(self, header: dict, payload: bytes) -> tuple[dict, bytes]:
        if (self.fault, header["op"]) == ("oversized", "read"):
            return {"ok": True}, bytes(1 << 22)
        if header["op"] != "call":
            return super().answer(header, payload)
        if self.fault == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.fault == "hangs":
            time.sleep(600)
        if self.fault == "garbage":
            os.write(self._frames.writer, b"HTTP/1.1 400 Bad Request\r\n\r\n")
            time.sleep(600)
        if self.fault == "no times":
            return {"ok": True, "seconds": [float("nan")]}, b""
        return super().answer(header, payload)


def main(fault: str) -> None:
    """The life of a faulty worker."""
    Faulty.fault = fault
    agent.Agent = Faulty  # type: ignore[misc]
    if fault == "drops":
        whole = frames.Frames._need

        def need(self: frames.Frames, count: int, seconds: float | None, end: float | None = None) -> bytearray:
            if count > UPLOAD:
                whole(self, UPLOAD // 2, seconds, end)
                os._exit(0)
            return whole(self, count, seconds, end)

        frames.Frames._need = need  # type: ignore[method-assign]
    agent.main()


def board(device: BoardEntry) -> Board:
    """A board whose fault is in its name, before a dash; any other is as it should be."""
    fault, dash, _ = device.name.replace("_", " ").partition("-")
    if not dash:
        return Board(device)
    code = f"from tests.boards.faults import main; main({fault!r})"
    return Board(device, start([sys.executable, "-P", "-c", code], device.name), SILENCE)
