"""The direct convolution's space, and its code for machines other than this one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from burnish.errors import ScheduleError
from burnish.kernels.cpu.conv import DIRECT_CONV, PLAIN_CONV
from burnish.kernels.task import Choice, KernelTask
from burnish.loops.evaluate import evaluate
from burnish.loops.expr import maximum
from burnish.loops.interpret import run_program
from burnish.loops.layout import layout
from burnish.loops.tensor import Tensor, compute, placeholder, stages
from burnish.machines.known import MODELS
from burnish.machines.register_tile import register_tile
from burnish.machines.target import host, target
from burnish.ops import OPERATORS
from burnish.pipeline.kernel import compile_program, packing, schedule
from burnish.runtime.elf import parse
from tests.marks import slow

ELF_MACHINES = {"x86": 62, "aarch64": 183, "riscv": 243}  # e_machine
MACHINES = {name: ELF_MACHINES[machine.name] for name, (machine, _) in MODELS.items() if machine.kind == "cpu"}
Check = Callable[..., Choice]


def convolution(x: tuple[int, ...], w: tuple[int, ...], **attrs: object) -> Tensor:
    """relu(conv2d(x, w) + b)."""
    (y,) = OPERATORS["conv2d"].define("y", [placeholder(x, name="x"), placeholder(w, name="w")], attrs)
    bias = placeholder((w[0], 1, 1), name="b")
    return compute(y.shape, lambda n, c, h, v: maximum(y[n, c, h, v] + bias[c, 0, 0], 0.0), "out")


def task_of(out: Tensor, lanes: int) -> KernelTask:
    inputs = tuple(t for t in stages([out]) if t.body is None)
    blocked = {name: layout(f"ABCD{lanes}b") for name in ("x", "out")}
    return KernelTask("kernel", inputs, (out,), "conv2d", blocked, frozenset({"w", "b"}))


@pytest.mark.parametrize("machine", slow(MACHINES, "x86-64-v4", "cascadelake"))
def test_code_for_other_machines(machine: str) -> None:
    """A padded convolution is scheduled for the machine's vectors, computes the same, and becomes its object code."""
    there = target(machine)
    out = convolution((1, there.lanes, 5, 6), (2 * there.lanes, there.lanes, 3, 3), pads=(1, 1, 1, 1))
    task = task_of(out, there.lanes)
    made, template, choice = schedule(task, there, {"tile_ow": 4})
    assert template == "direct_conv2d"
    kernel = compile_program(made.program, there, packing(made.trace, task), template, choice)
    assert kernel.code[:4] == b"\x7fELF"
    assert int.from_bytes(kernel.code[18:20], "little") == MACHINES[machine], "machine of the ELF header"
    if machine != "riscv64":  # which the linker does not know
        undefined = [s.name for s in parse("kernel", kernel.code).symbols if s.section == 0 and s.name]
        assert undefined == [], "no call leaves the object"
    feeds = {t.name: np.random.default_rng(0).standard_normal(t.shape).astype("float32") for t in task.inputs}
    tags = {args[0]: layout(args[1]) for name, args in made.trace if name == "transform_layout"}
    found = run_program(made.program, {n: tags[n].pack(a) if n in tags else a for n, a in feeds.items()})["out"]
    np.testing.assert_allclose(tags["out"].unpack(found, out.shape), evaluate([out], feeds)[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("outer", ["oc", "oh"])
@pytest.mark.parametrize(("tile_ow", "vectors"), [(1, 1), (3, 2), (5, 4), (7, 3)])
def test_every_register_tile(check: Check, tile_ow: int, vectors: int, outer: str) -> None:
    """Tiles that do not divide the row, channels that do not fill the last vector."""
    lanes = host().lanes
    out = convolution((1, lanes + 3, 4, 7), (vectors * lanes - 5, lanes + 3, 3, 3), pads=(1, 1, 1, 1))
    blocked = dict.fromkeys(("x", "out"), f"ABCD{lanes}b")
    choice = {"tile_ow": tile_ow, "vectors": vectors, "outer": outer}
    for edge in ("start", "end"):
        check(DIRECT_CONV, "conv2d", [out], ["w", "b"], blocked, choice, edge=edge)


@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize(("depth", "band"), [(16, 4), (16, 2), (32, 3), (48, 4)])
@pytest.mark.parametrize(("shape", "kernel", "outputs"), [((2, 48, 4, 7), 3, 32), ((1, 48, 1, 64), 1, 27)])
def test_bands_of_sums(
    check: Check, depth: int, band: int, shape: tuple[int, ...], kernel: int, outputs: int, rows: bool
) -> None:
    """Sums in scratch, to which each pass adds some input channels; depths and bands that leave a tail; row-major."""
    out = convolution(shape, (outputs, shape[1], kernel, kernel), pads=(kernel // 2,) * 4)
    blocked = {} if rows else dict.fromkeys(("x", "out"), f"ABCD{host().lanes}b")
    band = 16 * band if shape[2] == 1 else band
    hint = int(depth < shape[1] and band > 1)
    choice = {"tile_ow": 5, "vectors": 2, "outer": "oc", "depth": depth, "band": band, "prefetch": hint}
    for edge in ("start", "end"):
        check(DIRECT_CONV, "conv2d", [out], ["w", "b"], blocked, choice, edge=edge)


def test_row_major_groups_are_left_to_others() -> None:
    """One channel a group has no sum over channels to make vectors of."""
    x, w = placeholder((1, 32, 8, 8), name="x"), placeholder((32, 1, 3, 3), name="w")
    (out,) = OPERATORS["conv2d"].define("out", [x, w], {"groups": 32, "strides": (1, 1), "pads": (1, 1, 1, 1)})
    task = KernelTask("kernel", (x, w), (out,), "conv2d", {}, frozenset({"w"}))
    assert not DIRECT_CONV.match(task, target("x86-64-v4"))
    assert schedule(task, target("x86-64-v4"))[1] == "depthwise_rows"


def test_every_knob_of_single_rows_changes_the_program() -> None:
    """A knob without effect would have a tuner try the same kernel again and again."""
    there = target("x86-64-v4")
    out = convolution((1, 32, 6, 6), (32, 32, 3, 3), pads=(1, 1, 1, 1))
    task = KernelTask("kernel", task_of(out, 16).inputs, (out,), "conv2d", {}, frozenset({"w", "b"}))
    space = PLAIN_CONV.on(task, there).space
    assert set(space.knobs) == {"tile_ow", "vectors", "outer", "unroll_ic"}
    for knob, choices in space.knobs.items():
        programs = {str(PLAIN_CONV.on(task, there).apply({**space.default, knob: c}).program) for c in choices}
        assert len(programs) == len(choices), knob


def test_deep_windows_are_summed_in_passes() -> None:
    """Where the weights of a channel group exceed the first cache, a pass's weights fill at most half of it."""
    there = target("x86-64-v4")
    task = task_of(convolution((1, 512, 7, 7), (512, 512, 3, 3), pads=(1, 1, 1, 1)), there.lanes)
    choice = DIRECT_CONV.on(task, there).space.default
    weights = 4 * int(choice["depth"]) * 9 * int(choice["vectors"]) * there.lanes
    assert there.l1_bytes // 4 < weights <= max(there.l1_bytes // 2, 4 * 9 * 2 * there.lanes**2)
    shallow = task_of(convolution((1, 16, 7, 7), (64, 16, 1, 1)), there.lanes)
    assert DIRECT_CONV.on(shallow, there).space.default["depth"] == 0


def test_a_group_must_divide_the_blocks_of_the_output() -> None:
    """What does not fit is refused by name, so that a search may skip it."""
    task = task_of(convolution((1, 16, 4, 7), (37, 16, 3, 3)), 16)
    with pytest.raises(ScheduleError, match=r"pad: loop 'out\.c' cannot grow from 37 to 64: .* leave its 3 el"):
        schedule(task, target("x86-64-v4"), {"vectors": 2})


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("width", [1, 7, 14, 28, 56, 112])
@pytest.mark.parametrize("blocks", [1, 2, 3, 4, 8])
def test_register_tiles_fit(machine: str, width: int, blocks: int) -> None:
    """Accumulators, one operand vector for each channel vector and a broadcast fit the register file."""
    there = target(machine)
    positions, vectors = register_tile(there, width, blocks)
    assert 1 <= positions <= width
    assert blocks % vectors == 0
    spare = vectors + 1 if vectors > 1 else 2
    assert positions * vectors + spare <= there.vector_registers


def test_the_tile_of_a_wide_row_hides_latency() -> None:
    """Ten multiply-adds or more in flight keep two units of latency four to five busy."""
    positions, vectors = register_tile(target("x86-64-v4"), 56, 4)
    assert positions * vectors >= 10
    assert 56 % positions == 0


def test_a_tile_leaves_a_part_for_every_core() -> None:
    """A row of 49 pixels in whole tiles is shared out; where cores are few, the most efficient tile stays."""
    sixteen, one = (replace(target("x86-64-v4"), cores=cores) for cores in (16, 1))

    def jobs(positions: int, vectors: int) -> int:
        return 20 // vectors * (1 if 49 % positions else 49 // positions)

    assert register_tile(sixteen, 49, 20, True, jobs=jobs) == (7, 2)
    assert register_tile(one, 49, 20, True, jobs=jobs) == register_tile(one, 49, 20, True)


@pytest.mark.parametrize("channels", [17, 24, 40])
def test_a_sum_with_rows_of_ragged_channels_is_stored_by_masks(check: Callable[..., object], channels: int) -> None:
    """What is added is a row-major image, which whole blocks of the output would read beyond its end."""
    lanes = host().lanes
    x, w = placeholder((1, 32, 6, 9), name="x"), placeholder((channels, 32, 3, 3), name="w")
    r = placeholder((1, channels, 6, 9), name="r")
    (y,) = OPERATORS["conv2d"].define("y", [x, w], {"pads": (1, 1, 1, 1)})
    out = compute(y.shape, lambda n, c, i, j: y[n, c, i, j] + r[n, c, i, j], "out")
    blocks = f"ABCD{lanes}b"
    check(DIRECT_CONV, "conv2d", [out], ["w"], {"x": blocks, "out": blocks})
