"""Lazy public names of a package: loaded on first use, listed once, in its stub ``__init__.pyi``.

``__getattr__, __dir__, __all__ = public_names(__name__, __file__)`` makes what the stub imports the package's face; a
type checker reads the same lines.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from burnish.base.optional import needed_for


def public_names(package: str, file: str) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """A package's ``__getattr__``, ``__dir__`` (PEP 562) and ``__all__``, from its stub: ``from module import name as
    name``, where a module is named in full; a subpackage is imported from its package.
    """
    lines = (line.split() for line in Path(file).with_suffix(".pyi").read_text().splitlines())
    homes = {words[3]: words[1] for words in lines if len(words) == 6 and words[::2] == ["from", "import", "as"]}
    public = sorted(homes)

    def load(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}; it has {', '.join(public)}")
        home = homes[name]
        with needed_for(f"{package}.{name}"):
            value = import_module(f"{home}.{name}") if home == package else getattr(import_module(home), name)
        setattr(sys.modules[package], name, value)
        return value

    return load, lambda: list(public), public


def later(module: str, name: str, what: str) -> Any:
    """``name`` of a module that only whole installations have, imported now: for methods of what smaller ones have,
    too. ``what``: the method, for the MissingDependencyError where packages are missing that the module needs.
    """
    with needed_for(what):
        return getattr(import_module(module), name)
