"""Objective of a rewriting: time, operations, or both, within a limit of memory."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from burnish.errors import ParameterError
from burnish.graph.graph import Graph
from burnish.rewrite.search.convert import read_graph
from burnish.rewrite.search.cost import FREE, arithmetic, is_fused
from burnish.rewrite.search.normal import NormalTable
from burnish.rewrite.search.states import start
from burnish.rewrite.search.table import Cost, CostedOperator


@dataclass(frozen=True)
class RewriteObjective:
    """``time`` and ``flops`` are weights of a second, and of as many operations as the machine's peak does in one.

    ``memory_limit``: bytes that a compiled model may take, of activations, parameters and scratch; None for no limit.

    >>> graph = bn.sym.graph(bn.sym.relu(bn.sym.variable("x")), {"x": (3,)})
    >>> model = bn.compile(graph, rewrite=bn.RewriteObjective(time=1.0, memory_limit=1_000_000))
    >>> model.rewrites is not None
    True
    """

    time: float = 1.0
    flops: float = 0.0
    memory_limit: int | None = None

    def __post_init__(self) -> None:
        for name in ("time", "flops"):
            weight = getattr(self, name)
            if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not isfinite(weight) or weight < 0:
                raise ParameterError(f"objective: {name}={weight!r}; it must be a finite number from 0")
        if not self.time + self.flops:
            raise ParameterError("objective: time and flops both weigh 0; one of them must weigh more")
        limit = self.memory_limit
        if limit is not None and (type(limit) is not int or limit < 1):
            raise ParameterError(f"objective: memory_limit={limit!r}; it must be a number of bytes from 1, or None")

    def cost(self, seconds: Cost, peak: float, pressure: float = 0.0) -> Cost:
        """Cost function under this objective: ``seconds`` gives an operator's time, ``peak`` the machine's operations a
        second.

        ``pressure``: seconds that a byte costs, Lagrange's multiplier of the limit of memory.
        """
        if not self.flops and not pressure:
            return seconds  # a weight alone changes no order

        def combined(operation: CostedOperator) -> float:
            total = self.time * seconds(operation) if self.time else 0.0
            return total + self.flops * operations(operation) / peak + pressure * stored(operation)

        return combined


MINIMIZE = {"time": (1.0, 0.0), "flops": (0.0, 1.0), "time+flops": (1.0, 1.0)}


def objective(minimize: str = "time", memory_limit: int | None = None) -> RewriteObjective:
    """The objective of a name. Raises ParameterError naming those there are."""
    if minimize not in MINIMIZE:
        raise ParameterError(f"objective: '{minimize}' is unknown; known: {', '.join(MINIMIZE)}")
    return RewriteObjective(*MINIMIZE[minimize], memory_limit)


def operations(operation: CostedOperator) -> float:
    """Arithmetic operations; none where elements are only moved."""
    moves = operation.facts.kind == "injective" and not operation.facts.elementwise
    return 0.0 if moves or operation.op in FREE else arithmetic(operation)


def stored(operation: CostedOperator) -> float:
    """Bytes that an operator keeps: its weights, and its results unless they are another's memory or never stored."""
    weights = sum(t.nbytes for t, fixed in zip(operation.inputs, operation.fixed, strict=True) if fixed)
    if operation.op in FREE or is_fused(operation):
        return float(weights)
    return float(weights + sum(t.nbytes for t in operation.outputs))


def total(graph: Graph, cost: Cost) -> float:
    """Total cost of a graph; what depends on constants alone costs nothing."""
    table = NormalTable(cost)
    return start(table, read_graph(table, graph).roots).cost
