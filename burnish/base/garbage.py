"""Garbage collection of reference cycles (CPython's ``gc``), made rare where much is made and little of it is garbage.

What a compiler makes is freed by counting references; the collector walks over all of it again and again, which takes
a fifth of a compilation, and more where other packages hold many objects.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

YOUNG = 200_000  # objects, about those of a build, after which the collector looks through them
MANY = 1_000_000, 20, 100  # about the objects of a model's compilation

_lock = threading.Lock()
_inside = 0
_before = MANY


def collect_rarely() -> None:
    """Garbage collection made rare in this process, from now on, and never of objects that it has already."""
    gc.freeze()
    gc.set_threshold(YOUNG, 20, 100)


@contextmanager
def rarely_collected() -> Iterator[None]:
    """The process seldom looks for garbage inside; several threads may be. A collector that is off stays off, and
    thresholds that others set meanwhile stay theirs.
    """
    global _inside, _before
    with _lock:
        if not _inside:
            _before = gc.get_threshold()
            if 0 < _before[0] < MANY[0]:
                gc.set_threshold(*MANY)
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if not _inside and gc.get_threshold() == MANY:
                gc.set_threshold(*_before)
