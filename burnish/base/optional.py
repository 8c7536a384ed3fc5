"""Optional third-party packages, imported where they are first needed through one function that names the extra."""

import importlib
from types import ModuleType

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
