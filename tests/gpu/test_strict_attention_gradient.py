"""Gradient of attention without tensor cores: right for masks, tails, shared heads and widths, with the same bits each
time; hidden blocks are not loaded; nothing is spilled; taken where it is predicted to be faster.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest
import torch

import burnish as bn
from burnish.codegen.grid import compile_grid, lowered
from burnish.codegen.ptxas import find_ptxas
from burnish.errors import ScheduleError
from burnish.graph.graph import GraphBuilder, TensorType
from burnish.kernels.gpu.attention_gradient import shared_bytes
from burnish.kernels.template import TemplateMatch
from burnish.kernels.templates import first_match, template_called
from burnish.loops.numeric import numpy_dtype
from burnish.lower.barriers import check_barriers, count_barriers, without_barrier
from burnish.machines.nvptx.occupancy import occupancy
from burnish.machines.target import Target, target
from burnish.pipeline.attention_gradients import seen_share, tiled_by
from burnish.runtime.gpu.records import LaunchCounts
from burnish.simulators.gpu.emulator import GridEmulator, emulated
from tests.gpu.cases import SM80
from tests.gpu.test_attention_gradient import GRADIENTS, SM90, Sizes, exact
from tests.gpu.test_barriers import KNOWN
from tests.marks import slow_except

SMALL = {"across": 8, "rows": 2, "keys": 2, "stages": 2}


def strict(*sizes: int, **others: Any) -> Sizes:
    choice = {**SMALL, **others.pop("choice", {})}
    return Sizes(*sizes, **{"dtype": "float32", **others}, choice=choice)


CASES = {
    "plain": strict(32, 64, 16, attrs={"scale": 0.3}),
    "causal": strict(36, 36, 16, attrs={"upper": 0, "scale": 0.25}),
    "window": strict(48, 48, 8, attrs={"lower": -12, "upper": 0, "scale": 0.25}, choice={"rows": 1}),
    "ahead": strict(40, 70, 16, attrs={"lower": 3, "upper": 30, "scale": 0.25}),
    "tails": strict(20, 50, 20, 24, heads=2, attrs={"scale": 0.2}, choice={"across": 16, "stages": 1}),
    "shared": strict(20, 18, 8, heads=4, group=2, attrs={"upper": 0, "lower": -6, "inside": True}, choice={"rows": 1}),
    "one head of keys": strict(24, 24, 16, heads=3, group=3, attrs={"scale": 0.25, "inside": True}),
    "half": strict(20, 50, 20, 24, heads=2, dtype="float16", attrs={"scale": 0.2}),
    "wide": strict(17, 19, 128, 36, attrs={"scale": 0.1}, choice={"rows": 1, "keys": 4}),
    "one block": strict(17, 16, 8, 40, attrs={"upper": 0}, choice={"rows": 4, "keys": 8, "stages": 1}),
    "odd": strict(18, 34, 17, 9, attrs={"scale": 0.25}, choice={"stages": 1}),
}


def matched(case: Sizes, op: str, machine: Target = SM80) -> TemplateMatch:
    """The template on a gradient, also where tensor cores would take it."""
    return template_called("attention_gradient", machine).on(case.task(op), machine)


def checked(case: Sizes, op: str, seed: int = 0) -> LaunchCounts:
    """Runs a case on coroutines and compares; its counts."""
    match = matched(case, op)
    code = compile_grid(match.apply({**match.space.default, **case.choice}).program, SM80, assembled=False)
    rng, kind = np.random.default_rng(seed), numpy_dtype(case.dtype)
    operands = [rng.standard_normal(shape).astype(kind) for shape in case.shapes[:4]]
    wanted = exact(case, *operands)
    results = [np.zeros(t.shape, numpy_dtype(t.dtype)) for t in match.task.outputs]
    device = GridEmulator(seed)
    given = (*operands, wanted["logs"], wanted["sums"], *results)
    device.run(code.packed(), [a.reshape(-1).view(np.uint8) for a in given])
    allowed = 5e-4 if case.dtype == "float16" else 3e-6
    for found, right in zip(results, wanted[op], strict=True):
        assert found.shape == right.shape
        assert np.abs(found.astype("float64") - right).max() <= allowed * np.abs(right).max()
    return device.counts


@pytest.mark.parametrize("op", GRADIENTS)
@pytest.mark.parametrize("name", slow_except(CASES, "causal", "shared"))
def test_gradients_are_those_of_float64(name: str, op: str) -> None:
    checked(CASES[name], op)


def drawn(seed: int) -> Sizes:
    """Attention of random sizes, bands, shared heads and knobs."""
    rng = np.random.default_rng(seed)
    rows, keys, depth, width = (int(rng.integers(*bounds)) for bounds in ((16, 60), (16, 60), (4, 40), (4, 40)))
    attrs: dict[str, Any] = {"scale": 0.2, "inside": bool(rng.integers(2))}
    if rng.integers(2):
        attrs["upper"] = int(rng.integers(0, keys))
    if rng.integers(2):
        attrs["lower"] = int(rng.integers(-rows, min(1, keys - rows + 1, attrs.get("upper", 0) + 1)))
    group = int(rng.integers(1, 3))
    choice = {"across": int(rng.choice((8, 16))), "rows": int(rng.choice((1, 2, 4))),
              "keys": int(rng.choice((2, 4))), "stages": int(rng.choice((1, 2)))}  # fmt: skip
    return strict(rows, keys, depth, width, heads=2 * group, group=group, attrs=attrs, choice=choice)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_random_gradients_are_those_of_float64(seed: int) -> None:
    for op in GRADIENTS:
        checked(drawn(seed), op, seed)


def test_hidden_blocks_are_not_loaded() -> None:
    """Of 48 rows blocks of 16 go through blocks of 16, in a window of 13: one or two of three count."""
    queries, keys = (checked(CASES["window"], op).global_load_bytes for op in GRADIENTS)
    seen, row, number = 1 + 2 + 2, 4 * 2 * 8, 4 * 2  # bytes of a row of both operands, and of its numbers
    assert queries == 48 * (row + 8 * number) + seen * 16 * row  # eight threads have a row
    assert keys == 48 * row + seen * 16 * (row + number)


@pytest.mark.parametrize("op", GRADIENTS)
def test_gradients_have_the_same_bits_twice(op: str) -> None:
    """However blocks and threads take turns: nothing is added by several of them."""
    case = CASES["shared"]
    match = matched(case, op)
    code = compile_grid(match.apply({**match.space.default, **case.choice}).program, SM80, assembled=False)
    rng = np.random.default_rng(1)
    given = [rng.standard_normal(t.shape).astype("f4") for t in match.task.inputs]
    found = []
    for seed in (0, 7):
        results = [np.zeros(t.shape, "f4") for t in match.task.outputs]
        GridEmulator(seed).run(code.packed(), [a.reshape(-1).view(np.uint8) for a in (*given, *results)])
        found.append(results)
    for one, other in zip(*found, strict=True):
        assert one.any()
        np.testing.assert_array_equal(one.view(np.uint32), other.view(np.uint32))


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("op", GRADIENTS)
def test_barriers_are_needed(op: str, stages: int) -> None:
    match = matched(CASES["plain"], op)
    choice = {**match.space.default, **SMALL, "stages": stages}
    (launch,) = lowered(match.apply(choice).program, SM80).launches
    assert count_barriers(launch.body) >= 2
    for gone in range(count_barriers(launch.body)):
        with pytest.raises(ScheduleError, match="a barrier is missing"):
            check_barriers(replace(launch, body=without_barrier(launch.body, gone)), KNOWN)


DEFAULTS = {
    "gpt": strict(512, 512, 64, heads=192, attrs={"upper": 0, "scale": 0.125, "inside": True}),
    "encoder": strict(128, 128, 64, heads=768, attrs={"scale": 0.125, "inside": True}),
    "narrow": strict(512, 512, 16, heads=64),
    "wide": strict(1024, 1024, 128, heads=16, attrs={"upper": 0}),
    "tails": strict(1000, 1000, 80, heads=16, attrs={"upper": 0}),
    "few": strict(48, 48, 32, heads=4),
    "shared": strict(2048, 2048, 128, heads=32, group=4, attrs={"upper": 0, "lower": -1000, "inside": True}),
    "halves": strict(512, 512, 64, heads=16, dtype="float16", attrs={"upper": 0}),
}
SM75 = target("cuda:sm_75")
MACHINES = {"sm_75": SM75, "sm_80": SM80, "sm_90a": SM90}


@pytest.mark.skipif(find_ptxas() is None, reason="ptxas is not installed")
@pytest.mark.parametrize("machine", slow_except(MACHINES, "sm_90a"))
@pytest.mark.parametrize("name", slow_except(DEFAULTS, "gpt"))
def test_defaults_spill_nothing(name: str, machine: str) -> None:
    own = MACHINES[machine]
    for op in GRADIENTS:
        match = matched(DEFAULTS[name], op, own)
        choice = match.space.default
        code = compile_grid(match.apply(choice).program, own)
        (launch,) = code.launches
        used = launch.resources
        assert used is not None and used.spilled == 0 and "mma" not in code.ptx
        shared = used.shared + launch.dynamic
        predicted = shared_bytes(match.form, *(int(choice[knob]) for knob in ("across", "rows", "keys", "stages")))
        assert shared <= predicted <= own.shared_bytes
        assert occupancy(own.cpu, prod(launch.block), used.registers, shared) >= 0.06


@pytest.mark.slow
@pytest.mark.parametrize("upper", [None, 0])
def test_gradients_err_like_those_with_scores_in_memory(upper: int | None) -> None:
    """And 1.4 times as much as PyTorch's, at most: of a row the logarithm of its sum is kept, rounded to float32, by
    which shares err by some 2^-23.
    """
    shape = (1, 2, 64, 32)

    def compiled(tiled: bool, machine: Target) -> bn.Module:
        b = GraphBuilder()
        q, k, v = (b.input(name, shape) for name in "qkv")
        y, _ = b.add_many("row_attention", q, k, v, scale=32**-0.5, upper=upper, tiled=tiled)
        return bn.compile(bn.gradients(b.build(y), y, ["q", "k", "v"]), target=machine)

    module, products = compiled(True, emulated(SM80)), compiled(False, target("cpu"))
    assert sum(row["template"] == "attention_gradient" for row in module.info["kernels"]) == 2
    torch.manual_seed(0)
    given = [torch.randn(shape) for _ in range(4)]
    mine, others = ([np.asarray(x).astype("float64") for x in m(*given)][1:] for m in (module, products))

    def gradients(kind: torch.dtype) -> list[np.ndarray]:
        q, k, v = (x.detach().to(kind).requires_grad_() for x in given[:3])
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=upper == 0)
            y.backward(given[3].to(kind))
        return [x.grad.double().numpy() for x in (q, k, v)]  # type: ignore[union-attr]

    right = gradients(torch.float64)
    own, by_products, torchs = (
        [float(np.sqrt(np.mean((x - y) ** 2))) for x, y in zip(found, right, strict=True)]
        for found in (mine, others, gradients(torch.float32))
    )
    assert all(a <= 1.1 * b for a, b in zip(own, by_products, strict=True)), (own, by_products)
    assert all(a <= 1.4 * b for a, b in zip(own, torchs, strict=True)), (own, torchs)


def test_gradient_is_chosen_by_predicted_seconds() -> None:
    """Where a band hides blocks, and of few tokens, scores are computed again; not where products are slow besides."""

    def chosen(machine: Target, shape: tuple[int, ...], band: tuple[int, int] | None, dtype: str = "float32") -> bool:
        own = TensorType(shape, dtype)
        return tiled_by(machine)(own, own, own, band)

    gpt, wide = (16, 12, 512, 64), (8, 16, 1024, 128)
    assert all(chosen(machine, gpt, (-511, 0)) for machine in (SM80, SM90))
    assert all(chosen(machine, wide, (-1023, 0)) for machine in (SM80, SM90))
    assert chosen(SM90, gpt, None) and chosen(SM80, (2, 2, 64, 32), None)
    assert not chosen(SM80, wide, None), "seven products take longer than five and their scores in memory"
    assert not chosen(SM90, (8, 16, 1024, 256), (-1023, 0)), "heads are wider than a block's memory holds"
    assert not chosen(SM90, gpt, (-511, 0), "float64")
    assert chosen(SM80.with_precision("tf32"), wide, None), "on tensor cores always"
    assert first_match(DEFAULTS["halves"].task(GRADIENTS[0]), SM75).name == "attention_gradient"


def test_share_of_blocks_that_a_band_shows() -> None:
    assert seen_share(512, 512, None) == 1.0
    assert seen_share(512, 512, (-511, 0)) == (8 * 9 / 2) / 64
    assert seen_share(256, 256, (-64, 0)) == 7 / 16
    assert seen_share(16, 16, (-15, 0)) == 1.0
