"""Typed terms and what is known to be equal among them, with the reason: an e-graph that can explain itself.

Explanations follow Nieuwenhuis and Oliveras, "Fast congruence closure and extensions" (2007): a forest of the unions
made, in which the path between two equal terms lists why they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from burnish.errors import RuleError
from burnish.rewrite.language.facts import SizeFacts
from burnish.rewrite.language.sizes import size_text
from burnish.rewrite.language.terms import Apply, Term, TermVariable, Type, Value
from burnish.rewrite.language.types import brief, canonical_attributes, type_word
from burnish.rewrite.proofs.ematching import Direction, PatternMatch
from burnish.rewrite.proofs.proof import ProofStep

Attributes = tuple[tuple[str, Value], ...]
Node = tuple[str, Attributes, tuple[int, ...]]  # word, or a variable's name; complete attributes; arguments


class EGraph:
    """Terms are numbers. All terms type, and their obligations follow from ``facts``."""

    def __init__(self, types: Mapping[str, Type], facts: SizeFacts) -> None:
        self.facts = facts
        self.nodes: list[Node] = []
        self.types: list[Type] = []
        self.members: list[list[int]] = []  # of a class, at its representative
        self.by_word: dict[str, list[int]] = {}
        self._parents: list[int] = []
        self._uses: list[list[int]] = []
        self._exact: dict[Node, int] = {}
        self._table: dict[Node, int] = {}
        self._because: list[tuple[int, ProofStep | None] | None] = []  # towards the root of the forest of unions
        self._terms: dict[int, Term] = {}
        self._variables = len(types)  # terms below this number
        for name, declared in types.items():
            self._new((name, (), ()), declared)

    # --- terms

    def find(self, number: int) -> int:
        """The representative of a term's class."""
        while self._parents[number] != number:
            self._parents[number] = number = self._parents[self._parents[number]]
        return number

    def add(self, term: Term) -> int:
        """The number of a term over the variables. Raises RuleError if it does not type or an obligation is open."""
        if isinstance(term, TermVariable):
            return self._exact[(term.name, (), ())]
        return self.apply(term.word, term.attrs, tuple(map(self.add, term.args)))

    def apply(self, word: str, attrs: Attributes, args: tuple[int, ...]) -> int:
        """The number of an application. Errors as of :meth:`add`."""
        types = tuple(self.types[a] for a in args)
        node = (word, canonical_attributes(word, types, attrs), args)
        if node in self._exact:
            return self._exact[node]
        type_, obligations = type_word(word, types, node[1])
        for obligation in obligations:
            if not self.facts.holds(obligation):
                relation, a, b = obligation
                raise RuleError(f"nothing says that {size_text(a)} {relation} {size_text(b)}")
        number = self._new(node, type_)
        self.by_word.setdefault(word, []).append(number)
        for argument in {self.find(a) for a in args}:
            self._uses[argument].append(number)
        same = self._table.setdefault(self._key(number), number)
        if same != number:
            self.union(number, same, None)
        return number

    def term(self, number: int) -> Term:
        """The term of a number, briefly written."""
        if number not in self._terms:
            word, attrs, args = self.nodes[number]
            whole = (
                TermVariable(word)
                if number < self._variables
                else brief(Apply(word, tuple(map(self.term, args)), attrs))
            )
            self._terms[number] = whole
        return self._terms[number]

    def _new(self, node: Node, type_: Type) -> int:
        number = len(self.nodes)
        self.nodes.append(node)
        self.types.append(type_)
        self._parents.append(number)
        self.members.append([number])
        self._uses.append([])
        self._because.append(None)
        self._exact[node] = number
        return number

    def _key(self, number: int) -> Node:
        word, attrs, args = self.nodes[number]
        return word, attrs, tuple(map(self.find, args))

    # --- equations

    def union(self, a: int, b: int, reason: ProofStep | None) -> bool:
        """Makes two terms equal because of ``reason`` (None: congruence), and what follows. Whether they were not."""
        waiting: list[tuple[int, int, ProofStep | None]] = [(a, b, reason)]
        changed = False
        while waiting:
            a, b, reason = waiting.pop()
            small, large = self.find(a), self.find(b)
            if small == large:
                continue
            changed = True
            if len(self.members[small]) > len(self.members[large]):
                a, b, small, large = b, a, large, small
            self._reroot(a)
            self._because[a] = (b, reason)
            self._parents[small] = large
            self.members[large] += self.members[small]
            uses, self._uses[small] = self._uses[small], []
            for number in uses:
                other = self._table.setdefault(self._key(number), number)
                if self.find(other) != self.find(number):
                    waiting.append((number, other, None))
            self._uses[large] += uses
        return changed

    def _reroot(self, number: int) -> None:
        """Turns the path from a term to its tree's root around."""
        previous: tuple[int, ProofStep | None] | None = None
        current: int | None = number
        while current is not None:
            following = self._because[current]
            self._because[current] = previous
            previous = (current, following[1]) if following else None
            current = following[0] if following else None

    def explain(self, a: int, b: int) -> list[ProofStep]:
        """The instances of axioms that make two equal terms equal, each once."""
        steps: dict[int, ProofStep] = {}
        waiting, seen = [(a, b)], set[tuple[int, int]]()
        while waiting:
            a, b = waiting.pop()
            if a == b or (a, b) in seen:
                continue
            seen.add((a, b))
            for one, other, reason in self._path(a, b):
                if reason is not None:
                    steps[id(reason)] = reason
                else:
                    waiting += zip(self.nodes[one][2], self.nodes[other][2], strict=True)
        return list(steps.values())

    def _path(self, a: int, b: int) -> list[tuple[int, int, ProofStep | None]]:
        """The unions between two terms of one tree."""
        above = {a: 0}
        up, number = list[tuple[int, int, ProofStep | None]](), a
        while because := self._because[number]:
            up.append((number, *because))
            number = because[0]
            above[number] = len(up)
        down, number = list[tuple[int, int, ProofStep | None]](), b
        while number not in above:
            because = self._because[number]
            assert because is not None
            down.append((number, *because))
            number = because[0]
        return up[: above[number]] + down

    # --- matching

    def matches(self, direction: Direction) -> Iterator[tuple[int, PatternMatch]]:
        """E-matching of an axiom's side: the number of the matching term, and what the axiom's names stand for."""
        seen = set[Node]()
        for number in list(self.by_word.get(direction.pattern.word, ())):
            key = self._key(number)
            if key not in seen:
                seen.add(key)
                for match in self._at(direction.pattern, number, PatternMatch(), direction.types):
                    if match.solved() and match.sizes.keys() >= set(direction.sizes):
                        yield number, match

    def _at(
        self, pattern: Apply, number: int, match: PatternMatch, types: Mapping[str, Type]
    ) -> Iterator[PatternMatch]:
        """Matches of a pattern at one term whose word is the pattern's."""
        _, attrs, args = self.nodes[number]
        if len(args) != len(pattern.args):
            return
        match = match.copy()
        if match.attributes(pattern.attrs, attrs):
            yield from self._arguments(pattern.args, args, match, types)

    def _arguments(
        self, patterns: tuple[Term, ...], args: tuple[int, ...], match: PatternMatch, types: Mapping[str, Type]
    ) -> Iterator[PatternMatch]:
        if not patterns:
            yield match
            return
        first, number = patterns[0], args[0]
        if isinstance(first, TermVariable):
            match = match.copy()
            bound = match.variables.setdefault(first.name, number)
            if self.find(bound) == self.find(number) and match.type(types[first.name], self.types[number]):
                yield from self._arguments(patterns[1:], args[1:], match, types)
            return
        seen = set[Node]()
        for member in self.members[self.find(number)]:
            if self.nodes[member][0] == first.word and (key := self._key(member)) not in seen:
                seen.add(key)
                for inner in self._at(first, member, match, types):
                    yield from self._arguments(patterns[1:], args[1:], inner, types)
