"""Copies of boxes of tensors (TMA): right on coroutines, refused where they are none, what is read early is found."""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from burnish.codegen.grid import compile_grid, lowered
from burnish.codegen.gridcode import GridCode, LaunchCode
from burnish.codegen.ptxas import find_ptxas
from burnish.errors import ScheduleError, TargetError, VerificationError
from burnish.kernels.templates import tunable_matches
from burnish.loops.program import (
    EXPECT_COPIES,
    INIT_ARRIVALS,
    WAIT_ARRIVALS,
    WAIT_PRODUCTS,
    If,
    Intrinsic,
    LoopProgram,
    Stmt,
    rebuild_stmt,
)
from burnish.loops.tensor import compute, create_program, placeholder
from burnish.lower.barriers import count_barriers, without_barrier
from burnish.machines.nvptx.tensor_copies import TensorMap
from burnish.runtime.buffers import address_of
from burnish.runtime.gpu.tensor_maps import TensorMaps
from burnish.schedule.schedule import Schedule
from tests.gpu.cases import SM80, Case, check, execute
from tests.gpu.driver import emulated_gpu
from tests.gpu.test_asynchrony import SM90, checked, without
from tests.gpu.test_barriers import coded
from tests.marks import slow

HALVES = ("float16", "float16")
LONG = Case(
    "matmul", [(64, 320), (320, 64)], {}, HALVES, "warpgroup_product",
    {"tile": "64x64", "stages": 3, "fetch": "boxes"}, SM90,
)  # fmt: skip

SHORT = replace(LONG, shapes=[(64, 128), (128, 64)])  # each copy of the buffers is filled once

PRODUCTS = {
    "whole tiles": ([(64, 64), (64, 64)], "64x64", 3, "float16"),
    "edges that divide no tile": ([(70, 136), (136, 72)], "64x64", 3, "bfloat16"),
    "two groups, two panels": ([(130, 200), (200, 136)], "128x128", 3, "float16"),
    "batch": ([(2, 64, 96), (2, 96, 64)], "64x64", 4, "bfloat16"),
    "rows of two axes": ([(2, 40, 96), (96, 72)], "64x64", 3, "float16"),
}


@pytest.mark.parametrize("name", slow(PRODUCTS, "two groups, two panels"))
def test_products_of_boxes_are_right(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes, tile, stages, dtype = PRODUCTS[name]
    case = replace(LONG, shapes=shapes, dtypes=(dtype, dtype), choice={**LONG.choice, "tile": tile, "stages": stages})
    text = str(case.program()[0])
    assert "copy_tensor(" in text and "for async" not in text
    counts = checked(case, SM90, "warpgroup_product", 1e-2, monkeypatch)
    assert counts.shared_passes == counts.shared_ideal and counts.sectors_per_ideal == 1.0


def test_boxes_beside_copies_of_threads_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of 65 halves are no multiples of 16 bytes apart: those threads copy, the columns are boxes."""
    case = replace(LONG, shapes=[(64, 130), (130, 64)])
    text = str(case.program()[0])
    assert "copy_tensor(" in text and "for async" in text
    checked(case, SM90, "warpgroup_product", 1e-2, monkeypatch)


def test_boxes_are_a_choice_where_both_factors_are_such() -> None:
    def knob(case: Case) -> object:
        (match,) = [m for m in tunable_matches(case.task(), SM90) if m.name == "warpgroup_product"]
        return match.space.knobs.get("fetch"), match.space.default.get("fetch")

    assert knob(LONG) == (("threads", "boxes"), "threads")
    assert knob(replace(LONG, shapes=[(64, 130), (130, 64)])) == (None, None)


def changed(change: Callable[[Stmt], Stmt], case: Case = LONG) -> np.ndarray:
    """The result of a product whose code is changed."""
    program, _ = case.program()
    grids = lowered(program, SM90)
    (launch,) = grids.launches
    code = coded(program, replace(grids, launches=(replace(launch, body=change(launch.body)),)), SM90)
    results, _, _ = execute(code, case)
    return results[0]


def altered(name: str, new: Callable[[Intrinsic], Intrinsic]) -> Callable[[Stmt], Stmt]:
    """A change of all intrinsics of a name."""

    def change(s: Stmt) -> Stmt:
        return new(s) if isinstance(s, Intrinsic) and s.name == name else rebuild_stmt(s, change)

    return change


def test_reading_before_bytes_have_arrived_is_found() -> None:
    with pytest.raises(VerificationError, match="touches what a copy of thread 0 has not ended with"):
        changed(lambda body: without(body, WAIT_ARRIVALS), SHORT)


def test_beginning_a_phase_before_the_last_one_has_ended_is_found() -> None:
    with pytest.raises(VerificationError, match="mbarrier: more threads arrive than its phase waits for"):
        changed(lambda body: without(body, WAIT_ARRIVALS))


def test_waiting_for_the_phase_before_is_found() -> None:

    def other(s: Intrinsic) -> Intrinsic:
        place, *rest = s.operands
        return Intrinsic(s.name, (replace(place, indices=(1 - place.indices[0], place.indices[1])), *rest), s.attrs)

    with pytest.raises(VerificationError, match="touches what a copy of thread 0 has not ended with"):
        changed(altered(WAIT_ARRIVALS, other), SHORT)


@pytest.mark.parametrize("more", [-16, 16])
def test_other_bytes_than_those_expected_never_end_a_phase(more: int) -> None:

    def wrong(s: Intrinsic) -> Intrinsic:
        return Intrinsic(s.name, s.operands, (("bytes", int(dict(s.attrs)["bytes"]) + more),))

    with pytest.raises(VerificationError, match="waits for a phase of an mbarrier that does not end"):
        changed(altered(EXPECT_COPIES, wrong))


def test_mbarriers_that_nobody_initialized_are_found() -> None:
    with pytest.raises(VerificationError, match="thread 0 uses one that is not initialized"):
        changed(lambda body: without(body, INIT_ARRIVALS))


def test_mbarriers_without_a_fence_after_are_found() -> None:
    """The unit that copies sees what a thread has written only behind a fence of the asynchronous proxy."""
    code = compile_grid(LONG.program()[0], SM90, assembled=False)
    fence = "call void @gpu.arrivals.publish()"
    assert fence in code.ir
    with pytest.raises(VerificationError, match="no fence of the asynchronous proxy"):
        execute(replace(code, ir=code.ir.replace(fence, "")), LONG)


def test_copies_that_go_on_when_the_block_ends_are_found() -> None:
    """What is fetched behind the depth is waited for by nobody."""

    def always(s: Stmt) -> Stmt:
        ahead = isinstance(s, If) and any(v.endswith(".ko") for v in s.cond.variables)
        return s.body if isinstance(s, If) and ahead else rebuild_stmt(s, always)

    with pytest.raises(VerificationError, match="ends before a copy of a box"):
        changed(always)


def test_overwriting_operands_of_products_under_way_is_found() -> None:
    with pytest.raises(VerificationError, match="thread 0 touches what a product of thread 0 has not ended with"):
        changed(lambda body: without(body, WAIT_PRODUCTS, lambda s: not s.operands))


@pytest.mark.parametrize(
    ("gone", "found"),
    [(0, r"not initialized|without a barrier between"), (1, r"touches what a (copy|product) of thread 0")],
)
def test_each_barrier_is_needed(gone: int, found: str) -> None:
    """Mbarriers are initialized; products of an iteration have ended."""
    (launch,) = lowered(LONG.program()[0], SM90).launches
    assert count_barriers(launch.body) == 2
    with pytest.raises(VerificationError, match=found):
        changed(lambda body: without_barrier(body, gone))


# --- the schedule -----------------------------------------------------------------------------------------------------


def boxed(
    shape: tuple[int, ...],
    at: Callable[..., tuple[object, ...]],
    dtype: str = "float32",
    tile: tuple[int, int] = (8, 32),
) -> LoopProgram:
    """A kernel whose copy of a tile is made one of a box."""
    x = placeholder(shape, dtype, name="x")
    p = compute(tile, lambda i, j: x[at(i, j)], "p")
    s = Schedule(create_program("kernel", [x], [compute(tile, lambda i, j: p[i, j] + p[i, j], "y")]))
    s.set_scope("p", "swizzled")
    s.copy_tensor("p.i")
    return s.program


def test_a_nest_that_copies_rows_is_a_box() -> None:
    text = str(boxed((4, 40, 64), lambda i, j: (2, i + 5, j + 32)))
    assert "copy_tensor(p[0, 0], x[2, 5, 32], box=1x8x32)" in text
    text = str(boxed((3, 2, 40, 64), lambda i, j: (2, 1, i + 5, j + 32)))
    assert "copy_tensor(p[0, 0], x[5, 5, 32], box=1x8x32)" in text


@pytest.mark.parametrize(
    ("shape", "at", "dtype", "why"),
    [
        ((40, 64), lambda i, j: (i * 2, j), "float32", "no position plus one loop"),
        ((64, 64), lambda i, j: (j, i), "float32", r"a box of 32x8|order"),
        ((64, 64), lambda i, j: (i, i), "float32", "two dimensions"),
        ((40, 65), lambda i, j: (i, j), "float32", "rows of 65 float32; allowed: multiples of 16 bytes"),
        ((40, 64), lambda i, j: (i, j), "float16", "a box of 8x32"),
        ((64,), lambda i, j: (j,), "float32", "loop 'p.i' copies the same elements again"),
        ((40, 64), lambda i, j: (3, j), "float32", "loop 'p.i' copies the same elements again"),
    ],
)
def test_other_nests_are_refused(
    shape: tuple[int, ...], at: Callable[..., tuple[object, ...]], dtype: str, why: str
) -> None:
    with pytest.raises(ScheduleError, match=why):
        boxed(shape, at, dtype)


def test_a_tensor_of_more_dimensions_than_a_map_has_is_refused() -> None:
    """Dimensions along which a nest does not move are one only where they are next to each other."""
    x = placeholder((2, 4, 2, 8, 2, 32), "float32", name="x")
    p = compute((4, 8, 32), lambda i, j, k: x[1, i, 1, j, 1, k], "p")
    s = Schedule(create_program("kernel", [x], [compute((4, 8, 32), lambda i, j, k: p[i, j, k] * 2.0, "y")]))
    s.set_scope("p", "swizzled")
    with pytest.raises(ScheduleError, match="a tensor of 2x4x2x8x2x32; allowed: 5 dimensions"):
        s.copy_tensor("p.i")


def test_targets_without_them_refuse_boxes() -> None:
    program, _ = LONG.program()
    with pytest.raises(ScheduleError, match="sm_90a"):
        compile_grid(program, SM80, assembled=False)


# --- assembled, launched ----------------------------------------------------------------------------------------------


def test_ptxas_takes_boxes_and_spills_nothing() -> None:
    if find_ptxas() is None:
        pytest.skip("ptxas is not installed")
    registers = {}
    for fetch in ("threads", "boxes"):
        case = replace(
            LONG, shapes=[(4096, 4096), (4096, 4096)], choice={"tile": "128x256", "stages": 4, "fetch": fetch}
        )
        code = compile_grid(case.program()[0], SM90)
        (launch,) = code.launches
        assert launch.resources is not None and launch.resources.spilled == launch.resources.stack == 0
        registers[fetch] = launch.resources.registers
    assert registers["boxes"] <= registers["threads"]
    for instruction in (
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes",
        "mbarrier.init.shared::cta.b64",
        "mbarrier.arrive.expect_tx.shared::cta.b64",
        "mbarrier.try_wait.parity.shared::cta.b64",
        "fence.proxy.async.shared::cta",
        "cvta.param.u64",
    ):
        assert instruction in code.ptx
    assert "cp.async.cg" not in code.ptx and code.ptx.count(".param .align 64 .b8") == 2


def test_a_launch_gets_the_maps_of_its_tensors_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    code = compile_grid(replace(LONG, shapes=[(64, 64), (64, 64)]).program()[0], SM90, assembled=False)
    assert GridCode.unpacked(code.packed()).launches == code.launches
    (launch,) = code.launches
    assert launch.maps == tuple(TensorMap(i, 0, "float16", (64, 64), (64, 64)) for i in range(2))
    gpu, driver = emulated_gpu(monkeypatch, [code])
    _, functions = gpu.module(code)
    x = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float16)
    places = [gpu.allocate(n) for n in code.nbytes]
    for place in places[:2]:
        gpu.upload(place, address_of(x), x.nbytes)
    for _ in range(2):  # maps are encoded once
        gpu.launch(functions, [*places, 0])
    found = np.empty((64, 64), np.float16)
    gpu.download(address_of(found), places[2], found.nbytes)
    gpu.wait()
    np.testing.assert_allclose(found, x @ x, atol=0.2)
    assert len(driver.tensor_maps) == 2 and driver.calls.count("cuGetProcAddress") == 1
    with pytest.raises(TargetError, match="cuTensorMapEncodeTiled"):
        gpu.launch(functions, [places[0] + 8, *places[1:], 0])


def test_a_driver_without_maps_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """One older than CUDA 12 finds no such function, which is no error of its own."""
    code = compile_grid(replace(LONG, shapes=[(64, 64), (64, 64)]).program()[0], SM90, assembled=False)
    gpu, driver = emulated_gpu(monkeypatch, [code])
    driver._functions["cuTensorMapEncodeTiled"] = 0
    _, functions = gpu.module(code)
    with pytest.raises(TargetError, match="this driver has no cuTensorMapEncodeTiled; allowed: drivers of CUDA 12"):
        gpu.launch(functions, [*(gpu.allocate(n) for n in code.nbytes), 0])


def test_maps_that_are_no_longer_kept_last_until_their_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """With room for one, that of the second factor takes the place of the first one's, in the same launch."""
    monkeypatch.setattr("burnish.runtime.gpu.tensor_maps.KEPT", 1)
    gone: list[int] = []
    encoded = TensorMaps._encoded

    def watched(self: TensorMaps, known: TensorMap, place: int) -> np.ndarray:
        found = encoded(self, known, place)
        weakref.finalize(found, gone.append, address_of(found))
        return found

    monkeypatch.setattr(TensorMaps, "_encoded", watched)
    code = compile_grid(replace(LONG, shapes=[(64, 64), (64, 64)]).program()[0], SM90, assembled=False)
    gpu, driver = emulated_gpu(monkeypatch, [code])
    launched = driver._check_maps

    def check_maps(launch: LaunchCode, pointers: Sequence[int], places: Sequence[int]) -> None:
        assert not {*pointers} & {*gone}
        launched(launch, pointers, places)

    monkeypatch.setattr(driver, "_check_maps", check_maps)
    _, functions = gpu.module(code)
    places = [gpu.allocate(n) for n in code.nbytes]
    gpu.launch(functions, [*places, 0])
    gpu.wait()
    assert len(driver.tensor_maps) == 2 and len(gone) == 1


def test_code_from_before_there_were_maps_is_read() -> None:
    code = compile_grid(Case("relu", [(64,)], {}).program()[0], SM80, assembled=False)
    head, _, rest = code.packed().partition(b"\n")
    found = json.loads(head)
    for launch in found["launches"]:
        assert launch.pop("maps") == []
    assert GridCode.unpacked(json.dumps(found).encode() + b"\n" + rest) == code


def test_the_runner_refuses_memory_beside_the_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    """A map of more rows than the tensor has reads what is behind it."""
    monkeypatch.setattr("tests.gpu.cases.SM80", SM90)
    case = replace(LONG, shapes=[(70, 64), (64, 64)])
    check(case, 1e-2)
    code = compile_grid(case.program()[0], SM90, assembled=False)
    (launch,) = code.launches
    more = replace(launch, maps=(replace(launch.maps[0], shape=(71, 64)), launch.maps[1]))
    with pytest.raises(VerificationError, match="outside of all buffers"):
        execute(replace(code, launches=(more,)), case)
