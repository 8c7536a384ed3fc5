"""Dynamic programming over a series-parallel structure: the strategy of the least sum of costs, by elimination.

Costs are added up as if tasks of one operation ran on all devices at the same time, and operations one after another:
of each operation its two tasks and the sum of its gradients, of each tensor the work of the busiest link. That is a
step in which nothing overlaps. Where everything does, costs are averages over all devices and links (``spread`` 1):
operations then run on few devices, where they are efficient.

An operation of two neighbours or fewer is eliminated: for each pair of their configurations its best is kept. That
leaves nothing of a series-parallel graph; where something is left, the operation with the most neighbours takes the
configuration that is best for each of its tensors alone. Operations that share parameters (steps of a layer) take one
configuration.

Source: node and edge elimination of Jia et al. 2018 (layer-wise parallelism, which thesis-jia section 3.8 names). What
goes on at the same time is not in these costs, so the result is a start of a search.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from burnish.base.jit import njit
from burnish.parallel.simulate.core import PARTS, SPLIT, ProblemArrays, SimulationScratch
from burnish.parallel.simulate.loads import add_edge
from burnish.parallel.simulate.sharing import SOURCE, TARGET, Array
from burnish.parallel.simulate.simulate import Choice, Simulator
from burnish.parallel.simulate.weight_sums import synchronization

Floats = NDArray[np.float64]
WIDTH = 48  # configurations of an operation that are looked at: those that cost least for themselves


@dataclass(frozen=True, eq=False)
class Eliminated:
    """The strategy, its sum of costs in ns, and whether none of those looked at has a smaller one."""

    choice: Choice
    ns: float
    exact: bool


def eliminate(simulator: Simulator, spread: float = 0.0, width: int = WIDTH) -> Eliminated:
    """The strategy of the least sum of costs over ``width`` configurations for each block.

    ``spread``: the share of averages over all devices and links in each cost, added to the busiest one's. Operations on
    fewer devices than there are lie on the first ones: spread them out.
    """
    blocks = _blocks(simulator)
    numbers, costs = [], []
    known: dict[tuple[object, ...], tuple[NDArray[np.int64], Floats]] = {}
    for block in blocks:
        groups = _groups(simulator, block)
        kinds = tuple(simulator.problem.space.kind[i] for i in block)
        key = (kinds, simulator.t.weight_bytes[groups].tobytes())
        if key not in known:
            known[key] = _candidates(simulator, block, groups, width, spread)
        numbers.append(known[key][0])
        costs.append(known[key][1].copy())
    chosen, total, exact = _solve(costs, _edges(simulator, blocks, numbers, costs, spread))
    choice = simulator.problem.space.first.astype(np.int32).copy()
    for block, own, at in zip(blocks, numbers, chosen, strict=True):
        choice[block] = choice[block] + np.int32(own[at])
    return Eliminated(choice, total, exact)


def _blocks(simulator: Simulator) -> list[list[int]]:
    """Operations that read the same parameters and have as many configurations; others alone."""
    space, found = simulator.problem.space, dict[tuple[object, ...], list[int]]()
    for i, op in enumerate(simulator.problem.model.operations):
        found.setdefault((int(space.count[i]), op.parameters or op.name), []).append(i)
    return list(found.values())


def _candidates(
    simulator: Simulator, block: list[int], groups: list[int], width: int, spread: float
) -> tuple[NDArray[np.int64], Floats]:
    """Configurations from the first device on, by number within their class, and their costs in ns."""
    t, space = simulator.t, simulator.problem.space
    first = int(space.first[block[0]])
    numbers = np.arange(int(space.count[block[0]]))
    numbers = numbers[[min(space.configuration(first + int(n)).devices) == 0 for n in numbers]]
    share = t.configurations[first + numbers, PARTS] / simulator.problem.machine.size
    ns = np.zeros(len(numbers))
    for i in block:
        split = t.configurations[space.first[i] + numbers, SPLIT]
        ns += t.time[split].max(axis=2).sum(axis=1) * (1.0 - spread + spread * share)
    links = max(len(simulator.problem.machine.links), 1)
    choice = space.first.astype(np.int32).copy()
    sync = np.zeros((len(simulator.problem.weights.nbytes), simulator.problem.resources + 1), np.int64)
    for k, n in enumerate(numbers):
        choice[block] = space.first[block] + n
        for g in groups:
            synchronization(t, g, choice, sync, simulator.room.holders)
            ns[k] += (1.0 - spread) * float(sync[g].max()) + spread * float(sync[g, :-1].sum() / links + sync[g, -1])
    kept = np.argsort(ns, kind="stable")[:width]
    return numbers[kept], ns[kept]


def _groups(simulator: Simulator, block: list[int]) -> list[int]:
    """Groups of weights that a block has for itself."""
    t, inside = simulator.t, set(block)
    return [
        g
        for g in range(len(simulator.problem.weights.nbytes))
        if set(t.members[t.member_pointer[g] : t.member_pointer[g + 1], 0].tolist()) <= inside
    ]


def _whole(numbers: NDArray[np.int64]) -> Choice:
    """Numbers of configurations as strategies have them."""
    return numbers.astype(np.int32)


Between = dict[tuple[int, int], Floats]


def _edges(
    simulator: Simulator, blocks: list[list[int]], numbers: list[NDArray[np.int64]], costs: list[Floats],
    spread: float,
) -> Between:  # fmt: skip
    """Costs of tensors between blocks, by a pair of them and their candidates; those within a block join ``costs``."""
    problem, t = simulator.problem, simulator.t
    block_of = {i: b for b, block in enumerate(blocks) for i in block}
    known: dict[tuple[object, ...], Floats] = {}
    found: Between = {}
    for e, (i, j) in enumerate(t.geometry.edges[:, [SOURCE, TARGET]].tolist()):
        a, b = block_of[i], block_of[j]
        ends = numbers[a].tobytes(), numbers[b].tobytes(), int(problem.space.first[i]), int(problem.space.first[j])
        key = (*ends, t.geometry.edges[e, 2:].tobytes(), t.nbytes[e].tobytes())
        if key not in known:
            known[key] = np.zeros((len(numbers[a]), len(numbers[b])))
            load = np.zeros(problem.resources, np.int64)
            edge_costs(
                t, e, _whole(problem.space.first[i] + numbers[a]), _whole(problem.space.first[j] + numbers[b]),
                spread / max(len(problem.machine.links), 1), 1.0 - spread, known[key], load, simulator.room,
            )  # fmt: skip
        if a == b:
            costs[a] += np.diagonal(known[key])
        else:
            pair, table = ((a, b), known[key]) if a < b else ((b, a), known[key].T)
            found[pair] = found.get(pair, 0.0) + table
    return found


@njit(cache=True, counted=False)
def edge_costs(
    t: ProblemArrays,
    e: int,
    a: Array,
    b: Array,
    total: float,
    busiest: float,
    costs: Array,
    load: Array,
    room: SimulationScratch,
) -> None:
    """Work of all links and of the busiest one by an edge's transfers, for each pair of configurations of its ends."""
    for m in range(a.size):
        for n in range(b.size):
            load[:] = 0
            add_edge(t, e, a[m], b[n], 1, load, room)
            most = 0
            whole = 0
            for r in range(load.size):
                most = max(most, load[r])
                whole += load[r]
            costs[m, n] = busiest * most + total * whole


def _solve(costs: list[Floats], between: Between) -> tuple[list[int], float, bool]:
    """The number of a candidate for each block, the sum of costs, and whether it is the least."""
    nodes = {b: ns.copy() for b, ns in enumerate(costs)}
    edges = {pair: np.array(table) for pair, table in between.items()}
    steps: list[tuple[int, list[int], NDArray[np.int64]]] = []
    total, exact = 0.0, True
    while nodes:
        # Invariant: for each choice of the blocks left, the sum of `nodes` and `edges` plus `total` is the least cost
        # over all choices of the blocks eliminated. With one or two neighbours the minimum over b is a table of theirs
        # again (node elimination; `_add` merges parallel edges: edge elimination), so the sum stays exact.
        near = {b: [*dict.fromkeys(x for pair in edges if b in pair for x in pair if x != b)] for b in nodes}
        b = min(nodes, key=lambda x: (len(near[x]), x))
        # A minimum over three neighbours would be a table in three dimensions: b is fixed instead, no longer exactly.
        if len(near[b]) > 2:
            b = max(nodes, key=lambda x: (len(near[x]), -x))
            _fix(b, near[b], nodes, edges)
            exact = False
        own, sides = nodes.pop(b), [_table(edges, b, x) for x in near[b]]
        if not sides:
            at = np.asarray(own.argmin())
            total += float(own.min())
        elif len(sides) == 1:
            whole = own[:, None] + sides[0]
            at = whole.argmin(axis=0)
            nodes[near[b][0]] += whole.min(axis=0)
        else:
            whole = (own[:, None] + sides[0])[:, :, None] + sides[1][:, None, :]
            at = whole.argmin(axis=0)
            _add(edges, near[b][0], near[b][1], whole.min(axis=0))
        steps.append((b, near[b], at))
    chosen: dict[int, int] = {}
    # Back substitution: the neighbours of a block were eliminated after it, and are known here.
    for b, neighbours, at in reversed(steps):
        chosen[b] = int(at[tuple(chosen[x] for x in neighbours)])
    return [chosen[b] for b in range(len(costs))], total, exact


def _fix(b: int, near: list[int], nodes: dict[int, Floats], edges: Between) -> None:
    """Gives a block the candidate that is best for each of its tensors alone; its neighbours then pay for theirs."""
    alone = nodes[b].copy()
    for x in near:
        pair = (b, x) if b < x else (x, b)
        table = edges[pair] if b < x else edges[pair].T
        alone += (table + nodes[x][None, :]).min(axis=1)
    at = int(alone.argmin())
    for x in near:
        pair = (b, x) if b < x else (x, b)
        table = edges.pop(pair)
        nodes[x] += table[at] if b < x else table[:, at]
    near.clear()
    kept = nodes[b][at]
    nodes[b][:] = np.inf
    nodes[b][at] = kept


def _table(edges: Between, b: int, x: int) -> Floats:
    """Takes the costs between two blocks out, the first one's candidates as rows."""
    return edges.pop((b, x)) if b < x else edges.pop((x, b)).T


def _add(edges: Between, a: int, b: int, table: Floats) -> None:
    """Adds costs between two blocks, the first one's candidates as rows."""
    pair, own = ((a, b), table) if a < b else ((b, a), table.T)
    edges[pair] = edges[pair] + own if pair in edges else own
