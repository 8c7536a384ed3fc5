"""Time since a command began: limits of seconds count from then, with imports and compilation."""

import os
import time

_began: float | None = None


def process_began() -> float:
    """When this process began, on the clock of ``time.monotonic``; now, where the system does not say."""
    try:
        with open("/proc/self/stat", encoding="ascii") as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])
        # Between reading two clocks another process may run, which makes them seem further apart, never nearer.
        asleep = min(-time.monotonic() + time.clock_gettime(time.CLOCK_BOOTTIME) for _ in range(5))
    except (OSError, ValueError, IndexError, AttributeError):
        return time.monotonic()
    return min(ticks / os.sysconf("SC_CLK_TCK") - asleep, time.monotonic())


def begin(at: float | None = None) -> None:
    """Notes when a command began: now, unless ``at`` says."""
    global _began
    _began = time.monotonic() if at is None else at


def began() -> float:
    """When the command began, on the clock of ``time.monotonic``; now, if nobody has noted it."""
    return time.monotonic() if _began is None else _began


def left(seconds: float) -> float:
    """Remaining time budget in seconds, at least half of the limit, so that the search finds something."""
    return max(began() + seconds - time.monotonic(), seconds / 2)
