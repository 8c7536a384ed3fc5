"""Device pool: leases of boards by kind, for several tuners at once; boards that go are opened again after a pause."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Self

from burnish.boards.board import PROMPT, Board, Header
from burnish.boards.lost import DeviceLost
from burnish.boards.shares import LeaseRequest, Shares
from burnish.boards.table import BoardEntry, check_names
from burnish.errors import DeviceError

HEARTBEAT = 60.0  # seconds: a lease whose holder asks for nothing that long ends when another wants the device
MOST_FAILURES = 3  # in a row, after which nobody waits for the device to be tried again
PAUSES = (1.0, 60.0)  # seconds until a lost device is tried again: at first, doubled each time, and at most
_LOOK = 0.5  # seconds between two looks at leases and at who still waits


@dataclass(eq=False)
class _Slot:
    """A device and its state: ``closed`` (to be opened at ``retry``), ``idle`` or ``leased``."""

    device: BoardEntry
    state: str = "closed"
    board: Board | None = None
    lease: Lease | None = None
    failures: int = 0
    reason: str = ""
    retry: float = 0.0
    served: int = 0  # leases


class Lease:
    """Lease of a device: asks it, renewed by each question and answer. Use it as a context, or ``release`` it.

    Its questions raise DeviceLost where the board has gone, or where the lease has ended: for want of a heartbeat.
    """

    def __init__(self, pool: DevicePool, slot: _Slot, owner: str, granted: float) -> None:
        self._pool, self._slot = pool, slot
        self.owner, self.granted, self.renewed = owner, granted, granted
        self.asking = self.over = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()

    @property
    def device(self) -> BoardEntry:
        """Leased device."""
        return self._slot.device

    @property
    def about(self) -> Header:
        """Description that the board gives of itself."""
        assert self._slot.board is not None
        return self._slot.board.about

    def ask(
        self, header: Header, payload: bytes | memoryview = b"", seconds: float = PROMPT, most: int = 0
    ) -> tuple[Header, bytes]:
        """As of :class:`~burnish.boards.board.Wire`."""
        board = self._pool.use(self)
        try:
            return board.ask(header, payload, seconds, most, self._renew)
        except DeviceLost as lost:
            self._pool.lose(self, str(lost))
            raise
        finally:
            self.asking = False
            self._renew()

    def lose(self, reason: str) -> None:
        """Tells that the board's answers are none: it is closed, and opened again after a pause."""
        self._pool.lose(self, reason)

    def release(self) -> None:
        """Gives the device back."""
        self._pool.give_back(self)

    def _renew(self) -> None:
        self.renewed = self._pool.clock()


@dataclass(eq=False)
class _Waiting:
    """A request, and the slot that was granted."""

    request: LeaseRequest
    slot: _Slot | None = None
    granted: float = 0.0


@dataclass(eq=False)
class DevicePool:
    """Boards of a table, opened when they are first asked for. For any number of threads; ``close`` ends all workers.

    ``open_board`` connects one; ``clock`` tells seconds. ``heartbeat``: see HEARTBEAT.
    """

    devices: Sequence[BoardEntry]
    open_board: Callable[[BoardEntry], Board] = Board
    clock: Callable[[], float] = time.monotonic
    heartbeat: float = HEARTBEAT
    pauses: tuple[float, float] = PAUSES
    shares: Shares = field(default_factory=Shares)

    def __post_init__(self) -> None:
        """Raises ParameterError where two devices have the same name."""
        check_names(self.devices)
        self._changed = threading.Condition(threading.RLock())
        self._slots = [_Slot(device) for device in self.devices]
        self._waiting: list[_Waiting] = []
        self._numbers = count()
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends all workers, also those at work, and wakes every thread that waits for a board."""
        with self._changed:
            self._closed = True
            boards = [slot.board for slot in self._slots if slot.board is not None]
            self._changed.notify_all()
        for board in boards:
            board.close()

    def lease(
        self,
        kind: str,
        owner: str,
        priority: int = 0,
        seconds: float | None = None,
        wanted: Callable[[], bool] = lambda: True,
    ) -> Lease:
        """A device of a kind, when it is the owner's turn: higher priorities come first, and among equals who has used
        less.

        Raises DeviceError for a kind that no device is of, where each has failed some times in a row, and after
        ``seconds`` of waiting, or when it is not ``wanted`` any more, which is asked now and then.
        """
        own = [slot for slot in self._slots if kind in (slot.device.kind, slot.device.name)]
        if not own:
            known = ", ".join(sorted({device.kind for device in self.devices})) or "none"
            raise DeviceError(f"devices: no device of kind '{kind}'; known: {known}")
        end = None if seconds is None else self.clock() + seconds
        waiting = _Waiting(LeaseRequest(owner, kind, priority, next(self._numbers)))
        while True:
            waiting.slot = None
            slot = self._wait_for(waiting, own, end, wanted)
            if slot.board is None and not self._open(slot):
                self._withdraw(owner, waiting.granted)
                continue
            with self._changed:
                lease = Lease(self, slot, owner, waiting.granted)
                lease.renewed = self.clock()
                slot.lease = lease
                slot.served += 1
            return lease

    def status(self) -> list[dict[str, Any]]:
        """Status of every device: name, kind, state, who holds it, leases served, and why it was lost last."""
        with self._changed:
            return [
                {
                    "name": slot.device.name, "kind": slot.device.kind, "reach": slot.device.reach,
                    "state": "lost" if slot.state == "closed" and slot.reason else slot.state,
                    "owner": slot.lease.owner if slot.lease else None, "served": slot.served, "reason": slot.reason,
                }
                for slot in self._slots
            ]  # fmt: skip

    def used(self) -> dict[str, float]:
        """Seconds of devices that each owner has used."""
        with self._changed:
            return dict(self.shares.used)

    def use(self, lease: Lease) -> Board:
        """The board of a lease that somebody asks. Raises DeviceLost where the lease has ended."""
        with self._changed:
            slot = lease._slot
            if lease.over or slot.lease is not lease or slot.board is None:
                raise DeviceLost(f"device '{slot.device.name}': the lease has ended: {slot.reason or 'no heartbeat'}")
            lease.asking = True
            return slot.board

    def lose(self, lease: Lease, reason: str) -> None:
        """The board of a lease has gone."""
        with self._changed:
            if not lease.over:
                self._fail(lease._slot, reason)
                self._end(lease)

    def give_back(self, lease: Lease) -> None:
        """A lease ends; its child on the board, too, or the board itself where that still answers a question."""
        slot = lease._slot
        with self._changed:
            board = slot.board
            if lease.over or board is None:
                return
            if lease.asking:
                self._fail(slot, f"'{lease.owner}' went before the answer")
                slot.failures, slot.retry = 0, 0.0
                self._end(lease)
                return
        try:
            board.ask({"op": "end"})
        except DeviceLost as lost:
            self.lose(lease, str(lost))
            return
        with self._changed:
            if slot.lease is lease:
                slot.state, slot.failures = "idle", 0
                self._end(lease)

    def _wait_for(
        self, waiting: _Waiting, own: Sequence[_Slot], end: float | None, wanted: Callable[[], bool]
    ) -> _Slot:
        """The slot that a request is granted. Nobody else waits for ``wanted``."""
        request = waiting.request
        with self._changed:
            self.shares.enter(request.owner, self.clock())
            self._waiting.append(waiting)
        try:
            while True:
                with self._changed:
                    self._expire()
                    self._grant()
                    if waiting.slot is None:
                        self._check(request, own, end)
                        self._changed.wait(_LOOK)
                    if waiting.slot is not None:
                        return waiting.slot
                if not wanted():
                    raise DeviceError(f"devices: nobody waits any more for one of kind '{request.kind}'")
        except BaseException:
            with self._changed:
                if waiting.slot is not None:
                    waiting.slot.state = "closed" if waiting.slot.board is None else "idle"
                    self._withdraw(request.owner, waiting.granted)
                elif waiting in self._waiting:
                    self._waiting.remove(waiting)
                    self.shares.leave(request.owner)
            raise

    def _check(self, request: LeaseRequest, own: Sequence[_Slot], end: float | None) -> None:
        """Raises DeviceError where there is nothing to wait for."""
        if self._closed:
            raise DeviceError("devices: the pool is closed")
        if all(slot.failures >= MOST_FAILURES and slot.retry > self.clock() for slot in own):
            reasons = "; ".join(slot.reason for slot in own)
            raise DeviceError(f"devices: none of kind '{request.kind}' lives: {reasons}")
        if end is not None and self.clock() >= end:
            states = ", ".join(f"'{slot.device.name}' {slot.state}" for slot in own)
            raise DeviceError(f"devices: none of kind '{request.kind}' became free in time: {states}")

    def _grant(self) -> None:
        """Gives free devices to those whose turn it is."""
        now = self.clock()
        for slot in sorted(self._slots, key=lambda slot: (slot.state != "idle", slot.failures)):
            if slot.state == "leased" or (slot.state == "closed" and slot.retry > now):
                continue
            names = (slot.device.kind, slot.device.name)
            request = self.shares.choose([w.request for w in self._waiting if w.request.kind in names], now)
            if request is None:
                continue
            waiting = next(w for w in self._waiting if w.request is request)
            self._waiting.remove(waiting)
            self.shares.leave(request.owner)
            self.shares.grant(request.owner, now)
            waiting.slot, waiting.granted = slot, now
            slot.state = "leased"
            self._changed.notify_all()

    def _expire(self) -> None:
        """Ends leases that nobody has used for long."""
        for slot in self._slots:
            lease = slot.lease
            if lease is None or lease.asking or self.clock() - lease.renewed <= self.heartbeat:
                continue
            self._fail(slot, f"no heartbeat of '{lease.owner}' for {self.heartbeat:g} s")
            slot.failures, slot.retry = 0, 0.0  # the board is not to blame
            self._end(lease)

    def _fail(self, slot: _Slot, reason: str) -> None:
        """A device is closed, until it is tried again."""
        least, most = self.pauses
        slot.retry = self.clock() + min(most, least * 2.0 ** min(slot.failures, 32))
        slot.failures += 1
        slot.state, slot.reason = "closed", reason
        if slot.board is not None:
            slot.board.close()
            slot.board = None

    def _end(self, lease: Lease) -> None:
        lease.over = True
        lease._slot.lease = None
        self.shares.release(lease.owner, lease.granted, self.clock())
        self._changed.notify_all()

    def _open(self, slot: _Slot) -> bool:
        """Connects a device, which takes a while; whether it could be."""
        try:
            board = self.open_board(slot.device)
        except DeviceLost as lost:
            with self._changed:
                self._fail(slot, str(lost))
            return False
        with self._changed:
            slot.board = board
            if self._closed:
                with suppress(DeviceLost):
                    board.close()
        return True

    def _withdraw(self, owner: str, granted: float) -> None:
        """Takes back what was granted and cannot be used."""
        with self._changed:
            self.shares.release(owner, granted, granted)
            self._changed.notify_all()
