"""Attention on tensor cores: right for masks, tails, types and widths; sums stay in registers; what is not seen is not
computed; barriers and waits are needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from burnish.codegen.grid import compile_grid, lowered
from burnish.codegen.ptxas import find_ptxas
from burnish.errors import ScheduleError, VerificationError
from burnish.kernels.gpu.attention_form import attention, hides, widened
from burnish.kernels.templates import first_match, template_called
from burnish.loops.evaluate import evaluate
from burnish.loops.expr import Load
from burnish.loops.program import LoopProgram
from burnish.loops.traverse import loads
from burnish.lower.barriers import check_barriers, count_barriers, without_barrier
from burnish.machines.target import Target, target
from burnish.runtime.gpu.records import LaunchCounts
from tests.gpu.attentions import Attended, attended
from tests.gpu.cases import SM80, TF32, execute
from tests.gpu.test_barriers import KNOWN, run
from tests.marks import slow_except

SM90 = target("cuda:sm_90a")
SMALL = {"warps": 1, "tiles": 1, "keys": 32, "stages": 2}
CASES: Mapping[str, tuple[str, Attended, Mapping[str, int]]] = {
    "plain": ("tensor_attention", attended(32, 64, 64, heads=1, dtype="float16", scale=0.3), SMALL),
    "tails": ("tensor_attention", attended(20, 50, 20, 24, heads=2, dtype="float16"), SMALL),
    "causal": (
        "tensor_attention", attended(70, 70, 16, heads=1, dtype="float16", causal=True),
        {"warps": 2, "tiles": 2, "keys": 32, "stages": 3},
    ),
    "masked": ("tensor_attention", attended(16, 40, 16, heads=1, dtype="bfloat16", masked=True, joined=True), SMALL),
    "wide": ("tensor_attention", attended(33, 65, 80, 72, heads=1, dtype="float16"), {**SMALL, "warps": 2}),
    "across": ("tensor_attention", attended(20, 56, 24, heads=1, dtype="float16", across=True), SMALL),
    "across_groups": (
        "warpgroup_attention", attended(40, 104, 72, heads=45, dtype="float16", across=True, causal=True), {"keys": 64}
    ),
    "rounded": (
        "tensor_attention", attended(40, 70, 24, 40, heads=1, dtype="float32", causal=True, scale=0.3),
        {**SMALL, "tiles": 2},
    ),
    "groups": ("warpgroup_attention", attended(80, 100, 64, heads=45, dtype="float16"), {"groups": 2}),
    "panels": ("warpgroup_attention", attended(70, 130, 128, heads=45, dtype="bfloat16", causal=True), {"stages": 3}),
    "long": ("warpgroup_attention", attended(40, 130, 40, heads=45, dtype="float16"), {"keys": 128}),
}  # fmt: skip


def programmed(name: str, heads: int | None = None) -> tuple[LoopProgram, Attended, Target]:
    """The scheduled program of a case; of fewer ``heads``, by the choice that is made for all."""
    template, case, choice = CASES[name]
    machine = SM90 if template == "warpgroup_attention" else TF32 if case.dtypes[0] == "float32" else SM80
    match = template_called(template, machine).on(case.task(), machine)
    if heads is not None:
        case = replace(case, shapes=[(1, heads, *shape[2:]) for shape in case.shapes])
    form = attention(case.task())
    assert form is not None
    made = match.template.schedule(case.task(), machine, form, {**match.space.default, **choice})
    return made.program, case, machine


def checked(name: str) -> LaunchCounts:
    """Runs a case on coroutines and compares; its counts."""
    program, case, machine = programmed(name, 1 if CASES[name][0] == "warpgroup_attention" else None)
    (result,), _, counts = execute(compile_grid(program, machine, assembled=False), case)
    (wanted,) = evaluate(case.task().outputs, case.arrays(), "float64")  # scores are not rounded to halves here either
    allowed = {"bfloat16": 1e-2, "float32": 4e-3}.get(case.dtypes[0], 1.5e-3)
    assert np.abs(result.astype(np.float64) - wanted).max() <= allowed * np.abs(wanted).max()
    return counts


WARPS = ["plain", "tails", "causal", "masked", "wide", "across", "rounded"]


@pytest.mark.parametrize("name", slow_except(WARPS, "tails", "causal", "masked"))
def test_attention_by_warps_is_right(name: str) -> None:
    counts = checked(name)
    assert counts.conflicts_per_ideal == 1.0 or name in ("tails", "wide")


@pytest.mark.parametrize("name", slow_except(["groups", "panels", "long", "across_groups"], "groups"))
def test_attention_by_groups_of_warps_is_right(name: str) -> None:
    assert checked(name).conflicts_per_ideal == 1.0


def test_keys_and_values_are_loaded_once_for_all_rows_of_a_block() -> None:
    counts = checked("plain")
    assert counts.global_load_bytes == 2 * 64 * (32 + 2 * 2 * 64)  # rows of queries, and for two blocks keys and values


def test_blocks_of_keys_that_no_row_sees_are_not_loaded() -> None:
    seen = checked("causal").global_load_bytes
    assert seen == 2 * 16 * (70 + 2 * (64 + 70))  # 64 rows see the first two blocks of 32 keys, the others all


@pytest.mark.parametrize("name", ["plain", "groups"])
def test_barriers_and_waits_are_needed(name: str) -> None:
    program, _, machine = programmed(name, 1)
    grids = lowered(program, machine)
    (launch,) = grids.launches
    assert count_barriers(launch.body) >= 1
    for gone in range(count_barriers(launch.body)):
        less = replace(launch, body=without_barrier(launch.body, gone))
        with pytest.raises(ScheduleError, match="a barrier is missing"):
            check_barriers(less, KNOWN if machine is SM80 else SM90.machine.named_intrinsics)
        if machine is SM80:
            with pytest.raises(VerificationError, match=r"without a barrier between|has not ended with"):
                run(program, replace(grids, launches=(less,)))


@pytest.mark.parametrize(
    ("case", "template"),
    [
        (attended(4096, 4096, 64, heads=16, dtype="float16"), "warpgroup_attention"),
        (attended(2048, 2048, 128, heads=32, dtype="bfloat16", causal=True), "warpgroup_attention"),
        (attended(128, 128, 64, heads=12, dtype="float16"), "tensor_attention"),
        (attended(1, 4096, 64, heads=12, dtype="float16"), "attention"),
        (attended(512, 512, 64, heads=12), "attention"),
    ],
)
def test_defaults_spill_nothing(case: Attended, template: str) -> None:
    match = first_match(case.task(), SM90)
    assert match.name == template
    if find_ptxas() is None:
        pytest.skip("ptxas is not installed")
    code = compile_grid(match.apply(match.space.default).program, SM90)
    assert all(launch.resources and launch.resources.spilled == 0 for launch in code.launches)
    if template != "attention":
        assert ("wgmma.mma_async" if template == "warpgroup_attention" else "mma.sync") in code.ptx
        assert "cvt.rn.f16x2" in code.ptx or "cvt.rn.bf16x2" in code.ptx  # exponentials are packed in pairs


@pytest.mark.skipif(find_ptxas() is None, reason="ptxas is not installed")
@pytest.mark.parametrize("machine", [TF32, SM90.with_precision("tf32")], ids=["sm_80", "sm_90a"])
@pytest.mark.parametrize("width", slow_except([64, 128, 256], 64))
def test_defaults_of_float32_spill_nothing(width: int, machine: Target) -> None:
    match = first_match(attended(1024, 1024, width, heads=16, causal=True).task(), machine)
    assert match.name == "tensor_attention"
    code = compile_grid(match.apply(match.space.default).program, machine)
    (launch,) = code.launches
    assert launch.resources is not None and launch.resources.spilled == 0
    assert code.ptx.count(".tf32.tf32") > 0


def test_scores_are_not_rounded_between() -> None:
    form = attention(attended(16, 32, 16, dtype="float16", scale=0.3, masked=True).task())
    assert form is not None
    wide = widened(form.score, form.product)
    assert "float16(" not in str(wide) and wide.dtype == "float32"
    assert {type(x) for x in loads(wide)} == {Load}


def test_a_mask_tells_which_blocks_nobody_sees() -> None:
    form = attention(attended(16, 32, 16, dtype="float16", causal=True).task())
    assert form is not None
    (row,), (key,) = form.rows.axes, form.keys.axes
    assert hides(form.score, {}) is not None
    assert hides(form.score, {row.var.name: 16, key.var.name: 32}) is not None  # the first key is seen by all
    unmasked = attention(attended(16, 32, 16, dtype="float16").task())
    assert unmasked is not None and hides(unmasked.score, {row.var.name: 16}) is None
