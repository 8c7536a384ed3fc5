"""Memory budgets of graph networks: where one holds the whole graph at once, no blocks are needed."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from burnish.gnn.data.formats import read
from burnish.gnn.data.graph import Graph
from burnish.gnn.data.regions import resident_bytes, trim
from burnish.gnn.data.store import SUFFIX, GraphFile
from burnish.gnn.model.models import Network
from burnish.gnn.run.blocked import BudgetError

T = TypeVar("T")
Make = Callable[[Graph], tuple[T, Sequence[Any]]]  # of a graph, with the modules that it calls
NUMBER = 4  # bytes of a float32, and of a source


def loaded(graph: Graph | str | Path, whole: bool = True) -> Graph | str | Path:
    """A graph in memory; a .bngraph file, which is read in parts as well, only if ``whole``. Raises DataError."""
    if isinstance(graph, Graph) or (not whole and Path(graph).suffix == SUFFIX):
        return graph
    return read(graph)


def within(
    network: Network, graph: Graph | str | Path, budget: int, trained: bool, make: Make[T], otherwise: Callable[[], T]
) -> T:
    """Result of ``make`` for the whole graph, if calls of its modules keep this process within ``budget``, else
    ``otherwise()``.

    What is resident once they are made, and what they work in, is what calls take; before, the least that a graph and a
    network (``trained``: or its training) need is compared. Raises DataError, OSError, and of ``otherwise`` the error
    BudgetError, with the lesser of both ways' least budgets.
    """
    least = resident_bytes() + _least(network, graph, trained)
    exact = least <= budget
    if exact:
        made, least = _made(graph, make)
        if least <= budget:
            return made
        del made
    try:
        return otherwise()
    except BudgetError as error:
        refused = error.with_traceback(None)  # which holds what blocks have taken
    if not exact and least < refused.least:
        least = _made(graph, make)[1]
    raise refused if least >= refused.least else BudgetError(budget, least, "what the whole graph takes at once")


def _made(graph: Graph | str | Path, make: Make[T]) -> tuple[T, int]:
    """Result of ``make`` for a whole graph, and the bytes of this process while its modules are called."""
    given = loaded(graph)
    assert isinstance(given, Graph)
    made, modules = make(given)
    gc.collect()
    trim()
    return made, resident_bytes() + sum(_working(module) for module in modules)


def _working(module: Any) -> int:
    """Bytes that a module's calls take besides its arguments."""
    return int(module.memory["arena"] + module.memory["scratch"] + sum(spec.nbytes for spec in module.outputs))


def _least(network: Network, graph: Graph | str | Path, trained: bool) -> int:
    """Least bytes needed besides what is there: a file's arrays, and rows between layers, which gradients read."""
    if isinstance(graph, Graph):
        vertices, here = graph.vertices, 0
    else:
        file = GraphFile.open(graph)
        rows = file.rows(cached=False)
        vertices, here = file.vertices, NUMBER * (file.edges + (0 if rows is None else rows.shape[0] * rows.shape[1]))
    width, widths = network.features, list[int]()
    for layer in network.layers:
        width = layer.width(width)
        widths.append(width)
    between = sum(widths[:-1]) if trained else max(widths)
    return here + NUMBER * vertices * between
