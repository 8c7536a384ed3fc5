"""Mixed integer and linear programs, solved by HiGHS (of SciPy), whose own printing is kept off standard output."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from burnish.optional import require

STDOUT, STDERR = 1, 2

_lock = threading.Lock()
_solving: list[int] = []  # for each program that is being solved, the descriptor that standard output has meanwhile


def milp(cost: Any, extra: str, **given: Any) -> Any:
    """What ``scipy.optimize.milp(cost, **given)`` returns. ``extra``: of Burnish, which provides SciPy.

    HiGHS prints lines of its own on some programs, whatever its options say; in the output of a command that writes
    JSON they would be damage. They go to standard error, as does what else the process prints meanwhile.
    Raises MissingDependencyError.
    """
    optimize = require("scipy.optimize", extra)
    with _standard_output_is_standard_error():
        return optimize.milp(cost, **given)


@contextmanager
def _standard_output_is_standard_error() -> Iterator[None]:
    with _lock:
        kept = _solving[0] if _solving else _redirected()
        _solving.append(kept)
    try:
        yield
    finally:
        with _lock:
            _solving.remove(kept)
            if not _solving and kept >= 0:
                ctypes.CDLL(None).fflush(None)  # what C's own buffer still holds
                os.dup2(kept, STDOUT)
                os.close(kept)


def _redirected() -> int:
    """Standard output's descriptor under a new number; -1, and nothing redirected, if there is none."""
    try:
        sys.stdout.flush()
        kept = os.dup(STDOUT)
    except (AttributeError, OSError, ValueError):
        return -1
    try:
        os.dup2(STDERR, STDOUT)
    except OSError:
        os.close(kept)
        return -1
    return kept
