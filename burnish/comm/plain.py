"""Plain values as JSON text and arrays: how arguments and results travel to worker processes, without pickle.

Plain are None, bool, int, float, str, NumPy arrays and scalars, and lists, tuples, dicts with string keys, dataclasses
of plain values, and functions of modules, which travel as their names.
"""

import dataclasses
import importlib
import importlib.util
import json
import sys
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

from burnish.comm.protocol import Array, checked
from burnish.errors import ParameterError

_MAIN = "__burnish_main__"  # what a script of the parent process is called where it is imported by a worker


def encode(value: Any, where: str) -> tuple[str, list[Array]]:
    """JSON text and the arrays that it refers to. Raises ParameterError, naming `where`, for any other value."""
    arrays: list[Array] = []
    return json.dumps(_plain(value, arrays, where), separators=(",", ":")), arrays


def decode(text: str, arrays: list[Array]) -> Any:
    """The value that `encode` was given; its arrays are those passed, not copies."""
    return _value(json.loads(text), arrays)


def reference(function: Callable[..., Any] | type, where: str) -> list[str]:
    """Module, file and name by which another process finds a function or class.

    Raises ParameterError for one that has no such name: a lambda, a method of an object, a function in a function.
    """
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if module is None or name is None or "<" in name or _lookup(sys.modules.get(module), name) is not function:
        raise ParameterError(
            f"{where}: {function!r} cannot be found by name from another process; allowed: functions and classes at "
            "the top level of a module"
        )
    return [module, getattr(sys.modules[module], "__file__", None) or "", name]


def resolve(found: list[str]) -> Any:
    """The function or class that `reference` named."""
    module, file, name = found
    return _lookup(_module(module, file), name)


def _plain(value: Any, arrays: list[Array], where: str) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value if not isinstance(value, np.generic) else value.item()
    if isinstance(value, np.ndarray | np.generic):
        arrays.append(checked(np.asarray(value), where))
        return {"scalar" if isinstance(value, np.generic) else "array": len(arrays) - 1}
    if isinstance(value, list):
        return [_plain(item, arrays, where) for item in value]
    if isinstance(value, tuple):
        return {"tuple": [_plain(item, arrays, where) for item in value]}
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {"dict": {key: _plain(item, arrays, where) for key, item in value.items()}}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: _plain(getattr(value, f.name), arrays, where) for f in dataclasses.fields(value) if f.init}
        return {"dataclass": reference(type(value), where), "fields": fields}
    if isinstance(value, FunctionType | type):
        return {"function": reference(value, where)}
    raise ParameterError(
        f"{where}: a value of type {type(value).__name__}, allowed: plain values (None, numbers, strings, arrays, "
        "lists, tuples, dicts with string keys, dataclasses) and functions of modules"
    )


def _value(plain: Any, arrays: list[Array]) -> Any:
    if isinstance(plain, list):
        return [_value(item, arrays) for item in plain]
    if not isinstance(plain, dict):
        return plain
    kind, content = next(iter(plain.items()))
    match kind:
        case "array":
            return arrays[content]
        case "scalar":
            return arrays[content][()]
        case "tuple":
            return tuple(_value(item, arrays) for item in content)
        case "dict":
            return {key: _value(item, arrays) for key, item in content.items()}
        case "dataclass":
            return resolve(content)(**{key: _value(item, arrays) for key, item in plain["fields"].items()})
    return resolve(content)


def _lookup(module: ModuleType | None, name: str) -> Any:
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def _module(name: str, file: str) -> ModuleType:
    """A module by its name; a script that is ``__main__`` elsewhere is loaded from its file, under another name."""
    if name != "__main__":
        return importlib.import_module(name)
    if _MAIN not in sys.modules:
        specification = importlib.util.spec_from_file_location(_MAIN, file)
        if specification is None or specification.loader is None:
            raise ParameterError(f"launch: a worker cannot load functions of {file or 'an interactive session'}")
        module = importlib.util.module_from_spec(specification)
        sys.modules[_MAIN] = module
        specification.loader.exec_module(module)
    return sys.modules[_MAIN]
