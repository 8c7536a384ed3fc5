"""Outcome of a job: its result, or what became of it instead."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import burnish.errors
from burnish.errors import BurnishError

KINDS = ("ok", "error", "crashed", "timeout", "out of memory")


@dataclass(frozen=True)
class JobOutcome:
    """Job outcome. ``kind``, one of KINDS: it returned ``value``; it raised; its process ended; it used up its time; or
    its memory. ``detail`` tells people of all but the first, ``error`` of what it raised: its type, message, traceback
    and, of a WorkerError, rank. Only after ``ok`` and ``error`` does the worker live on.
    """

    kind: str
    value: Any = None
    detail: str = ""
    error: Mapping[str, Any] | None = None

    def known_error(self) -> BurnishError | None:
        """The error of Burnish that the job raised, without a rank; None if it raised no such."""
        kind = getattr(burnish.errors, self.error["type"], None) if self.error else None
        if not (isinstance(kind, type) and issubclass(kind, BurnishError)) or self.error is None:
            return None
        try:
            return kind(self.error["message"])
        except TypeError:  # it is made of more than a message
            return None


@dataclass(frozen=True)
class JobProgress:
    """Sign of life that a job gave by :func:`burnish.workers.tell`, with its value."""

    value: Any


class Failure(Exception):  # noqa: N818 - an outcome
    """Job failure, without a result: ``kind`` and ``detail`` as in :class:`JobOutcome`.

    ``progress``: the last sign of life that it gave.
    """

    def __init__(self, kind: str, detail: str, progress: Any = None) -> None:
        super().__init__(kind, detail, progress)
        self.kind = kind
        self.detail = detail
        self.progress = progress
