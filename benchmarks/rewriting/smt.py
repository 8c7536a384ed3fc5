"""SMT check of rules by Z3: the axioms, at the sizes that a rule has, entail it (thesis-jia, section 2.4).

Tensors are of one sort; a word with its attributes and the types of its arguments is one function, so that sizes need
no arithmetic. Axioms are quantified over tensors. Nothing here knows what the e-graph found equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from time import perf_counter
from typing import Any

from burnish.base import optional
from burnish.rewrite.language.terms import Apply, RewriteRule, Term, TermVariable, Type
from burnish.rewrite.language.terms import variables as variables_of
from burnish.rewrite.language.types import Typing, canonical_rule
from burnish.rewrite.proofs.proof import ProofStep
from burnish.rewrite.proofs.prove import Prover, sizes_used

TIERS = ({"mbqi": False, "auto_config": False, "timeout": 200}, {"timeout": 1000})  # milliseconds


class Entailment:
    """Whether axioms entail equations over a rule's variables. Raises MissingDependencyError without Z3."""

    def __init__(self, rule: RewriteRule, prover: Prover) -> None:
        self.z3: Any = optional.require("z3", "rewrite")
        self.rule = canonical_rule(rule)
        self.context = self.z3.Context()
        self.tensor = self.z3.DeclareSort("tensor", self.context)
        self.functions: dict[tuple[object, ...], Any] = {}
        self.typing = Typing(self.rule.types)
        self.constants = self._constants(self.rule.types)
        found = (self._axiom(prover.plain[step.axiom], step) for step in sizes_used(rule, prover))
        self.axioms = [axiom for axiom in found if axiom is not None]
        sides = (*self.rule.left, *self.rule.right)
        named = self._constants({f"side {i}": self.typing.type_of(t) for i, t in enumerate(sides)}).values()
        # Z3 instantiates axioms at terms that it sees: it sees the rule's, whatever is asked.
        self.axioms += [c == self._encode(t, self.typing, self.constants) for c, t in zip(named, sides, strict=True)]
        self.seconds = 0.0  # that Z3 took for the last answer

    def proves(self, equations: Iterable[tuple[Term, Term]] | None = None) -> bool:
        """Whether Z3 finds that the axioms entail the equations (None: the rule's). False: no, or it gave up."""
        pairs = zip(self.rule.left, self.rule.right, strict=True) if equations is None else equations
        sides = [[self._encode(t, self.typing, self.constants) for t in pair] for pair in pairs]
        began = perf_counter()
        goal = self.z3.And(*(a == b for a, b in sides))
        answer = any(self._unsatisfiable(goal, options) for options in TIERS)
        self.seconds = perf_counter() - began
        return answer

    def _unsatisfiable(self, goal: Any, options: Mapping[str, object]) -> bool:
        solver = self.z3.SimpleSolver(ctx=self.context)
        solver.set(**options)
        solver.add(*self.axioms, self.z3.Not(goal))
        return bool(solver.check() == self.z3.unsat)

    def _axiom(self, axiom: RewriteRule, step: ProofStep) -> Any:
        """An axiom at the sizes of a step, for all tensors."""
        types = {name: step.type_of(declared) for name, declared in axiom.types.items()}
        typing, variables = Typing(types), self._constants(types)
        ((left, right),) = zip(step.instance(axiom.left), step.instance(axiom.right), strict=True)
        a, b = (self._encode(typing.canonical(t), typing, variables) for t in (left, right))
        if not variables:
            return a == b
        patterns = [p for p, t in ((a, left), (b, right)) if isinstance(t, Apply) and variables_of(t) == types.keys()]
        return self.z3.ForAll(list(variables.values()), a == b, patterns=patterns)

    def _constants(self, types: Mapping[str, Type]) -> dict[str, Any]:
        return {name: self.z3.Const(name, self.tensor) for name in types}

    def _encode(self, term: Term, typing: Typing, variables: Mapping[str, Any]) -> Any:
        if isinstance(term, TermVariable):
            return variables[term.name]
        key = (term.word, term.attrs, *(typing.type_of(a) for a in term.args))
        if key not in self.functions:
            name = f"{term.word}.{len(self.functions)}"
            sorts = [self.tensor] * len(term.args)
            make = self.z3.Function if sorts else self.z3.Const
            self.functions[key] = make(name, *sorts, self.tensor)
        arguments = [self._encode(a, typing, variables) for a in term.args]
        return self.functions[key](*arguments) if arguments else self.functions[key]
