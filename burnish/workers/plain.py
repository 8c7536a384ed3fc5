"""Plain values as JSON text and arrays: how jobs and their results travel between processes, without pickle.

Plain are None, bool, int, float, str, bytes, NumPy arrays and scalars, and lists, tuples, frozensets, dicts with string
keys, dataclasses of plain values, functions and classes of modules, which travel as their names, and partial calls of
them.

A document is ``{"classes": [[module, file, name], ...], "objects": [[class, field, ...], ...], "value": value}``. Each
dataclass instance is one object, which others refer to by its number, so that what is shared stays shared. One whose
``import_path`` (``module:name``) leads to it travels as that path. Reading calls nothing but dataclasses.
"""

import dataclasses
import importlib
import importlib.util
import json
import sys
from collections.abc import Callable
from functools import lru_cache, partial
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnish.errors import ParameterError

Array = NDArray[Any]
_MAIN = "__burnish_main__"  # what a script of the parent process is called where it is imported by a worker
_NUMBERS = "biufc"  # kinds of NumPy's own dtypes that can be sent


def encode(value: Any, where: str) -> tuple[str, list[Array]]:
    """JSON text and the arrays that it refers to. Raises ParameterError, naming `where`, for any other value."""
    writer = _Writer(where)
    found = writer.plain(value)
    document = {"classes": writer.classes, "objects": writer.objects, "value": found}
    return json.dumps(document, separators=(",", ":")), writer.arrays


def decode(text: str, arrays: list[Array]) -> Any:
    """The value that `encode` was given; its arrays are those passed, not copies.

    Raises ValueError, LookupError, TypeError or AttributeError for what `encode` did not write.
    """
    document = json.loads(text)
    reader = _Reader(document["classes"], arrays)
    for class_number, *fields in document["objects"]:
        reader.build(class_number, fields)
    return reader.value(document["value"])


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


class _Writer:
    """One document while it is written."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.arrays: list[Array] = []
        self.classes: list[list[str]] = []
        self.objects: list[list[Any]] = []
        self._class_numbers: dict[type, int] = {}
        self._known: dict[int, tuple[Any, Any]] = {}  # by id: the object, kept alive, and what stands for it

    def plain(self, value: Any) -> Any:
        """JSON encoding of a value."""
        kind = type(value)
        if value is None or kind in (str, int, float, bool):
            return value
        if isinstance(value, list):
            return [self.plain(item) for item in value]
        if isinstance(value, tuple):
            return {"tuple": [self.plain(item) for item in value]}
        if isinstance(value, dict) and all(isinstance(key, str) for key in value):
            return {"dict": {key: self.plain(item) for key, item in value.items()}}
        if kind is frozenset:
            return {"set": [self.plain(item) for item in value]}
        if kind is bytes:
            return {"bytes": self._array(np.frombuffer(value, np.uint8))}
        if isinstance(value, np.ndarray | np.generic):
            return {"scalar" if isinstance(value, np.generic) else "array": self._array(np.asarray(value))}
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return self._object(value)
        if callable(value) and hasattr(value, "__qualname__"):
            return {"function": reference(value, self.where)}
        if isinstance(value, partial):
            return {"partial": [self.plain(item) for item in (value.func, list(value.args), value.keywords)]}
        if isinstance(value, bool | int | float | str):
            return value
        raise ParameterError(
            f"{self.where}: a value of type {kind.__name__}, allowed: plain values (None, numbers, strings, bytes, "
            "arrays, lists, tuples, frozensets, dicts with string keys, dataclasses) and functions of modules"
        )

    def _array(self, array: Array) -> int:
        if not (array.dtype.kind in _NUMBERS or _is_ml_dtype(array.dtype)) or not array.dtype.isnative:
            raise ParameterError(f"{self.where}: array of dtype {array.dtype}, allowed: numbers in native byte order")
        self.arrays.append(array if array.flags.c_contiguous else np.ascontiguousarray(array))
        return len(self.arrays) - 1

    def _object(self, value: Any) -> Any:
        known = self._known.get(id(value))
        if known is None:
            path = getattr(value, "import_path", "")
            if path and _imported(path) is value:
                found = {"import": path}
            else:
                cls: Any = type(value)
                row = [self._class(cls), *(self.plain(getattr(value, name)) for name in _fields(cls))]
                found = {"object": len(self.objects)}
                self.objects.append(row)
            known = self._known[id(value)] = (value, found)
        return known[1]

    def _class(self, cls: type) -> int:
        number = self._class_numbers.get(cls)
        if number is None:
            number = self._class_numbers[cls] = len(self.classes)
            self.classes.append(reference(cls, self.where))
        return number


class _Reader:
    """One document while it is read."""

    def __init__(self, classes: list[list[str]], arrays: list[Array]) -> None:
        self._arrays = arrays
        self._classes = [resolve(found) for found in classes]
        for cls in self._classes:
            if not (isinstance(cls, type) and dataclasses.is_dataclass(cls)):
                raise TypeError(f"{cls!r} is no dataclass")
        self._objects: list[Any] = []

    def build(self, number: int, fields: list[Any]) -> None:
        """Adds the next object."""
        cls = self._classes[number]
        names = _fields(cls)
        values = [self.value(field) for field in fields]
        if len(names) != len(values):
            raise TypeError(f"{len(values)} fields of {cls.__name__}, which has {len(names)}")
        if names == getattr(cls, "__match_args__", ()):
            self._objects.append(cls(*values))
        else:  # fields by name alone
            self._objects.append(cls(**dict(zip(names, values, strict=True))))

    def value(self, plain: Any) -> Any:
        """The value that JSON holds something in place of."""
        if isinstance(plain, list):
            return [self.value(item) for item in plain]
        if not isinstance(plain, dict):
            return plain
        ((kind, content),) = plain.items()
        match kind:
            case "object":
                return self._objects[content]
            case "tuple":
                return tuple([self.value(item) for item in content])
            case "dict":
                return {key: self.value(item) for key, item in content.items()}
            case "set":
                return frozenset([self.value(item) for item in content])
            case "array":
                return self._arrays[content]
            case "scalar":
                return self._arrays[content][()]
            case "bytes":
                return self._arrays[content].tobytes()
            case "import":
                return _imported(content)
            case "function":
                return resolve(content)
            case "partial":
                function, arguments, keywords = (self.value(item) for item in content)
                return partial(function, *arguments, **keywords)
        raise ValueError(f"a value of kind {kind!r}")


@lru_cache(maxsize=4096)
def _fields(cls: Any) -> tuple[str, ...]:
    """Names of the fields that make an instance."""
    return tuple(field.name for field in dataclasses.fields(cls) if field.init)


def dtype_called(name: str) -> np.dtype[Any]:
    """A dtype by the name that it gives itself, also one of ``ml_dtypes``. Raises TypeError for any other."""
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name, name))


def _is_ml_dtype(dtype: np.dtype[Any]) -> bool:
    return dtype.type.__module__ == "ml_dtypes"


def _imported(path: str) -> Any:
    """Object at an import path ``module:name``."""
    module, _, name = path.partition(":")
    return _lookup(importlib.import_module(module), name)


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
