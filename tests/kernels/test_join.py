"""Joins of channel blocks whose parts begin inside of blocks, and maps of blocks, against their definitions."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from burnish.kernels.cpu.generic import GENERIC
from burnish.kernels.cpu.join import JOIN
from burnish.kernels.task import KernelTask
from burnish.kernels.templates import first_match
from burnish.loops.expr import Expr, maximum
from burnish.loops.layout import layout
from burnish.loops.program import For, walk_stmt
from burnish.loops.tensor import Tensor, compute, placeholder
from burnish.machines.target import host
from burnish.ops import OPERATORS
from tests.kernels.conftest import Check

LANES = host().lanes
BLOCKED = f"ABCD{LANES}b"


def joined(*channels: int) -> Tensor:
    """relu(concat(...)) of images of 3 x 5 pixels."""
    parts = [placeholder((2, c, 3, 5), name=f"x{i}") for i, c in enumerate(channels)]
    (y,) = OPERATORS["concat"].define("whole", parts, {"axis": 1})
    return compute(y.shape, lambda *i: maximum(y[i], 0.0), "y")


@pytest.mark.parametrize("channels", [(44, 44, 44), (20, 16, 33, 17), (LANES, 2 * LANES + 1), (LANES + 1, LANES - 1)])
@pytest.mark.parametrize("edge", ["start", "end"])
def test_joins_match_the_definition(channels: Sequence[int], edge: str, check: Check) -> None:
    layouts = dict.fromkeys(("y", *(f"x{i}" for i, _ in enumerate(channels))), BLOCKED)
    check(JOIN, "", [joined(*channels)], layouts=layouts, edge=edge)


def test_other_maps_and_rows_are_no_joins() -> None:
    y = joined(44, 44)
    inputs = tuple(placeholder((2, 44, 3, 5), name=f"x{i}") for i in range(2))
    blocks = {name: layout(BLOCKED) for name in ("x0", "x1", "y")}
    assert first_match(KernelTask("k", inputs, (y,), "", blocks, frozenset()), host()).template is JOIN
    assert first_match(KernelTask("k", inputs, (y,), "", {}, frozenset()), host()).template is GENERIC
    x = inputs[0]

    def element(*i: Expr) -> Expr:
        return maximum(x[i], 0.0)

    relu = KernelTask(
        "k", (x,), (compute(x.shape, element, "y"),), "", {n: blocks[n] for n in ("x0", "y")}, frozenset()
    )
    assert first_match(relu, host()).template is GENERIC


def test_maps_of_blocks_are_vectors_however_many_there_are(check: Check) -> None:
    """Channels of four vectors: these are not one run of memory."""
    x = placeholder((1, 4 * LANES, 3, 5), name="x")
    y = compute(x.shape, lambda *i: maximum(x[i], 0.0), "y")
    layouts = {"x": BLOCKED, "y": BLOCKED}
    check(GENERIC, "", [y], layouts=layouts)
    task = KernelTask("k", (x,), (y,), "", {name: layout(tag) for name, tag in layouts.items()}, frozenset())
    program = GENERIC.on(task, host()).apply(GENERIC.on(task, host()).space.default).program
    kinds = {s.kind: s.extent for s in walk_stmt(program.body) if isinstance(s, For)}
    assert kinds["vectorize"] == LANES
