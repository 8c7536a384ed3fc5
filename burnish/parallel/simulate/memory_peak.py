"""Peak memory of a simulated step: results and received copies live from where they are made to their last use."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from burnish.parallel.simulate.core import PLACE, SPLIT
from burnish.parallel.simulate.memory import static_bytes
from burnish.parallel.simulate.sharing import SOURCE, TARGET, volume
from burnish.parallel.simulate.state import ACTIVATION, BACKWARD, FORWARD, KIND, PART, THING, Trace
from burnish.parallel.simulate.taskgraph import Problem

_THINGS, _PARTS = (1 << (KIND - THING)) - 1, (1 << PART) - 1
Piece = tuple[int, int, int]  # of an edge, a part of its producer, on a device


def peak_bytes(problem: Problem, choice: NDArray[np.int32], trace: Trace, slots: int = 2) -> NDArray[np.float64]:
    """Bytes that every device needs at most in a step that went as the trace says.

    A result lives from the begin of its forward task to the end of its backward one, one that is recomputed only in
    the latter; a copy from its arrival to the end of the last backward task there that reads it.
    """
    begun: dict[tuple[int, int], int] = {}
    ended: dict[tuple[int, int], int] = {}
    copies: dict[Piece, list[int]] = {}
    for key, start, end in zip(trace.key.tolist(), trace.start.tolist(), trace.end.tolist(), strict=True):
        what, thing, part = key >> KIND, (key >> THING) & _THINGS, (key >> PART) & _PARTS
        if what == FORWARD:
            begun[thing, part] = start
        elif what == BACKWARD:
            ended[thing, part] = end
            if problem.recomputes[problem.tables.configurations[choice[thing], SPLIT]]:
                begun[thing, part] = start
        elif what == ACTIVATION:
            _arrived(problem, choice, copies, (thing, part, key & _PARTS), end)
    changes: list[tuple[int, int, int, float]] = []
    for (i, k), since in begun.items():
        split, place, _ = problem.tables.configurations[choice[i]]
        device = int(problem.tables.places[place, k])
        changes += _alive(device, since, ended[i, k], float(problem.output_bytes[split]))
    for (e, _, device), (since, nbytes, *readers) in copies.items():
        j = int(problem.tables.geometry.edges[e, TARGET])
        changes += _alive(device, since, max(ended[j, p] for p in readers), float(nbytes))
    return static_bytes(problem, choice, slots) + _peaks(changes, problem.machine.size)


def _arrived(
    problem: Problem, choice: NDArray[np.int32], copies: dict[Piece, list[int]], at: tuple[int, int, int], end: int
) -> None:
    """Notes a copy: when it came, its bytes (tasks on one device share the largest), and the parts that read it."""
    e, k, p = at
    t = problem.tables
    i, j = int(t.geometry.edges[e, SOURCE]), int(t.geometry.edges[e, TARGET])
    mine, other = t.configurations[choice[i]], t.configurations[choice[j]]
    device = int(t.places[other[PLACE], p])
    nbytes = int(volume(t.geometry, e, int(mine[SPLIT]), int(other[SPLIT]), k, p) * t.nbytes[e, 0])
    known = copies.setdefault((e, k, device), [end, 0])
    known[0], known[1] = min(known[0], end), max(known[1], nbytes)
    known.append(p)


def _alive(device: int, since: int, until: int, nbytes: float) -> list[tuple[int, int, int, float]]:
    """Changes of a device's bytes; what ends at an instant goes before what begins."""
    return [(device, since, 1, nbytes), (device, until, 0, -nbytes)]


def _peaks(changes: list[tuple[int, int, int, float]], devices: int) -> NDArray[np.float64]:
    now, most = np.zeros(devices), np.zeros(devices)
    for device, _, _, nbytes in sorted(changes):
        now[device] += nbytes
        most[device] = max(most[device], now[device])
    return most
