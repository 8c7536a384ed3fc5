"""Dynamic shapes: which extents of example inputs stay open, as the user says it and as torch.export takes it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from burnish.errors import ModelError, ScheduleError
from burnish.loops.sizes import MOST, dim

ALLOWED = (
    "{'batch': (1, 64)} for the first extent of every input, {'x': {0: 'batch', 1: 'tokens'}, 'batch': (1, 64), "
    "'tokens': (1, 512)}, or what torch.export takes as dynamic_shapes"
)


@dataclass(frozen=True)
class Bounds:
    """Bounds of a dimension: a multiple of ``multiple`` from ``low`` to ``high``; kernels suit ``hint`` best."""

    name: str
    low: int = 1
    high: int = MOST
    multiple: int = 1
    hint: int | None = None

    def size(self) -> int:
        """The dimension as an extent in units of ``multiple``: what torch's symbol stands for."""
        name = re.sub(r"\W|^(?=\d)", "_", self.name)
        unit = self.multiple
        hint = None if self.hint is None else self.hint // unit
        return dim(name, -(-self.low // unit), self.high // unit, hint=hint)

    def is_open(self) -> bool:
        """Whether several numbers lie between the bounds."""
        return -(-self.low // self.multiple) < self.high // self.multiple

    def hinted(self, found: int) -> Bounds:
        """The same with ``found`` for a hint, where there is none and it lies within the bounds."""
        fits = self.hint is None and self.low <= found <= self.high and found % self.multiple == 0
        return replace(self, hint=found) if fits else self

    def example(self, found: int) -> int:
        """``found``, or an extent near it with which torch leaves the dimension open: it takes 0 and 1 as special.

        Raises ModelError for one that lies outside.
        """
        if self.low <= found <= self.high and found >= 2 * self.multiple and found % self.multiple == 0:
            return found
        if found > self.multiple and found % self.multiple == 0:
            allowed = f"{self.low} to {self.high}"
            raise ModelError(f"dynamic: dimension '{self.name}': example inputs have {found}; allowed: {allowed}")
        least = max(self.low, 2, 2 * self.multiple)
        return min(-(-least // self.multiple) * self.multiple, self.high)


@dataclass(frozen=True)
class Dynamic:
    """Open dimensions by argument and axis. ``passed``: what the user gave in torch's own terms, if it is more."""

    dims: Mapping[str, Mapping[int, Bounds]] = field(default_factory=dict)
    passed: Any = None

    def shapes(self, arguments: Sequence[str]) -> Any:
        """The ``dynamic_shapes`` of torch.export for these arguments; None where nothing is open."""
        if self.passed is not None:
            return self.passed
        if not any(self.dims.values()):
            return None
        from torch.export import Dim

        made: dict[str, Any] = {}

        def torch_dim(bounds: Bounds) -> Any:
            if bounds.name not in made:
                unit = bounds.multiple
                low, high = -(-bounds.low // unit), bounds.high // unit
                label = re.sub(r"\W|^(?=\d)", "_", bounds.name) + ("" if unit == 1 else f"_by_{unit}")
                made[bounds.name] = unit * Dim(label, min=low, max=high) if unit > 1 else Dim(label, min=low, max=high)
            return made[bounds.name]

        return {name: {axis: torch_dim(b) for axis, b in self.dims.get(name, {}).items()} or None for name in arguments}

    def hinted(self, shapes: Mapping[str, Sequence[int]]) -> Dynamic:
        """Dimensions without a hint get the extents of these shapes of arguments."""
        hinted = {n: {a: b.hinted(shapes[n][a]) for a, b in axes.items()} for n, axes in self.dims.items()}
        return replace(self, dims=hinted)

    def bounds(self) -> Iterator[Bounds]:
        """All dimensions, each once."""
        yield from {b.name: b for axes in self.dims.values() for b in axes.values()}.values()


def read_dynamic(given: Any, tensors: Mapping[str, int]) -> Dynamic:
    """Open dimensions as the user gives them. ``tensors``: the ranks of arguments that are tensors, by name.

    Raises ModelError.
    """
    if given is None:
        return Dynamic()
    if isinstance(given, (tuple, list)):
        given = dict(zip(tensors, given, strict=False))
    if not isinstance(given, Mapping) or not all(isinstance(key, str) for key in given):
        raise ModelError(f"dynamic: found {given!r}; allowed: {ALLOWED}")
    named = {key: _named(key, value) for key, value in given.items() if key not in tensors and _is_bounds(value)}
    entries = {key: value for key, value in given.items() if key not in named}
    if any(_is_nested(value) for value in entries.values()) or not entries.keys() <= tensors.keys():
        unknown = sorted(entries.keys() - tensors.keys())
        if named or any(not isinstance(v, (Mapping, tuple, list, type(None))) for v in entries.values()):
            raise ModelError(f"dynamic: found {unknown or given!r}; arguments are {[*tensors]}; allowed: {ALLOWED}")
        return Dynamic(passed=dict(given))
    dims = {key: _axes(key, value, tensors[key], named) for key, value in entries.items()}
    used = {b.name for axes in dims.values() for b in axes.values()}
    spare = [name for name in named if name not in used]
    if spare and (entries or len(spare) > 1):
        raise ModelError(f"dynamic: dimensions {spare} are of no input; arguments are {[*tensors]}; allowed: {ALLOWED}")
    if spare:
        dims = {name: {0: named[spare[0]]} for name, rank in tensors.items() if rank}
    return Dynamic({name: {a: b for a, b in axes.items() if b.is_open()} for name, axes in dims.items()})


def _is_bounds(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and len(value) >= 2 and all(isinstance(v, int) for v in value)


def _is_nested(value: Any) -> bool:
    """Whether an entry is one of several tensors in one argument: torch's own structure."""
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, (tuple, list)) else ()
    return any(isinstance(p, (Mapping, list)) or (isinstance(p, tuple) and not _is_bounds(p)) for p in parts)


def _named(name: str, bounds: Sequence[int]) -> Bounds:
    if len(bounds) > 4:
        allowed = "(low, high), (low, high, multiple) or (low, high, multiple, hint)"
        raise ModelError(f"dynamic: dimension '{name}': found {tuple(bounds)}; allowed: {allowed}")
    found = Bounds(name, *bounds)
    try:
        found.size()
    except (ScheduleError, ZeroDivisionError) as error:
        raise ModelError(f"dynamic: {error}") from None
    return found


def _axes(argument: str, entry: Any, rank: int, named: Mapping[str, Bounds]) -> dict[int, Bounds]:
    """The open axes of one argument."""
    pairs = entry.items() if isinstance(entry, Mapping) else enumerate(entry or ())
    found = {}
    for axis, value in pairs:
        where = f"dynamic: input '{argument}', axis {axis}"
        if not isinstance(axis, int) or not -rank <= axis < rank:
            raise ModelError(f"{where}: found {value!r}; allowed: axes of its {rank} dimensions")
        if value is None or isinstance(value, int):
            continue
        found[axis % rank] = _bounds_of(value, f"{argument}_{axis % rank}", named, where)
    return found


def _bounds_of(value: Any, default: str, named: Mapping[str, Bounds], where: str) -> Bounds:
    """From the name of a dimension, bounds, or a dimension of torch."""
    if isinstance(value, str):
        if value not in named:
            raise ModelError(
                f"{where}: dimension '{value}' has no bounds; pass them: dynamic={{'{value}': (1, 512), …}}"
            )
        return named[value]
    if _is_bounds(value):
        return _named(default, value)
    kind = type(value).__name__
    if kind == "Dim" or hasattr(value, "min"):
        high = value.max if isinstance(value.max, int) else MOST
        return Bounds(value.__name__, value.min, min(high, MOST))
    if kind == "_DimHint":
        least, most = getattr(value, "min", None), getattr(value, "max", None)
        return Bounds(default, 1 if least is None else least, MOST if most is None else most)
    raise ModelError(f"{where}: found {value!r}; allowed: a name, (low, high), or a torch.export.Dim")
