"""Fair shares: which of those that wait gets a free device, by priority, then by how long each has held devices.

Start-time fair queueing (Goyal, Vin, Cheng 1996) over owners: the least used comes first, and who returns after an
absence has at most a bounded lead over those who stayed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

LEAD = 30.0  # seconds of devices that an owner who was away may have used less than those who stayed


@dataclass(frozen=True, eq=False)
class LeaseRequest:
    """Somebody waits for a device of a kind. ``number``: the order in which they came."""

    owner: str
    kind: str
    priority: int
    number: int


class Shares:
    """Fair-share accounting: device seconds by owner. Times are those of one clock, which the caller reads."""

    def __init__(self, lead: float = LEAD) -> None:
        self.used: dict[str, float] = {}  # all that an owner ever has
        self._counted: dict[str, float] = {}  # what orders them: no owner's lags far behind the others'
        self._lead = lead
        self._held: dict[str, list[float]] = {}  # when an owner's devices were granted
        self._waiting: dict[str, int] = {}

    def enter(self, owner: str, now: float) -> None:
        """One more request of an owner waits."""
        present = {o for o in (*self._waiting, *self._held) if o != owner}
        if present and owner not in self._waiting and owner not in self._held:
            least = min(self._position(other, now) for other in present)
            self._counted[owner] = max(self._counted.get(owner, 0.0), least - self._lead)
        self.used.setdefault(owner, 0.0)
        self._waiting[owner] = self._waiting.get(owner, 0) + 1

    def leave(self, owner: str) -> None:
        """One of them waits no longer."""
        self._waiting[owner] -= 1
        if not self._waiting[owner]:
            del self._waiting[owner]

    def choose(self, requests: Sequence[LeaseRequest], now: float) -> LeaseRequest | None:
        """Whose turn it is, of requests that a free device would serve."""
        return min(requests, key=lambda r: (-r.priority, self._position(r.owner, now), r.number), default=None)

    def grant(self, owner: str, now: float) -> None:
        """An owner holds one device more."""
        self._held.setdefault(owner, []).append(now)

    def release(self, owner: str, granted: float, now: float) -> None:
        """An owner gives one back that it was granted at that time."""
        self._held[owner].remove(granted)
        if not self._held[owner]:
            del self._held[owner]
        self.used[owner] = self.used.get(owner, 0.0) + now - granted
        self._counted[owner] = self._counted.get(owner, 0.0) + now - granted

    def _position(self, owner: str, now: float) -> float:
        running = sum(now - granted for granted in self._held.get(owner, ()))
        return self._counted.get(owner, 0.0) + running
