"""Thread affinity: the cores that workers of thread pools are pinned to, as the variable BURNISH_AFFINITY says."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from burnish.base.arguments import refusal

VARIABLE = "BURNISH_AFFINITY"  # environment: "none" (default), "cores", or a list of cores such as "0-3,8"
UNPINNED, CORES = "none", "cores"
MOST_CORES = 1024  # cores from this number on are not pinned to
_SYSTEM = Path("/sys/devices/system")
_ALLOWED = "'none', 'cores', or a list of cores such as '0-3,8'"


class CorePlace(NamedTuple):
    """Place of a logical core: its NUMA node, its physical core (the first of the logical ones on it), its number."""

    node: int
    physical: int
    number: int


def pinned_cores(threads: int) -> tuple[int, ...]:
    """Logical cores of the ``threads`` threads of a pool, the calling thread's first; none where nothing is pinned.

    Of ``cores`` those that this process may use, by :func:`spread`; of a list the first ones. Raises ParameterError for
    what is no list, for cores that this process may not use, for fewer cores than threads, and where the operating
    system has no affinity of threads.
    """
    found = os.environ.get(VARIABLE) or UNPINNED
    if found == UNPINNED:
        return ()
    if not hasattr(os, "sched_getaffinity"):
        raise refusal(VARIABLE, found, f"'{UNPINNED}': threads cannot be pinned on {sys.platform}")
    usable = {core for core in os.sched_getaffinity(0) if core < MOST_CORES}
    cores: Sequence[int] = [*usable] if found == CORES else _listed(found, usable)
    if threads > len(cores):
        raise refusal(VARIABLE, found, f"a core for each of {threads} threads, or at most {len(cores)} threads")
    if threads == 1:
        return ()
    return tuple(spread(core_places(cores)) if found == CORES else cores)[:threads]


def core_places(cores: Collection[int], system: Path = _SYSTEM) -> list[CorePlace]:
    """Places of logical cores, as Linux describes them in ``system``; each is alone on node 0 where it does not."""
    nodes = {}
    for folder in (system / "node").glob("node[0-9]*"):
        for core in _core_numbers(folder / "cpulist"):
            nodes[core] = int(folder.name.removeprefix("node"))
    found = []
    for core in cores:
        topology = system / "cpu" / f"cpu{core}" / "topology"
        siblings = _core_numbers(topology / "core_cpus_list") or _core_numbers(topology / "thread_siblings_list")
        found.append(CorePlace(nodes.get(core, 0), min(siblings, default=core), core))
    return found


def spread(places: Collection[CorePlace]) -> list[int]:
    """Numbers of logical cores, one of each physical core before the second of any, in each round node by node."""
    taken = Counter[tuple[int, int]]()
    rounds = []
    for place in sorted(places):
        rounds.append((taken[place[:2]], place))
        taken[place[:2]] += 1
    return [place.number for _, place in sorted(rounds)]


def nodes_of(cores: Collection[int]) -> frozenset[int]:
    """Numbers of the NUMA nodes of logical cores."""
    return frozenset(place.node for place in core_places(cores))


def core_list(text: str) -> list[int]:
    """Numbers in a list as Linux writes them, such as ``0-3,8``. Raises ValueError."""
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = (word.strip() for word in part.partition("-"))
        begin, end = int(first), int(last if dash else first)
        if not 0 <= begin <= end < 1 << 16:
            raise ValueError(f"{part!r} is no range of cores")
        found += range(begin, end + 1)
    return found


def _listed(text: str, usable: Collection[int]) -> Sequence[int]:
    """Cores of a list that a user gave. Raises ParameterError."""
    try:
        cores = core_list(text)
    except ValueError:
        raise refusal(VARIABLE, text, _ALLOWED) from None
    beyond = [core for core in cores if core not in usable]
    if beyond:
        raise refusal(VARIABLE, text, f"cores that this process may use: {sorted(usable)}; {beyond[0]} is none")
    if len(set(cores)) < len(cores):
        raise refusal(VARIABLE, text, "each core once")
    return cores


def _core_numbers(file: Path) -> list[int]:
    """Numbers in a core list file of the system; none where there is no such file, or nothing in it."""
    try:
        return core_list(file.read_text())
    except (OSError, ValueError):
        return []
