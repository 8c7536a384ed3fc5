"""CPU seconds of programs that take turns: the least of each, which other work on the machine raises least."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

SAMPLE = 0.02  # CPU seconds of a turn


def least_seconds(runs: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """CPU seconds of one call of each: the least of ``rounds`` turns, in each of which it is called again and again."""
    calls = {}
    for name, run in runs.items():
        run()
        began = time.process_time()
        run()
        calls[name] = max(1, round(SAMPLE / max(time.process_time() - began, 1e-7)))
    least = dict.fromkeys(runs, float("inf"))
    for turn in range(rounds):
        for name in list(runs)[:: 1 if turn % 2 == 0 else -1]:
            began = time.process_time()
            for _ in range(calls[name]):
                runs[name]()
            least[name] = min(least[name], (time.process_time() - began) / calls[name])
    return least
