"""Leased boards: work is done on another where one goes; whose boards, of which kind, for which owner."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, Self, TypeVar

from burnish.boards.board import Wire
from burnish.boards.job import BoardJob
from burnish.boards.lost import DeviceLost
from burnish.workers import Failure

MOST_LOST = 3  # boards that work may take with it, or may be on as they go
T = TypeVar("T")


class BoardLease(Wire, Protocol):
    """A leased board; a context that gives it back."""

    @property
    def about(self) -> Mapping[str, Any]:
        """Description that the board gives of itself."""

    def lose(self, reason: str) -> None:
        """Tells that what the board answers is of no use."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *exception: object) -> None: ...


class Leasing(Protocol):
    """Lease service of boards: a pool of this process, or the server of one."""

    def lease(self, kind: str, owner: str, priority: int = 0) -> BoardLease:
        """A board of a kind, when it is the owner's turn. Raises DeviceError."""


@dataclass(frozen=True)
class Devices:
    """Boards to measure on: of a ``kind`` in a ``pool``, asked for by an ``owner``, among whom shares are fair; higher
    priorities come first.
    """

    pool: Leasing
    kind: str
    owner: str
    priority: int = 0


def on_board(
    devices: Devices,
    work: Callable[[BoardJob, Mapping[str, Any]], T],
    limit: float,
    told: Callable[[str], None] = lambda why: None,
) -> T:
    """Result of ``work`` in a job on a board, tried again on another when a board is lost.

    ``told`` is called with why a board was lost, before the next is tried. ``work`` is given the job, and what the
    board says of itself. ``limit``: seconds of a call there. Raises Failure of the work, and ``crashed`` where it has
    been on too many boards that went; DeviceError where there are none.
    """
    lost: list[str] = []
    while len(lost) < MOST_LOST:
        with devices.pool.lease(devices.kind, devices.owner, devices.priority) as lease:
            try:
                with BoardJob(lease, limit=limit) as job:
                    return work(job, lease.about)
            except DeviceLost as gone:
                lease.lose(str(gone))
                lost.append(str(gone))
                told(str(gone))
    raise Failure("crashed", f"{len(lost)} boards went as they had this: {'; '.join(lost)}")
