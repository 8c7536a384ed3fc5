"""Transfers of repeated blocks in the linear program of a bound: variables of pairs of degrees, for each kind of edge.

All edges of a kind (the tensors between the steps of two layers) have one variable for each pair of degrees of producer
and consumer: how many of them have these. Each pair costs what it costs with the best places of both: work of links
between nodes and within them, and what passes between the last task of the producer and the arrival of its result
(:func:`burnish.parallel.simulate.paths.find_hops`), which paths through all steps of a layer add up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from burnish.base.jit import njit
from burnish.parallel.model.operations import MAX_AXES
from burnish.parallel.simulate.bound_program import MS, DegreeChoices, Floats, moments
from burnish.parallel.simulate.core import SPLIT, ProblemArrays, SimulationScratch
from burnish.parallel.simulate.loads import add_edge
from burnish.parallel.simulate.paths import find_hops
from burnish.parallel.simulate.sharing import CLASS, DRIVE, LEVEL, SOURCE, TARGET, Array
from burnish.parallel.simulate.taskgraph import Problem
from burnish.search.integer import LinearProgram

WEIGHTS = (0.0, 0.25, 0.5, 0.75, 1.0)  # of the links between nodes in a row that mixes them with those within
MOST = 1 << 22  # tasks of pairs of configurations that are looked at for one kind


@dataclass(frozen=True)
class Sent:
    """Transfer times by weight of the links between nodes against those within: milliseconds a link, by variables."""

    links: Mapping[float, Mapping[int, float]]


def transfers(
    problem: Problem, splits: DegreeChoices, program: LinearProgram, shares: list[list[int]], forward: list[int],
    backward: list[int], between: Sequence[int],
) -> Sent:  # fmt: skip
    """Adds variables and rows of what repeated blocks send; returns what it takes of links."""
    within = [r for r in range(problem.machine.size, problem.resources) if r not in between]
    links: dict[float, dict[int, float]] = {w: {} for w in WEIGHTS if between or w == 0}
    room = _scratch(problem)
    for edges in _kinds(problem):
        i, j = _ends(problem, edges[0])
        pairs = int(problem.space.count[i]) * int(problem.space.count[j])
        if len(edges) < 2 or pairs * problem.machine.size > MOST:
            continue
        work, hops = _costs(problem, splits, edges[0], between, within, room)
        variables = _pairs(problem, program, shares, edges, hops.shape[:2])
        for number, weight in enumerate(WEIGHTS):
            if weight in links:
                links[weight] |= dict(zip(variables, (work[..., number] * MS).ravel().tolist(), strict=True))
        _chain(problem, splits, program, shares, forward, backward, edges, variables, hops)
    return Sent(links)


def _scratch(problem: Problem) -> SimulationScratch:
    """Room for compiled functions."""
    size, integers = problem.machine.size, np.int64
    found, shared = np.zeros((2, max(problem.tables.places.shape[1], 1)), integers)
    return SimulationScratch(
        found, shared, np.zeros(16, integers), np.zeros((problem.most_pieces, size), np.bool_), np.zeros(1, np.bool_),
        np.zeros(len(problem.model.operations), np.bool_), np.zeros(problem.resources, integers),
    )  # fmt: skip


def _ends(problem: Problem, e: int) -> tuple[int, int]:
    edges = problem.tables.geometry.edges
    return int(edges[e, SOURCE]), int(edges[e, TARGET])


def _kinds(problem: Problem) -> list[list[int]]:
    """Edges alike: between operations of the same two blocks, with the same tables and bytes."""
    t, model = problem.tables, problem.model
    block = [(problem.space.kind[i], op.parameters or (op.name,)) for i, op in enumerate(model.operations)]
    found: dict[tuple[object, ...], list[int]] = {}
    for e in range(len(model.edges)):
        i, j = _ends(problem, e)
        key = (block[i], block[j], t.geometry.edges[e, 2:].tobytes(), t.nbytes[e].tobytes())
        found.setdefault(key, []).append(e)
    return list(found.values())


def _costs(
    problem: Problem,
    splits: DegreeChoices,
    e: int,
    between: Sequence[int],
    within: Sequence[int],
    room: SimulationScratch,
) -> tuple[Floats, Floats]:
    """Transfer costs by degrees of both ends: ns a link for each of ``WEIGHTS``, and hops there and back; the least of
    places.
    """
    t, space = problem.tables, problem.space
    i, j = _ends(problem, e)
    numbers, places = [], []
    for end in (i, j):
        numbers.append(np.arange(space.first[end], space.first[end] + space.count[end], dtype=np.int32))
        places.append(np.searchsorted(splits.numbers[end], t.configurations[numbers[-1], SPLIT]))
    shape = (len(splits.numbers[i]), len(splits.numbers[j]))
    share = np.zeros((2, problem.resources))
    share[0, list(within)] = 1.0 / max(len(within), 1)
    share[1, list(between)] = 1.0 / max(len(between), 1)
    work, hops = np.full((*shape, len(WEIGHTS)), np.inf), np.full((*shape, 2), np.inf)
    hop = np.zeros((len(problem.model.edges), 2), np.int64)
    load = np.zeros(problem.resources, np.int64)
    pair_costs(
        t, e, numbers[0], numbers[1], places[0], places[1], share, np.array(WEIGHTS), work, hops, load, hop, room

    )  # fmt: skip
    return work, hops


@njit(cache=True, counted=False)
def pair_costs(
    t: ProblemArrays, e: int, own: Array, other: Array, split_a: Array, split_b: Array, share: Array, weights: Array,
    work: Array, hops: Array, load: Array, hop: Array, room: SimulationScratch,
) -> None:  # fmt: skip
    """Fills ``work`` and ``hops`` with the least over the places of each pair of degrees."""
    for m in range(split_a.size):
        a = split_a[m]
        for n in range(split_b.size):
            b = split_b[n]
            load[:] = 0
            add_edge(t, e, own[m], other[n], 1, load, room)
            find_hops(t, e, own[m], other[n], hop, room)
            near = 0.0
            far = 0.0
            for r in range(load.size):
                near += share[0, r] * load[r]
                far += share[1, r] * load[r]
            for x in range(weights.size):
                work[a, b, x] = min(work[a, b, x], weights[x] * far + (1.0 - weights[x]) * near)
            for way in range(2):
                hops[a, b, way] = min(hops[a, b, way], hop[e, way])


def _pairs(
    problem: Problem, program: LinearProgram, shares: list[list[int]], edges: Sequence[int], shape: tuple[int, ...]
) -> list[int]:
    """Variables of pairs of degrees, row-major, whose sums are those of the operations at either end."""
    variables = moments(program, shape[0] * shape[1])
    table = np.array(variables).reshape(shape)
    for side in range(2):
        count: dict[int, int] = {}
        for e in edges:
            end = _ends(problem, e)[side]
            count[end] = count.get(end, 0) + 1
        for number in range(shape[side]):
            row = dict.fromkeys(np.take(table, number, axis=side).tolist(), 1.0)
            row |= {shares[end][number]: -float(n) for end, n in count.items()}
            program.row(row, 0.0, 0.0)
    return variables


def _chain(
    problem: Problem, splits: DegreeChoices, program: LinearProgram, shares: list[list[int]], forward: list[int],
    backward: list[int], edges: Sequence[int], variables: Sequence[int], hops: Floats,
) -> None:  # fmt: skip
    """The path through all operations of a chain, with what they send each other: there and back."""
    order = _in_order(problem, edges)
    if not order or not all(always_covered(problem, edges[0], side) for side in (0, 1)):
        return
    first, last = order[0], order[-1]
    rows = []
    for way, times in enumerate((splits.forward, splits.backward)):
        terms: dict[int, float] = {}
        for i in order:
            for v, x in zip(shares[i], times[splits.numbers[i]], strict=True):
                terms[v] = terms.get(v, 0.0) - float(x) * MS
        rows.append(terms | dict(zip(variables, (-hops[..., way] * MS).ravel().tolist(), strict=True)))
    before = [e for e in range(len(problem.model.edges)) if _ends(problem, e)[1] == first]
    behind = [e for e in range(len(problem.model.edges)) if _ends(problem, e)[0] == last]
    program.row({forward[last]: 1.0, **rows[0]}, 0.0)
    program.row({backward[first]: 1.0, forward[last]: -1.0, **rows[1]}, 0.0)
    for e in (e for e in before if always_covered(problem, e, 0)):
        program.row({forward[last]: 1.0, forward[_ends(problem, e)[0]]: -1.0, **rows[0]}, 0.0)
    for e in (e for e in behind if always_covered(problem, e, 1)):
        program.row({backward[first]: 1.0, backward[_ends(problem, e)[1]]: -1.0, **rows[1]}, 0.0)


def _in_order(problem: Problem, edges: Sequence[int]) -> list[int]:
    """The operations of edges that form one chain, each edge once, in order; empty if they do not."""
    pairs = [_ends(problem, e) for e in edges]
    after = dict(pairs)
    starts = after.keys() - {j for _, j in pairs}
    if len(after) != len(pairs) or len({j for _, j in pairs}) != len(pairs) or len(starts) != 1:
        return []
    order = [starts.pop()]
    while order[-1] in after:
        order.append(after[order[-1]])
    return order if len(order) == len(pairs) + 1 else []


def always_covered(problem: Problem, e: int, side: int) -> bool:
    """Whether, for all degrees, each part of an edge's producer (side 0) or consumer (1) shares elements with one."""
    t, space = problem.tables, problem.space
    found: list[NDArray[np.int64]] = [
        np.unique(t.configurations[space.first[i] : space.first[i] + space.count[i], SPLIT]) for i in _ends(problem, e)
    ]
    for x in range(MAX_AXES):
        c = int(t.geometry.edges[e, CLASS + x])
        if c < 0:
            continue
        m = int(t.geometry.edges[e, DRIVE + x])
        levels = np.unique(t.geometry.splits[found[0], LEVEL + x])
        others = np.unique(t.geometry.splits[found[1], LEVEL + m]) if m >= 0 else np.array([0])
        if not t.covered[c][np.ix_(levels, others)][..., side].all():
            return False
    return True
