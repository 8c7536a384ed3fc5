"""Copies between DRAM and on-chip memories as load and store instructions: blocks of rows, with zeros around them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product

import numpy as np

from burnish.errors import ScheduleError
from burnish.loops.expr import Cast, Const, Expr, Load, Select
from burnish.loops.program import For, If, Stmt, Store
from burnish.machines.vdla.address import Env, LinearAddress, address_of, value_of
from burnish.machines.vdla.config import Config
from burnish.machines.vdla.epilogue import nest_of
from burnish.machines.vdla.scopes import ACC, ON_CHIP


@dataclass(frozen=True)
class TransferLoop:
    """A loop over entries: ``sram`` entries and ``dram`` bytes further on in each iteration."""

    var: str
    extent: int
    sram: int
    dram: int


@dataclass(frozen=True)
class Transfer:
    """A nest that copies. ``sram`` counts entries of ``memory``, ``dram`` bytes behind the parameter ``parameter``.

    ``inside``: where it does not hold, zeros are written. ``guards``: what must hold around all of it.
    """

    kind: str
    memory: str
    buffer: str
    parameter: str
    entry: int
    sram: LinearAddress
    dram: LinearAddress
    loops: tuple[TransferLoop, ...]
    inside: tuple[Expr, ...]
    guards: tuple[Expr, ...]

    def blocks(self, env: Env) -> Iterator[dict[str, int]]:
        """The fields of the instructions; ``sram`` and ``dram`` are relative to the buffer and the parameter."""
        *outer, rows, columns = (TransferLoop("", 1, 0, 0), TransferLoop("", 1, 0, 0), *self.loops)
        if columns.extent > 1 and (columns.sram, columns.dram) != (1, self.entry):
            *outer, rows, columns = *outer, rows, columns, TransferLoop("", 1, 0, 0)
        if rows.extent > 1 and (rows.sram != columns.extent or rows.dram % self.entry or rows.dram < 0):
            *outer, rows, columns = *outer, rows, TransferLoop("", 1, 0, 0), columns
        for point in product(*(range(loop.extent) for loop in outer)):
            here = {**env, **{loop.var: i for loop, i in zip(outer, point, strict=True)}}
            yield self._block(here, rows, columns)

    def _block(self, env: dict[str, int], rows: TransferLoop, columns: TransferLoop) -> dict[str, int]:
        first = {**env, rows.var: 0, columns.var: 0}
        found = {"sram": self.sram.at(first), "rows": rows.extent, "columns": columns.extent}
        top, left = 0, 0
        if self.inside:
            grid = {**env, rows.var: np.arange(rows.extent)[:, None], columns.var: np.arange(columns.extent)}
            mask = np.ones((rows.extent, columns.extent), bool)
            for condition in self.inside:
                mask &= np.asarray(value_of(condition, grid), bool)
            y, x = np.nonzero(mask.any(1))[0], np.nonzero(mask.any(0))[0]
            top, left = (int(y[0]), int(x[0])) if len(y) else (rows.extent, columns.extent)
            height, width = len(y), len(x)
            if not mask[top : top + height, left : left + width].all():
                raise ScheduleError(f"buffer '{self.buffer}': what is copied is not one block with zeros around it")
            bottom, right = rows.extent - top - height, columns.extent - left - width
            found |= {"rows": height, "columns": width, "top": top, "bottom": bottom, "left": left, "right": right}
        found["dram"] = self.dram.at(first) + (top * rows.dram + left * columns.dram if found["rows"] else 0)
        found["stride"] = rows.dram // self.entry if rows.extent > 1 else found["columns"]
        return found


def transfer_of(stmt: Stmt, config: Config, ranges: Mapping[str, int]) -> Transfer:
    """The copy that a nest is. Raises ScheduleError, naming the buffer, for what is none."""
    around, store = nest_of(stmt)
    if not isinstance(store, Store) or store.reduce is not None:
        raise ScheduleError(f"there is no instruction for {store}")
    inside, source = _source(store.value)
    to = Load(store.buffer, store.indices)
    kind = "load" if store.buffer.scope in ON_CHIP else "store"
    chip, dram = (to, source) if kind == "load" else (source, to)
    name = f"buffer '{chip.buffer.name}'"
    memory = _memory(chip, dram, name)
    size = config.memories[memory]
    elements = config.block**2 if memory == "wgt" else config.block
    loops = [x for x in around if isinstance(x, For)]
    within = {**ranges, **{x.var: x.extent for x in loops}}
    near, far = address_of(chip, within), address_of(dram, within)
    lanes = _lanes(loops, near, far, elements, name)
    item = size.entry // elements
    rest = [
        TransferLoop(x.var, x.extent, near.step(x.var), far.step(x.var) * item)
        for x in loops
        if x.extent > 1 and x.var not in lanes
    ]
    scaled = near.scaled(elements, name, lanes)
    entries = [TransferLoop(x.var, x.extent, scaled.step(x.var), x.dram) for x in rest]
    used = frozenset().union(*(e.variables for e in inside))
    guards = tuple(x.cond for x in around if isinstance(x, If))
    far = LinearAddress({var: step * item for var, step in far.steps.items() if var not in lanes}, far.base * item)
    ordered = sorted(entries, key=lambda x: -x.sram)
    merged = tuple(_merged(ordered, used))
    return Transfer(
        kind, memory, chip.buffer.name, dram.buffer.name, size.entry, scaled, far, merged, inside, guards
    )  # fmt: skip


def _source(value: Expr) -> tuple[tuple[Expr, ...], Load]:
    """Source of a padded copy: conditions under which a value is no padding, and its load. Raises ScheduleError."""
    conditions = []
    while isinstance(value, (Select, Cast)):
        if isinstance(value, Select):
            if value.b != Const(0, value.b.dtype):
                raise ScheduleError(f"'{value}': found other values than zeros beside a copy")
            conditions.append(value.cond)
        value = value.a if isinstance(value, Select) else value.value
    if not isinstance(value, Load):
        raise ScheduleError(f"'{value}' is no copy of a memory")
    return tuple(conditions), value


def _memory(chip: Load, dram: Load, name: str) -> str:
    """The memory of a transfer, by the scope and by the dtype in DRAM."""
    scope, dtype = chip.buffer.scope, dram.buffer.dtype
    found = {(ACC, "int32"): "acc", (ACC, "int8"): "acc8"}.get((scope, dtype), scope if dtype == "int8" else None)
    if found is None or scope not in ON_CHIP:
        raise ScheduleError(
            f"{name} of scope '{scope}' is copied from or to {dtype}; allowed: int8, of 'acc' also int32"
        )
    return found


def _lanes(loops: list[For], near: LinearAddress, far: LinearAddress, elements: int, name: str) -> list[str]:
    """The loops over the elements of an entry."""
    reach, found = 1, []
    for loop in sorted((x for x in loops if x.extent > 1), key=lambda x: near.step(x.var)):
        if near.step(loop.var) == reach and reach < elements and near.step(loop.var) == far.step(loop.var):
            found.append(loop.var)
            reach *= loop.extent
    if reach != elements:
        raise ScheduleError(f"{name} is not copied by whole entries of {elements} elements that lie together in DRAM")
    return found


def _merged(loops: list[TransferLoop], conditions: frozenset[str]) -> list[TransferLoop]:
    """Loops, the inner of which continue where the outer ones go on, as one."""
    result: list[TransferLoop] = []
    for loop in loops:
        before = result[-1] if result else None
        if (
            before is not None
            and not {before.var, loop.var} & conditions
            and (before.sram, before.dram) == (loop.sram * loop.extent, loop.dram * loop.extent)
        ):
            result[-1] = TransferLoop(loop.var, before.extent * loop.extent, loop.sram, loop.dram)
        else:
            result.append(loop)
    return result
