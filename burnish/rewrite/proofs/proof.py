"""Proofs: which instances of which axioms make the two sides of a rule equal.

Grammar (``str`` prints what :func:`parse_proofs` reads; '#' begins a comment)::

    proof ::= proof NAME                            of the rule called NAME
                by AXIOM [with variable = term; size = size; *lead = [size, …]; …]
                …

A step states an instance of an axiom: what each of its variables, sizes and leading dimensions stands for, in terms of
the rule's. That all steps together imply the rule is congruence: equals put for equals (:mod:`checker`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from burnish.errors import RuleError
from burnish.rewrite.language.sizes import parse_size, put_in, size_text
from burnish.rewrite.language.terms import (
    Apply,
    RewriteRule,
    Term,
    Type,
    blocks,
    parse_term,
    parse_type,
    resize,
    substitute,
)


@dataclass(frozen=True)
class ProofStep:
    """An instance of the axiom called ``axiom``."""

    axiom: str
    variables: Mapping[str, Term]
    sizes: Mapping[str, int]
    leads: Mapping[str, Type]

    def __str__(self) -> str:
        values = [f"{k} = {v}" for k, v in sorted(self.variables.items())]
        values += [f"{k} = {size_text(v)}" for k, v in sorted(self.sizes.items())]
        values += [f"*{k} = {v}" for k, v in sorted(self.leads.items())]
        return f"  by {self.axiom}" + (f" with {'; '.join(values)}" if values else "")

    def instance(self, terms: tuple[Term, ...]) -> list[Term]:
        """Terms of the axiom with everything in them replaced."""
        return [substitute(resize(term, self.sizes), self.variables) for term in terms]

    def type_of(self, declared: Type) -> Type:
        """A declared type of the axiom with everything in it replaced."""
        dims = tuple(put_in(d, self.sizes) for d in declared.dims)
        if declared.lead is None:
            return Type(dims)
        lead = self.leads[declared.lead]
        return Type((*lead.dims, *dims), lead.lead)


@dataclass(frozen=True)
class Proof:
    """Proof of the rule called ``rule``, step by step."""

    rule: str
    steps: tuple[ProofStep, ...]

    def __str__(self) -> str:
        return "\n".join([f"proof {self.rule}", *map(str, self.steps)]) + "\n"


def parse_proofs(text: str, axioms: Mapping[str, RewriteRule], source: str = "proofs") -> dict[str, Proof]:
    """Proofs by the names of what they prove.

    Raises RuleError naming ``source``, the line and the proof, for an axiom that is unknown, or a name that it lacks.
    """
    proofs: dict[str, Proof] = {}
    for number, lines in blocks(text, source):
        kind, _, name = lines[0].partition(" ")
        try:
            if kind != "proof" or not name or name in proofs:
                raise RuleError("a proof begins with 'proof NAME', once for each rule")
            proofs[name] = Proof(name, tuple(_step(line, axioms) for line in lines[1:]))
        except RuleError as error:
            raise RuleError(f"{source}, line {number}, '{lines[0]}': {error}") from None
        except RecursionError:
            raise RuleError(f"{source}, line {number}, '{lines[0]}': nested too deep") from None
    return proofs


def _step(line: str, axioms: Mapping[str, RewriteRule]) -> ProofStep:
    if not line.startswith("by "):
        raise RuleError(f"'{line}' is no step 'by AXIOM with name = value; …'")
    words = line.removeprefix("by ").split(" with ")  # which may be a word of the axiom's name, too
    splits = [(" with ".join(words[:i]), " with ".join(words[i:])) for i in range(1, len(words) + 1)]
    name, rest = next(((n, r) for n, r in splits if n in axioms), splits[0])
    if name not in axioms:
        raise RuleError(f"'{name}' is no axiom")
    axiom = axioms[name]
    variables, sizes, leads = dict[str, Term](), dict[str, int](), dict[str, Type]()
    for part in rest.split(";") if rest else ():
        key, _, value = (p.strip() for p in part.partition("="))
        if key in axiom.types:
            variables[key] = parse_term(value)
        elif key.startswith("*"):
            leads[key[1:]] = parse_type(value)
        elif key in axiom.sizes:
            sizes[key] = parse_size(value)
        else:
            raise RuleError(f"axiom '{name}' has no '{key}'")
    return ProofStep(name, variables, sizes, leads)


def count(term: Term) -> int:
    """Number of applications in a term."""
    return 1 + sum(map(count, term.args)) if isinstance(term, Apply) else 0
