"""Optional third-party packages, imported where they are first needed through one function that names the extra."""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from burnish.errors import MissingDependencyError


def require(package: str, extra: str) -> ModuleType:
    """Imports and returns `package` (dotted names allowed), which `pip install "burnish[extra]"` provides.

    Raises MissingDependencyError if it is not installed. An import that fails for another reason (a broken
    installation) keeps its own error.
    """
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        root = package.partition(".")[0]
        if error.name is None or error.name.partition(".")[0] != root:
            raise
        raise MissingDependencyError(
            f'{root} is not installed, but is needed here: pip install "burnish[{extra}]"'
        ) from None


@contextmanager
def needed_for(what: str) -> Iterator[None]:
    """Imports of what every installation has but one for running models alone, which ``--no-deps`` makes.

    Raises MissingDependencyError where they have it not.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        root = (error.name or "burnish").partition(".")[0]
        if root == "burnish":
            raise
        raise MissingDependencyError(
            f"{root} is not installed, but is needed here: pip install burnish (without --no-deps), for {what}"
        ) from error


class Missing:
    """Stand-in for a package that is not installed, whose use :func:`require` refuses."""

    def __init__(self, package: str, extra: str) -> None:
        self._package, self._extra = package, extra

    def __getattr__(self, name: str) -> Any:
        return getattr(require(self._package, self._extra), name)


def optional(package: str, extra: str) -> Any:
    """The package, or, where it is not installed, what raises MissingDependencyError when it is used."""
    try:
        return require(package, extra)
    except MissingDependencyError:
        return Missing(package, extra)
