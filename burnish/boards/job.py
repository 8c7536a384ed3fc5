"""Job on a board: code and memory in a child process there, which runs and times what was uploaded."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, Self

from burnish.boards.board import PROMPT, Header, Wire
from burnish.boards.lost import DeviceLost
from burnish.runtime.image import Image
from burnish.workers import Failure
from burnish.workers.limits import MEMORY

SMALL = 4096  # bytes: what is shorter is sent each time, not kept by its digest
LIMIT = 60.0  # seconds of a call
Place = tuple[str, int, int]  # a memory's name, the first byte, bytes
Step = tuple[str, str, Sequence[Place]]  # code, symbol, arguments; or "", "copy", target and source


class BoardJob:
    """One child on a board. Use it as a context. Every call raises DeviceLost where the board goes, and Failure where
    the child fails: ``crashed``, ``timeout``, ``out of memory``, which have ended it, or ``error``.
    """

    def __init__(self, wire: Wire, memory: int | None = MEMORY, limit: float = LIMIT) -> None:
        """``memory``: bytes that the child may take beyond what it begins with. ``limit``: seconds of a call."""
        self._wire, self._memory, self.limit = wire, memory, limit

    def __enter__(self) -> Self:
        self._ask({"op": "begin", "memory": self._memory})
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        if kind is None or not issubclass(kind, DeviceLost):
            self._ask({"op": "end"})

    def code(self, name: str, image: Image) -> None:
        """Loads code under a name."""
        absolute = [list(pair) for pair in image.absolute]
        header = {"op": "code", "name": name, "machine": image.machine, "symbols": dict(image.symbols)}
        self._give({**header, "absolute": absolute}, image.data)

    def buffer(self, name: str, nbytes: int, data: bytes | None = None, writable: bool = True) -> None:
        """Memory of a name, holding ``data`` if there is any, or nothing that may be relied on."""
        header = {"op": "buffer", "name": name, "nbytes": nbytes, "given": data is not None, "writable": writable}
        self._give(header, data or b"")

    def write(self, name: str, offset: int, data: bytes) -> None:
        """Replaces bytes."""
        self._work({"op": "write", "name": name, "offset": offset}, data)

    def fill(self, names: Sequence[str]) -> None:
        """Makes memories what nobody has written: NaN in every float type."""
        self._work({"op": "fill", "names": list(names)})

    def read(self, places: Sequence[Place]) -> list[bytes]:
        """The bytes at some places."""
        sizes = [nbytes for _, _, nbytes in places]
        _, data = self._work({"op": "read", "places": [list(place) for place in places]}, most=sum(sizes))
        if len(data) != sum(sizes):
            raise DeviceLost(f"a board sent {len(data)} bytes where {sum(sizes)} were asked for")
        ends = [0, *accumulate(sizes)]
        return [data[begin:end] for begin, end in pairwise(ends)]

    def untouched(self) -> bool:
        """Whether no byte next to a memory has changed."""
        return self._work({"op": "untouched"})[0].get("untouched") is True

    def call(
        self,
        steps: Sequence[Step],
        *,
        runs: int = 1,
        scratch: int = 0,
        threads: int = 1,
        driver: str | None = None,
        watch: str | None = None,
        flushed: Sequence[Place] | None = None,
        profile: bool = False,
        limit: float | None = None,
    ) -> list[float]:
        """Seconds of one call of all steps, ``runs`` of which are timed together; with ``profile`` of every step.

        ``scratch``: bytes of each of the ``threads``, which the code ``driver`` has. ``watch``: code that times a
        single kernel. ``flushed``: what leaves all caches before each of its runs. ``limit``: seconds of the whole.
        """
        order = {
            "op": "call", "steps": [[code, symbol, [list(p) for p in places]] for code, symbol, places in steps],
            "runs": runs, "scratch": scratch, "threads": threads, "driver": driver, "watch": watch, "profile": profile,
            "flushed": None if flushed is None else [list(place) for place in flushed],
        }  # fmt: skip
        reply, _ = self._work(order, seconds=self.limit if limit is None else limit)
        return _finite(reply.get("seconds"), len(steps) if profile else 1)

    def _give(self, header: Header, data: bytes) -> None:
        """Work on data that a board keeps, where it is not small."""
        if len(data) < SMALL:
            self._work(header, data)
            return
        key = hashlib.sha256(data).hexdigest()
        if "missing" in self._work({**header, "key": key})[0]:
            self._ask({"op": "put", "key": key}, data)
            self._work({**header, "key": key})

    def _work(
        self, header: Header, payload: bytes = b"", seconds: float = PROMPT, most: int = 0
    ) -> tuple[Header, bytes]:
        return self._ask({**header, "seconds": seconds}, payload, seconds, most)

    def _ask(
        self, header: Header, payload: bytes = b"", seconds: float = PROMPT, most: int = 0
    ) -> tuple[Header, bytes]:
        reply, data = self._wire.ask(header, payload, seconds, most)
        if "failure" in reply:
            raise Failure(str(reply["failure"]), str(reply.get("detail", "")))
        return reply, data


def _finite(seconds: Any, count: int) -> list[float]:
    """Times as a board may tell them. Raises DeviceLost for what is none."""
    right = isinstance(seconds, list) and len(seconds) == count
    if not right or not all(isinstance(s, int | float) and math.isfinite(s) and s >= 0 for s in seconds):
        raise DeviceLost(f"a board sent times that are none: {str(seconds)[:80]}")
    return [float(s) for s in seconds]
