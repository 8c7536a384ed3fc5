"""Pieces: tensors that are written straight into the buffer of the tensor they are joined into."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Place(NamedTuple):
    """Where a tensor lies: in which buffer, from which byte on."""

    buffer: str
    offset: int = 0


def resolve(name: str, pieces: Mapping[str, Place]) -> Place:
    """The outermost buffer that holds ``name``; ``pieces`` says for each piece where in its container it lies."""
    offset = 0
    while name in pieces:
        name, more = pieces[name]
        offset += more
    return Place(name, offset)
