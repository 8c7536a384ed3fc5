"""Weights that are known at a call only, packed by the loop that multiplies with them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from burnish.kernels.cpu.conv import DIRECT_CONV, PLAIN_CONV
from burnish.kernels.cpu.raw_weight import columns_of_run, is_packed_within
from burnish.kernels.task import Choice, KernelTask
from burnish.loops.expr import maximum
from burnish.loops.layout import layout
from burnish.loops.tensor import Tensor, compute, placeholder, stages
from burnish.machines.target import Target, host, target
from burnish.ops import OPERATORS
from burnish.pipeline.kernel import packing

LANES = host().lanes
Check = Callable[..., Choice]


def convolution(x: tuple[int, ...], w: tuple[int, ...], **attrs: object) -> Tensor:
    """relu(conv2d(x, w) + b)."""
    (y,) = OPERATORS["conv2d"].define("y", [placeholder(x, name="x"), placeholder(w, name="w")], attrs)
    bias = placeholder((w[0], 1, 1), name="b")
    return compute(y.shape, lambda n, c, h, v: maximum(y[n, c, h, v] + bias[c, 0, 0], 0.0), "out")


def task_of(out: Tensor, blocked: bool, shared: bool = False) -> KernelTask:
    inputs = tuple(t for t in stages([out]) if t.body is None)
    tags = {name: layout(f"ABCD{LANES}b") for name in ("x", "out")} if blocked else {}
    weights = frozenset({"w", "b"})
    own = weights if shared else frozenset[str]()
    return KernelTask("kernel", inputs, (out,), "conv2d", tags, frozenset(), weights, shared=own)


def tags_of(task: KernelTask, machine: Target, choice: Choice | None = None) -> dict[str, str]:
    """The layouts that a schedule wants its weights packed in by another kernel."""
    match = DIRECT_CONV.on(task, machine)
    return packing(match.apply({**match.space.default, **(choice or {})}).trace, task)


CASES = {
    "pointwise": ((1, 4 * LANES, 7, 7), (4 * LANES, 4 * LANES, 1, 1), {}),
    "one row": ((1, 3 * LANES, 1, 49), (4 * LANES, 3 * LANES, 1, 1), {}),
    "strided": ((1, 2 * LANES, 9, 9), (4 * LANES, 2 * LANES, 3, 3), {"strides": (2, 2), "pads": (1, 1, 1, 1)}),
    "dilated": ((2, 2 * LANES, 8, 7), (4 * LANES, 2 * LANES, 3, 3), {"dilations": (2, 1), "pads": (2, 1, 2, 1)}),
    "odd inputs": ((2, LANES + 4, 6, 5), (4 * LANES, LANES + 4, 3, 3), {"pads": (1, 1, 1, 1)}),
    "few inputs": ((1, 7, 12, 10), (4 * LANES, 7, 5, 5), {"pads": (2, 2, 2, 2)}),
    "groups": ((1, 4 * LANES, 6, 6), (8 * LANES, 2 * LANES, 3, 3), {"groups": 2, "pads": (1, 1, 1, 1)}),
}  # fmt: skip


# Groups of row-major images are computed by rows of columns.
FORMS = [(name, blocked) for name in CASES for blocked in (False, True) if blocked or name != "groups"]


@pytest.mark.parametrize("edge", ["start", "end"])
@pytest.mark.parametrize(("name", "blocked"), FORMS)
def test_groups_of_channels_are_packed_within(check: Check, name: str, blocked: bool, edge: str) -> None:
    x, w, attrs = CASES[name]
    out = convolution(x, w, **attrs)
    tags = dict.fromkeys(("x", "out"), f"ABCD{LANES}b") if blocked else {}
    choice = {"vectors": 2, "outer": "oc"}
    assert "w" not in tags_of(task_of(out, blocked), replace(host(), cores=2), choice)
    check(DIRECT_CONV, "conv2d", [out], [], tags, choice, edge=edge, packed_at_call=("w", "b"), cores=2)


@pytest.mark.parametrize("blocked", [False, True])
@pytest.mark.parametrize(("depth", "band"), [(LANES, 4), (LANES, 2), (2 * LANES, 3), (0, 2)])
def test_passes_read_the_group_that_was_packed(check: Check, depth: int, band: int, blocked: bool) -> None:
    out = convolution((2, 4 * LANES, 4, 7), (4 * LANES, 4 * LANES, 3, 3), pads=(1, 1, 1, 1))
    tags = dict.fromkeys(("x", "out"), f"ABCD{LANES}b") if blocked else {}
    choice = {"vectors": 2, "outer": "oc", "depth": depth, "band": band, "prefetch": 1, "tile_ow": 5}
    assert "w" not in tags_of(task_of(out, blocked), replace(host(), cores=2), choice)
    check(DIRECT_CONV, "conv2d", [out], [], tags, choice, packed_at_call=("w", "b"), cores=2)


def test_what_is_packed_before() -> None:
    """Constants, weights that several kernels read, and groups of channels that are too few for all cores."""
    machine = replace(target("x86-64-v4"), cores=2)
    out = convolution((1, 256, 7, 7), (128, 256, 1, 1))
    w = next(t for t in stages([out]) if t.name == "w")
    task, nbytes = task_of(out, True), 4 * 32 * 256
    assert is_packed_within(task, machine, w, 32, nbytes)
    assert not is_packed_within(replace(task, constants=frozenset("w"), packed=frozenset()), machine, w, 32, nbytes)
    assert not is_packed_within(task_of(out, True, shared=True), machine, w, 32, nbytes)
    assert not is_packed_within(task, replace(machine, cores=16), w, 32, nbytes)
    assert not is_packed_within(task, machine, w, 96, nbytes), "groups are whole"
    assert not is_packed_within(task, machine, w, 32, machine.l2_bytes), "they take all of the second cache"


def test_large_groups_are_of_fewer_vectors() -> None:
    """Weights of 64 channels would take more than the second cache; those of a smaller register tile are packed."""
    machine = replace(target("x86-64-v4"), cores=2, l2_bytes=1 << 20)
    out = convolution((1, 512, 7, 7), (512, 512, 3, 3), strides=(2, 2), pads=(1, 1, 1, 1))
    assert "w" not in tags_of(replace(task_of(out, False), layouts={}), machine)
    few = replace(task_of(out, False), packed=frozenset("b"), constants=frozenset("w"))
    wide, own = (DIRECT_CONV.on(t, machine).space.default["vectors"] for t in (few, task_of(out, False)))
    assert int(own) < int(wide)


def test_rows_in_a_buffer_of_their_own_read_what_was_packed_before(check: Check) -> None:
    out = convolution((1, 30, 12, 2), (6 * LANES, 30, 5, 2))
    check(PLAIN_CONV, "conv2d", [out], [], {}, {"outer": "oc"}, packed_at_call=("w", "b"), cores=2)


@pytest.mark.parametrize(("run", "columns"), [(64, 16), (585, 15), (9 * 67, 9), (147, 7), (67, 0), (3, 0), (4, 4)])
def test_runs_are_cut_into_equal_blocks_of_columns(run: int, columns: int) -> None:
    assert columns_of_run(run, 16) == columns
