"""Hash-consing: nodes of a grammar are immutable, and equal ones may be one object.

Comparing and hashing interned nodes costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import MISSING, Field, dataclass
from threading import RLock
from typing import Any, TypeVar, dataclass_transform
from weakref import ref

T = TypeVar("T")

_creation = RLock()
_NONE: frozenset[str] = frozenset()


@dataclass_transform(frozen_default=True)
def immutable(**options: Any) -> Callable[[type[T]], type[T]]:
    """A dataclass with slots, frozen for the type checker, which refuses every later assignment to a field.

    Frozen at run time it would take four times as long to create, and creating nodes is most of what a schedule does.
    """
    hashed = {"unsafe_hash": True} if options.get("eq", True) else {}
    return dataclass(slots=True, **hashed, **options)


class Rebuilt:
    """Base of dataclasses that are copied and unpickled by making them anew from their fields."""

    __slots__ = ()
    __match_args__: tuple[str, ...]

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return type(self), tuple([getattr(self, name) for name in self.__match_args__])


class _Known(ref[Any]):
    """A node, held weakly, with the fields by which it is found."""

    __slots__ = ("key",)

    key: tuple[object, ...]


class Interned(type):
    """The class of classes whose instances are their fields: two live instances with equal fields are the same object.

    For :func:`immutable` dataclasses with ``eq=False``: equality is identity. What follows from the fields alone can
    be computed once, in ``__post_init__``. Instances are held weakly.
    """

    __match_args__: tuple[str, ...]
    __dataclass_fields__: dict[str, Field[Any]]

    def __init__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any) -> None:
        super().__init__(name, bases, namespace, **options)
        nodes: dict[tuple[object, ...], _Known] = {}
        cls._nodes = nodes
        creation = _creation  # nodes may outlive this module when the interpreter ends

        def forget(reference: Any) -> None:
            key = reference.key
            with creation:
                if nodes.get(key) is reference:
                    del nodes[key]

        cls._forget = forget

    def __call__(cls, *fields: Any, **named: Any) -> Any:
        """The one instance with these fields, made if there is none."""
        if named or len(fields) < len(cls.__match_args__):
            fields = cls._complete(fields, named)
        key = fields
        if fields[0].__class__ in (float, bool):  # equal numbers that are not the same: 0.0 and -0.0, 1.0 and 1
            key = (fields[0].__class__, repr(fields[0]), *fields[1:])
        nodes = cls._nodes
        known = nodes.get(key)
        node = known() if known is not None else None
        if node is None:
            with _creation:
                known = nodes.get(key)  # another thread may have made the same
                node = known() if known is not None else None
                if node is None:
                    node = super().__call__(*fields)
                    made = nodes[key] = _Known(node, cls._forget)
                    made.key = key
        return node

    def _complete(cls, fields: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
        """All fields in order: those given by position or name, and defaults."""
        defaults = {name: field.default for name, field in cls.__dataclass_fields__.items()}
        given = dict(zip(cls.__match_args__, fields, strict=False)) | named
        unknown = [name for name in cls.__match_args__ if name not in given and defaults[name] is MISSING]
        if unknown or not given.keys() <= defaults.keys() or len(fields) > len(cls.__match_args__):
            super().__call__(*fields, **named)  # raises the TypeError that says what is wrong
        return tuple([given[name] if name in given else defaults[name] for name in cls.__match_args__])


def union(sets: Iterable[frozenset[str]]) -> frozenset[str]:
    """The union; one of the sets itself where that holds all others."""
    whole = _NONE
    for names in sets:
        if names and names is not whole:
            whole = whole | names if whole and not names <= whole else whole or names
    return whole
