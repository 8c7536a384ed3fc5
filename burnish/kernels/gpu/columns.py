"""Sums and extremes of columns: neighbours in memory belong to different results, of which a thread has one.

So threads next to each other read next to each other, as of channels that are stored last.
"""

from __future__ import annotations

from burnish.kernels.gpu.elements import ELEMENTS, schedule_elements
from burnish.kernels.gpu.row_forms import rows_of
from burnish.kernels.task import KernelTask
from burnish.kernels.template import Template
from burnish.machines.target import Target

MANY = 32  # results for each multiprocessor, from which on a thread has one


def _form(task: KernelTask, target: Target) -> bool | None:
    """Whether many results are each reduced from elements that are no neighbours."""
    if ELEMENTS.form(task, target) is None:
        return None
    found = rows_of(task, target)
    if found is None or found.count < MANY * target.cores or not all(s.number for s in found.stages):
        return None
    runs = any(found.is_run(x, n) for n in found.extents for x in found.accesses(n))
    return None if runs else True


COLUMNS = Template("columns", _form, ELEMENTS.space, schedule_elements)
