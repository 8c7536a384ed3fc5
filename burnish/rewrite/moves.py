"""The steps from one graph to the next: every place where a rule matches, and what replaces what there.

Places that look alike are taken in one step, so that repeated blocks are optimized once; a rule that merges two
operators merges as many as there are, in one step too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from burnish.rewrite.apply import CycleError, Replacement, State, consumers
from burnish.rewrite.match import Matcher, Part, Pattern, compile_rules, patterns
from burnish.rewrite.solve import Match, Solver, right_side
from burnish.rewrite.table import Table
from burnish.rewrite.terms import Rule, Term, Var

DEPTH = 3  # of the terms that have to be alike for two places to look alike
FEW = 4  # operators of which each pair may be merged alone

Replaced = dict[int, int]


@dataclass(frozen=True, slots=True)
class Step:
    """One application of a rule: values of the graph and what replaces them. ``alike``: equal for places that are."""

    rule: str
    alike: object
    replaced: Replaced


@dataclass(frozen=True, slots=True)
class _Half:
    """A match of one of the two terms of a rule's left side at a value."""

    value: int
    part: Part
    pattern: Pattern


_Family = tuple[str, tuple[int, ...]]  # a rule's name, and the values of the variables that its two terms share


@dataclass(frozen=True, slots=True)
class _Found:
    """What begins at a value: steps of rules with one result, and halves of those with two, by their families."""

    steps: tuple[Step, ...]
    halves: tuple[tuple[_Family, _Half], ...]


class Moves:
    """All steps of a set of rules. What was found at a value stays known: values do not change."""

    def __init__(self, table: Table, rules: Sequence[Rule]) -> None:
        self.table = table
        self.matcher, self.solver = Matcher(table), Solver(table)
        self.single: dict[str, list[Pattern]] = {}
        self.double: dict[str, list[Pattern]] = {}
        self.symmetric: set[str] = set()
        self.patterns: dict[str, list[Pattern]] = {}
        for rule in compile_rules(rules):
            found = self.patterns[rule.name] = patterns(rule)
            if len(found) == 1:
                self.single.setdefault(found[0].word, []).append(found[0])
            elif len(found) == 2:
                if _symmetric(rule):
                    self.symmetric.add(rule.name)
                    found = found[:1]
                for pattern in found:
                    self.double.setdefault(pattern.word, []).append(pattern)
        self._found: dict[int, _Found | None] = {}
        self._pairs: dict[tuple[str, int, int], tuple[int, ...] | None] = {}

    def replacements(self, state: State) -> Iterator[tuple[Replacement, tuple[str, ...]]]:
        """Every step from a state, steps that look alike together, with the names of the rules applied."""
        readers = consumers(self.table, state)
        groups: dict[tuple[str, object], list[Replaced]] = {}
        for step in self.steps(state, readers):
            groups.setdefault((step.rule, step.alike), []).append(step.replaced)
        for (rule, _), places in groups.items():
            yield from self._together(rule, places, state, readers)

    def _together(
        self, rule: str, places: Sequence[Replaced], state: State, readers: Mapping[int, list[int]]
    ) -> Iterator[tuple[Replacement, tuple[str, ...]]]:
        merged: Replaced = {}
        count = 0
        for replaced in places:
            if merged.keys().isdisjoint(replaced):
                merged.update(replaced)
                count += 1
        try:
            yield Replacement(self.table, state, readers, merged), (rule,) * count
        except CycleError:
            for replaced in places if count > 1 else ():
                try:
                    yield Replacement(self.table, state, readers, replaced), (rule,)
                except CycleError:
                    continue

    def steps(self, state: State, readers: Mapping[int, list[int]]) -> Iterator[Step]:
        """Every application of a rule in a state, in order of values."""
        families: dict[_Family, list[_Half]] = {}
        known = self._found
        for value in sorted(state.uses):
            found = known[value] if value in known else self._find(value)
            if found is not None:
                yield from found.steps
                for family, half in found.halves:
                    families.setdefault(family, []).append(half)
        for halves in families.values():
            if len(halves) > 1:
                rule = halves[0].pattern.rule
                if rule.name in self.symmetric:
                    yield from self._merges(rule, halves, readers)
                else:
                    first, second = ([h for h in halves if h.pattern.position == i] for i in (0, 1))
                    for pair in product(first, second):
                        if self._pair(rule, *pair) is not None:
                            yield from self._merge(rule, pair)

    def _find(self, value: int) -> _Found | None:
        """What begins at a value; None if nothing does. It stays known."""
        op = self.table.labels[value].op
        steps: tuple[Step, ...] = ()
        halves: tuple[tuple[_Family, _Half], ...] = ()
        if not self.table.fixed[value]:
            if op in self.single:
                steps = self._steps_at(value, op)
            if op in self.double:
                halves = tuple(
                    ((pattern.rule.name, tuple([part.tensors[name] for name in pattern.shared])), half)
                    for pattern in self.matcher.hopeful(self.double[op], value)
                    for part in self.matcher.parts(pattern, value)
                    for half in (_Half(value, part, pattern),)
                )
        found = self._found[value] = _Found(steps, halves) if steps or halves else None
        return found

    # --- rules with one result ---

    def _steps_at(self, value: int, op: str) -> tuple[Step, ...]:
        found: dict[int, str] = {}
        for pattern in self.matcher.hopeful(self.single[op], value):
            for part in self.matcher.parts(pattern, value):
                match = self.solver.solve(pattern.rule, part)
                made = right_side(self.table, pattern.rule, match, (value,)) if match else None
                if made is not None and made[0] != value:
                    found.setdefault(made[0], pattern.rule.name)
        if not found:
            return ()
        look = self.table.look(value, DEPTH)
        return tuple(Step(rule, look, {value: new}) for new, rule in found.items())

    # --- rules with two results ---

    def _merges(self, rule: Rule, halves: Sequence[_Half], readers: Mapping[int, list[int]]) -> Iterator[Step]:
        """All of them in one, those of one type in one, and of few also every pair."""
        ordered = self._as_read(halves, readers)
        tried: set[tuple[int, ...]] = set()
        looks = [self.table.look(h.value, 1) for h in ordered]
        groups = [ordered] + [[h for h, k in zip(ordered, looks, strict=True) if k == look] for look in set(looks)]
        if len(ordered) <= FEW:
            groups += [[a, b] for i, a in enumerate(ordered) for b in ordered[i + 1 :]]
        for group in groups:
            values = tuple(h.value for h in group)
            if len(group) > 1 and values not in tried:
                tried.add(values)
                yield from self._merge(rule, group)

    def _as_read(self, halves: Sequence[_Half], readers: Mapping[int, list[int]]) -> list[_Half]:
        """In the order in which a join reads them, so that the join of the parts of what they become is all of it;
        and what is read alike side by side, so that what reads it can be merged."""
        labels, args = self.table.labels, self.table.args
        members = sorted(h.value for h in halves)
        place = {value: (len(labels), self._reading(value, readers, DEPTH), i) for i, value in enumerate(members)}
        for value in members:
            for reader in (r for near in (value, *readers[value]) for r in readers[near]):
                if labels[reader].op == "concat":
                    for i, piece in enumerate(args[reader]):
                        if piece == value or piece in readers[value]:
                            place[value] = min(place[value], (reader, (), i))
        return sorted(halves, key=lambda h: place[h.value])

    def _reading(self, value: int, readers: Mapping[int, list[int]], depth: int) -> tuple[object, ...]:
        """The operators that read a value, and what reads those, so deep, in order."""
        if depth == 0:
            return ()
        return tuple(sorted((self.table.labels[r].op, self._reading(r, readers, depth - 1)) for r in readers[value]))

    def _merge(self, rule: Rule, halves: Sequence[_Half]) -> Iterator[Step]:
        """The step that merges these, two by two. None of them may depend on another."""
        replaced: Replaced = {}
        whole = halves[0]
        for half in halves[1:]:
            made = self._pair(rule, whole, half)
            if made is None:
                return
            first, second = made
            if whole.value in replaced or not replaced:
                replaced[whole.value] = first
            replaced = {old: self._inside(new, whole.value, first) for old, new in replaced.items()}
            replaced[half.value] = second
            if half is halves[-1]:
                break
            joined = self._joined(rule, first, second, whole)
            if joined is None:
                return
            whole = joined
        alike = (tuple(self.table.look(h.value, DEPTH) for h in halves),)
        yield Step(rule.name, alike, replaced)

    def _inside(self, value: int, old: int, new: int) -> int:
        """A part of ``old`` as the part of ``new``."""
        table = self.table
        return table.again(value, (new,)) if table.args[value] == (old,) and table.labels[value].op == "part" else value

    def _joined(self, rule: Rule, first: int, second: int, before: _Half) -> _Half | None:
        """What two values are parts of, as the first term of the rule again."""
        table = self.table
        if table.labels[first].op != "part" or table.args[first] != table.args[second]:
            return None
        (whole,) = table.args[first]
        pattern = self.patterns[rule.name][0]
        shared = [before.part.tensors[name] for name in pattern.shared]
        for part in self.matcher.parts(pattern, whole):
            if [part.tensors[name] for name in pattern.shared] == shared:
                return _Half(whole, part, pattern)
        return None

    def _pair(self, rule: Rule, a: _Half, b: _Half) -> tuple[int, ...] | None:
        """What replaces two values; None where the rule does not hold, or one depends on the other."""
        if a.value == b.value:
            return None
        key = (rule.name, a.value, b.value)
        if key not in self._pairs:
            match = self._matched_pair(rule, a, b)
            made = right_side(self.table, rule, match, (a.value, b.value)) if match else None
            if made is not None and any(self.table.depends(m, v) for m in made for v in (a.value, b.value)):
                made = None
            self._pairs[key] = made
        return self._pairs[key]

    def _matched_pair(self, rule: Rule, a: _Half, b: _Half) -> Match | None:
        second = self.patterns[rule.name][1]
        for part in self.matcher.parts(second, b.value):
            if all(part.tensors[name] == a.part.tensors[name] for name in second.shared):
                match = self.solver.solve(rule, a.part, part)
                if match is not None:
                    return match
        return None


def _symmetric(rule: Rule) -> bool:
    """Whether the second term of the left side is the first with other names for variables that are not shared."""

    def alike(a: Term, b: Term, names: dict[str, str]) -> bool:
        if isinstance(a, Var) or isinstance(b, Var):
            return isinstance(a, Var) and isinstance(b, Var) and names.setdefault(a.name, b.name) == b.name
        if a.word != b.word or len(a.args) != len(b.args) or a.attrs != b.attrs:
            return False
        return all(alike(x, y, names) for x, y in zip(a.args, b.args, strict=True))

    names: dict[str, str] = {}
    shared = patterns(rule)[0].shared
    return alike(rule.left[0], rule.left[1], names) and all(names[n] == n for n in shared)
