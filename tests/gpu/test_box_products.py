"""Products whose factors are fetched as boxes of tensors: right in every layout, also where threads fetch instead."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np
import pytest

from benchmarks import gpu_products
from burnish.codegen.grid import compile_grid
from burnish.codegen.gridcode import GridCode
from burnish.codegen.ptxas import find_ptxas
from burnish.graph import GraphBuilder
from burnish.graph.passes import optimize
from burnish.kernels.gpu.forms import product
from burnish.kernels.gpu.product_time import ProductSize, best
from burnish.kernels.gpu.split_product import SPLIT_PRODUCT, SplitProduct
from burnish.kernels.gpu.warpgroup_product import WARPGROUP_PRODUCT, warpgroup_blocks
from burnish.kernels.task import KernelTask
from burnish.kernels.template import TemplateMatch
from burnish.kernels.templates import matches
from burnish.loops.evaluate import evaluate
from burnish.loops.tensor import placeholder
from burnish.machines.nvptx.tensor_copies import TensorMap
from burnish.machines.target import Target
from burnish.ops import OPERATORS
from burnish.runtime.buffers import address_of
from burnish.runtime.gpu.driver import LaunchArguments
from burnish.simulators.gpu.emulator import GridEmulator, emulated
from burnish.tune.evaluate import Evaluator, Fixed, KernelTrial
from burnish.tune.tasks import tuning_tasks
from burnish.tune.validation import trial_of
from tests.gpu.cases import Case, execute
from tests.gpu.driver import emulated_gpu
from tests.gpu.test_asynchrony import SM90
from tests.marks import slow_except

TF32 = SM90.with_precision("tf32")
ERRORS = {"float16": 2e-3, "bfloat16": 1e-2, "float32": 4e-3, "int8": 0.0}
CHOICE = {"tile": "64x64", "stages": 3, "fetch": "boxes"}
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Transposed(Case):
    """A product whose right factor is stored by columns, as weights of linear layers are."""

    def task(self) -> KernelTask:
        """What the kernel computes."""
        x, w = (placeholder(s, d, f"x{i}") for i, (s, d) in enumerate(zip(self.shapes, self.dtypes, strict=True)))
        last = len(w.shape) - 1
        (turned,) = OPERATORS["transpose"].define("t", [w], {"perm": (*range(last - 1), last, last - 1)})
        return KernelTask("kernel", (x, w), OPERATORS["matmul"].define("y", [x, turned]), "", {}, frozenset())


def of(left: Shape, right: Shape, dtype: str = "float16", by_columns: bool = False, **choice: object) -> Case:
    """A product of two tensors; ``right`` [..., columns, depth] where it is stored by columns."""
    machine = TF32 if dtype == "float32" else SM90
    kind = Transposed if by_columns else Case
    return kind("matmul", [left, right], {}, (dtype, dtype), "warpgroup_product", {**CHOICE, **choice}, machine)


def match_of(case: Case) -> TemplateMatch:
    """The template on a case."""
    assert case.machine is not None
    return next(m for m in matches(case.task(), case.machine) if m.name == case.template)


def compiled(case: Case) -> tuple[GridCode, int]:
    """The code of a case, and the number of factors that it fetches as boxes."""
    match = match_of(case)
    program = match.apply({**match.space.default, **(case.choice or {})}).program
    text = str(program)
    boxes = len({line.split("(")[1].split("[")[0] for line in text.split("\n") if "copy_tensor(" in line})
    assert case.machine is not None
    return compile_grid(program, case.machine, assembled=False), boxes


def check(code: GridCode, case: Case) -> None:
    """Runs a case and compares."""
    (found,), (wanted,), counts = execute(code, case)
    scale = float(np.abs(wanted.astype("f8")).max(initial=1e-6))
    np.testing.assert_allclose(found.astype("f8"), wanted.astype("f8"), rtol=0, atol=ERRORS[case.dtypes[0]] * scale)
    assert counts.blocks > 0


LAYOUTS = {
    "halves by columns, edges everywhere": (of((70, 136), (72, 136), by_columns=True), 2),
    "bytes by columns": (of((64, 256), (64, 256), "int8", by_columns=True), 2),
    "bytes by columns, edges everywhere": (of((70, 144), (72, 144), "int8", by_columns=True), 2),
    "bytes by rows": (of((64, 128), (128, 64), "int8"), 1),
    "TF32 by columns, edges everywhere": (of((70, 36), (72, 36), "float32", by_columns=True), 2),
    "TF32 by rows": (of((64, 64), (64, 64), "float32"), 1),
    "rows of odd lengths": (of((64, 71), (71, 65)), 0),
    "one row": (of((1, 128), (128, 72)), 1),
    "few rows": (of((5, 128), (128, 72)), 2),
    "a depth of 8": (of((64, 8), (8, 64)), 2),
    "one weight for a batch": (of((3, 65, 72), (72, 72), "bfloat16"), 2),
    "one weight for a batch of two axes": (of((2, 2, 33, 72), (1, 72, 72)), 2),
    "one left factor for a batch": (of((65, 72), (3, 72, 72), "bfloat16"), 1),
    "a batch of each factor": (of((2, 1, 65, 72), (1, 3, 72, 72)), 1),
    "a batch of four axes": (of((2, 1, 2, 2, 20, 72), (2, 1, 2, 2, 72, 24)), 2),
}


@pytest.mark.parametrize(
    "name",
    slow_except(
        LAYOUTS, "bytes by columns, edges everywhere", "TF32 by columns, edges everywhere", "one row",
        "halves by columns, edges everywhere",
    ),
)  # fmt: skip
def test_factors_are_fetched_as_boxes_where_they_are_such(name: str) -> None:
    case, wanted = LAYOUTS[name]
    code, boxes = compiled(case)
    assert boxes == wanted and ("fetch" in match_of(case).space.knobs) == (boxes == 2)
    check(code, case)


def test_tensors_of_more_dimensions_than_maps_have_are_fetched_by_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("burnish.schedule.tensor_copy.MOST_DIMENSIONS", 2)
    case = of((2, 16, 72), (2, 72, 16), "bfloat16")
    code, boxes = compiled(case)
    assert boxes == 0 and "fetch" not in match_of(case).space.knobs
    check(code, case)


SEEDS = range(24)
FAST = (0, 3)


def drawn(seed: int) -> Case:
    """A product at random that groups of warps compute: types, layouts, edges, batches that one factor may lack."""
    rng = np.random.default_rng(seed)
    while True:
        dtype = str(rng.choice(["float16", "bfloat16", "float32", "int8"], p=[0.35, 0.35, 0.15, 0.15]))
        m, n, k = (int(rng.integers(1, 140)) for _ in range(3))
        if rng.random() < 0.8:
            n, k = -(-n // 16) * 16, -(-k // 16) * 16
        batch = tuple(int(rng.integers(1, 3)) for _ in range(rng.choice([0, 0, 1, 2, 3])))
        left, right = (tuple(1 if rng.random() < 0.2 else n for n in batch) for _ in range(2))
        columns = bool(rng.random() < 0.5)
        tile, stages = str(rng.choice(["64x64", "64x128", "128x64"])), int(rng.choice([3, 4]))
        shapes = (*left, m, k), (*right, *((n, k) if columns else (k, n)))
        case = of(*shapes, dtype, columns, tile=tile, stages=stages)
        if any(m.name == case.template for m in matches(case.task(), case.machine or SM90)):
            return case


@pytest.mark.parametrize("seed", slow_except(SEEDS, *FAST))
def test_products_at_random_are_right(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Maps are those that CUDA takes, and both factors are boxes where the choice is offered."""
    case = drawn(seed)
    code, boxes = compiled(case)
    assert boxes == 2 or "fetch" not in match_of(case).space.knobs
    gpu, driver = emulated_gpu(monkeypatch, [code])
    maps = [one for launch in code.launches for one in launch.maps]
    assert all(gpu._tensor_maps(one, 4096).nbytes == 128 for one in maps)
    assert len(driver.tensor_maps) == len(maps) >= boxes
    check(code, case)


@pytest.mark.slow
def test_convolutions_by_boxes_are_right() -> None:
    """Images channels last: taps of weights are a dimension of a map; images are boxes only where each pixel is read
    once, and fetched by threads where windows overlap or leave pixels out.
    """
    b, rng = GraphBuilder(), np.random.default_rng(0)

    def convolved(x: str, outputs: int, inputs: int, side: int, **attrs: tuple[int, ...]) -> str:
        weight = (rng.standard_normal((outputs, inputs, side, side)) / 8).astype("float16")
        return b.add("relu", b.add("conv2d", x, b.constant(weight), **attrs))

    y = convolved(b.input("x", (2, 64, 6, 6), "float16"), 64, 64, 3, pads=(1, 1, 1, 1))
    y = convolved(y, 64, 64, 1)
    y = convolved(y, 128, 64, 3, pads=(1, 1, 1, 1), strides=(2, 2))
    graph = b.build(convolved(y, 128, 128, 1, strides=(2, 2)))
    offered = []
    for kernel in tuning_tasks(optimize(graph, False), SM90, False):
        task = trial_of(kernel.space.default).task
        for match in (m for m in matches(task, SM90) if m.name == "warpgroup_product"):
            offered.append("fetch" in match.space.knobs)
            program = match.apply({**match.space.default, **CHOICE}).program
            assert "copy_tensor(" in str(program) and ("for async" in str(program)) != offered[-1]
            given = [rng.standard_normal(t.shape).astype("float16") for t in task.inputs]
            (wanted,) = evaluate(task.outputs, {t.name: x for t, x in zip(task.inputs, given, strict=True)})
            found = np.zeros_like(wanted)
            code = compile_grid(program, SM90, assembled=False)
            GridEmulator(0).run(code.packed(), [x.reshape(-1).view(np.uint8) for x in (*given, found)])
            np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-3 * np.abs(wanted).max())
    assert sorted(offered) == [False, False, False, True]


# --- depths in parts --------------------------------------------------------------------------------------------------


def in_parts(case: Case, parts: int, machine: Target = SM90) -> TemplateMatch:
    """The product in parts of its depth on a case, whose first launch is of groups of warps."""
    task = case.task()
    form = product(task)
    assert form is not None
    return TemplateMatch(SPLIT_PRODUCT, task, machine, SplitProduct(task, machine, form, parts, WARPGROUP_PRODUCT, 0.0))


@pytest.mark.parametrize(
    ("depth", "parts", "by_columns"),
    [(256, 2, False), (400, 2, True), pytest.param(400, 2, False, marks=pytest.mark.slow)],
)
def test_parts_of_a_depth_are_boxes(depth: int, parts: int, by_columns: bool) -> None:
    """Also parts that end within a block of the depth, where the tensor goes on: they are a dimension of its map."""
    case = of((40, depth), (72, depth) if by_columns else (depth, 72), "bfloat16", by_columns)
    match = in_parts(case, parts)
    program = match.apply({**match.space.default, **CHOICE, "splits": parts}).program
    assert "for async" not in str(program)
    code = compile_grid(program, SM90, assembled=False)
    first, second = code.launches
    whole = depth // parts % 64 == 0
    left = (40, depth) if whole else (40, parts, depth // parts)
    assert first.maps[0] == TensorMap(0, 0, "bfloat16", left, (64, 64) if whole else (64, 1, 64)) and not second.maps
    check(code, case)


@pytest.mark.parametrize(("best", "parts"), [(2, 3), pytest.param(3, 2, marks=pytest.mark.slow)])
def test_some_parts_of_a_depth_are_boxes_and_others_not(best: int, parts: int) -> None:
    """Thirds of 408 halves begin at multiples of 16 bytes, its halves do not: who chooses these may not know boxes."""
    case = of((40, 408), (72, 408), "bfloat16", by_columns=True)
    match = in_parts(case, best)
    assert match.space.knobs["splits"] == (2, 3) and ("fetch" in match.space.knobs) == (best == 3)
    given = {"fetch": "boxes"} if best == 3 else {}
    program = match.apply({**match.space.default, **given, "splits": parts}).program
    assert "copy_tensor" not in str(program)
    check(compile_grid(program, SM90, assembled=False), case)


# --- what is predicted, measured, launched ----------------------------------------------------------------------------

STAGES = {"64x64": 4, "64x256": 4, "128x128": 6, "128x192": 4, "256x128": 4, "128x256": 4}  # stages


@pytest.mark.parametrize("tile", slow_except(STAGES, "64x64"))
def test_registers_and_shared_memory_of_boxes_are_those_predicted(tile: str) -> None:
    """Fewer registers than copies by threads take, for one more piece of shared memory."""
    if find_ptxas() is None:
        pytest.skip("ptxas is not installed")
    sizes, taken = ((4096, 4096), (4096, 4096)), {}
    for fetch in ("threads", "boxes"):
        case = of(*sizes, "bfloat16", tile=tile, stages=STAGES[tile], fetch=fetch)
        (launch,) = compile_grid(case.program()[0], SM90).launches
        assert launch.resources is not None and launch.resources.spilled == launch.resources.stack == 0
        taken[fetch] = launch
    form = product(case.task())
    assert form is not None
    blocks = {dict(b.choice)["tile"]: b for b in warpgroup_blocks(form, SM90, "boxes") if b.ahead == STAGES[tile] - 2}
    assert taken["boxes"].resources.registers == pytest.approx(blocks[tile].registers, abs=2)
    assert taken["boxes"].resources.registers <= taken["threads"].resources.registers
    assert taken["boxes"].dynamic == blocks[tile].shared == taken["threads"].dynamic + 1024


def test_steps_of_boxes_are_whole_rows() -> None:
    """80 halves are two steps of 48 for threads, and of 64 for boxes: there threads are predicted to be faster."""
    case = of((4096, 80), (80, 4096), "bfloat16")
    form = product(case.task())
    assert form is not None
    work = ProductSize.of(form, case.task(), SM90)
    (threads, threads_block), (boxes, boxes_block) = (
        best(work, warpgroup_blocks(form, SM90, fetch), SM90) for fetch in ("threads", "boxes")
    )
    assert (threads_block.depth, boxes_block.depth) == (48, 64) and threads < boxes
    large = product(of((4096, 4096), (4096, 4096), "bfloat16").task())
    assert large is not None
    work = ProductSize.of(large, of((4096, 4096), (4096, 4096), "bfloat16").task(), SM90)
    found = [best(work, warpgroup_blocks(large, SM90, fetch), SM90)[0] for fetch in ("threads", "boxes")]
    assert found[1] <= found[0]


@pytest.mark.slow
def test_tuning_builds_checks_and_times_both_ways() -> None:
    case = of((64, 64), (64, 64), "bfloat16")
    match = match_of(case)
    assert match.space.knobs["fetch"] == ("threads", "boxes") and match.space.default["fetch"] == "threads"
    with Evaluator(emulated(SM90), workers=1, rule=Fixed(1)) as evaluator:
        trials = [
            KernelTrial(case.task(), match.name, {**match.space.default, **CHOICE, "fetch": fetch})
            for fetch in ("threads", "boxes")
        ]
        found = evaluator.evaluate(trials)
    assert [one.outcome for one in found] == ["ok", "ok"]


def test_the_benchmark_of_products_builds_both_ways_and_launches_maps() -> None:
    """Each choice of groups of warps is there by threads and by boxes; a launch gets the maps behind its buffers."""
    own = [v for v in gpu_products.variants() if v[0] == "warpgroup_product"]
    ways = [{k: v for k, v in choice.items() if k != "fetch"} for _, _, _, choice in own if "fetch" in choice]
    assert ways == [choice for _, _, _, choice in own if "fetch" not in choice] and len(ways) >= 8
    variant = next(v for v in own if "fetch" in v[3] and v[2][0] == 200)
    code = gpu_products.code_of(variant, "cuda:sm_90a")
    (launch,) = code.launches
    made = np.arange(256, dtype=np.uint8).reshape(2, 128)
    asked: list[tuple[TensorMap, int]] = []

    def maps(known: TensorMap, place: int) -> np.ndarray:
        asked.append((known, place))
        return made[len(asked) - 1]

    given = LaunchArguments(launch, [512, 1024, 2048, 4096], maps)
    pointers = (ctypes.c_uint64 * 6).from_address(given.address)
    assert [ctypes.c_uint64.from_address(at).value for at in pointers[:4]] == [512, 1024, 2048, 4096]
    assert pointers[4:] == [address_of(one) for one in made]
    assert asked == [(launch.maps[0], 512), (launch.maps[1], 1024)]
