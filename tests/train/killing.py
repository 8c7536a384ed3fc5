"""A process that kills itself by SIGKILL in the middle of writing files, for tests of what is left then."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any


def die_at(moment: int) -> None:
    """From now on: SIGKILL in place of the call of this number, from 1, that would write the second half of a part of a
    file, synchronize, rename or remove one.
    """
    seen = 0

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal seen
            seen += 1
            if seen == moment:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)

        return call

    class Counted:
        def __init__(self, file: Any) -> None:
            self._file = file

        def __enter__(self) -> Counted:
            return self

        def __exit__(self, *found: object) -> None:
            self._file.close()

        def __getattr__(self, name: str) -> Any:
            return getattr(self._file, name)

        def write(self, part: Any) -> None:
            half = len(part) // 2
            self._file.write(part[:half])
            self._file.flush()
            counted(self._file.write)(part[half:])

    open_file = os.fdopen

    def opened(file: int, mode: str = "r", **more: Any) -> Any:
        made = open_file(file, mode, **more)
        return Counted(made) if mode == "wb" else made

    os.fdopen = opened  # type: ignore[assignment]
    os.fsync, os.replace, os.unlink = map(counted, (os.fsync, os.replace, os.unlink))
