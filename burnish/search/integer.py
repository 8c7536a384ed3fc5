"""Mixed integer linear programming by HiGHS (SciPy), with the solver's logging kept off stdout."""

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
_solving: list[int] = []  # one duplicate of stdout's descriptor for each solve under way


def milp(cost: Any, extra: str, **given: Any) -> Any:
    """Mixed integer linear program: ``scipy.optimize.milp(cost, **given)`` and its result.

    ``extra``: the package extra that installs SciPy. HiGHS logs to standard output on some programs even with
    logging off, which would corrupt a command's JSON; stdout is redirected to stderr for the whole process while it
    solves. Raises MissingDependencyError.
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
    """Redirects stdout to stderr; a duplicate of stdout's descriptor, or -1 where stdout is closed."""
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
