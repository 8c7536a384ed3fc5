"""Attention as one kernel: right for masks, tails, halves and splits; scores never in memory; found by its form."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import burnish as bn
from burnish.codegen.grid import compile_grid, lowered
from burnish.codegen.ptxas import find_ptxas
from burnish.errors import ScheduleError, VerificationError
from burnish.graph import GraphBuilder
from burnish.kernels.gpu.attention_form import attention
from burnish.kernels.task import KernelTask
from burnish.kernels.templates import template_called
from burnish.loops.tensor import compute, placeholder
from burnish.lower.barriers import check_barriers, count_barriers, without_barrier
from burnish.machines.target import target
from tests.gpu.attentions import Attended, applied, attended
from tests.gpu.cases import SM80, check
from tests.gpu.test_barriers import KNOWN, run

CASES = {
    "masked": attended(5, 45, 12, 20, rows_=2, warps=2, heads=1, scale=0.3, masked=True, joined=True),
    "causal": attended(6, 40, 8, rows_=4, warps=2, heads=1, causal=True),
    "decode": attended(1, 70, 16, heads=2),
    "split": attended(2, 100, 8, heads=1, rows_=2, warps=1, splits=2),
    "halves": attended(4, 33, 8, heads=1, dtype="float16", rows_=2, warps=2),
}


@pytest.mark.parametrize("name", CASES)
def test_attention_is_right(name: str) -> None:
    assert CASES[name].program()[1] == "attention"
    check(CASES[name], 2e-3 if name == "halves" else 1e-5)


def test_every_barrier_of_a_block_of_keys_is_needed() -> None:
    program, _ = attended(3, 64, 4, heads=1, rows_=2, warps=2).program()
    grids = lowered(program, SM80)
    (launch,) = grids.launches
    number = count_barriers(launch.body)
    assert number == 3
    run(program, grids)
    for gone in range(number):
        less = replace(launch, body=without_barrier(launch.body, gone))
        with pytest.raises(VerificationError, match="touch one place without a barrier between"):
            run(program, replace(grids, launches=(less,)))
        with pytest.raises(ScheduleError, match="a barrier is missing"):
            check_barriers(less, KNOWN)


def test_keys_and_values_are_loaded_once_for_all_rows_of_a_block() -> None:
    counts = check(attended(8, 32, 8, heads=1, rows_=4, warps=2))
    assert counts.global_loads == (8 * 8 + 2 * 32 * 8) / 4  # vectors of four
    alone = 2 * 8 * 32 * (8 + 8)  # elements, if every multiply-add loaded both of its factors
    assert alone >= 8 * counts.global_load_bytes / 4  # thesis-chen figure 4.7
    assert counts.sectors_per_ideal == 1.0


@pytest.mark.parametrize("case", [attended(128, 128, 64, heads=12), attended(1, 1024, 64, heads=12)])
def test_default_choices_spill_nothing(case: Attended) -> None:
    if find_ptxas() is None:
        pytest.skip("ptxas is not installed")
    program, template = case.program()
    assert template == "attention"
    code = compile_grid(program, target("cuda:sm_90a"))
    assert all(launch.resources and launch.resources.spilled == 0 for launch in code.launches)


def test_few_queries_split_their_keys_over_blocks() -> None:
    case = attended(1, 4096, 64, heads=12)
    match = template_called("attention", SM80).on(case.task(), SM80)
    assert match.space.default["splits"] > 1 and match.space.default["warps"] == 1
    wide = attended(512, 512, 64, heads=12)
    assert template_called("attention", SM80).on(wide.task(), SM80).space.default["splits"] == 1


def test_what_is_no_softmax_is_no_attention() -> None:
    q, k = placeholder((8, 4), name="q"), placeholder((40, 4), name="k")
    v = placeholder((40, 4), name="v")
    scores = applied("matmul", "scores", q, k, transpose_b=True)
    weights = applied("softmax", "weights", scores, axis=-1)
    other = compute((8, 40), lambda i, j: weights[i, j] * weights[i, j], "other")
    for left, found in ((weights, True), (other, False)):
        mixed = applied("matmul", "mixed", left, v)
        assert (attention(KernelTask("kernel", (q, k, v), (mixed,), "", {}, frozenset())) is not None) == found


def test_a_graph_has_one_kernel_for_it(tmp_path: Path) -> None:
    b = GraphBuilder()
    q, k, v = (b.input(n, (1, 2, 8, 4)) for n in "qkv")
    weights = b.add("softmax", b.add("matmul", q, k, transpose_b=True), axis=-1)
    one = b.build(b.add("matmul", weights, v))
    assert len(bn.compile(one, target="cuda:sm_80", cache_dir=tmp_path).executable.steps) == 1
    both = b.build(b.add("matmul", weights, v), weights)  # what the caller asks for is computed
    assert len(bn.compile(both, target="cuda:sm_80", cache_dir=tmp_path).executable.steps) == 3
