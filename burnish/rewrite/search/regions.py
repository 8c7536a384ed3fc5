"""Graphs cut into regions at tensors that all later ones depend on alone: each is searched on its own, equal ones once.

A region's inputs and weights are called by their order, so that regions of the same operators on the same types are the
same value, whatever they are called in the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from burnish.rewrite.search.normal import NormalTable
from burnish.rewrite.search.table import Table

LEAST = 8  # operators of a region: smaller ones would cut apart what a rule matches


@dataclass(frozen=True)
class Subgraph:
    """``root`` is the value ``end`` of a graph, made of leaves of its own, which stand for ``leaves`` of the graph."""

    end: int
    root: int
    leaves: dict[int, int]


def cuts(table: Table, roots: Sequence[int]) -> list[int]:
    """Values that are all of what the values behind them need of the values before, inputs and weights aside.

    None of them is read by element-wise operators alone, which would be computed with it.
    """
    live = [v for v in table.reachable(roots) if not table.fixed[v]]
    last: dict[int, float] = {v: v for v in live}
    ends = set(roots)
    for value in live:
        for a in table.args[value]:
            last[a] = value
        if not table.facts(table.labels[value], table.args[value]).elementwise:
            ends.update(table.args[value])
    last.update(dict.fromkeys(roots, inf))
    found, open_, since = [], set[int](), 0
    for value in live:
        if table.labels[value].op == "input":
            continue
        since += 1
        open_ = {v for v in open_ if last[v] > value}
        if not open_ and last[value] > value and since >= LEAST and value in ends and value not in table.several:
            found.append(value)
            since = 0
        open_.add(value)
    return found


def regions(table: NormalTable, roots: Sequence[int], ends: Sequence[int] | None = None) -> list[Subgraph]:
    """The regions between cuts, in order. What is behind the last cut is a region if it is one output.

    ``ends``: None for all cuts, else those of them to cut at.
    """
    ends = list(cuts(table, roots) if ends is None else ends)
    if len(roots) == 1 and roots[0] not in ends:
        ends.append(roots[0])
    found, border = [], set[int]()
    for end in ends:
        found.append(_region(table, end, border))
        border = {end}
    return found


def independent(found: Sequence[Subgraph]) -> bool:
    """Whether regions share nothing but where they are cut: then no rule matches in two that are not neighbours."""
    ends = {region.end for region in found}
    leaves = [value for region in found for value in region.leaves.values() if value not in ends]
    return len(leaves) == len(set(leaves))


def _region(table: NormalTable, end: int, border: set[int]) -> Subgraph:
    copies: dict[int, int] = {}
    leaves: dict[int, int] = {}
    stack = [end]
    while stack:
        value = stack[-1]
        op = table.labels[value].op
        if value in copies:
            stack.pop()
        elif value in border or op == "input" or (op == "constant" and table.types[value].size > 1):
            kind = "constant" if op == "constant" and value not in border else "input"
            own = table.types[value]
            copies[value] = table.leaf(kind, f"region/{len(leaves)}/{own}", own)
            leaves[copies[value]] = value
        elif op == "constant":  # a number, which a rule may ask for
            copies[value] = value
        else:
            waiting = [a for a in table.args[value] if a not in copies]
            if waiting:
                stack.extend(waiting[::-1])
            elif table.args[value]:
                copies[value] = table.again(value, tuple(copies[a] for a in table.args[value]))
            else:
                copies[value] = value
    return Subgraph(end, copies[end], leaves)


def placed(table: NormalTable, root: int, leaves: dict[int, int]) -> int:
    """A region's value on the graph's own leaves."""
    made = dict(leaves)
    first = len(table)
    for value in table.reachable([root]):
        if value not in made:
            args = table.args[value]
            made[value] = table.again(value, tuple(made[a] for a in args)) if args else value
    for value in range(first, len(table)):
        table.origins.pop(value, None)  # equal regions are searched once: names would be those of the first
    return made[root]
