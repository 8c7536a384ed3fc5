"""Panels of a matrix product's right factor: a group of columns side by side, the depth around them, a stream each.

They are packed before the kernel runs, at compile time or at each call, or copied by the kernel itself.
"""

from __future__ import annotations

from burnish.kernels.cpu.product import MatrixProduct
from burnish.kernels.cpu.strides import strides
from burnish.kernels.nest import NestLevel, statement
from burnish.kernels.task import Choice, KernelTask
from burnish.loops.layout import layout
from burnish.machines.target import Target
from burnish.schedule.schedule import Schedule

MANY_ROWS = 128  # that share a right factor: reading it from panels gains more than packing it costs
DEEP = 64  # steps of the depth from which a panel is copied by the loop that multiplies with it


def panel_layout(p: MatrixProduct, group: int) -> str:
    """The layout of the right factor in which the columns of a panel lie side by side, the depth around them."""
    n = p.anchor.axes[-1]
    at = next(d for d, i in enumerate(p.right.indices) if i == n)
    letters = [chr(ord("A") + d) for d in range(len(p.right.indices))]
    rest = [v for d, v in enumerate(letters) if d != at]
    return "".join([*rest[:-1], letters[at], *rest[-1:], f"{group}{letters[at].lower()}"])


def are_panels(p: MatrixProduct, shape: tuple[int, ...], group: int) -> bool:
    """Whether ``group`` columns can be a panel: of columns that several axes make up, one does not cross their ends."""
    return len(p.columns) == 1 or shape[p.columns[-1]] % group == 0


def panels_fit(p: MatrixProduct, vectors: int, target: Target) -> bool:
    """Whether a panel and the next one leave a quarter of the second cache free."""
    return 8 * vectors * target.lanes * p.depth <= target.l2_bytes * 3 // 4


def is_in_place(task: KernelTask, p: MatrixProduct, lanes: int) -> bool:
    """Whether the columns of the right factor are vectors where they are."""
    steps = statement(task, p.anchor).nest([NestLevel(len(p.anchor.shape) - 1, 2)], 1).stride[1:, 0, 0].tolist()
    return p.anchor.shape[-1] % lanes == 0 and set(steps) == {0, 1}


def has_panels(task: KernelTask, p: MatrixProduct, lanes: int) -> bool:
    """Whether the right factor comes in panels: a constant, or one that is packed at each call and were copied else.

    Many rows pay for packing one that could be read in place, a short run of each of its rows at a time.
    """
    right = p.right.buffer.name
    many = p.anchor.buffer.size >= MANY_ROWS * p.anchor.shape[-1]
    return right in task.constants or (right in task.packed and (many or not is_in_place(task, p, lanes)))


def is_copied(task: KernelTask, p: MatrixProduct, lanes: int) -> bool:
    """Whether the right factor is copied into panels."""
    return not has_panels(task, p, lanes) and not is_in_place(task, p, lanes)


def copies_own_panel(task: KernelTask, target: Target, p: MatrixProduct, choice: Choice) -> bool:
    """Whether a right factor that came in panels packed at each call is copied by the loop over panels instead, each
    just before it is multiplied with, so that it is in the second cache then: no panel is read by two iterations.
    """
    alone = p.right.buffer.name in task.packed - task.shared and has_panels(task, p, target.lanes)
    once = choice["outer"] == "columns" and not choice["depth"] and p.depth >= DEEP
    return alone and once and panels_fit(p, int(choice["vectors"]), target)


def copy_panels(s: Schedule, copy: str, panels: str, inside: str | None, lanes: int) -> None:
    """Copies the right factor into panels, inside a loop or before all else; what pads them is zero."""
    arrangement = layout(panels)
    n = arrangement.parts[-1].dim
    group = arrangement.parts[-1].block
    s.fill(s.loops(copy)[n], group)
    if inside is not None:
        s.compute_at(copy, inside)
    s.transform_layout(copy, panels)
    own = s.loops(copy)
    runs = [d for d, v in enumerate(own) if d != n and s.extent(v) % lanes == 0 and strides(s, copy, v).loads == (1,)]
    over, column = s.split(own[n], group)
    block, lane = s.split(column, lanes)
    if runs:  # squares of vectors are transposed in registers
        run, step = s.split(own[runs[-1]], lanes)
        own[runs[-1]] = run
        s.reorder(over, *[v for d, v in enumerate(own) if d != n], block, step, lane)
        s.unroll(step)
    else:
        s.reorder(over, *[v for d, v in enumerate(own) if d != n], block, lane)
    s.vectorize(lane)
    if inside is None:
        s.parallel(over)
