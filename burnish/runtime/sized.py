"""Symbol binding: what the shapes of inputs decide: values of dimensions, output shapes, places in the arena."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from burnish.errors import InputError
from burnish.loops.sizes import Dim, SymbolicSize, is_size, nondecreasing, solve, valued
from burnish.memory.share import ArenaPlan, plan, replan
from burnish.runtime.buffers import numpy_dtype
from burnish.runtime.executable import Executable, TensorSpec

Shape = tuple[int, ...]
KEPT = 8  # sizes of which a module remembers what they decide
FEW_BYTES = 1 << 12  # of an array of which a part may keep the memory
KEPT_PLANS = 64  # arenas that it remembers, of some kilobytes each


@dataclass(frozen=True, eq=False)
class Sized:
    """``inputs``, ``outputs``: shape and dtype of each; ``values``: of the dimensions, in the executable's order.

    ``offsets``: of every address that a call enters into its arguments, in bytes, in order.
    """

    inputs: list[tuple[Shape, np.dtype]]
    outputs: list[tuple[Shape, np.dtype]]
    values: list[int]
    offsets: np.ndarray
    arena_bytes: int


def bind(specs: Sequence[TensorSpec], shapes: Sequence[Shape]) -> dict[str, int]:
    """The value of every dimension in the inputs ``specs``, by name, where these have ``shapes``.

    The rank and the extents that are numbers agree already. Raises InputError, naming the input and the dimension, for
    extents that differ, are no multiple, or lie outside of the bounds.
    """
    values: dict[str, int] = {}
    origin: dict[str, str] = {}
    for spec, shape in zip(specs, shapes, strict=True):
        for axis, (extent, found) in enumerate(zip(spec.shape, shape, strict=True)):
            if is_size(extent):
                _solve(spec.name, axis, extent, found, values, origin)
    for spec, shape in zip(specs, shapes, strict=True):
        wanted = spec.at(values)
        if shape != wanted:
            allowed = f"with {_list(values)}: {list(wanted)}"
            raise InputError(f"input '{spec.name}' has shape {list(shape)}; allowed {allowed}")
    return values


def _solve(
    name: str, axis: int, extent: SymbolicSize, found: int, values: dict[str, int], origin: dict[str, str]
) -> None:
    """Adds the value of the dimension of an extent, if it has only one."""
    try:
        solved = solve(extent, found)
    except ValueError:
        raise InputError(f"input '{name}', axis {axis}: found {found}; allowed: {_range(extent)}") from None
    if solved is None:
        return
    dim, value = solved
    if values.setdefault(dim.name, value) != value:
        first = f"'{origin[dim.name]}' has {values[dim.name]}, '{name}' has {value}"
        raise InputError(f"inputs differ in {dim.name}: {first}; allowed: the same number")
    origin.setdefault(dim.name, name)
    if not dim.low <= value <= dim.high:
        raise InputError(f"input '{name}', axis {axis}: found {found}; allowed: {_range(extent)}")


def _range(extent: SymbolicSize) -> str:
    (dim,) = extent.dims
    form = "" if str(extent) == str(dim) else f"{extent}, "
    return f"{form}{dim} from {dim.low} to {dim.high}"


def _list(values: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


class Beginnings:
    """The parts of outputs that a call fills: those whose extents it counts are as long as they may be at most."""

    def __init__(self, specs: Sequence[TensorSpec]) -> None:
        self._open = [(i, self._extents(spec)) for i, spec in enumerate(specs) if spec.dims]

    @staticmethod
    def _extents(spec: TensorSpec) -> list[Any]:
        """Numbers, names of dimensions, and sizes of other forms."""
        alone: dict[Any, str] = {(((d,), 1),): d.name for d in spec.dims}
        shape: list[Any] = [*spec.shape]
        return [alone.get(e.terms, e) if is_size(e) and e.terms and not e.constant else e for e in shape]

    def __call__(self, arrays: Sequence[np.ndarray], sizes: Mapping[str, int]) -> list[np.ndarray]:
        """The arrays with the shapes that these values of dimensions give them; what is much smaller is copied, so that
        it does not keep the memory of all.
        """
        found = list(arrays)
        for i, extents in self._open:
            shape = tuple([sizes[e] if isinstance(e, str) else valued(e, sizes) for e in extents])
            array = found[i]
            if shape == array.shape:
                continue
            own = np.ndarray(shape, array.dtype, array)
            found[i] = own.copy() if array.nbytes > FEW_BYTES and own.nbytes * 8 <= array.nbytes else own
        return found


class ArenaPlanner:
    """Places in the arena of symbolic sizes: planned for sizes rounded up, so that a cache may grow from call to call.

    The first plan is a search, for the dimensions' hints; the others take its order (``memory.share.replan``).
    """

    def __init__(self, executable: Executable) -> None:
        self._buffers, self._in_place = executable.buffers, executable.in_place
        self._dims = executable.dims
        self._grows = all(nondecreasing(b.nbytes) for b in self._buffers)
        self._first = plan_at(executable, hints(executable.dims)) if self._buffers else None
        self._plans: dict[tuple[int, ...], tuple[np.ndarray, int]] = {}  # of the last few sizes
        self._fixed = executable.arena_bytes

    def at(self, sizes: Mapping[str, int]) -> tuple[np.ndarray, int]:
        """The offset of each buffer, in order, and a last 0; and the bytes of the arena."""
        if self._first is None:
            return np.zeros(1, np.uint64), self._fixed
        if self._grows:
            sizes = {d.name: rounded_up(sizes[d.name], d.high) for d in self._dims}
        key = tuple(sizes[d.name] for d in self._dims)
        found = self._plans.get(key)
        if found is None:
            buffers = [replace(b, nbytes=valued(b.nbytes, sizes)) for b in self._buffers]
            made = replan(self._first, buffers, self._in_place)
            found = np.array([*(made.offsets[b.name] for b in buffers), 0], np.uint64), made.arena_bytes
            while len(self._plans) >= KEPT_PLANS:
                self._plans.pop(next(iter(self._plans), key), None)
            self._plans[key] = found
        return found


def rounded_up(value: int, high: int) -> int:
    """The next number of four significant bits, at most an eighth larger, but not beyond ``high``."""
    step = 1 << max(value.bit_length() - 4, 0)
    return min(-(-value // step) * step, high)


def sized(
    executable: Executable,
    given: Mapping[str, int],
    arena: ArenaPlanner,
    places: np.ndarray,
    extents: Sequence[tuple[int, int]] = (),
) -> Sized:
    """Types, offsets and arena of an executable at these values of the dimensions; those that a call counts have their
    greatest. ``places``: of each address, its buffer in the arena or -1, and the offset in what it points into.
    ``extents``: which of them are no addresses but the values of these sizes.
    """
    sizes = {**given, **{d.name: d.high for d in executable.counted}}
    both = executable.inputs, executable.outputs
    inputs, outputs = ([(spec.at(sizes), numpy_dtype(spec.dtype)) for spec in specs] for specs in both)
    values = [sizes[d.name] for d in executable.dims]
    offsets = places[:, 1].astype(np.uint64)
    for at, extent in extents:
        offsets[at] = valued(extent, sizes)
    begins, arena_bytes = arena.at(sizes)  # -1 is the last
    return Sized(inputs, outputs, values, offsets + begins[places[:, 0]], arena_bytes)


def plan_at(executable: Executable, sizes: Mapping[str, int]) -> ArenaPlan:
    """The places of the buffers of a symbolic arena for these values of dimensions."""
    return plan([replace(b, nbytes=valued(b.nbytes, sizes)) for b in executable.buffers], executable.in_place)


def hints(dims: Sequence[Dim]) -> dict[str, int]:
    """Every dimension at its hint."""
    return {d.name: d.hint for d in dims}


def upper_ends(dims: Sequence[Dim]) -> dict[str, int]:
    """Every dimension at its upper bound."""
    return {d.name: d.high for d in dims}
