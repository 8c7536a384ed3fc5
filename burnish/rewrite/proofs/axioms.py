"""The axioms that substitutions are proved from: named laws of the operators, in ``axioms.txt``."""

from __future__ import annotations

from functools import lru_cache
from importlib.resources import files

from burnish.rewrite.language.terms import RewriteRule, parse_rules

RESOURCES = files("burnish.rewrite")


@lru_cache(maxsize=1)
def load_axioms() -> dict[str, RewriteRule]:
    """All axioms by name, in the order of the file."""
    text = (RESOURCES / "axioms.txt").read_text(encoding="utf-8")
    return {rule.name: rule for rule in parse_rules(text, "axioms.txt")}
