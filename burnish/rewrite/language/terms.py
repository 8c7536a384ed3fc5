"""Terms: the language of substitutions and axioms.

Grammar (frozen dataclasses; ``str`` prints what :func:`parse_rules` reads)::

    term  ::= name                                    a variable: any tensor of its declared type
            | word(term, …, key=value, …)             word: a name in vocabulary.VOCABULARY
    value ::= size | (size, …) | True | False | "text"
    type  ::= [size, …] | [*name, size, …]            *name: leading dimensions, as many as there are
    rule  ::= KIND NAME                               KIND: axiom or substitution; '#' begins a comment
                [from ORIGIN]                         the generator's domain, or "statement"
                [for variable: type; …]
                [where size RELATION size; …]         RELATION: == != <= <
                term, … = term, …

A rule says: for all tensors of the declared types and all sizes that satisfy the conditions, the tensors on the left
equal those on the right. Both sides may use any variable; a name that only one side uses is universally quantified.
Sizes stand for positive integers in types and for any integers in attributes.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from burnish.errors import RuleError
from burnish.rewrite.language.sizes import is_extent, names_of, parsed, put_in, size_of, size_text, value_of

Value = int | bool | str | tuple[int, ...]  # an integer is a size
_PLACES = ("pads", "start", "at")  # attributes that may be 0
_RELATIONS = {ast.Eq: "==", ast.NotEq: "!=", ast.LtE: "<=", ast.Lt: "<"}


@dataclass(frozen=True, slots=True)
class TermVariable:
    """Variable: any tensor of the type that its rule declares for the name."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Apply:
    """``word(args, attrs)``. ``attrs`` are in order of their keys."""

    word: str
    args: tuple[Term, ...]
    attrs: tuple[tuple[str, Value], ...] = ()
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.word, self.args, self.attrs)))  # of its arguments' hashes: no walk

    def __hash__(self) -> int:
        return self._hash

    def __str__(self) -> str:
        return f"{self.word}({', '.join([*map(str, self.args), *(f'{k}={_text(v)}' for k, v in self.attrs)])})"


Term = TermVariable | Apply


@dataclass(frozen=True, slots=True)
class Type:
    """``lead`` names the leading dimensions, if any number is allowed; ``dims`` are those that follow."""

    dims: tuple[int, ...]
    lead: str | None = None

    def __str__(self) -> str:
        return f"[{', '.join([*([f'*{self.lead}'] if self.lead else []), *map(size_text, self.dims)])}]"


@dataclass(frozen=True, slots=True)
class Condition:
    """``left relation right``: what a rule asks of sizes; relations are == != <= <."""

    left: int
    relation: str
    right: int

    def __str__(self) -> str:
        return f"{size_text(self.left)} {self.relation} {size_text(self.right)}"

    def holds(self, sizes: Mapping[str, int]) -> bool:
        """Whether it is true for these values of the names."""
        a, b = value_of(self.left, sizes), value_of(self.right, sizes)
        return {"==": a == b, "!=": a != b, "<=": a <= b, "<": a < b}[self.relation]


@dataclass(frozen=True)
class RewriteRule:
    """Rule: left equals right for all tensors of its ``types`` and all sizes that satisfy its ``conditions``."""

    name: str
    types: Mapping[str, Type]
    left: tuple[Term, ...]
    right: tuple[Term, ...]
    conditions: tuple[Condition, ...] = ()
    kind: str = "substitution"
    origin: str = ""

    def __str__(self) -> str:
        lines = [f"{self.kind} {self.name}"]
        if self.origin:
            lines.append(f"  from {self.origin}")
        if self.types:
            lines.append(f"  for {'; '.join(f'{n}: {t}' for n, t in self.types.items())}")
        if self.conditions:
            lines.append(f"  where {'; '.join(map(str, self.conditions))}")
        lines.append(f"  {', '.join(map(str, self.left))} = {', '.join(map(str, self.right))}")
        return "\n".join(lines) + "\n"

    @cached_property
    def sizes(self) -> tuple[str, ...]:
        """Every size named in types, attributes and conditions, in order."""
        found = {n for t in self.types.values() for n in names_of(*t.dims)}
        found |= {n for c in self.conditions for n in names_of(c.left, c.right)}
        for term in (*self.left, *self.right):
            found |= {n for t in subterms(term) if isinstance(t, Apply) for _, v in t.attrs for n in _names(v)}
        return tuple(sorted(found))

    @cached_property
    def extents(self) -> frozenset[str]:
        """Names in declared types that stand for extents or parts of them: those that are no pad and no place, too."""
        terms = (t for side in (*self.left, *self.right) for t in subterms(side) if isinstance(t, Apply))
        places = {n for t in terms for key, value in t.attrs if key in _PLACES for n in _names(value)}
        return frozenset(n for t in self.types.values() for n in names_of(*t.dims)) - places


def subterms(term: Term) -> Iterator[Term]:
    """``term`` and all terms in it, arguments first; a shared one as often as it occurs."""
    if isinstance(term, Apply):
        for argument in term.args:
            yield from subterms(argument)
    yield term


def variables(term: Term) -> frozenset[str]:
    """Names of the variables in a term."""
    return frozenset(t.name for t in subterms(term) if isinstance(t, TermVariable))


def substitute(term: Term, values: Mapping[str, Term]) -> Term:
    """``term`` with variables replaced."""
    if isinstance(term, TermVariable):
        return values.get(term.name, term)
    return Apply(term.word, tuple(substitute(a, values) for a in term.args), term.attrs)


def substitute_sizes(rule: RewriteRule, sizes: Mapping[str, int]) -> RewriteRule:
    """``rule`` with names of sizes replaced."""
    types = {n: Type(tuple(put_in(d, sizes) for d in t.dims), t.lead) for n, t in rule.types.items()}
    left, right = (tuple(resize(t, sizes) for t in terms) for terms in (rule.left, rule.right))
    conditions = (Condition(put_in(c.left, sizes), c.relation, put_in(c.right, sizes)) for c in rule.conditions)
    return RewriteRule(rule.name, types, left, right, tuple(conditions), rule.kind)


def resize(term: Term, sizes: Mapping[str, int]) -> Term:
    """``term`` with names of sizes replaced in its attributes."""
    if isinstance(term, TermVariable):
        return term
    attrs = tuple((k, resize_value(v, sizes)) for k, v in term.attrs)
    return Apply(term.word, tuple(resize(a, sizes) for a in term.args), attrs)


def resize_value(value: Value, sizes: Mapping[str, int]) -> Value:
    """An attribute with names of sizes replaced."""
    if is_extent(value):
        return put_in(value, sizes)
    return tuple(put_in(s, sizes) for s in value) if isinstance(value, tuple) else value


def _names(value: Value) -> frozenset[str]:
    if is_extent(value):
        return names_of(value)
    return names_of(*value) if isinstance(value, tuple) else frozenset()


def _text(value: Value) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(size_text, value))}{',' if len(value) == 1 else ''})"
    return size_text(value) if is_extent(value) else repr(value)


# --- reading ----------------------------------------------------------------------------------------------------------


def parse_term(text: str) -> Term:
    """One term. Raises RuleError naming the text."""
    (term,) = _terms(text)
    return term


def parse_type(text: str) -> Type:
    """One type. Raises RuleError naming the text."""
    return _declaration(f"type: {text}")[1]


def parse_rules(text: str, source: str = "rules") -> list[RewriteRule]:
    """The rules of a text. Raises RuleError naming ``source``, the line and the rule."""
    rules: list[RewriteRule] = []
    for number, lines in blocks(text, source):
        try:
            rules.append(_rule(lines))
        except RuleError as error:
            raise RuleError(f"{source}, line {number}, '{lines[0]}': {error}") from None
        except RecursionError:
            raise RuleError(f"{source}, line {number}, '{lines[0]}': nested too deep") from None
    names = [rule.name for rule in rules]
    repeated = sorted({n for n in names if names.count(n) > 1})
    if repeated:
        raise RuleError(f"{source}: defined twice: {', '.join(repeated)}")
    return rules


def blocks(text: str, source: str) -> Iterator[tuple[int, list[str]]]:
    """Runs of lines, each a rule: its first line is not indented. With the number of that line."""
    start, lines = 0, list[str]()
    for number, line in enumerate(text.splitlines(), 1):
        line = line.split("#")[0].rstrip()
        if line and not line[0].isspace():
            if lines:
                yield start, lines
            start, lines = number, [line]
        elif line:
            if not lines:
                raise RuleError(f"{source}, line {number}: an indented line before the first rule")
            lines.append(line.strip())
    if lines:
        yield start, lines


def _rule(lines: list[str]) -> RewriteRule:
    kind, _, name = lines[0].partition(" ")
    if kind not in ("axiom", "substitution") or not name.strip():
        raise RuleError(f"a rule begins with 'axiom NAME' or 'substitution NAME', found '{lines[0]}'")
    types: dict[str, Type] = {}
    conditions: tuple[Condition, ...] = ()
    origin, equation = "", list[str]()
    for line in lines[1:]:
        word, _, rest = line.partition(" ")
        if word == "from" and not equation:
            origin = rest
        elif word == "for" and not equation:
            types.update(_declaration(part) for part in rest.split(";"))
        elif word == "where" and not equation:
            conditions += tuple(_condition(part) for part in rest.split(";"))
        else:
            equation.append(line)
    left, equals, right = _halves(" ".join(equation))
    if not equals:
        raise RuleError("no equation 'term, … = term, …'")
    rule = RewriteRule(name.strip(), types, _terms(left), _terms(right), conditions, kind, origin)
    if len(rule.left) != len(rule.right):
        raise RuleError(f"{len(rule.left)} tensors on the left, {len(rule.right)} on the right")
    undeclared = sorted({n for t in (*rule.left, *rule.right) for n in variables(t)} - types.keys())
    if undeclared:
        raise RuleError(f"variables without a type: {', '.join(undeclared)}")
    return rule


def _halves(text: str) -> tuple[str, str, str]:
    """``text`` before, at and after the '=' that stands outside all parentheses."""
    depth = 0
    for i, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if c == "=" and depth == 0:
            return text[:i], c, text[i + 1 :]
    return text, "", ""


def _declaration(text: str) -> tuple[str, Type]:
    name, colon, type_ = text.partition(":")
    match parsed(type_) if colon else None:
        case ast.List([ast.Starred(ast.Name(lead)), *dims]):
            return name.strip(), Type(tuple(map(size_of, dims)), lead)
        case ast.List(dims):
            return name.strip(), Type(tuple(map(size_of, dims)))
    raise RuleError(f"'{text.strip()}' is no declaration 'variable: [size, …]'")


def _condition(text: str) -> Condition:
    match parsed(text):
        case ast.Compare(left, [relation], [right]) if type(relation) in _RELATIONS:
            return Condition(size_of(left), _RELATIONS[type(relation)], size_of(right))
    raise RuleError(f"'{text.strip()}' is no condition; allowed: size {' or '.join(_RELATIONS.values())} size")


def _terms(text: str) -> tuple[Term, ...]:
    tree = parsed(text)
    return tuple(map(_term, tree.elts)) if isinstance(tree, ast.Tuple) else (_term(tree),)


def _term(tree: ast.expr) -> Term:
    match tree:
        case ast.Name(name):
            return TermVariable(name)
        case ast.Call(ast.Name(word), args, keywords):
            attrs = sorted((k.arg or "**", _value(k.value)) for k in keywords)
            return Apply(word, tuple(map(_term, args)), tuple(attrs))
    raise RuleError(f"'{ast.unparse(tree)}' is no term; allowed: variables and applications 'word(term, …, key=value)'")


def _value(tree: ast.expr) -> Value:
    match tree:
        case ast.Constant(bool(value)) | ast.Constant(str(value)):
            return value
        case ast.Tuple(elements):
            return tuple(map(size_of, elements))
    return size_of(tree)
