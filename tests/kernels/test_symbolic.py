"""Symbolic kernels: scheduled at a hint, replayed with the dimension open, run at its ends and around its tiles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from burnish import ops
from burnish.kernels.task import KernelTask
from burnish.kernels.templates import first_match
from burnish.loops.evaluate import evaluate
from burnish.loops.interpret import run_program
from burnish.loops.layout import layout
from burnish.loops.numeric import numpy_dtype
from burnish.loops.program import For, LoopProgram, walk_stmt
from burnish.loops.sizes import SymbolicSize, dim
from burnish.loops.specialize import program_at
from burnish.loops.tensor import placeholder
from burnish.loops.verify import verify
from burnish.lower.pipeline import lower
from burnish.machines.target import host, target
from burnish.pipeline.kernel import compile_task, scheduled_program
from burnish.schedule.schedule import Call
from tests.marks import slow, slow_except

HIGH = 40
Types = Sequence[tuple[tuple[Any, ...], str]]


def make(op: str, types: Types, constants: Sequence[int] = (), **attrs: Any) -> KernelTask:
    """A task of one operator."""
    inputs = tuple(placeholder(shape, dtype, f"p{i}") for i, (shape, dtype) in enumerate(types))
    outputs = ops.OPERATORS[op].define("t0", inputs, attrs)
    return KernelTask("kernel", inputs, outputs, op, {}, frozenset(f"p{i}" for i in constants))


def dense(n: Any, depth: int, columns: int) -> KernelTask:
    """A product with constant weights, bias and relu."""
    inputs = tuple(placeholder(s, name=f"p{i}") for i, s in enumerate([(n, depth), (depth, columns), (columns,)]))
    (product,) = ops.OPERATORS["matmul"].define("t0", inputs[:2], {})
    (biased,) = ops.OPERATORS["add"].define("t1", [product, inputs[2]], {})
    return KernelTask(
        "kernel", inputs, ops.OPERATORS["relu"].define("t2", [biased], {}), "matmul", {}, frozenset(("p1", "p2"))
    )


F = "float32"
TASKS: dict[str, Callable[[Any], KernelTask]] = {
    "dense": lambda n: dense(n, 20, 40),
    "dense by panels": lambda n: dense(n, 310, 320),
    "product": lambda n: make("matmul", [((n, 24), F), ((24, 33), F)]),
    "batched": lambda n: make("matmul", [((2, n, 24), F), ((24, 32), F)], (1,)),
    "by batch": lambda n: make("matmul", [((n, 5, 24), F), ((24, 32), F)], (1,)),
    "narrow": lambda n: make("matmul", [((n, 300), F), ((300, 16), F)], (1,)),
    "map": lambda n: make("tanh", [((n, 20), F)]),
    "vector": lambda n: make("exp", [((n,), F)]),
    "cube": lambda n: make("add", [((3, n, 7), F), ((n, 1), F)]),
    "softmax": lambda n: make("softmax", [((n, 40), F)], axis=1),
    "norm": lambda n: make("layer_norm", [((n, 40), F), ((40,), F), ((40,), F)], (1, 2), axis=1),
    "mean": lambda n: make("reduce_mean", [((n, 40), F)], axes=(1,)),
    "column sums": lambda n: make("reduce_sum", [((n, 40), F)], axes=(0,)),
    "column means": lambda n: make("reduce_mean", [((n, 40), F)], axes=(0,)),
    "softmax over n": lambda n: make("softmax", [((6, n), F)], axis=1),
    "transpose": lambda n: make("transpose", [((n, 40), F)], perm=(1, 0)),
    "scores": lambda n: make("matmul", [((2, n, 16), F), ((2, 16, n), F)]),
    "mix": lambda n: make("matmul", [((2, n, n), F), ((2, n, 16), F)]),
}


def symbolic(task: KernelTask, machine: str) -> tuple[LoopProgram, list[Call]]:
    """The symbolic program under the default schedule of the first template, and its trace."""
    own = target(machine)
    program, trace, _ = scheduled_program(first_match(task.hinted, own), task)
    return program, trace


def feeds_of(task: KernelTask, trace: Sequence[Call]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Random inputs, and the same as the kernel takes them."""
    random = np.random.default_rng(0)
    feeds = {t.name: random.standard_normal(t.shape).astype(numpy_dtype(t.dtype)) for t in task.inputs}
    layouts = {args[0]: layout(args[1]) for name, args in trace if name == "transform_layout"}
    return feeds, {name: layouts[name].pack(a) if name in layouts else a for name, a in feeds.items()}


def edges(program: LoopProgram) -> list[int]:
    """The ends of the dimension, and the sizes around whole tiles of the program."""
    tiles = {s.extent for s in walk_stmt(program.body) if isinstance(s, For) and s.kind == "unroll"}
    around = {t + d for t in tiles if isinstance(t, int) for d in (-1, 0, 1)}
    return sorted(n for n in {1, 2, 7, HIGH - 1, HIGH} | around if 1 <= n <= HIGH)


@pytest.mark.parametrize("hint", slow([7, 30], 30))
@pytest.mark.parametrize("name", TASKS)
def test_one_kernel_is_right_at_every_size_between_forbidden_pages(
    name: str, hint: int, native: Callable[..., dict[str, np.ndarray]]
) -> None:
    task = TASKS[name](dim("n", 1, HIGH, hint=hint))
    program, trace = symbolic(task, "cpu")
    verify(program)
    verify(lower(program))
    for n in edges(program):
        static = TASKS[name](n)
        feeds, packed = feeds_of(static, trace)
        (expected,) = evaluate(static.outputs, feeds)
        for edge in ("start", "end"):
            (found,) = native(program, packed, edge=edge, sizes={"n": n}).values()
            np.testing.assert_allclose(found, expected, rtol=0, atol=3e-5 * np.abs(expected).max(), err_msg=f"n = {n}")


@pytest.mark.parametrize("high", slow_except([2, 3, 8], 3))
@pytest.mark.parametrize("name", TASKS)
def test_a_dimension_of_few_sizes_has_the_kernel_of_many(
    name: str, high: int, native: Callable[..., dict[str, np.ndarray]]
) -> None:
    task = TASKS[name](dim("n", 1, high, hint=high))
    program, trace = symbolic(task, "cpu")
    verify(program)
    for n in range(1, high + 1):
        static = TASKS[name](n)
        feeds, packed = feeds_of(static, trace)
        (expected,) = evaluate(static.outputs, feeds)
        (found,) = native(program, packed, edge="end", sizes={"n": n}).values()
        np.testing.assert_allclose(found, expected, rtol=0, atol=3e-5 * np.abs(expected).max(), err_msg=f"n = {n}")


@pytest.mark.parametrize("machine", slow(["x86-64-v3", "aarch64-neoverse-n1"], "x86-64-v3"))
@pytest.mark.parametrize("name", ["dense", "product", "vector", "norm", "batched"])
def test_lowered_programs_mean_the_same_for_other_machines(name: str, machine: str) -> None:
    task = TASKS[name](dim("n", 1, 12, hint=9))
    program, trace = symbolic(task, machine)
    lowered = lower(program)
    verify(lowered)
    for n in (1, 3, 6, 7, 8, 12):
        feeds, packed = feeds_of(TASKS[name](n), trace)
        (expected,) = evaluate(TASKS[name](n).outputs, feeds)
        (found,) = run_program(program_at(lowered, {"n": n}), packed).values()
        np.testing.assert_allclose(found, expected, rtol=0, atol=3e-5 * np.abs(expected).max(), err_msg=f"n = {n}")


def test_a_task_at_a_size_is_the_task_of_that_size() -> None:
    for make_task in TASKS.values():
        task = make_task(dim("n", 1, HIGH, hint=30))
        assert [d.name for d in task.dims] == ["n"]
        assert str(task.at({"n": 9}).program()) == str(make_task(9).program())
        static = make_task(30)
        assert str(task.hinted.program()) == str(static.program()) and static.hinted is static


def test_no_tile_of_the_lowered_program_asks_for_single_rows() -> None:
    program, _ = symbolic(dense(dim("n", 1, 512, hint=100), 64, 64), "x86-64-v4")
    text = str(lower(program))
    assert "- n) < 0" not in text
    assert "in (n // 10):" in text and "== 7" in text and ">= 8" in text


def test_kernels_take_the_values_of_dimensions() -> None:
    n = dim("n", 1, HIGH)
    kernel = compile_task(TASKS["dense"](n), host())
    assert kernel.dims == ("n",) and compile_task(TASKS["dense"](8), host()).dims == ()
    assert isinstance(n, SymbolicSize)


@pytest.mark.skipif(not host().has("amx-bf16"), reason="needs matrix tiles")
def test_matrix_tiles_take_any_number_of_rows(native: Callable[..., dict[str, np.ndarray]]) -> None:
    from burnish.ops.bf16x3 import split_matrix

    weight = np.random.default_rng(1).standard_normal((64, 48)).astype(np.float32)
    parts = split_matrix(weight)
    types = [((dim("n", 1, 100, hint=32), 64), F), (parts.shape, "bfloat16")]
    program, trace = symbolic(make("split_matmul", types, (1,), columns=48), "cpu")
    for n in (1, 15, 16, 17, 31, 32, 33, 64, 99, 100):
        x = np.random.default_rng(n).standard_normal((n, 64)).astype(np.float32)
        packs = {args[0]: layout(args[1]) for name, args in trace if name == "transform_layout"}
        (found,) = native(program, {"p0": x, "p1": packs["p1"].pack(parts)}, sizes={"n": n}).values()
        np.testing.assert_allclose(found, x @ weight, rtol=0, atol=1e-4 * np.abs(x @ weight).max())
