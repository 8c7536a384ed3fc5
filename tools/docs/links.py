"""Links of documents that lead out of `docs`: to pages of the site where it has them, else the name of the file."""

from __future__ import annotations

import re

PAGES = {
    "../ARCHITECTURE.md": "architecture.md",
    "../CONTRIBUTING.md": "contributing.md",
    "../CHANGELOG.md": "changelog.md",
}
_LINK = re.compile(r"\[([^\]]*)\]\((\.\./[^)#\s]*)(#[^)\s]*)?\)")


def inside(text: str, page: str) -> str:
    """The text of a document as the site shows it. ``page``: its name, such as "using" or "architecture"."""
    if f"../{page.upper()}.md" in PAGES:  # one of the repository's own, whose links begin there
        text = re.sub(r"\]\(docs/", "](", text)
        text = re.sub(r"\]\((?!https?:|#|[\w.-]+\.md)([\w./-]+)", r"](../\1", text)
        text = re.sub(r"\]\((README|ARCHITECTURE|CONTRIBUTING|CHANGELOG)\.md", r"](../\1.md", text)

    def shown(found: re.Match[str]) -> str:
        label, target, anchor = found[1], found[2], found[3] or ""
        if target in PAGES:
            return f"[{label}]({PAGES[target]}{anchor})"
        if target == "../README.md":
            return f"[{label}](index.md)"
        name = target.removeprefix("../")
        return label if name in label else f"{label} (`{name}`)"

    return _LINK.sub(shown, text)
