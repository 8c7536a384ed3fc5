"""Matrix tiles: the declared meaning of the intrinsics against NumPy, and the instructions against the declaration."""

from collections.abc import Callable
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from burnish.codegen.llvm import emit
from burnish.codegen.objects import compile_ir
from burnish.errors import ScheduleError
from burnish.loops.expr import Buffer, Const, Load, Var
from burnish.loops.interpret import run_program
from burnish.loops.program import Alloc, For, Intrinsic, LoopProgram, Stmt, seq
from burnish.machines.amx.tiles import CONFIG_BYTES
from burnish.machines.intrinsics import reference
from burnish.machines.known import INTRINSICS
from burnish.machines.target import host, target

REFERENCES = {name: reference(intrinsic) for name, intrinsic in INTRINSICS.items()}
needs_tiles = pytest.mark.skipif(not host().has("amx-bf16"), reason="this machine has no AMX for bfloat16")
TILED = replace(target("x86-64-v4"), features=target("x86-64-v4").features | {"amx-bf16", "amx-tile"})
STEPS, PITCH = 2, 80  # depths of 32, and elements from one row of the left operand to the next

A = Buffer("a", (32, PITCH), "bfloat16")
B = Buffer("b", (STEPS, 2, 16, 16, 2), "bfloat16")  # depth, column tile, pairs of rows, columns, pair
D = Buffer("d", (32, 48))
ACC = Buffer("acc", (2, 2, 16, 16), "float32", "register")
ZERO = Const(0)


def unrolled(loops: dict[str, int], body: Stmt, kind: str = "unroll") -> Stmt:
    for name, extent in reversed(loops.items()):
        body = For(name, extent, kind, body)
    return body


def product_program() -> LoopProgram:
    """2 x 2 tiles of ``a b``, stored to columns 0 to 31 of ``d``."""
    m, n, k = (Var(v) for v in ("m", "n", "k"))
    p, q = Var("p"), Var("q")
    clear = unrolled({"u": 2, "v": 2}, Intrinsic("amx_zero", (Load(ACC, (Var("u"), Var("v"), ZERO, ZERO)),)))
    operands = (
        Load(ACC, (m, n, ZERO, ZERO)),
        Load(A, (m * 16, k * 32)),
        Load(B, (k, n, ZERO, ZERO, ZERO)),
    )
    dots = unrolled({"m": 2, "n": 2}, Intrinsic("amx_dot_bf16", operands, (("a_stride", PITCH),)))
    to = (Load(D, (p * 16, q * 16)), Load(ACC, (p, q, ZERO, ZERO)))
    stores = unrolled({"p": 2, "q": 2}, Intrinsic("amx_store", to, (("d_stride", 48),)))
    body = Alloc(ACC, seq(clear, unrolled({"k": STEPS}, dots, "serial"), stores))
    return LoopProgram("kernel", (A, B, D), body)


def operands() -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Arrays whose products are exact, and the product."""
    rng = np.random.default_rng(0)
    a = rng.integers(-8, 9, (32, PITCH)).astype("float32")
    b = rng.integers(-8, 9, (STEPS * 32, 32)).astype("float32")
    tiles = b.reshape(STEPS, 16, 2, 2, 16).transpose(0, 3, 1, 4, 2)  # depth, pair row, pair, column tile, column
    arrays = {"a": a.astype(ml_dtypes.bfloat16), "b": np.ascontiguousarray(tiles).astype(ml_dtypes.bfloat16)}
    return arrays, a[:, : STEPS * 32] @ b


def test_the_declared_product_is_that_of_numpy() -> None:
    arrays, expected = operands()
    found = run_program(product_program(), arrays, REFERENCES)["d"]
    np.testing.assert_array_equal(found[:, :32], expected)
    assert np.isnan(found[:, 32:]).all(), "a stride wider than the tile leaves the rest alone"


@needs_tiles
@pytest.mark.parametrize("edge", ["start", "end"])
def test_the_instructions_do_what_is_declared(native: Callable[..., dict[str, np.ndarray]], edge: str) -> None:
    arrays, expected = operands()
    found = native(product_program(), arrays, edge=edge, lowered=True)["d"]
    np.testing.assert_array_equal(found[:, :32], expected)
    assert np.isnan(found[:, 32:]).all()


def test_an_operand_is_loaded_once_for_the_tiles_that_share_it() -> None:
    text = emit(product_program(), TILED).text
    counts = {name: text.count(f"call void @llvm.x86.{name}") for name in ("tileloadd64", "tdpbf16ps", "tilestored64")}
    assert counts == {"tileloadd64": 4, "tdpbf16ps": 4, "tilestored64": 4}
    assert text.count("call void @llvm.x86.ldtilecfg") == text.count("call void @llvm.x86.tilerelease") == 1


def test_the_configuration_is_eight_tiles_of_16_rows_of_64_bytes() -> None:
    assert len(CONFIG_BYTES) == 64
    assert CONFIG_BYTES[0] == 1, "palette"
    assert np.frombuffer(CONFIG_BYTES[16:32], "<u2").tolist() == [64] * 8, "bytes per row"
    assert list(CONFIG_BYTES[48:56]) == [16] * 8, "rows"


def test_code_for_tiles_assembles_for_a_machine_that_has_them() -> None:
    rapids = replace(TILED, cpu="sapphirerapids")
    assert compile_ir(emit(product_program(), TILED).text, rapids)[:4] == b"\x7fELF"


def test_too_many_accumulators_are_refused() -> None:
    acc = Buffer("acc", (5, 16, 16), "float32", "register")
    clear = unrolled({"u": 5}, Intrinsic("amx_zero", (Load(acc, (Var("u"), ZERO, ZERO)),)))
    with pytest.raises(ScheduleError, match=r"tile accumulator acc\[u, 0, 0\]: only 4 tiles"):
        emit(LoopProgram("kernel", (D,), Alloc(acc, clear)), TILED)


def test_accumulators_at_places_that_vary_are_refused() -> None:
    clear = unrolled({"u": 2}, Intrinsic("amx_zero", (Load(ACC, (Var("u"), ZERO, ZERO, ZERO)),)), "serial")
    with pytest.raises(ScheduleError, match="at fixed places"):
        emit(LoopProgram("kernel", (D,), Alloc(ACC, clear)), TILED)
