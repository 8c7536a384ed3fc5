"""Matching of a rule's left side in a graph: tensors for its variables, numbers for its sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from burnish import ops
from burnish.errors import RuleError
from burnish.graph.graph import Attribute
from burnish.rewrite.language.sizes import is_extent, names_of, number_of
from burnish.rewrite.language.terms import Apply, RewriteRule, Term, TermVariable, Type, Value, subterms, variables
from burnish.rewrite.language.vocabulary import VOCABULARY, WORDS
from burnish.rewrite.search.table import COMMUTATIVE, CONSTANT_WORDS, Table

Equations = tuple[tuple[int, int], ...]
_Places = tuple[tuple[tuple[str, tuple[int, ...]], ...], Equations]  # arguments to follow from a value to each variable
Asked = list[tuple[str, object, int | None]]  # key, value, its number where it is a constant size
_AXES = frozenset(("part", "concat"))  # words whose attribute 'axis' counts dimensions
# Words that compute nothing.
MOVING = frozenset(("part", "concat", "swap", "grow", "transpose", "reshape", "slice", "pad")) | CONSTANT_WORDS
_PRODUCTS = frozenset(("matmul", "conv2d"))
_BACKWARDS = ", read backwards"
DEEPEST = 3  # words above a variable; a pattern that goes deeper is asked of every value
DTYPE = "float32"  # rules speak of numbers of this type


@dataclass(frozen=True, slots=True)
class TermMatch:
    """A match of one term. ``tensors``: the values of variables; ``equations`` between sizes are not yet solved. Equal
    ``key``, unless None: equal equations, and tensors of equal types.
    """

    tensors: Mapping[str, int]
    equations: Equations
    key: object = None


@dataclass(frozen=True, eq=False)
class Pattern:
    """Compiled pattern: one term of a left side. ``shared``: its variables that other terms of the side have too, in
    order; ``depth``: words above the deepest variable.
    """

    rule: RewriteRule
    position: int
    term: Apply
    shared: tuple[str, ...]
    depth: int

    @property
    def word(self) -> str:
        """The word at the root."""
        return self.term.word


def compile_rules(rules: Sequence[RewriteRule]) -> list[RewriteRule]:
    """The rules that can be applied from left to right, in the form that matching takes.

    Their left sides have operators at the roots, hold all variables and all sizes of the right sides, and share
    variables among their terms. Left out is what only moves elements of one tensor without a ``transpose``, which takes
    time: that is a matter of normal forms. ``matmul`` with flags becomes ``matmul`` of ``swap``.
    Raises RuleError for an unknown word.
    """
    usable = []
    for rule in rules:
        shared: dict[Term, Term] = {}
        left, right = (tuple(_normal(t, shared) for t in side) for side in (rule.left, rule.right))
        rule = RewriteRule(rule.name, rule.types, left, right, rule.conditions, rule.kind)
        moves = _words(left) | _words(right) <= MOVING - {"transpose"}
        computes = left != right and (len(left) > 1 or not moves)
        if computes and not any(isinstance(t, TermVariable) for t in left) and _determined(rule):
            usable.append(rule)
    return usable


def both_ways(rules: Sequence[RewriteRule]) -> list[RewriteRule]:
    """The rules, and from right to left those that regroup products: which side is cheaper depends on the sizes."""
    turned = []
    for rule in rules:
        products = [sorted(t.word for t in _applications(side)) for side in (rule.left, rule.right)]
        if products[0] == products[1] and len(products[0]) > 1 and set(products[0]) <= _PRODUCTS:
            name = rule.name + _BACKWARDS
            turned.append(RewriteRule(name, rule.types, rule.right, rule.left, rule.conditions, rule.kind))
    return [*rules, *turned]


def forwards(name: str) -> str:
    """The name of a rule, whichever way it is read."""
    return name.removesuffix(_BACKWARDS)


def _determined(rule: RewriteRule) -> bool:
    """Whether a match of the left side says all that the right side needs."""
    bound = frozenset().union(*map(variables, rule.left))
    if not frozenset().union(*map(variables, rule.right)) <= bound:
        return False
    sizes = {n for name in bound for n in names_of(*rule.types[name].dims)} | _attribute_names(rule.left)
    asked = _attribute_names(rule.right) | {n for c in rule.conditions for n in names_of(c.left, c.right)}
    return asked <= sizes and (len(rule.left) == 1 or all(p.shared for p in patterns(rule)))


def _applications(terms: Sequence[Term]) -> Iterator[Apply]:
    return iter(dict.fromkeys(t for term in terms for t in subterms(term) if isinstance(t, Apply)))


def _words(terms: Sequence[Term]) -> set[str]:
    return {t.word for t in _applications(terms)}


def _attribute_names(terms: Sequence[Term]) -> set[str]:
    sizes = (v for t in _applications(terms) for _, value in t.attrs for v in _sizes_in(value))
    return set(names_of(*sizes))


def _sizes_in(value: Value) -> tuple[int, ...]:
    return (value,) if is_extent(value) else value if isinstance(value, tuple) else ()


def reassociates(rule: RewriteRule) -> bool:
    """Whether a rule changes rounding by no more than re-association: it brings no arithmetic that was not there.

    Weights may be added and scaled, as in folding; a mean does not become a convolution. Nor do weights grow, but to
    have others of that size added: they would be products with zeros, which are NaN where the other factor is infinite.
    """
    right, left = set(_applications(rule.right)), set(_applications(rule.left))
    added = {argument for t in right if t.word == "add" for argument in t.args}
    grown = {t for t in right - left - added if t.word == "grow"}
    return not grown and _words(rule.right) - MOVING <= _words(rule.left)


def patterns(rule: RewriteRule) -> list[Pattern]:
    """The terms of the rule's left side."""
    found = []
    for position, term in enumerate(rule.left):
        others = frozenset().union(*(variables(t) for i, t in enumerate(rule.left) if i != position))
        assert isinstance(term, Apply)
        found.append(Pattern(rule, position, term, tuple(sorted(variables(term) & others)), _depth(term)))
    return found


def _depth(term: Term) -> int:
    return 0 if isinstance(term, TermVariable) else 1 + max(map(_depth, term.args), default=0)


def _normal(term: Term, shared: dict[Term, Term]) -> Term:
    """The term in the form that matching takes; equal terms of a rule become one object, known by its identity."""
    if isinstance(term, TermVariable):
        return term
    if term in shared:
        return shared[term]
    if term.word not in VOCABULARY:
        raise RuleError(f"'{term.word}' is no word of the vocabulary: {', '.join(sorted(VOCABULARY))}")
    args, attrs = [_normal(a, shared) for a in term.args], dict(term.attrs)
    if term.word == "matmul":
        for i, key in enumerate(("transpose_a", "transpose_b")):
            if attrs.pop(key, False):
                swapped = Apply("swap", (args[i],))
                args[i] = shared.setdefault(swapped, swapped)
    made = Apply(term.word, tuple(args), tuple(sorted(attrs.items())))
    shared[term] = shared.setdefault(made, made)
    return shared[term]


class _ManyReadings(Exception):  # noqa: N818 - no error: a question that looks cannot answer
    """A value may be read in ways that depend on more than its look."""


# --- matching one term ------------------------------------------------------------------------------------------------


class Matcher:
    """Matches of patterns with the values of a table, or with those that a state sees there.

    What a pattern asks of operators, attributes and types is the same for values that look alike: it is asked once for
    each look, and answered with where the variables are.
    """

    def __init__(self) -> None:
        self._asked: dict[int, Asked] = {}  # by the identities of terms of compiled rules
        self._places: dict[tuple[Pattern, int], list[_Places] | None] = {}
        self._hopeful: dict[tuple[int, int], Sequence[Pattern]] = {}

    def hopeful(self, table: Table, among: Sequence[Pattern], value: int) -> Sequence[Pattern]:
        """Patterns that may match a value, prefiltered by its look; always the same list for equal looks."""
        key = (id(among), table.look(value, DEEPEST))
        if key not in self._hopeful:
            self._hopeful[key] = [p for p in among if p.depth > DEEPEST or self._located_at(table, p, value) != []]
        return self._hopeful[key]

    def parts(self, table: Table, pattern: Pattern, value: int) -> list[TermMatch]:
        """All ways in which the pattern matches a value."""
        places = self._located_at(table, pattern, value)
        if places is None:
            found = self._term(table, pattern.rule, pattern.term, value, {}, ())
            return [TermMatch(tensors, equations) for tensors, equations in found]
        parts = []
        for i, (names, equations) in enumerate(places):
            tensors: dict[str, int] = {}
            for name, path in names:
                at = value
                for argument in path:
                    at = table.operands(at)[argument]
                if tensors.setdefault(name, at) != at:
                    break
            else:
                parts.append(TermMatch(tensors, equations, (pattern.position, table.look(value, pattern.depth), i)))
        return parts

    def _located_at(self, table: Table, pattern: Pattern, value: int) -> list[_Places] | None:
        key = (pattern, table.look(value, pattern.depth))
        if key not in self._places:
            self._places[key] = self._places_of(table, pattern, value)
        return self._places[key]

    def _places_of(self, table: Table, pattern: Pattern, value: int) -> list[_Places] | None:
        """Variable positions, the same in all values that look like this one; None where joins must be looked into."""
        try:
            return list(self._located(table, pattern.rule, pattern.term, value, ()))
        except _ManyReadings:
            return None

    def _located(
        self, table: Table, rule: RewriteRule, term: Term, value: int, path: tuple[int, ...]
    ) -> Iterator[_Places]:
        if isinstance(term, TermVariable):
            more = self._typed(table, rule.types[term.name], value)
            if more is not None:
                yield ((term.name, path),), more
            return
        label, args = table.operator(value), table.operands(value)
        if label.op != term.word:
            if label.op == "constant" and term.word in CONSTANT_WORDS:
                raise _ManyReadings
            return
        if label.op == "concat" and len(term.args) == 2 and len(args) > 2:
            if self._cuts(table, term, args):
                raise _ManyReadings
            return
        asked = self._attributes(table, term, label.values, value) if len(args) == len(term.args) else None
        if asked is None:
            return
        orders = [range(len(args))]
        if label.op in COMMUTATIVE:
            orders.append(range(1, -1, -1))
        for order in orders:
            pairs = zip(term.args, order, strict=True)
            options = [list(self._located(table, rule, t, args[i], (*path, i))) for t, i in pairs]
            for chosen in product(*options):
                names = tuple(n for names, _ in chosen for n in names)
                yield names, (*asked, *(e for _, equations in chosen for e in equations))

    def _term(
        self, table: Table, rule: RewriteRule, term: Term, value: int, tensors: dict[str, int], equations: Equations
    ) -> Iterator[tuple[dict[str, int], Equations]]:
        if isinstance(term, TermVariable):
            bound = tensors.get(term.name)
            if bound is None:
                more = self._typed(table, rule.types[term.name], value)
                if more is not None:
                    yield {**tensors, term.name: value}, (*equations, *more)
            elif bound == value:
                yield tensors, equations
            return
        for args, attrs in self._readings(table, term, value):
            asked = self._attributes(table, term, attrs, value)
            if asked is not None:
                yield from self._arguments(table, rule, term.args, args, tensors, (*equations, *asked))

    def _arguments(
        self,
        table: Table,
        rule: RewriteRule,
        terms: Sequence[Term],
        args: Sequence[int],
        tensors: dict[str, int],
        equations: Equations,
    ) -> Iterator[tuple[dict[str, int], Equations]]:
        if not terms:
            yield tensors, equations
            return
        for now, more in self._term(table, rule, terms[0], args[0], tensors, equations):
            yield from self._arguments(table, rule, terms[1:], args[1:], now, more)

    def _typed(self, table: Table, declared: Type, value: int) -> Equations | None:
        """Size equations under which a variable of the declared type matches the value; None where it cannot."""
        kind = table.types[value]
        own = len(kind.shape) - len(declared.dims)
        if kind.dtype != DTYPE or own < 0 or (own and declared.lead is None) or value in table.several:
            return None
        return tuple(zip(declared.dims, kind.shape[own:], strict=True))

    def _readings(
        self, table: Table, term: Apply, value: int
    ) -> Iterator[tuple[Sequence[int], Mapping[str, Attribute]]]:
        """The value as the word of the term: arguments and attributes. A join of many is one of two in many ways."""
        label, args = table.operator(value), table.operands(value)
        if label.op != term.word:
            if label.op == "constant" and term.word in CONSTANT_WORDS:
                yield from self._constant(table, term.word, value)
            return
        if label.op == "concat" and len(term.args) == 2:
            for cut in self._cuts(table, term, args):
                sides = (table.make("concat", side, label.values) for side in (args[:cut], args[cut:]))
                yield [table.name(side) for side in sides], label.values
            return
        if len(args) != len(term.args):
            return
        yield args, label.values
        if label.op in COMMUTATIVE and args[0] != args[1]:
            yield args[::-1], label.values

    def _cuts(self, table: Table, term: Apply, args: Sequence[int]) -> Sequence[int]:
        """Cut positions at which a join of many may be the term's join of two: what is to be no join is one piece, made
        by its word.
        """
        cuts: Sequence[int] = range(1, len(args))
        for side, cut, piece in zip(term.args, (1, len(args) - 1), (args[0], args[-1]), strict=True):
            if isinstance(side, Apply) and side.word != "concat":
                made = table.operator(piece).op
                fits = made == side.word or (made == "constant" and side.word in CONSTANT_WORDS)
                cuts = [cut] if fits and cut in cuts else []
        return cuts

    def _constant(self, table: Table, word: str, value: int) -> Iterator[tuple[Sequence[int], Mapping[str, Attribute]]]:
        """A constant as a word that builds one."""
        array = table.constants.get(str(table.labels[value].values["name"]))
        if array is None or array.dtype != DTYPE or array.size == 0:
            return
        first = float(array.flat[0])
        if word == "full" and first.is_integer() and array.size <= 4096 and bool((array == first).all()):
            yield (), {"shape": array.shape, "value": int(first)}

    def _attributes(self, table: Table, term: Apply, attrs: Mapping[str, Attribute], value: int) -> Equations | None:
        """Size equations under which the term's attributes match the value's; None where they differ."""
        equations: list[tuple[int, int]] = []
        for key, asked, constant in self._asked_of(term):
            found = attrs[key]
            if is_extent(asked):
                if not isinstance(found, int) or isinstance(found, bool):
                    return None
                if key == "axis" and term.word in _AXES:
                    rank = len(table.types[value].shape)
                    if constant is None or not -rank <= constant < rank or constant % rank != found:
                        return None
                elif constant is None:
                    equations.append((asked, found))
                elif constant != found:
                    return None
            elif isinstance(asked, tuple):
                if not isinstance(found, tuple) or len(found) != len(asked):
                    return None
                for (size, number), entry in zip(asked, found, strict=True):
                    if number is None:
                        equations.append((size, entry))  # type: ignore[arg-type]
                    elif number != entry:
                        return None
            elif asked != found:
                return None
        return tuple(equations)

    def _asked_of(self, term: Apply) -> Asked:
        """Attribute values of the term; of sizes, with the numbers of those that are constant."""
        if id(term) not in self._asked:
            given = dict(term.attrs)
            defaults = {} if term.word in WORDS else ops.OPERATORS[term.word].attrs
            unknown = sorted(given.keys() - defaults.keys()) if term.word not in WORDS else []
            if unknown:
                raise RuleError(f"'{term}': attributes {', '.join(unknown)}; allowed: {', '.join(defaults) or 'none'}")
            self._asked[id(term)] = [_asked(key, value) for key, value in {**defaults, **given}.items()]
        return self._asked[id(term)]


def _asked(key: str, value: object) -> tuple[str, object, int | None]:
    if is_extent(value):
        return key, value, number_of(value)
    if isinstance(value, tuple):
        return key, tuple((v, number_of(v)) for v in value), None
    return key, value, None
