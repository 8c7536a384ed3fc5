"""Links to boards: a process whose standard input and output carry frames, here or at the other end of SSH."""

from __future__ import annotations

import fcntl
import os
import shlex
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from burnish.boards.bundle import BOOT, upload
from burnish.boards.frames import Frames, Silence
from burnish.boards.lost import DeviceLost
from burnish.boards.table import BoardEntry

STARTING = 30.0  # seconds until a board's worker has begun, and that an upload may stand still
_PIPE = 1 << 20  # bytes on their way
_WORDS = 5  # lines of its standard error that are kept

# No password is asked for, no host key is learned, and a connection that has gone is noticed.
SSH = (
    "ssh", "-T", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes", "-o", "ConnectTimeout=10",
    "-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3",
)  # fmt: skip


@dataclass(frozen=True)
class BoardLink:
    """Frames to a board's worker. ``close`` ends it; ``words`` are the last that it wrote to standard error."""

    frames: Frames
    close: Callable[[], None]
    words: Callable[[], str]


def command(device: BoardEntry) -> list[str]:
    """Command line that starts a device's worker."""
    if device.reach == "emulator":
        return [sys.executable, "-P", "-m", "burnish.boards.emulated"]
    if device.reach == "local":
        return [device.python or sys.executable, "-I", "-c", BOOT]
    return [*SSH, "--", device.address, f"{shlex.quote(device.python or 'python3')} -I -c {shlex.quote(BOOT)}"]


def connect(device: BoardEntry) -> BoardLink:
    """Starts a device's worker, which it is sent first, and waits for nothing. Raises DeviceLost."""
    link = start(command(device), device.name)
    if device.reach != "emulator":
        try:
            send_file(link)
        except (EOFError, Silence) as error:
            link.close()
            raise DeviceLost(f"device '{device.name}': no worker begins there: {link.words() or error}") from None
    return link


def start(words: Sequence[str], name: str) -> BoardLink:
    """A process of this command, which ends with the link. Raises DeviceLost where there can be none."""
    path = os.pathsep.join(path or os.getcwd() for path in sys.path)
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    try:
        process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment,
            start_new_session=True, bufsize=0,
        )  # fmt: skip
    except OSError as error:
        raise DeviceLost(f"device '{name}': {words[0]}: {error.strerror}") from None
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    said: deque[str] = deque(maxlen=_WORDS)
    stderr = process.stderr
    reader = threading.Thread(target=lambda: said.extend(line.decode(errors="replace").strip() for line in stderr))
    reader.daemon = True
    reader.start()
    stdin, stdout = process.stdin, process.stdout

    frames = Frames(stdout.fileno(), stdin.fileno())
    for number in (stdin.fileno(), stdout.fileno()):
        with suppress(OSError, AttributeError):  # more than the user may have, or a system without it
            fcntl.fcntl(number, fcntl.F_SETPIPE_SZ, _PIPE)

    def close() -> None:
        process.kill()
        process.wait()
        reader.join(1.0)
        frames.forget()
        for stream in (stdin, stdout, stderr):
            with suppress(OSError):
                stream.close()

    def spoken() -> str:
        reader.join(0.2)
        return "; ".join(said)

    return BoardLink(frames, close, spoken)


def send_file(link: BoardLink) -> None:
    """Sends the worker's source. Raises EOFError where nobody reads it, Silence where that takes too long."""
    link.frames.write(upload(), STARTING)
