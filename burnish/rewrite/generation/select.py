"""Selection of the substitutions that are shipped, from those found and those stated, each with its proof.

1. A generated rule is proved: without its conditions, where the proof needs none of them.
2. A statement, a rule that has a name, is shipped as the generator found it, if it did, read in the same direction;
   else as it is stated. It may be a special case of what was found: narrower rules are matched faster.
3. Of the other generated rules those are shipped that save something and that those shipped before do not imply, the
   smallest first. They hold no constants, and their left sides are small, without operators of one tensor twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from burnish.errors import RuleError
from burnish.rewrite.generation.generate import Generated
from burnish.rewrite.language.terms import Apply, RewriteRule, Term, TermVariable, subterms
from burnish.rewrite.proofs.proof import Proof
from burnish.rewrite.proofs.prove import EFFORTS, Effort, Prover
from burnish.rewrite.search.match import compile_rules
from burnish.rewrite.search.table import COMMUTATIVE, CONSTANT_WORDS

STATEMENT = "statement"  # the origin of a rule that the generator did not find
_ONCE = (Effort(3, 200, True),)  # enough to find an instance of one rule
_SEVERAL = (Effort(5, 600, True),)
_LARGEST = 3  # operators on the left of a rule without a name: what is larger is mostly made of smaller ones


@dataclass
class RuleSelection:
    """``rules``, each with its proof in ``proofs``. ``unproved``: what was found but does not follow from the axioms,
    smallest first.
    """

    rules: list[RewriteRule] = field(default_factory=list)
    proofs: dict[str, Proof] = field(default_factory=dict)
    unproved: list[RewriteRule] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The rules as :func:`terms.parse_rules` reads them."""
        head = "# The substitutions that Burnish ships, made by `burnish rewrite generate --proofs`: see proofs.txt.\n"
        return "\n".join([head, *map(str, self.rules)])

    def __str__(self) -> str:
        found = sum(rule.origin != STATEMENT for rule in self.rules)
        return (
            f"{len(self.rules)} substitutions, {found} of them generated, {len(self.rules) - found} stated;"
            f" {len(self.unproved)} candidates not proved"
        )


def select(
    generated: Sequence[Generated], statements: Sequence[RewriteRule], axioms: Mapping[str, RewriteRule]
) -> RuleSelection:
    """The substitutions to ship. Raises RuleError naming a statement that is not proved."""
    return _Selector(generated, statements, axioms).result


class _Selector:
    def __init__(
        self, generated: Sequence[Generated], statements: Sequence[RewriteRule], axioms: Mapping[str, RewriteRule]
    ) -> None:
        self.result = RuleSelection()
        self.prover = Prover(axioms)
        self.commutes = {name: axiom for name, axiom in axioms.items() if _commutes(axiom)}
        found: list[tuple[RewriteRule, bool]] = []
        for each in generated:
            for rule in each.rules:
                proved = self._proved(rule)
                if proved is None:
                    self.result.unproved.append(rule)
                else:
                    found.append((proved, rule in each.saving))
        self.result.unproved.sort(key=lambda rule: len(str(rule)))
        by_words: dict[object, list[RewriteRule]] = {}
        for rule, _ in found:
            by_words.setdefault(_words(rule), []).append(rule)
        stated, named = [], set[str]()
        for statement in statements:
            same = [rule for rule in by_words.get(_words(statement), ()) if self._implies(rule, statement)]
            equal = next((rule for rule in same if self._implies(statement, rule)), None)
            named.update(rule.name for rule in ([equal] if equal else same[:1]))
            if equal:
                self._ship(replace(_turned(equal, statement), name=statement.name))
            elif same:
                self._ship(replace(statement, origin=same[0].origin))
            else:
                stated.append(statement)
        for statement in stated:
            self._ship(replace(statement, origin=STATEMENT))
        for rule in sorted((r for r, saves in found if saves and r.name not in named), key=lambda rule: len(str(rule))):
            if compile_rules([rule]) and not _special(rule) and not self._follows(rule):
                self._ship(replace(rule, name=self._name(rule)))

    def _proved(self, rule: RewriteRule) -> RewriteRule | None:
        """The rule with no more conditions than its proof needs; None if there is no proof."""
        if not self._provable(rule, EFFORTS):
            return None
        for condition in rule.conditions:
            weaker = replace(rule, conditions=tuple(c for c in rule.conditions if c != condition))
            rule = weaker if self._provable(weaker, EFFORTS[:1]) else rule
        return rule

    def _provable(self, rule: RewriteRule, efforts: Sequence[Effort]) -> bool:
        try:
            return self.prover.prove(rule, efforts) is not None
        except RuleError:  # it has no types
            return False

    def _ship(self, rule: RewriteRule) -> None:
        proof = self.prover.prove(rule)
        if proof is None:
            raise RuleError(f"'{rule.name}' does not follow from the axioms, as far as was looked")
        self.result.rules.append(rule)
        self.result.proofs[rule.name] = proof

    def _implies(self, rule: RewriteRule, other: RewriteRule) -> bool:
        """Whether one rule is an instance of another, up to the order of operands that commute."""
        return _entails({**self.commutes, rule.name: rule}, other, _ONCE)

    def _follows(self, rule: RewriteRule) -> bool:
        """Whether a rule follows from those that are shipped."""
        return _entails({**self.commutes, **{r.name: r for r in self.result.rules}}, rule, _SEVERAL)

    def _name(self, rule: RewriteRule) -> str:
        """A rule's sides without attributes."""
        text = " = ".join(", ".join(map(_skeleton, side)) for side in (rule.left, rule.right))
        names = {r.name for r in self.result.rules}
        return next(name for name in (text, *(f"{text} ({i})" for i in range(2, 99))) if name not in names)


def _entails(axioms: Mapping[str, RewriteRule], rule: RewriteRule, efforts: Sequence[Effort]) -> bool:
    return Prover(axioms).prove(rule, efforts) is not None


def _commutes(axiom: RewriteRule) -> bool:
    """Whether an axiom exchanges two operands, and nothing else."""
    match axiom.left[0], axiom.right[0]:
        case Apply(word, (TermVariable(x), TermVariable(y))), Apply(other, (TermVariable(v), TermVariable(u))):
            return word == other and word in COMMUTATIVE and (x, y) == (u, v)
    return False


def _special(rule: RewriteRule) -> bool:
    """Whether the left side has many operators, or one of one tensor twice; or a constant is in the rule."""
    left, right = (
        {t for term in terms for t in subterms(term) if isinstance(t, Apply)} for terms in (rule.left, rule.right)
    )
    odd = any(len(set(t.args)) < len(t.args) for t in left) or any(t.word in CONSTANT_WORDS for t in left | right)
    return odd or len(left) > _LARGEST


def _words(rule: RewriteRule) -> object:
    """Duplicate key of a rule: the number of terms a side, and the sorted operator words of both sides."""
    sides = (sorted(t.word for side in terms for t in subterms(side) if isinstance(t, Apply))
             for terms in (rule.left, rule.right))  # fmt: skip
    return len(rule.left), tuple(sorted(map(tuple, sides)))


def _turned(rule: RewriteRule, like: RewriteRule) -> RewriteRule:
    """The rule read in the direction of another that says the same."""
    if _alike(rule.left, like.left) and not _alike(rule.right, like.left):
        return rule
    return replace(rule, left=rule.right, right=rule.left) if _alike(rule.right, like.left) else rule


def _alike(terms: Iterable[Term], others: Iterable[Term]) -> bool:
    """Whether the operators stand in the same places, up to operands that commute."""
    return [_shape(t) for t in terms] == [_shape(t) for t in others]


def _shape(term: Term) -> str:
    if isinstance(term, TermVariable):
        return "_"
    parts = [_shape(a) for a in term.args]
    return f"{term.word}({', '.join(sorted(parts) if term.word in COMMUTATIVE else parts)})"


def _skeleton(term: Term) -> str:
    return str(term) if isinstance(term, TermVariable) else f"{term.word}({', '.join(map(_skeleton, term.args))})"
