"""Problems for the tests: the toy network of the paper, random graphs, and the least cost by brute force."""

from __future__ import annotations

import heapq
import random

from burnish.memory.lifetimes import LifetimeStep
from burnish.memory.swap import SwapProblem, swap_problem


def toy_gin(unit: int = 1) -> SwapProblem:
    """Figure 4.3 of thesis-jia: one layer of GIN, forward and backward; reads are those that Table 4.3 implies."""
    steps = [
        LifetimeStep(("g", "h0"), ("a",)),
        LifetimeStep(("a", "w1"), ("b",)),
        LifetimeStep(("b", "w2"), ("h1",)),
        LifetimeStep(("h1",), ("dh1",)),
        LifetimeStep(("dh1", "w2", "b"), ("db", "dw2")),
        LifetimeStep(("db", "w1", "a", "b"), ("da", "dw1")),
        LifetimeStep(("g", "da", "a"), ("dh0",)),
    ]
    size = {"g": 5, "h0": 6, "a": 6, "b": 3, "h1": 2, "dh1": 2, "db": 3, "da": 6, "dh0": 6}
    weights = dict.fromkeys(("w1", "w2", "dw1", "dw2"), 1)
    return swap_problem(steps, {name: n * unit for name, n in (size | weights).items()})


def random_problem(seed: int, steps: int, unit: int = 1) -> SwapProblem:
    """Steps that read up to three earlier tensors and write one or two; some are results."""
    draw = random.Random(seed)
    names, made = ["x", "y"], []
    for k in range(steps):
        reads = tuple(draw.sample(names, min(len(names), draw.randint(1, 3))))
        writes = tuple(f"t{k}{c}" for c in "ab"[: draw.choice([1, 1, 1, 2])])
        made.append(LifetimeStep(reads, writes))
        names += writes
    nbytes = {name: draw.randint(1, 9) * unit for name in names}
    return swap_problem(made, nbytes, [name for name in names if name[0] == "t" and draw.random() < 0.15])


def least_cost(
    problem: SwapProblem, capacity: int, reorder: bool = True, seconds: tuple[float, ...] | None = None
) -> float:
    """Dijkstra over single actions: load, store, drop, run. ``seconds``: what running a step again costs; else it may
    not. Moving a byte costs 1.
    """
    names, steps = list(problem.nbytes), problem.steps
    at = {name: i for i, name in enumerate(names)}
    size = [problem.nbytes[n] for n in names]
    reads = [sum(1 << at[n] for n in s.reads) for s in steps]
    writes = [sum(1 << at[n] for n in s.writes) for s in steps]
    results = sum(1 << at[n] for n in problem.results)
    there = sum(1 << i for i, n in enumerate(names) if n not in problem.producer)
    best = {(0, 0, there): 0.0}
    queue: list[tuple[float, tuple[int, int, int]]] = [(0.0, (0, 0, there))]
    while queue:
        cost, state = heapq.heappop(queue)
        if cost > best[state]:
            continue
        done, fast, slow = state
        if done == (1 << len(steps)) - 1 and results & ~slow == 0:
            return cost
        used = sum(s for i, s in enumerate(size) if fast >> i & 1)
        after: list[tuple[float, tuple[int, int, int]]] = []
        for i, s in enumerate(size):
            bit = 1 << i
            if fast & bit:
                after.append((0.0, (done, fast & ~bit, slow)))
                if not slow & bit:
                    after.append((float(s), (done, fast, slow | bit)))
            elif slow & bit and used + s <= capacity:
                after.append((float(s), (done, fast | bit, slow)))
        for k in range(len(steps)):
            again = done >> k & 1
            if reads[k] & ~fast or (again and seconds is None):
                continue
            if not again and not reorder and done != (1 << k) - 1:
                continue
            new = fast | writes[k]
            if sum(s for i, s in enumerate(size) if new >> i & 1) <= capacity:
                after.append((seconds[k] if again and seconds else 0.0, (done | 1 << k, new, slow)))
        for more, target in after:
            if cost + more < best.get(target, float("inf")):
                best[target] = cost + more
                heapq.heappush(queue, (cost + more, target))
    raise AssertionError("no plan fits")
