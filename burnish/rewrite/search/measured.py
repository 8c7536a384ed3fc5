"""Costs that learn: operators whose kernels were measured take that time, others what is estimated, scaled to be fair.

An estimate is wrong by a factor that depends on the sort of kernel and on its size. To compare operators that were
measured with others of the same graph, an estimate is scaled by the factors that were found for those most like it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import exp, log, log2

from burnish.graph.graph import Graph
from burnish.rewrite.search.convert import Reading, read_graph
from burnish.rewrite.search.cost import FUSED, TargetCost, arithmetic, by_columns, traffic
from burnish.rewrite.search.normal import NormalTable
from burnish.rewrite.search.table import CostedOperator, Table

_CONTEXT = frozenset(("concat", "part"))  # with the element-wise: what they cost depends on what makes their operands
_NEAR = 0.1  # squared doublings: closer operators count as equally close

Factor = tuple[float, float, float]  # log2 of arithmetic and of traffic; log of measured over estimated seconds


@dataclass(frozen=True)
class MeasuredCost:
    """``estimate``, corrected by what was measured.

    ``times``: the seconds of operators, by :func:`operator_key`. ``factors``: by the sort of kernel and that key.
    """

    estimate: TargetCost
    times: Mapping[str, float] = field(default_factory=dict)
    factors: Mapping[str, Mapping[str, Factor]] = field(default_factory=dict)

    def __call__(self, operation: CostedOperator) -> float:
        """Seconds of one operator."""
        if not self.times:
            return self.estimate(operation)
        known = self.times.get(operator_key(operation))
        return self.estimate(operation) * self.factor(operation) if known is None else known

    def learned(self, graph: Graph, kernels: Iterable[tuple[Iterable[str], float]]) -> MeasuredCost:
        """Cost model fitted to a compiled graph's kernels: the tensors that each computes, and its seconds.

        A kernel's time is shared among its operators as they are estimated. Tensors that the graph does not have are
        passed over; of equal operators the mean counts.
        """
        table = NormalTable()
        values = _computed(table, read_graph(table, graph))
        found: dict[str, list[float]] = {}
        factors = {kind: dict(same) for kind, same in self.factors.items()}
        for tensors, seconds in kernels:
            operations = [table.operation(v) for v in dict.fromkeys(values[t] for t in tensors if t in values)]
            estimates = [self.estimate(operation) for operation in operations]
            total = sum(estimates)
            for operation, estimated in zip(operations, estimates, strict=True):
                key = operator_key(operation)
                found.setdefault(key, []).append(seconds * (estimated / total if total else 1 / len(operations)))
                if estimated > FUSED and seconds:
                    same = factors.setdefault(self.estimate.kind(operation), {})
                    same[key] = (*_place(operation), log(seconds / total))
        means = {key: sum(times) / len(times) for key, times in found.items()}
        return MeasuredCost(self.estimate, {**self.times, **means}, factors)

    def factor(self, operation: CostedOperator) -> float:
        """Measured over estimated seconds: the mean over operators computed by the same sort of kernel, those of about
        as much arithmetic and traffic before all; over all operators where that sort was not measured.
        """
        same = self.factors.get(self.estimate.kind(operation))
        if same is None:
            logs = [log_factor for sort in self.factors.values() for _, _, log_factor in sort.values()]
            return exp(sum(logs) / len(logs)) if logs else 1.0
        work, moved = _place(operation)
        weighted = [
            (1 / (_NEAR + (work - own_work) ** 2 + (moved - own_moved) ** 2) ** 2, log_factor)
            for own_work, own_moved, log_factor in same.values()
        ]
        return exp(sum(w * f for w, f in weighted) / sum(w for w, _ in weighted))


def operator_key(operation: CostedOperator) -> str:
    """Identifies an operator by its attributes and types, and by its operands' makers where they decide its cost."""
    attrs = " ".join(f"{k}={v}" for k, v in sorted(operation.attrs.items()))
    types = ", ".join(f"{'const ' if c else ''}{t}" for t, c in zip(operation.inputs, operation.fixed, strict=True))
    context = operation.facts.elementwise or operation.op in _CONTEXT
    makers = f" of {' '.join(operation.makers)}" if context else ""
    if operation.op == "matmul" and any(by_columns(operation)):
        makers = f" by columns {' '.join(map(str, by_columns(operation)))}"
    return f"{operation.op} {attrs} ({types}){makers}"


def _computed(table: Table, reading: Reading) -> dict[str, int]:
    """Tensor -> the operator that makes it, of those that are needed and not made of constants alone."""
    found = {}
    for value in table.reachable(reading.roots):
        if not table.fixed[value] and table.args[value] and value in reading.names:
            maker = table.args[value][0] if table.labels[value].op == "item" else value
            found[reading.names[value]] = maker
    return found


def _place(operation: CostedOperator) -> tuple[float, float]:
    return log2(1 + arithmetic(operation)), log2(1 + traffic(operation))
