"""Search moves from one graph to the next: every place where a rule matches, and what replaces what there.

Places that look alike are taken in one step, so that repeated blocks are optimized once; a rule that merges two
operators merges as many as there are, in one step too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from burnish.rewrite.language.terms import Apply, RewriteRule, Term, TermVariable, subterms
from burnish.rewrite.search.apply import replace
from burnish.rewrite.search.match import Matcher, Pattern, TermMatch, compile_rules, patterns
from burnish.rewrite.search.solve import RuleMatch, Solver, right_side
from burnish.rewrite.search.states import Change, CycleError, SearchState, depend
from burnish.rewrite.search.table import Table
from burnish.rewrite.search.view import ROOT, GraphView, SearchKnowledge, Wiring

DEPTH = 3  # of the terms that have to be alike for two places to look alike
LEAST = 1e-9  # of a graph's cost, that another layout has to save
FEW = 4  # operators of which each pair may be merged alone

Values = dict[int, int]


@dataclass(frozen=True, slots=True)
class RuleApplication:
    """One application of a rule. ``alike``: equal for places that are; ``replaced``: new values of names; ``made``:
    values of names that the graph does not have.
    """

    rule: str
    alike: object
    replaced: Values
    made: Values


@dataclass(frozen=True, slots=True, eq=False)
class _Half:
    """A match of one of the two terms of a rule's left side at a value."""

    value: int
    part: TermMatch
    pattern: Pattern


_Family = tuple[str, tuple[int, ...]]  # a rule's name, and the values of the variables that its two terms share


@dataclass(frozen=True, slots=True, eq=False)
class _Found:
    """Matches that begin at a value: steps of rules with one result, halves of rules with two, by their families."""

    steps: tuple[RuleApplication, ...]
    halves: tuple[tuple[_Family, _Half], ...]


_NOTHING = _Found((), ())


class Moves:
    """Move generator for a set of rules. Moves found once in a walk are known in all states that are the same there."""

    def __init__(self, table: Table, rules: Sequence[RewriteRule]) -> None:
        self.matcher, self.solver = Matcher(), Solver(table)
        self.single: dict[str, list[Pattern]] = {}
        self.double: dict[str, list[Pattern]] = {}
        self.symmetric: set[str] = set()
        self.relayouts: set[str] = set()
        self.patterns: dict[str, list[Pattern]] = {}
        for rule in compile_rules(rules):
            found = self.patterns[rule.name] = patterns(rule)
            if _changes_layout(rule):
                self.relayouts.add(rule.name)
            if len(found) == 1:
                self.single.setdefault(found[0].word, []).append(found[0])
            elif len(found) == 2:
                if _symmetric(rule):
                    self.symmetric.add(rule.name)
                    found = found[:1]
                for pattern in found:
                    self.double.setdefault(pattern.word, []).append(pattern)
        self.words = self.single.keys() | self.double.keys()

    def changes(self, state: SearchState) -> Iterator[tuple[Change, tuple[str, ...]]]:
        """Every step from a state, steps that look alike together, with the names of the rules applied.

        Another layout is a step only where it saves time, conversions included: every product has one to try.
        """
        wiring = state.wiring()
        groups: dict[tuple[str, object], list[RuleApplication]] = {}
        for step in self.steps(state.walk, wiring):
            groups.setdefault((step.rule, step.alike), []).append(step)
        for (rule, _), places in groups.items():
            replaced: Values = {}
            made: Values = {}
            count = 0
            for step in places:
                if replaced.keys().isdisjoint(step.replaced):
                    replaced.update(step.replaced)
                    made.update(step.made)
                    count += 1
            try:
                change = replace(state, wiring, replaced, made)
                if rule not in self.relayouts or change.cost < -LEAST * state.cost:
                    yield change, (rule,) * count
            except CycleError:
                for step in places if count > 1 else ():
                    try:
                        yield replace(state, wiring, step.replaced, step.made), (rule,)
                    except CycleError:
                        continue

    def steps(self, walk: SearchKnowledge, wiring: Wiring) -> Iterator[RuleApplication]:
        """Every application of a rule in a graph, in order of names."""
        known = wiring.found
        for name in sorted(wiring.stale):
            known.pop(name, None)
            if walk.table.labels[wiring.chosen[name]].op in self.words:
                found = walk.found.get(name, wiring) or self._find(walk, wiring, name)
                if found is not _NOTHING:
                    known[name] = found
        wiring.stale.clear()
        families: dict[_Family, list[_Half]] = {}
        for name in sorted(known):
            found = known[name]
            yield from found.steps
            for family, half in found.halves:
                families.setdefault(family, []).append(half)
        for halves in families.values():
            if halves[0].value != halves[-1].value:  # in order: of more than one name
                yield from self._merges(walk, wiring, tuple(halves))

    def _find(self, walk: SearchKnowledge, wiring: Wiring, name: int) -> _Found:
        """Matches that begin at a name, kept with the questions that they depend on."""
        view = GraphView(walk, wiring)
        op = view.operator(name).op
        steps = self._steps_at(view, name, op) if op in self.single else ()
        halves = tuple(
            ((pattern.rule.name, tuple([part.tensors[n] for n in pattern.shared])), _Half(name, part, pattern))
            for pattern in self.matcher.hopeful(view, self.double.get(op, ()), name)
            for part in self.matcher.parts(view, pattern, name)
        )
        found = _Found(steps, halves) if steps or halves else _NOTHING
        walk.found.keep(name, view.asked, found)
        for question in view.asked:
            walk.askers.setdefault(question, set()).add(name)
        return found

    # --- rules with one result ---

    def _steps_at(self, view: GraphView, name: int, op: str) -> tuple[RuleApplication, ...]:
        found: dict[int, str] = {}
        for pattern in self.matcher.hopeful(view, self.single[op], name):
            for part in self.matcher.parts(view, pattern, name):
                match = self.solver.solve(pattern.rule, part)
                made = _replacing(view, pattern.rule, match, (name,)) if match else None
                if made is not None and made[0] != view.maker(name):
                    found.setdefault(made[0], pattern.rule.name)
        look = view.look(name, DEPTH) if found else None
        return tuple(_step(view, rule, look, {name: new}) for new, rule in found.items())

    # --- rules with two results ---

    def _merges(self, walk: SearchKnowledge, wiring: Wiring, halves: tuple[_Half, ...]) -> Iterator[RuleApplication]:
        """The steps that merge some of these halves of a family."""
        groups: Sequence[tuple[_Half, ...]] | None = walk.groups.get(halves, wiring)
        if groups is None:
            view = GraphView(walk, wiring)
            groups = tuple(self._groups(view, halves))
            walk.groups.keep(halves, view.asked, groups)
        for group in groups:
            if depend(walk.table, wiring, [half.value for half in group]):
                continue
            steps: tuple[RuleApplication, ...] | None = walk.merges.get(group, wiring)
            if steps is None:
                view = GraphView(walk, wiring)
                steps = tuple(self._merge(view, group))
                walk.merges.keep(group, view.asked, steps)
            yield from steps

    def _groups(self, view: GraphView, halves: Sequence[_Half]) -> Iterator[tuple[_Half, ...]]:
        """Groups of halves to replace together. Symmetric rules: all of them, those of equal look, and of at most FEW
        every pair; other rules: every pair of a first and a second half.
        """
        if halves[0].pattern.rule.name not in self.symmetric:
            first, second = ([h for h in halves if h.pattern.position == i] for i in (0, 1))
            yield from ((a, b) for a, b in product(first, second) if a.value != b.value)
            return
        ordered = self._as_read(view, halves)
        looks = [view.look(h.value, 1) for h in ordered]
        groups = [ordered] + [[h for h, k in zip(ordered, looks, strict=True) if k == look] for look in set(looks)]
        if len(ordered) <= FEW:
            groups += [[a, b] for i, a in enumerate(ordered) for b in ordered[i + 1 :]]
        yield from dict.fromkeys(tuple(group) for group in groups if len(group) > 1)

    def _as_read(self, view: GraphView, halves: Sequence[_Half]) -> list[_Half]:
        """Reading order of halves: that in which a join reads them, so that the join of the parts of what they become
        is all of it; and what is read alike side by side, so that what reads it can be merged.
        """
        members = sorted(h.value for h in halves)
        place = {value: (len(view), _reading(view, value, DEPTH), i) for i, value in enumerate(members)}
        for value in members:
            readers = _readers(view, value)
            for reader in (r for near in (value, *readers) for r in _readers(view, near)):
                if view.operator(reader).op == "concat":
                    for i, piece in enumerate(view.operands(reader)):
                        if piece == value or piece in readers:
                            place[value] = min(place[value], (reader, (), i))
        return sorted(halves, key=lambda h: place[h.value])

    def _merge(self, view: GraphView, halves: Sequence[_Half]) -> Iterator[RuleApplication]:
        """The step that merges these, two by two."""
        rule = halves[0].pattern.rule
        replaced: Values = {}
        whole = halves[0]
        for half in halves[1:]:
            made = self._pair(view, rule, whole, half)
            if made is None:
                return
            replaced[whole.value], replaced[half.value] = made
            if half is halves[-1]:
                break
            joined = self._joined(view, rule, made, whole)
            if joined is None:
                return
            whole = joined
        yield _step(view, rule.name, tuple([view.look(h.value, DEPTH) for h in halves]), replaced)

    def _joined(self, view: GraphView, rule: RewriteRule, made: tuple[int, ...], before: _Half) -> _Half | None:
        """Half of the rule's first term that both values are parts of; None if there is none."""
        first, second = made
        if view.labels[first].op != "part" or view.args[first] != view.args[second]:
            return None
        (whole,) = view.args[first]
        pattern = self.patterns[rule.name][0]
        shared = [before.part.tensors[name] for name in pattern.shared]
        for part in self.matcher.parts(view, pattern, whole):
            if [part.tensors[name] for name in pattern.shared] == shared:
                return _Half(whole, part, pattern)
        return None

    def _pair(self, view: GraphView, rule: RewriteRule, a: _Half, b: _Half) -> tuple[int, ...] | None:
        """Replacement of two values by a rule with two results; None where the rule does not hold."""
        match = self._matched_pair(view, rule, a, b)
        return _replacing(view, rule, match, (a.value, b.value)) if match else None

    def _matched_pair(self, view: GraphView, rule: RewriteRule, a: _Half, b: _Half) -> RuleMatch | None:
        second = self.patterns[rule.name][1]
        for part in self.matcher.parts(view, second, b.value):
            if all(part.tensors[name] == a.part.tensors[name] for name in second.shared):
                match = self.solver.solve(rule, a.part, part)
                if match is not None:
                    return match
        return None


def _replacing(view: GraphView, rule: RewriteRule, match: RuleMatch, names: Sequence[int]) -> tuple[int, ...] | None:
    """Values of the right side, called by these names if they have none; None where they do not fit there, or where one
    is the name itself: laws have brought the rule back to what it began with.
    """
    made = right_side(view, rule, match, names)
    for name, value in zip(names, made or (), strict=False):
        if value == name and any(
            not view.fixed[a] and view.ask(a) is None and a not in view.changed for a in view.args[name]
        ):
            return None  # its first value is made of what this state does not have
        view.walk.names.setdefault(value, name)
    return made


def _step(view: GraphView, rule: str, look: object, replaced: Values) -> RuleApplication:
    made: Values = {}
    stack = list(replaced.values())
    while stack:
        for a in view.args[stack.pop()]:
            if a in view.changed and a not in made and a not in replaced:
                made[a] = view.changed[a]
                stack.append(made[a])
    return RuleApplication(rule, look, replaced, made)


def _readers(view: GraphView, name: int) -> list[int]:
    return [r for r in view.readers(name) if r != ROOT]


def _reading(view: GraphView, name: int, depth: int) -> tuple[object, ...]:
    """The operators that read a name's value, and what reads those, so deep, in order."""
    if depth == 0:
        return ()
    return tuple(sorted((view.operator(r).op, _reading(view, r, depth - 1)) for r in _readers(view, name)))


def _changes_layout(rule: RewriteRule) -> bool:
    """Whether a rule computes the same operators on tensors stored by columns instead of rows."""
    left, right = (sorted(t.word for term in side for t in subterms(term) if isinstance(t, Apply))
                   for side in (rule.left, rule.right))  # fmt: skip
    return "swap" not in left and "swap" in right and left == [word for word in right if word != "swap"]


def _symmetric(rule: RewriteRule) -> bool:
    """Whether the second term of the left side is the first with other names for variables that are not shared."""

    def alike(a: Term, b: Term, names: dict[str, str]) -> bool:
        if isinstance(a, TermVariable) or isinstance(b, TermVariable):
            return (
                isinstance(a, TermVariable)
                and isinstance(b, TermVariable)
                and names.setdefault(a.name, b.name) == b.name
            )
        if a.word != b.word or len(a.args) != len(b.args) or a.attrs != b.attrs:
            return False
        return all(alike(x, y, names) for x, y in zip(a.args, b.args, strict=True))

    names: dict[str, str] = {}
    shared = patterns(rule)[0].shared
    return alike(rule.left[0], rule.left[1], names) and all(names[n] == n for n in shared)
