"""A process that kills itself by SIGKILL in the middle of writing files, for tests of what is left then."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any


def die_at(moment: int, folder: str) -> None:
    """From now on: SIGKILL in place of the call of this number, from 1, that would write the second half of a part of a
    file in ``folder``, synchronize, rename or remove one there.
    """
    seen = 0

    def is_there(file: Any) -> bool:
        return os.path.realpath(f"/proc/self/fd/{file}" if isinstance(file, int) else file).startswith(folder)

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal seen
            seen += isinstance(args[0], bytes | memoryview) or is_there(args[0])
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
        return Counted(made) if mode == "wb" and is_there(file) else made

    os.fdopen = opened  # type: ignore[assignment]
    os.fsync, os.replace, os.unlink = map(counted, (os.fsync, os.replace, os.unlink))
