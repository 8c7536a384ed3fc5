"""Access strides of a stage: elements that each access moves when one loop variable advances by one."""

from __future__ import annotations

from dataclasses import dataclass

from burnish.kernels.match import stride_along
from burnish.loops.expr import Load
from burnish.loops.program import For, Store
from burnish.loops.traverse import walk
from burnish.schedule.nest import sites
from burnish.schedule.schedule import Schedule


@dataclass(frozen=True)
class Strides:
    """Element strides of a stage's store and loads along a loop; None where the address is not linear in it."""

    store: int | None
    loads: tuple[int | None, ...]


def strides(s: Schedule, stage: str, loop: str) -> Strides:
    """The strides of the stage's combining store (its only one, if it does not reduce) along ``loop``."""
    store, ranges = _store(s, stage)
    reads = [x for e in (store.value, *store.indices) for x in walk(e) if isinstance(x, Load)]
    return Strides(
        stride_along(store.buffer, store.indices, loop, ranges),
        tuple(stride_along(x.buffer, x.indices, loop, ranges) for x in reads),
    )


def _store(s: Schedule, stage: str) -> tuple[Store, dict[str, int]]:
    found: tuple[Store, dict[str, int]] | None = None
    for site in sites(s.program.body):
        if isinstance(site.stmt, Store) and site.stmt.buffer.name == stage:
            ranges = {x.var: x.extent for x in site.path if isinstance(x, For)}
            if found is None or site.stmt.reduce is not None:
                found = (site.stmt, ranges)
    assert found is not None, stage
    return found
