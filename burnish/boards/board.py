"""Host's side of a board: asks its worker one thing at a time, and says what became of a board that gives no answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

from burnish.boards.agent import BEAT, PROTOCOL
from burnish.boards.frames import FrameError, Frames, Silence
from burnish.boards.link import STARTING, BoardLink, connect
from burnish.boards.lost import DeviceLost
from burnish.boards.table import BoardEntry

SILENCE = 30 * BEAT  # seconds without a sign of life after which a board hangs
PROMPT = 20.0  # seconds that an answer may take for which no code of a user runs

Header = dict[str, Any]


class Wire(Protocol):
    """Request interface of a board: the board itself, a lease of it, or a pool's server in between."""

    def ask(
        self, header: Header, payload: bytes | memoryview = b"", seconds: float = PROMPT, most: int = 0
    ) -> tuple[Header, bytes]:
        """The answer, whose payload has at most ``most`` bytes. ``seconds``: until then. Raises DeviceLost."""


class Board:
    """Board: a device's worker, as the host sees it. ``about``: what it says of itself. For one thread at a time;
    ``close`` ends it.
    """

    def __init__(self, device: BoardEntry, link: BoardLink | None = None, silence: float = SILENCE) -> None:
        """Raises DeviceLost, with the last words of what could not be started."""
        self.device, self._silence = device, silence
        self._link = link or connect(device)
        try:
            hello, _ = receive(self._link.frames, STARTING, STARTING, 0)
            self.about: Header = dict(hello["hello"])
        except (EOFError, Silence, FrameError, LookupError, TypeError, ValueError) as error:
            raise self._lost(f"no worker begins there: {error}") from None
        if self.about.get("protocol") != PROTOCOL:
            raise self._lost(f"speaks protocol {self.about.get('protocol')!r}; allowed: {PROTOCOL}")

    def close(self) -> None:
        """Ends the worker and its child."""
        self._link.close()

    def ask(
        self,
        header: Header,
        payload: bytes | memoryview = b"",
        seconds: float = PROMPT,
        most: int = 0,
        beat: Callable[[], None] = lambda: None,
    ) -> tuple[Header, bytes]:
        """As of :class:`Wire`; ``beat`` is called at signs of life. After DeviceLost there are no more answers."""
        try:
            self._link.frames.send(header, payload, self._silence)
            return receive(self._link.frames, seconds + self._silence, self._silence, most, beat)
        except EOFError as error:
            raise self._lost(str(error)) from None
        except Silence:
            raise self._lost(f"hangs: no sign of life for {self._silence:g} s, or no end") from None
        except FrameError as error:
            raise self._lost(f"sent what is no answer: {error}") from None
        except BaseException:  # an interrupt: an answer may come that nobody waits for
            self._link.close()
            raise

    def _lost(self, why: str) -> DeviceLost:
        words = self._link.words()
        self._link.close()
        return DeviceLost(f"device '{self.device.name}': {why}{f' ({words})' if words else ''}")


def receive(
    frames: Frames, seconds: float, silence: float, most: int, beat: Callable[[], None] = lambda: None
) -> tuple[Header, bytes]:
    """The next answer, which may be that long in coming, with signs of life. Raises EOFError, Silence, FrameError."""
    end = time.monotonic() + seconds
    while True:
        header, payload = frames.receive(silence, most, max(0.0, end - time.monotonic()))
        if "beat" not in header:
            return header, payload
        beat()
