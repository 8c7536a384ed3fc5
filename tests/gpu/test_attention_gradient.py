"""Gradient of attention on tensor cores: right for masks, tails, shared heads and widths; hidden blocks are not loaded;
nothing is spilled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from burnish.codegen.grid import compile_grid, lowered
from burnish.codegen.ptxas import find_ptxas
from burnish.errors import ModelError, ScheduleError
from burnish.kernels.gpu.attention_form import attention
from burnish.kernels.gpu.attention_gradient_form import attention_gradient
from burnish.kernels.task import KernelTask
from burnish.kernels.templates import first_match, template_called
from burnish.loops.numeric import numpy_dtype
from burnish.loops.tensor import placeholder
from burnish.lower.barriers import check_barriers, count_barriers, without_barrier
from burnish.machines.target import Target, target
from burnish.ops import OPERATORS
from burnish.runtime.gpu.records import LaunchCounts
from burnish.simulators.gpu.emulator import GridEmulator
from tests.gpu.cases import SM80, TF32
from tests.gpu.test_barriers import KNOWN
from tests.marks import slow, slow_except

SM90 = target("cuda:sm_90a")
GRADIENTS = ("row_attention_query_gradient", "row_attention_key_gradient")
SMALL = {"warps": 2, "tiles": 1, "keys": 32, "stages": 2}


@dataclass(frozen=True)
class Sizes:
    """Attention of ``heads``, of which ``group`` share keys; ``attrs``: scale, lower, upper, inside."""

    rows: int
    keys: int
    depth: int
    width: int = 0
    heads: int = 1
    group: int = 1
    dtype: str = "float16"
    attrs: Mapping[str, Any] = field(default_factory=dict)
    choice: Mapping[str, int] = field(default_factory=lambda: SMALL)

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        shared, width = self.heads // self.group, self.width or self.depth
        found = [(1, self.heads, self.rows, self.depth), (1, shared, self.keys, self.depth),
                 (1, shared, self.keys, width), (1, self.heads, self.rows, width)]  # fmt: skip
        sums = (1, self.heads, self.rows)
        if self.attrs.get("inside"):
            found[3], sums = (1, self.rows, self.heads, width), (1, self.rows, self.heads)
        return [*found, (1, self.heads, self.rows), sums]

    def task(self, op: str) -> KernelTask:
        dtypes = [*[self.dtype] * 4, "float32", "float32"]
        inputs = [placeholder(s, d, f"x{n}") for n, (s, d) in enumerate(zip(self.shapes, dtypes, strict=True))]
        found = OPERATORS[op].define("y", inputs, dict(self.attrs))
        return KernelTask("kernel", tuple(inputs), tuple(found), op, {}, frozenset())


def exact(case: Sizes, q: np.ndarray, k: np.ndarray, v: np.ndarray, seed: np.ndarray) -> dict[str, Any]:
    """Logarithms, sums of rows and gradients in float64, from matrices of all scores."""
    q, k, v, seed = (x.astype("float64") for x in (q, k, v, seed))
    inside, scale = case.attrs.get("inside", False), case.attrs.get("scale", 1.0)
    if inside:
        seed = seed.swapaxes(1, 2)
    k, v = (np.repeat(x, case.group, 1) for x in (k, v))
    scores = scale * np.einsum("bhid,bhjd->bhij", q, k)
    away = np.arange(case.keys) - np.arange(case.rows)[:, None]
    low, high = (case.attrs.get(name) for name in ("lower", "upper"))
    seen = (away >= (-case.rows if low is None else low)) & (away <= (case.keys if high is None else high))
    scores = np.where(seen, scores, -np.inf)
    logs = np.log(np.exp(scores).sum(-1))
    p = np.exp(scores - logs[..., None])
    sums = (seed * (p @ v)).sum(-1)
    ds = p * (seed @ v.swapaxes(2, 3) - sums[..., None]) * scale
    by_group = (1, case.heads // case.group, case.group, case.keys, -1)
    dk = (ds.swapaxes(2, 3) @ q).reshape(by_group).sum(2)
    dv = (p.swapaxes(2, 3) @ seed).reshape(by_group).sum(2)
    order = (0, 2, 1, 3) if inside else (0, 1, 2, 3)
    return {
        "logs": logs.astype("f4"), "sums": (sums.swapaxes(1, 2) if inside else sums).astype("f4"),
        GRADIENTS[0]: [(ds @ k).transpose(order)], GRADIENTS[1]: [dk.transpose(order), dv.transpose(order)],
    }  # fmt: skip


CASES = {
    "plain": Sizes(32, 64, 16, attrs={"scale": 0.3}),
    "causal": Sizes(70, 70, 16, attrs={"upper": 0, "scale": 0.25}, choice={**SMALL, "stages": 3}),
    "window": Sizes(96, 96, 16, attrs={"lower": -20, "upper": 0}, choice={**SMALL, "warps": 1}),
    "tails": Sizes(20, 50, 20, 24, heads=2, dtype="bfloat16"),
    "shared": Sizes(40, 33, 16, heads=4, group=2, attrs={"upper": 0, "lower": -16, "inside": True}),
    "tiles": Sizes(64, 40, 32, attrs={"inside": True}, heads=2, choice={**SMALL, "tiles": 2, "warps": 1, "keys": 16}),
    "wide": Sizes(32, 32, 136, 16, choice={**SMALL, "keys": 16, "warps": 1}),
    "rounded": Sizes(40, 50, 24, 40, dtype="float32", attrs={"upper": 0, "scale": 0.25}),
}


FAST = ("causal", "shared")


def machine_of(case: Sizes, machine: Target = SM80) -> Target:
    """The target whose tensor cores multiply a case's operands."""
    return machine.with_precision("tf32") if case.dtype == "float32" else machine


def checked(name: str, op: str) -> LaunchCounts:
    """Runs a case on coroutines and compares; its counts."""
    case = CASES[name]
    machine = machine_of(case)
    task = case.task(op)
    match = first_match(task, machine)
    assert match.name == "tensor_attention_gradient"
    code = compile_grid(match.apply({**match.space.default, **case.choice}).program, machine, assembled=False)
    rng = np.random.default_rng(0)
    kind = numpy_dtype(case.dtype)
    operands = [rng.standard_normal(shape).astype(kind) for shape in case.shapes[:4]]
    wanted = exact(case, *operands)
    results = [np.zeros(t.shape, numpy_dtype(t.dtype)) for t in task.outputs]
    device = GridEmulator(0)
    given = (*operands, wanted["logs"], wanted["sums"], *results)
    device.run(code.packed(), [a.reshape(-1).view(np.uint8) for a in given])
    allowed = {"bfloat16": 1e-2, "float32": 6e-3}.get(case.dtype, 1.5e-3)
    for found, right in zip(results, wanted[op], strict=True):
        assert found.shape == right.shape
        assert np.abs(found.astype("float64") - right).max() <= allowed * np.abs(right).max()
    return device.counts


@pytest.mark.parametrize("op", GRADIENTS)
@pytest.mark.parametrize("name", slow_except(CASES, *FAST))
def test_gradients_are_those_of_float64(name: str, op: str) -> None:
    checked(name, op)


def test_hidden_blocks_are_not_loaded() -> None:
    """Of 96 rows blocks of 16 go through blocks of 32, in a window of 21: of 3 blocks one or two count."""
    queries, keys = (checked("window", op).global_load_bytes for op in GRADIENTS)
    blocks, row, number = (1, 1, 2, 2, 2, 2), 2 * 2 * 16, 4 * 2  # bytes of a row of both operands, and of its numbers
    assert queries == 96 * (row + 4 * number) + sum(blocks) * 32 * row  # four threads have a row
    seen = (2, 2, 2, 2, 1, 1)
    assert keys == 96 * row + sum(seen) * 32 * (row + number)


@pytest.mark.parametrize("op", GRADIENTS)
def test_gradients_have_the_same_bits_twice(op: str) -> None:
    """However blocks and threads take turns: nothing is added by several of them."""
    case = CASES["causal"]
    task = case.task(op)
    match = first_match(task, SM80)
    code = compile_grid(match.apply({**match.space.default, **case.choice}).program, SM80, assembled=False)
    rng = np.random.default_rng(1)
    given = [rng.standard_normal(t.shape).astype(numpy_dtype(t.dtype)) for t in task.inputs]
    found = []
    for seed in (0, 7):
        results = [np.zeros(t.shape, numpy_dtype(t.dtype)) for t in task.outputs]
        GridEmulator(seed).run(code.packed(), [a.reshape(-1).view(np.uint8) for a in (*given, *results)])
        found.append(results)
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one.view(np.uint16), other.view(np.uint16))


@pytest.mark.parametrize("op", GRADIENTS)
def test_barriers_are_needed(op: str) -> None:
    task, case = CASES["plain"].task(op), CASES["plain"]
    match = first_match(task, SM80)
    (launch,) = lowered(match.apply({**match.space.default, **case.choice}).program, SM80).launches
    assert count_barriers(launch.body) >= 1
    for gone in range(count_barriers(launch.body)):
        with pytest.raises(ScheduleError, match="a barrier is missing"):
            check_barriers(replace(launch, body=without_barrier(launch.body, gone)), KNOWN)


DEFAULTS = {
    "causal": Sizes(2048, 2048, 64, heads=16, attrs={"upper": 0, "scale": 0.125, "inside": True}),
    "encoder": Sizes(128, 128, 64, heads=768, dtype="bfloat16", attrs={"inside": True}),
    "wide": Sizes(1024, 1024, 128, heads=16, attrs={"upper": 0}),
    "widest": Sizes(1024, 1024, 256, heads=16),
    "shared": Sizes(2048, 2048, 128, heads=32, group=4, attrs={"upper": 0, "lower": -1000, "inside": True}),
    "tails": Sizes(1000, 1000, 80, heads=16, attrs={"upper": 0}),
    "rounded": Sizes(512, 512, 64, heads=192, dtype="float32", attrs={"upper": 0, "scale": 0.125, "inside": True}),
    "rounded and wide": Sizes(1024, 1024, 128, heads=16, dtype="float32", attrs={"upper": 0}),
}


@pytest.mark.skipif(find_ptxas() is None, reason="ptxas is not installed")
@pytest.mark.parametrize("machine", [SM80, SM90], ids=["sm_80", "sm_90a"])
@pytest.mark.parametrize("name", slow_except(DEFAULTS, "causal"))
def test_defaults_spill_nothing(name: str, machine: Target) -> None:
    machine = machine_of(DEFAULTS[name], machine)
    for op in GRADIENTS:
        match = first_match(DEFAULTS[name].task(op), machine)
        assert match.name == "tensor_attention_gradient"
        code = compile_grid(match.apply(match.space.default).program, machine)
        (launch,) = code.launches
        assert launch.resources is not None and launch.resources.spilled == 0
        assert code.ptx.count("mma.sync") >= 3


LOGARITHMS = {
    "tensor_attention": (SM80, "float16", 70, {"warps": 1, "tiles": 1, "keys": 32}),
    "warpgroup_attention": (SM90, "float16", 70, {}),
    "rounded": (TF32, "float32", 40, {"warps": 1, "tiles": 1, "keys": 32}),
    "attention": (SM80, "float32", 40, {"splits": 1}),
    "split": (SM80, "float32", 8, {"splits": 2}),
}


@pytest.mark.parametrize("name", slow(LOGARITHMS, "warpgroup_attention"))
def test_logarithms_of_sums_are_stored_beside_results(name: str) -> None:
    machine, dtype, rows, choice = LOGARITHMS[name]
    template = {"split": "attention", "rounded": "tensor_attention"}.get(name, name)
    heads, keys = 45 if name.startswith("w") else 1, 80
    shapes = [(1, heads, n, 16) for n in (rows, keys, keys)]

    def task(count: int) -> KernelTask:
        inputs = [placeholder((1, count, *s[2:]), dtype, f"x{n}") for n, s in enumerate(shapes)]
        attrs = {"scale": 0.3, "upper": 0, "lower": -50}
        return KernelTask("kernel", tuple(inputs), OPERATORS["row_attention"].define("y", inputs, attrs), "", {},
                          frozenset())  # fmt: skip

    match = template_called(template, machine).on(task(heads), machine)
    form = attention(task(1))
    assert form is not None and form.numbers is not None
    made = match.template.schedule(task(1), machine, form, {**match.space.default, **choice})
    code = compile_grid(made.program, machine, assembled=False)
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 1, *s[2:])).astype(dtype) for s in shapes)
    found, logs = np.zeros((1, 1, rows, 16), dtype), np.zeros((1, 1, rows), "float32")
    GridEmulator(0).run(code.packed(), [a.reshape(-1).view(np.uint8) for a in (q, k, v, found, logs)])
    sizes = Sizes(rows, keys, 16, attrs={"scale": 0.3, "upper": 0, "lower": -50})
    rough = 2e-3 if name == "rounded" else 1e-5
    np.testing.assert_allclose(logs, exact(sizes, q, k, v, found)["logs"], rtol=rough, atol=rough)


def test_what_is_none_is_told_apart() -> None:
    task = CASES["plain"].task(GRADIENTS[0])
    assert attention(task) is None
    form = attention_gradient(task)
    assert form is not None and form.sizes == (1, 32, 64, 16, 16)
    assert attention_gradient(Sizes(32, 32, 16).task(GRADIENTS[1])) is not None
    wrong = placeholder((1, 3, 64, 16), "float16", "k")
    q, k, v, seed, logs, sums = task.inputs
    with pytest.raises(ModelError, match=r"input 'value': found shape .*; allowed: a divisor of 1 heads"):
        OPERATORS[GRADIENTS[0]].define("y", [q, k, wrong, seed, logs, sums])
    with pytest.raises(ModelError, match="attributes 'lower' and 'upper': found 0 to -1 for 32 rows of 64 keys"):
        OPERATORS["row_attention"].define("y", [q, k, v], {"lower": 0, "upper": -1})
