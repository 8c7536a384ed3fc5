"""Instantiation of a rule's right side: numbers for its sizes, and the values that it makes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from burnish.errors import ModelError, RuleError
from burnish.rewrite.language.sizes import names_of, solve
from burnish.rewrite.language.terms import RewriteRule, Term, TermVariable
from burnish.rewrite.language.vocabulary import Binding
from burnish.rewrite.search.match import TermMatch
from burnish.rewrite.search.table import Table


@dataclass(frozen=True, slots=True)
class RuleMatch:
    """Values of a rule's variables, and numbers for its sizes, under which its left side is in the graph."""

    tensors: Mapping[str, int]
    binding: Binding


class Solver:
    """Numbers for the sizes of matches; those of matches with the same keys are the same."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self._known: dict[object, Binding | None] = {}

    def solve(self, rule: RewriteRule, *parts: TermMatch) -> RuleMatch | None:
        """The match of a whole left side; None where no numbers satisfy its equations and the rule's conditions."""
        tensors = {name: value for part in reversed(parts) for name, value in part.tensors.items()}
        key = None if any(part.key is None for part in parts) else (rule.name, *(part.key for part in parts))
        if key is None or key not in self._known:
            binding = _solved(self.table, rule, tensors, [e for part in parts for e in part.equations])
            if key is not None:
                self._known[key] = binding
        else:
            binding = self._known[key]
        return None if binding is None else RuleMatch(tensors, binding)


def _solved(
    table: Table, rule: RewriteRule, tensors: Mapping[str, int], equations: Sequence[tuple[int, int]]
) -> Binding | None:
    sizes: dict[str, int] = {}
    waiting = list(dict.fromkeys(equations))
    while waiting:
        later = []
        for size, value in waiting:
            found = solve(size, value, sizes)
            if found is not None:
                sizes.update(found)
            elif names_of(size) <= sizes.keys():
                return None
            else:
                later.append((size, value))
        if len(later) == len(waiting):
            return None
        waiting = later
    leads: dict[str, tuple[int, ...]] = {}
    for name, value in tensors.items():
        declared, shape = rule.types[name], table.types[value].shape
        lead = shape[: len(shape) - len(declared.dims)]
        if declared.lead is not None and leads.setdefault(declared.lead, lead) != lead:
            return None
    if any(sizes[n] < 1 for n in rule.extents):
        return None
    try:
        if not all(c.holds(sizes) for c in rule.conditions):
            return None
    except RuleError:  # a condition on a size that nothing on the left determines
        return None
    return Binding(sizes, leads)


def instantiate(table: Table, term: Term, match: RuleMatch, known: dict[int, int]) -> int:
    """The value of a term of a compiled rule. ``known``: terms already made, by their identities.

    Raises ModelError for operands that do not fit, RuleError for a size that nothing determines.
    """
    if isinstance(term, TermVariable):
        return match.tensors[term.name]
    if id(term) not in known:
        args = [instantiate(table, a, match, known) for a in term.args]
        known[id(term)] = table.make(term.word, args, {k: match.binding.attribute(v) for k, v in term.attrs})
    return known[id(term)]


def right_side(table: Table, rule: RewriteRule, match: RuleMatch, roots: Sequence[int]) -> tuple[int, ...] | None:
    """Values of the right side, to stand for ``roots``; None where they do not fit there."""
    known: dict[int, int] = {}
    try:
        made = tuple(instantiate(table, term, match, known) for term in rule.right)
    except (ModelError, RuleError):
        return None
    return made if all(table.types[m] == table.types[r] for m, r in zip(made, roots, strict=True)) else None
