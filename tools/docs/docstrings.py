"""Docstrings as the site reads them: they are plain text with literals, in which nothing else is markup."""

from __future__ import annotations

import re
from typing import Any

_LITERAL = re.compile(r"(``.+?``|:\w+:`[^`]+`|`[^`]+`)", re.DOTALL)
_MARKUP = re.compile(r"(\*|\||(?<=\w)_(?!\w))")


def escape(app: object, what: str, name: str, value: object, options: object, lines: list[str]) -> None:
    """Escapes what reStructuredText would take as markup, in place; examples stay as they are."""
    paragraphs = "\n".join(lines).split("\n\n")
    lines[:] = "\n\n".join(map(_escaped, paragraphs)).split("\n")


def _escaped(paragraph: str) -> str:
    """A paragraph without markup outside of literals, which may go over the end of a line."""
    text, example, results = paragraph.partition(">>>")
    parts = _LITERAL.split(text)
    return "".join(p if at % 2 else _MARKUP.sub(r"\\\1", p) for at, p in enumerate(parts)) + example + results


def is_foreign(app: object, what: str, name: str, value: Any, skip: bool, options: object) -> bool | None:
    """Whether a member is of another package, whose docstrings are not ours: None leaves the decision to others."""
    module = getattr(getattr(value, "__func__", value), "__module__", None)
    return True if isinstance(module, str) and not module.startswith("burnish") and callable(value) else None
