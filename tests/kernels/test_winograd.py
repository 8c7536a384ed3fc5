"""Winograd kernels: odd sizes, both placements, epilogues, paddings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from burnish.kernels.cpu.generic import GENERIC
from burnish.kernels.cpu.winograd import WINOGRAD_CONV
from burnish.kernels.cpu.winograd_raw_weight import WINOGRAD_RAW_WEIGHT
from burnish.kernels.task import Choice, KernelTask
from burnish.kernels.templates import first_match
from burnish.loops.expr import maximum
from burnish.loops.layout import layout
from burnish.loops.program import For, walk_stmt
from burnish.loops.tensor import Tensor, compute, placeholder, stages
from burnish.machines.target import host, target
from burnish.ops import OPERATORS

LANES = host().lanes
BLOCKED = f"ABCD{LANES}b"
Check = Callable[..., Choice]


def convolution(
    x: tuple[int, ...],
    outputs: int,
    m: int,
    pads: tuple[int, ...] = (1, 1, 1, 1),
    stride: int = 1,
    groups: int = 1,
    raw: bool = False,
) -> Tensor:
    """relu(winograd(x, w) + bias + residual) of a 3 x 3 window. ``raw``: the kernel transforms the weight."""
    n, depth = (m - 1) * stride + 3, x[1] // groups
    data = placeholder(x, name="x")
    weight = placeholder((outputs, depth, 3, 3) if raw else (n, n, outputs, depth), name="w")
    attrs = {"m": m, "strides": (stride, stride), "pads": pads, "groups": groups, "transforms_weight": raw}
    (y,) = OPERATORS["winograd_conv2d"].define("y", [data, weight], attrs)
    bias, residual = placeholder((outputs, 1, 1), name="b"), placeholder(y.shape, name="r")
    return compute(
        y.shape, lambda n, c, h, w: maximum(y[n, c, h, w] + bias[c, 0, 0] + residual[n, c, h, w], 0.0), "out"
    )


LAYOUTS: Mapping[str, str] = {"x": BLOCKED, "r": BLOCKED, "out": BLOCKED}


@pytest.mark.parametrize(
    ("size", "batch", "channels", "outputs", "m"),
    [
        (7, 1, LANES, 2 * LANES, 4), (7, 2, 2 * LANES, LANES + 4, 2), (13, 1, LANES, LANES, 4),
        (14, 2, LANES, 3 * LANES, 2), (17, 1, 2 * LANES, LANES, 4), (28, 1, LANES, 2 * LANES, 4),
    ],
)  # fmt: skip
def test_default_schedules(check: Check, size: int, batch: int, channels: int, outputs: int, m: int) -> None:
    out = convolution((batch, channels, size, size), outputs, m)
    check(WINOGRAD_CONV, "winograd_conv2d", [out], ["w", "b"], LAYOUTS)


@pytest.mark.parametrize(
    ("size", "channels", "outputs", "m"),
    [(14, LANES, 2 * LANES, 2), (9, 2 * LANES, LANES + 4, 2), (27, LANES, LANES, 4), (31, LANES, 2 * LANES, 2)],
)
def test_strides(check: Check, size: int, channels: int, outputs: int, m: int) -> None:
    out = convolution((2, channels, size, size + 2), outputs, m, (1, 1, 1, 1), stride=2)
    check(WINOGRAD_CONV, "winograd_conv2d", [out], ["w", "b"], LAYOUTS)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("placement", ["tile", "shared"])
@pytest.mark.parametrize(("block", "positions", "vectors"), [(1, 1, 1), (5, 3, 2), (16, 6, 1)])
def test_every_placement(check: Check, placement: str, block: int, positions: int, vectors: int, stride: int) -> None:
    """Blocks that do not divide the tiles, register tiles that do not divide the blocks, groups that are not whole."""
    out = convolution((1, LANES, 13, 15), LANES + 3, 4 // stride, stride=stride)
    choice = {"placement": placement, "block": block, "positions": positions, "vectors": vectors}
    for edge in ("start", "end"):
        check(WINOGRAD_CONV, "winograd_conv2d", [out], ["w", "b"], LAYOUTS, choice, edge=edge, threads=3)


def test_blocks_are_of_sizes_that_differ_in_their_number_or_whole_rows() -> None:
    task = task_of(convolution((1, 64, 28, 28), 64, 4), 16)
    blocks = WINOGRAD_CONV.on(task, target("x86-64-v4")).space.knobs["block"]
    assert list(blocks) == [1, 2, 3, 4, 5, 6, 7, 9, 10, 13, 14, 17, 21, 25, 28, 35, 42, 49]


@pytest.mark.parametrize("placement", ["tile", "shared"])
def test_groups(check: Check, placement: str) -> None:
    out = convolution((1, 4 * LANES, 13, 15), 6 * LANES, 4, groups=2)
    made = check(WINOGRAD_CONV, "winograd_conv2d", [out], ["w", "b"], LAYOUTS, {"placement": placement})
    assert made["vectors"] in (1, 3), "a register tile's channels belong to one group"


@pytest.mark.parametrize("pads", [(0, 0, 0, 0), (2, 0, 1, 3)])
def test_other_paddings(check: Check, pads: tuple[int, ...]) -> None:
    out = convolution((1, LANES, 9, 6), LANES, 2, pads)
    check(WINOGRAD_CONV, "winograd_conv2d", [out], ["w", "b"], LAYOUTS)


def task_of(out: Tensor, lanes: int) -> KernelTask:
    """The task of a convolution whose tensors are in blocks of so many channels."""
    inputs = tuple(t for t in stages([out]) if t.body is None)
    blocked = {name: layout(f"ABCD{lanes}b") for name in ("x", "r", "out")}
    return KernelTask("kernel", inputs, (out,), "winograd_conv2d", blocked, frozenset({"w", "b"}))


@pytest.mark.parametrize("plain", ["x", "out"])
def test_it_needs_blocks_of_channels(plain: str) -> None:
    machine = target("x86-64-v4")
    task = task_of(convolution((1, 16, 6, 6), 16, 4), 16)
    assert first_match(task, machine).template is WINOGRAD_CONV
    rest = {name: tag for name, tag in task.layouts.items() if name != plain}
    assert first_match(replace(task, layouts=rest), machine).template is GENERIC


@pytest.mark.parametrize(("size", "channels"), [(14, 256), (28, 128), (7, 384)])
def test_many_cores_share_channels_and_tiles(size: int, channels: int) -> None:
    """For sixteen cores no block is of one tile, and there are parts for most of them; they run side by side."""
    task = task_of(convolution((1, channels, size, size), channels, 4), 16)
    match = first_match(task, replace(target("x86-64-v4"), cores=16))
    choice = match.space.default
    blocks = -(-((-(-size // 4)) ** 2) // int(choice["block"]))
    assert choice["placement"] == "shared"
    assert int(choice["positions"]) >= 4
    parts = blocks * channels // 16 // int(choice["vectors"])
    assert parts >= 12
    program = match.apply(choice).program
    assert parts in [s.extent for s in walk_stmt(program.body) if isinstance(s, For) and s.kind == "parallel"]


def test_an_answer_is_the_same_for_any_split(check: Check) -> None:
    """Blocks that end in the middle of a row of tiles, and more parts than threads."""
    choice: Choice = {"placement": "shared", "block": 5, "positions": 5, "vectors": 1}
    out = convolution((1, LANES, 15, 13), 3 * LANES, 4)
    check(WINOGRAD_CONV, "winograd_conv2d", [out], ["w", "b"], LAYOUTS, choice, threads=16)


# --- from raw weights -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "batch", "channels", "outputs", "m", "stride"),
    [
        (7, 1, 2 * LANES, 2 * LANES, 4, 1), (7, 2, LANES, LANES, 2, 1), (13, 1, LANES, 3 * LANES, 4, 1),
        (15, 2, LANES, LANES, 2, 2),
    ],
)  # fmt: skip
def test_raw_weights(check: Check, size: int, batch: int, channels: int, outputs: int, m: int, stride: int) -> None:
    out = convolution((batch, channels, size, size + 1), outputs, m, stride=stride, raw=True)
    check(WINOGRAD_RAW_WEIGHT, "winograd_conv2d", [out], ["b"], LAYOUTS, packed_at_call=["w"], cores=size)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(("block", "positions", "vectors", "depth"), [(1, 1, 1, 1), (5, 3, 2, 2), (16, 16, 1, 1)])
def test_every_pass_of_raw_weights(
    check: Check, block: int, positions: int, vectors: int, depth: int, stride: int
) -> None:
    """Blocks that do not divide the tiles, register tiles that do not divide the blocks, one pass and several."""
    out = convolution((1, 2 * LANES, 13, 15), 2 * LANES, 4 // stride, stride=stride, raw=True)
    choice = {"block": block, "positions": positions, "vectors": vectors, "depth": depth * LANES}
    for edge in ("start", "end"):
        check(WINOGRAD_RAW_WEIGHT, "winograd_conv2d", [out], ["b"], LAYOUTS, choice, 2e-5, 3, edge, ["w"])


def test_raw_weights_of_groups(check: Check) -> None:
    out = convolution((1, 4 * LANES, 13, 15), 6 * LANES, 4, groups=2, raw=True)
    made = check(WINOGRAD_RAW_WEIGHT, "winograd_conv2d", [out], ["b"], LAYOUTS, packed_at_call=["w"])
    assert made["vectors"] in (1, 3), "a register tile's channels belong to one group"


@pytest.mark.parametrize(("channels", "outputs"), [(16, 20), (16, 24)])
def test_raw_weights_are_whole_vectors_of_channels(channels: int, outputs: int) -> None:
    machine = target("x86-64-v4")
    task = task_of(convolution((1, channels, 6, 6), outputs, 4, raw=True), 16)
    assert first_match(task, machine).template is GENERIC
    whole = task_of(convolution((1, channels, 6, 6), 32, 4, raw=True), 16)
    assert first_match(whole, machine).template is WINOGRAD_RAW_WEIGHT


@pytest.mark.parametrize(("size", "channels"), [(14, 256), (28, 128), (7, 512)])
def test_a_pass_of_raw_weights_and_its_sums_stay_in_the_second_cache(size: int, channels: int) -> None:
    machine = target("x86-64-v4")
    match = first_match(task_of(convolution((1, channels, size, size), channels, 4, raw=True), 16), machine)
    choice = {knob: int(value) for knob, value in match.space.default.items()}
    sums = 36 * choice["vectors"] * 64 * choice["block"]
    assert 36 * 64 * choice["depth"] <= machine.l2_bytes // 4 >= sums
    tiles = (-(-size // 4)) ** 2
    assert -(-tiles // choice["block"]) == 1, "so few tiles are one block, for which the weight is transformed once"


def test_many_cores_share_what_raw_weights_are_multiplied_with() -> None:
    """How sums are cut into passes, and so their rounding, does not depend on the number of cores."""
    task = task_of(convolution((1, 256, 14, 14), 256, 4, raw=True), 16)
    found = [first_match(task, replace(target("x86-64-v4"), cores=cores)) for cores in (1, 2, 16)]
    assert len({match.space.default["depth"] for match in found}) == 1
    match = found[-1]
    program = match.apply(match.space.default).program
    assert 16 in [s.extent for s in walk_stmt(program.body) if isinstance(s, For) and s.kind == "parallel"]
