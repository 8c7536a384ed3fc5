"""Works for tests: chains with skips and their backward passes, drawn from a seed."""

from __future__ import annotations

import random

from burnish.memory.work import Work, WorkItem

LINE = 64


def chain(length: int, seed: int = 0, skip: int = 0) -> Work:
    """A chain of layers and its backward pass: a gradient reads the layer's input, its result, and the next gradient.

    With ``skip``, every layer of that distance also reads the result of the one so far before it.
    """
    r = random.Random(seed)
    operations: list[WorkItem] = []
    nbytes: list[int] = []
    inputs: list[tuple[int, ...]] = []
    for i in range(length):
        reads = (i - 1,) if i else ()
        if skip and i >= skip and i % skip == 0:
            reads = (*reads, i - skip)
        inputs.append(reads)
        nbytes.append(r.randint(4, 64) * LINE)
        seconds = float(r.randint(4, 20))
        operations.append(WorkItem(reads, (i,), seconds, reads[:1], True, seconds < 8, f"f{i}"))
    gradient: int | None = None
    for i in reversed(range(length)):
        nbytes.append(nbytes[i - 1] if i else LINE)
        reads = tuple(dict.fromkeys(x for x in (*inputs[i], i, gradient) if x is not None))
        places = () if gradient is None else (gradient,)
        operations.append(WorkItem(reads, (len(nbytes) - 1,), 2 * operations[i].seconds, places, True, False, f"b{i}"))
        gradient = len(nbytes) - 1
    return Work(tuple(operations), tuple(nbytes), frozenset((len(nbytes) - 1,)), frozenset(range(length)))


def even(length: int) -> Work:
    """A chain of equal layers whose gradients read the layer's input and the next gradient, as those of products do."""
    forward = [WorkItem((i - 1,) if i else (), (i,), 1.0, name=f"f{i}") for i in range(length)]
    backward = []
    for i in reversed(range(length)):
        made = 2 * length - 1 - i
        reads = tuple(v for v in ((i - 1) if i else None, made - 1) if v is not None)
        backward.append(WorkItem(reads, (made,), 2.0, again=False, name=f"b{i}"))
    return Work((*forward, *backward), (6400,) * (2 * length), frozenset(), frozenset(range(length)))


def naive_live(work: Work, order: list[int]) -> int:
    """The most live bytes of an order, run by run from its definition."""
    copies: list[list[int]] = []  # value, first, last run
    latest: dict[int, int] = {}
    for run, n in enumerate(order):
        for v in work.operations[n].reads:
            copies[latest[v]][2] = run
        for v in work.operations[n].writes:
            latest[v] = len(copies)
            copies.append([v, run, run])
    for v in work.keep:
        copies[latest[v]][2] = len(order) - 1
    most = 0
    for run, n in enumerate(order):
        here = [c for c in copies if c[1] <= run <= c[2]]
        total = sum(int(work.rounded[c[0]]) for c in here)
        for v in work.operations[n].in_place:
            size = int(work.rounded[work.operations[n].writes[0]])
            dying = [c for c in here if c[0] == v and c[2] == run and c[1] < run]
            if dying and work.rounded[v] >= size:
                total -= size
                break
        most = max(most, total)
    return most
