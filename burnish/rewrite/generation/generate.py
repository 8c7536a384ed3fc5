"""The generator: from domains of tensors and operators to substitutions, as text (thesis-jia section 2.3).

Three kinds of substitutions come of a domain's classes of equal terms:

- *laws*: for each size, the smallest pair that what was found before does not connect, until all are connected;
- *savings*: pairs that laws connect in several steps, none of which alone saves, and whose second term computes less;
- *merges* and *joint* ones, of two outputs, told apart by the fingerprints of both (equation 2.1): two terms that are
  the halves of one; and two small terms that share an operator, where their representatives share less, so that neither
  output alone saves anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest

import numpy as np

from burnish.rewrite.generation.domains import Domain
from burnish.rewrite.generation.enumerate import NONE, Terms, enumerate_terms, members_of, spans
from burnish.rewrite.generation.generalize import Pair, generalize, most_general, renamed
from burnish.rewrite.generation.joins import Joins, connect, roots
from burnish.rewrite.generation.prune import Nodes, Pruned, orbits, prune
from burnish.rewrite.language.terms import Apply, RewriteRule, Term, TermVariable, subterms, variables

_COSTS = {"matmul": 8, "conv2d": 8, "avg_pool2d": 4, "max_pool2d": 4, "part": 0}  # relative, of one word; others 1
_WHOLE = 4  # terms beyond this size are looked at for merges alone: they are too many
_SHARING = 2  # the greatest size of two terms that share an operator and are no halves
_SMALL = 3  # operators of a merge whose parts match whole classes: for larger ones there are too many ways
_DEAR = 4  # a product, a convolution, a pool: chains of element-wise operators are one loop anyway


@dataclass
class Generated:
    """Substitutions of one domain, and how many pairs each step left.

    The left side of a rule is the dearer one, if one is; ``saving``: the rules where that saves anything beside a
    product, a convolution or a pool. ``connected``: of each size to four, the pairs that the laws of smaller sizes
    connect before any of its own.
    """

    domain: str
    rules: list[RewriteRule] = field(default_factory=list)
    saving: list[RewriteRule] = field(default_factory=list)
    pruned: list[Pruned] = field(default_factory=list)
    connected: list[int] = field(default_factory=list)
    laws: list[int] = field(default_factory=list)
    savings: int = 0
    merges: int = 0
    joint: int = 0
    refused: int = 0  # equal at the domain's sizes only

    def __str__(self) -> str:
        lines = [
            f"{self.domain}: {self.laws} laws by size, {self.savings} savings, {self.merges} merges,"
            f" {self.joint} joint, {self.refused} refused"
        ]
        for p, connected in zip_longest(self.pruned, self.connected):
            lines.append(
                f"  size {p.size}: {p.terms} terms, {p.pairs} pairs, {p.renamed} after renaming, {len(p.kept)} without"
                " common subgraphs"
            )
            if connected is not None:
                lines[-1] += f", {p.pairs - connected} not connected by laws of smaller sizes"
        return "\n".join(lines)


def generate(domains: Sequence[Domain], size: int | None = None, laws: int = 2, savings: int = 3) -> list[Generated]:
    """Substitutions of each domain from its terms of at most ``size`` operators, the same in every run.

    ``size``: None for each domain's own. ``laws`` and ``savings``: the greatest sizes of whose pairs they are made;
    merges and counts go up to ``size``.
    """
    known: set[str] = set()
    sizes = [(domain, size or domain.size) for domain in domains]
    return [_Generator(domain, n, min(laws, n), min(savings, n), known).result for domain, n in sizes]


def text(generated: Sequence[Generated]) -> str:
    """The substitutions as :func:`terms.parse_rules` reads them."""
    parts = []
    for g in generated:
        parts.append(f"# --- {g.domain}\n")
        parts += map(str, g.rules)
    return "\n".join(parts)


class _Generator:
    """``known``: texts of the rules there are already, without names."""

    def __init__(self, domain: Domain, size: int, laws: int, savings: int, known: set[str]) -> None:
        self.domain, self.known = domain, known
        self.result = Generated(domain.name)
        self.terms: Terms = enumerate_terms(domain, size)
        self.halves = list(self._halves())
        parts = [i for both in self.halves for i in both]
        nodes = self.nodes = Nodes(self.terms, size, _WHOLE, parts)
        small = (nodes.level > 0) & (nodes.level <= laws)
        self.orbit = orbits(nodes, np.flatnonzero(small | np.isin(nodes.operator, parts)))
        self.pairs: list[Pair] = []
        self.answers: dict[str, bool] = {}  # of pairs up to the names of their variables: whether they were accepted
        self.accepted = 0  # pairs generalized: their numbers are in the names of the rules
        self.shapes = {n: domain.shapes[s] for n, s in domain.variables.items()}
        self.weights = self._made_of(domain.weights)
        self.constants = self._made_of(frozenset())
        self.cheaper = np.full(len(self.nodes.value), np.iinfo(np.int64).max)  # least cost that one law leads to
        for n in range(1, size + 1):
            self.result.pruned.append(prune(self.nodes, n))
            if n <= _WHOLE:
                self._laws(n, n <= laws)
        self._savings(savings)
        self._several_outputs()

    def _pair(self, left: Sequence[Term], right: Sequence[Term]) -> Pair:
        names = {n for t in (*left, *right) for n in variables(t)}
        return Pair(tuple(left), tuple(right), {n: s for n, s in self.shapes.items() if n in names})

    def _node(self, node: int) -> Term:
        nodes = self.nodes
        if nodes.operator[node] == NONE:
            return self.terms.leaves[nodes.value[node]]
        return self.terms.applied(nodes.operator[node], nodes.a[node], nodes.b[node])

    def _accept(self, pair: Pair, kind: str) -> bool:
        """Adds the substitutions that are new of a pair, as :func:`most_general` leaves it. False if it holds at the
        domain's sizes only.
        """
        key = renamed(pair)
        words = str((key.left, key.right, key.shapes))
        if words not in self.answers:
            self.answers[words] = self._generalized(pair, kind)
        return self.answers[words]

    def _generalized(self, pair: Pair, kind: str) -> bool:
        name = f"{self.domain.name} {kind} {self.accepted + 1}"
        self.accepted += 1
        if len(pair.left) == 1 and sum(self._costs_of(pair.left)) < sum(self._costs_of(pair.right)):
            pair = replace(pair, left=pair.right, right=pair.left)
        rules = [replace(rule, origin=self.domain.name) for rule in generalize(pair, name, self.domain)]
        for rule in rules:
            words = str(replace(rule, name=""))
            if words not in self.known:
                self.known.add(words)
                self.result.rules.append(rule)
                self.result.saving += [rule] if self._saves(pair) else []
        return bool(rules)

    # --- laws ---------------------------------------------------------------------------------------------------------

    def _laws(self, size: int, extract: bool) -> None:
        """Connects all pairs of a size, by laws of its own where those of smaller sizes do not."""
        nodes, joins = self.nodes, Joins(self.nodes, size)
        parent = np.arange(len(nodes.value))  # of the sets of connected terms
        rows = np.flatnonzero(nodes.pair & (nodes.level == size))
        other = nodes.first[nodes.value[rows]]
        fixed = self.constants[nodes.value[rows]]  # arithmetic of numbers is no law
        found = [(rows[fixed], other[fixed]), *map(joins.edges, self.pairs)]
        connect(parent, (np.concatenate([x for x, _ in found]), np.concatenate([y for _, y in found])))
        open_ = roots(parent, rows) != roots(parent, other)
        self.result.connected.append(int(len(rows) - open_.sum()))
        if not extract:
            return
        count = 0
        while open_.any():
            at = int(np.argmax(open_))
            pair = most_general(self._pair([self._node(rows[at])], [self._node(other[at])]))
            if self._accept(pair, "law"):
                count += 1
                self.pairs.append(pair)
                connect(parent, joins.edges(pair))
            else:
                self.result.refused += 1
            same = self.orbit[rows] == self.orbit[rows[at]]
            connect(parent, (rows[same], other[same]))  # renamed, it is no law of its own
            open_ = roots(parent, rows) != roots(parent, other)
        self.result.laws.append(count)

    # --- savings ------------------------------------------------------------------------------------------------------

    def _made_of(self, names: frozenset[str]) -> np.ndarray:
        """Mask of the classes computed from constants and these variables alone, bool [classes]."""
        t = self.terms
        leaf = [not isinstance(x, TermVariable) or x.name in names for x in t.leaves]
        out = np.zeros(len(t.size), bool)
        for n in range(int(t.size.max()) + 1):
            rows = np.flatnonzero(t.size == n)
            if n == 0:
                out[rows] = leaf
            else:
                out[rows] = out[t.a[rows]] & ((t.b[rows] == NONE) | out[t.b[rows]])
        return out

    def _cost(self, operator: np.ndarray, value: np.ndarray) -> np.ndarray:
        costs = np.array([*(_COSTS.get(i.word, 1) for i in self.terms.instances), 0])  # leaves are numbered -1
        return np.where(self.weights[value], 0, costs[operator])

    def _costs(self, rows: np.ndarray) -> np.ndarray:
        """Relative cost of each term, [rows]: of its distinct operators, those of weights alone excepted."""
        t, nodes = self.terms, self.nodes
        leaf = nodes.operator[rows] == NONE
        members = members_of(t, np.where(leaf, 0, nodes.a[rows]), np.where(leaf, NONE, nodes.b[rows]))
        inside = np.where(members == NONE, 0, self._cost(t.operator[members], members)).sum(axis=1)
        return inside + self._cost(nodes.operator[rows], nodes.value[rows])

    def _savings(self, size: int) -> None:
        """Pairs of a term and the cheapest of its class, where that costs less."""
        nodes = self.nodes
        leaves = int((self.terms.size == 0).sum())
        rows = np.flatnonzero((nodes.level <= size) & (nodes.operator != NONE))
        cost = self._costs(rows)
        cost_of = np.zeros(len(nodes.value), np.int64)
        cost_of[rows] = cost
        order = np.lexsort((rows, cost, nodes.value[rows]))
        classes, first = np.unique(nodes.value[rows][order], return_index=True)
        best = np.full(len(nodes.first), NONE, np.int64)
        best[classes] = rows[order][first]
        best[:leaves] = np.arange(leaves)
        for n in range(1, size + 1):
            joins = Joins(nodes, n)
            for pair in self.pairs:
                one, other = joins.edges(pair, literally=True)
                np.minimum.at(self.cheaper, one, self._costs(other))
        kept = np.concatenate([nodes.start[p.size] + p.kept for p in self.result.pruned[:size]])
        dear = np.unique(np.concatenate([kept, nodes.first[nodes.value[kept]]]))
        least = cost_of[best]  # of each class
        dear = dear[(cost_of[dear] > least[nodes.value[dear]]) & (self.cheaper[dear] >= cost_of[dear])]
        members = members_of(self.terms, nodes.a[dear], nodes.b[dear])
        own = np.where(members == NONE, 0, cost_of[nodes.first[members]] - least[members])
        for row in dear[(own == 0).all(axis=1)]:
            pair = most_general(self._pair([self._node(row)], [self._node(best[nodes.value[row]])]))
            if self._saves(pair):
                before = len(self.result.rules)
                self._accept(pair, "saving")
                self.result.savings += len(self.result.rules) - before

    def _saves(self, pair: Pair) -> bool:
        """Whether the right side costs less, and the left one is no chain of element-wise operators."""
        left, right = self._costs_of(pair.left), self._costs_of(pair.right)
        return max(left, default=0) >= _DEAR and sum(left) > sum(right)

    def _costs_of(self, terms: Sequence[Term]) -> list[int]:
        """Costs of the distinct operators of terms, 0 for those of weights alone."""
        return [
            0 if all(n.rstrip("0123456789") in self.domain.weights for n in variables(t)) else _COSTS.get(t.word, 1)
            for t in {t: None for term in terms for t in subterms(term)}
            if isinstance(t, Apply)
        ]

    # --- two outputs --------------------------------------------------------------------------------------------------

    def _halves(self) -> Iterator[tuple[int, int]]:
        """Operators that take the first and the second half of one axis."""
        for i, one in enumerate(self.terms.instances):
            for j, two in enumerate(self.terms.instances):
                a, b = dict(one.attrs), dict(two.attrs)
                same = one.word == two.word == "part" and one.shapes == two.shapes and a["axis"] == b["axis"]
                if same and str(a["start"]) == "0" and str(b["start"]) != "0":
                    yield i, j

    def _together(self) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
        """Pairs of terms that are computed together, by kind: halves of one term, and small terms that share an
        operator.
        """
        nodes = self.nodes
        for one, two in self.halves:
            first = np.flatnonzero((nodes.operator == one) & (nodes.level > 1))
            second = nodes.find(two, nodes.a[first], np.full(len(first), NONE, np.int32))
            yield "merge", first[second != NONE], second[second != NONE]
        yield "joint", *self._sharing()

    def _sharing(self) -> tuple[np.ndarray, np.ndarray]:
        """All pairs of small terms, none the first of its class, that share an operator not of weights alone."""
        t, nodes = self.terms, self.nodes
        rows = np.flatnonzero(nodes.pair & (nodes.level > 1) & (nodes.level <= _SHARING))
        members = members_of(t, nodes.a[rows], nodes.b[rows])
        dear = (members != NONE) & (self._cost(t.operator[members], members) > 0)
        at, column = np.nonzero(dear)
        member = members[at, column]
        order = np.argsort(member, kind="stable")
        owners, member = rows[at[order]], member[order]
        ends = np.searchsorted(member, member, "right")
        own = np.arange(len(member))
        first, second = own.repeat(ends - own - 1), spans(own + 1, ends)
        pairs = np.unique(np.stack([owners[first], owners[second]], axis=1), axis=0)
        return pairs[:, 0], pairs[:, 1]

    def _several_outputs(self) -> None:
        """Two terms computed together where that costs less than both apart, and no other merge says so."""
        t, nodes = self.terms, self.nodes
        implied = np.zeros(len(nodes.value), bool)
        joins = [Joins(nodes, n) for n in range(len(nodes.start) - 1)]
        for kind, first, second in self._together():
            x, y = nodes.value[first], nodes.value[second]
            small = (t.size[x] < t.size.max()) & (t.size[y] < t.size.max()) & (x != y)
            first, second, x, y = first[small], second[small], x[small], y[small]
            cost = self._cost_of_both(first, second)
            saved = self._cost_of_both(nodes.first[x], nodes.first[y]) - cost
            merges = kind == "merge"
            if not merges:  # both have to be computed otherwise, or else laws say so
                one = np.minimum(self._cost_of_both(nodes.first[x], second), self._cost_of_both(first, nodes.first[y]))
                saved = np.where(one > cost, saved, 0)
            for i in np.flatnonzero(saved > 0 if merges else saved >= _DEAR):
                seen = self.orbit[first[i]] < first[i] and self.orbit[second[i]] < second[i]
                if seen or (implied[first[i]] and implied[second[i]]):
                    continue
                before = len(self.result.rules)
                pair = self._pair([t.term(x[i]), t.term(y[i])], [self._node(first[i]), self._node(second[i])])
                pair = most_general(pair)
                if merges and self._accept(pair, kind):
                    self._imply(pair, joins[nodes.level[first[i]] :], implied)
                elif not merges and self._saves(pair):
                    self._accept(pair, kind)
                found = len(self.result.rules) - before
                self.result.merges += found if merges else 0
                self.result.joint += 0 if merges else found

    def _cost_of_both(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Relative cost of each pair of terms, [pairs]: what they share is computed once."""
        t, nodes = self.terms, self.nodes
        inside, own_roots = [], np.zeros(len(first), np.int64)
        for rows in (first, second):
            leaf = nodes.operator[rows] == NONE
            inside.append(members_of(t, np.where(leaf, 0, nodes.a[rows]), np.where(leaf, NONE, nodes.b[rows])))
        both = np.sort(np.concatenate(inside, axis=1), axis=1)
        both[:, 1:][both[:, 1:] == both[:, :-1]] = NONE
        for rows in (first, second):
            own = nodes.value[rows]
            within = ((both == own[:, None]) & ~nodes.pair[rows][:, None]).any(axis=1)
            own_roots += np.where(within, 0, self._cost(nodes.operator[rows], own))
        return np.where(both == NONE, 0, self._cost(t.operator[both], both)).sum(axis=1) + own_roots

    def _imply(self, merge: Pair, joins: Sequence[Joins], implied: np.ndarray) -> None:
        """Marks the halves that are instances of a merge's, unless what they are equal to could be smaller."""
        nodes, size = self.nodes, self.terms.size
        for whole, half in zip(merge.left, merge.right, strict=True):
            large = sum(isinstance(term, Apply) for term in subterms(half)) > _SMALL
            for level in joins:
                rows, to = level.matches(half, whole, merge.shapes, literally=large)
                implied[rows[nodes.level[to] == size[nodes.value[to]]]] = True
