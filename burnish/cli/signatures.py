"""Signatures of functions and dataclasses, and names of registries, read from source without importing its module.

The help of a command needs names, types, defaults and docstrings of what would take seconds to import.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import sys
from collections.abc import Iterator
from dataclasses import MISSING, Field, dataclass
from functools import cache, cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import burnish


@dataclass(frozen=True)
class Declaration:
    """A function, dataclass, registry or constant of a module of Burnish, by ``place``: "burnish.tune.session:Tune"."""

    place: str

    @cached_property
    def parameters(self) -> list[inspect.Parameter]:
        """Parameters of the function, or of the dataclass's constructor, with their types; Any for types of Burnish."""
        definition, names = self._definition, self._names
        if isinstance(definition, ast.ClassDef):
            assert not definition.bases, f"{self.place}: fields of bases are not read"
            return [_parameter(each.target.id, each.annotation, each.value, names) for each in definition.body
                    if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)]  # fmt: skip
        given = definition.args
        every = [*given.posonlyargs, *given.args]
        defaults = [*[None] * (len(every) - len(given.defaults)), *given.defaults, *given.kw_defaults]
        return [
            _parameter(each.arg, each.annotation, default, names)
            for each, default in zip([*every, *given.kwonlyargs], defaults, strict=True)
        ]

    @property
    def doc(self) -> str:
        """The docstring, its indentation removed."""
        return ast.get_docstring(self._definition) or ""

    def __iter__(self) -> Iterator[str]:
        """The keys of a registry, or the elements of another constant."""
        return iter(self.constant)

    @property
    def constant(self) -> Any:
        """The value of a constant; functions and classes in it are Any."""
        return self._names[self._name]

    def load(self) -> Any:
        """The function, class or constant itself, whose module is imported."""
        return getattr(import_module(self._module), self._name)

    @property
    def _module(self) -> str:
        return self.place.partition(":")[0]

    @property
    def _name(self) -> str:
        return self.place.partition(":")[2]

    @property
    def _names(self) -> _Names:
        return _names_of(self._module)

    @property
    def _definition(self) -> ast.ClassDef | ast.FunctionDef:
        return self._names.defined[self._name]


class _Names(dict[str, Any]):
    """Values of the names in a module's source: constants, and what it imports of the standard library; else Any."""

    def __init__(self, module: str) -> None:
        super().__init__()
        path = Path(burnish.__file__).parent.joinpath(*module.split(".")[1:])
        tree = ast.parse((path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_bytes())
        self.defined = {n.name: n for n in tree.body if isinstance(n, (ast.ClassDef, ast.FunctionDef))}
        self.assigned: dict[str, ast.expr] = {}
        self.imported: dict[str, tuple[str, str]] = {}
        for node in tree.body:
            if isinstance(node, ast.ImportFrom) and node.module:
                self.imported |= {n.asname or n.name: (node.module, n.name) for n in node.names}
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
                self.assigned[node.target.id] = node.value
            elif isinstance(node, ast.Assign):
                for target in node.targets:
                    if isinstance(target, ast.Name):
                        self.assigned[target.id] = node.value
                    elif isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                        pairs = zip(target.elts, node.value.elts, strict=True)
                        self.assigned |= {name.id: value for name, value in pairs if isinstance(name, ast.Name)}

    def __missing__(self, name: str) -> Any:
        if name in self.assigned:
            return self.value(self.assigned[name])
        if name in self.imported:
            module, original = self.imported[name]
            if module.split(".")[0] == burnish.__name__:
                return Any if module == burnish.__name__ else _names_of(module)[original]
            return getattr(import_module(module), original) if module.split(".")[0] in sys.stdlib_module_names else Any
        return getattr(builtins, name, Any)

    def value(self, node: ast.expr | None) -> Any:
        """The value of an expression; Any where that takes what is not read."""
        try:
            code = compile(ast.Expression(node), "<signature>", "eval")  # type: ignore[arg-type]
            return eval(code, {"__builtins__": {}}, self)  # noqa: S307  (our own source)
        except (TypeError, AttributeError, ValueError):
            return Any


@cache
def _names_of(module: str) -> _Names:
    return _Names(module)


def _parameter(name: str, annotation: ast.expr | None, default: ast.expr | None, names: _Names) -> inspect.Parameter:
    found = inspect.Parameter.empty if default is None else names.value(default)
    if isinstance(found, Field):
        found = found.default if found.default is not MISSING else found.default_factory
    hint = Any if annotation is None else names.value(annotation)
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=found, annotation=hint)
