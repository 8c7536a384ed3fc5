"""Intrinsics, scopes and loop kinds from outside of the package, declared and coded here."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np
import pytest

import burnish
from burnish.codegen.llvm import emit
from burnish.codegen.objects import compile_ir
from burnish.errors import ScheduleError, TargetError
from burnish.graph import GraphBuilder
from burnish.loops.expr import Buffer, Load, Var
from burnish.loops.interpret import run_program
from burnish.loops.program import For, Intrinsic, Store
from burnish.loops.tensor import compute, create_program, placeholder
from burnish.loops.verify import verify
from burnish.machines.dialect import Dialect
from burnish.machines.emitter import CodeEmitter, pointer_to
from burnish.machines.intrinsics import TensorIntrinsic, declare, reference
from burnish.machines.known import machine_for
from burnish.machines.scopes import MemoryScope
from burnish.machines.target import Target, host, target
from burnish.schedule.schedule import Schedule, replay

Native = Callable[..., dict[str, np.ndarray]]


def _emit_scale(f: CodeEmitter, s: Intrinsic) -> None:
    to, source = s.operands
    v = f.result(f"load <8 x float>, ptr {pointer_to(f, source)}, align 4", "float32", 8)
    scaled = f.result(f"fmul <8 x float> {v.text}, splat (float 3.0)", "float32", 8)
    f.emit(f"store <8 x float> {scaled.text}, ptr {pointer_to(f, to)}, align 4")
    f.forget()


_D, _S = Buffer("d", (8,)), Buffer("s", (8,))
SCALE8 = declare("scale8", (_D, _S), [("i", 8)], Store(_D, (Var("i"),), Load(_S, (Var("i"),)) * 3.0), code=_emit_scale)


def tripled() -> Schedule:
    x = placeholder((5, 32), name="x")
    return Schedule(create_program("kernel", [x], [compute((5, 32), lambda i, j: x[i, j] * 3.0, "y")]))


def vectors(s: Schedule) -> str:
    return s.split(s.loops("y")[1], 8)[1]


def extended(**more: list[TensorIntrinsic] | list[MemoryScope]) -> Target:
    return host().using(**more)  # type: ignore[arg-type]


def test_a_users_intrinsic_is_scheduled_interpreted_and_compiled(native: Native) -> None:
    s = tripled()
    s.tensorize(vectors(s), SCALE8)
    assert s.trace[-1] == ("tensorize", ["y.j.i", "scale8"])
    x = np.random.default_rng(0).standard_normal((5, 32)).astype("float32")
    expected = (x * np.float32(3)).astype("float32")
    found = run_program(s.program, {"x": x}, {"scale8": reference(SCALE8)})["y"]
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(native(s.program, {"x": x}, machine=extended(intrinsics=[SCALE8]))["y"], expected)


def test_a_trace_that_names_it_replays_where_it_is_given() -> None:
    s = tripled()
    naive, inner = s.program, vectors(s)
    s.tensorize(inner, SCALE8)
    trace = json.loads(json.dumps(s.trace))
    assert replay(naive, trace, intrinsics=[SCALE8]) == s.program
    with pytest.raises(ScheduleError, match=r"unknown intrinsic 'scale8'; known: .* that the schedule is given"):
        replay(naive, trace)
    named = Schedule(naive, intrinsics=[SCALE8])
    named.tensorize(vectors(named), "scale8")
    assert named.program == s.program


def test_without_it_the_target_refuses_the_program() -> None:
    s = tripled()
    s.tensorize(vectors(s), SCALE8)
    with pytest.raises(ScheduleError, match="intrinsic 'scale8' has no code; known: "):
        emit(s.program, host())


def _reserve(f: CodeEmitter, buffer: Buffer) -> str:
    """On the stack, at a whole page: what another machine might call a scratchpad."""
    return f.hoist(0, f"alloca [{buffer.nbytes} x i8], align 4096")


def test_a_users_scope_is_allocated_by_its_own_code(native: Native) -> None:
    pad = MemoryScope("pad", capacity=1 << 12, place=_reserve)
    s = tripled()
    copy = s.cache_read("x", pad, "y")
    assert (copy, s.trace[-1]) == ("x.pad", ("cache_read", ["x", "pad", "y"]))
    verify(s.program, scopes=["global", "pad"])
    with pytest.raises(ScheduleError, match="unknown dtype or scope"):
        verify(s.program)
    machine = extended(scopes=[pad])
    assert "align 4096" in emit(s.program, machine).text
    x = np.random.default_rng(0).standard_normal((5, 32)).astype("float32")
    np.testing.assert_array_equal(native(s.program, {"x": x}, machine=machine)["y"], x * np.float32(3))
    with pytest.raises(ScheduleError, match=r"buffer 'x\.pad' is in scope 'pad', which target 'cpu'"):
        emit(s.program, host())


def test_a_scope_nobody_knows_is_refused_by_the_schedule() -> None:
    with pytest.raises(
        ScheduleError, match=r"set_scope: buffer 'y': unknown scope 'pad'; allowed: global, .* is given"
    ):
        tripled().set_scope("y", "pad")


def _one_after_another(f: CodeEmitter, loop: For) -> None:
    """Virtual threads as copies of the body: a lowering that this machine's own code decides on."""
    for value in range(loop.extent):
        f.resolver.fixed[loop.var] = value
        f.statement(loop.body)
    f.resolver.fixed.pop(loop.var, None)


def test_a_dialect_lowers_a_loop_kind_by_its_own_code(native: Native) -> None:
    s = tripled()
    s.vthread(s.loops("y")[0])
    own = host().machine
    loops = {**own.dialect.loops, "vthread": _one_after_another}
    dialect = Dialect(loops, own.dialect.hints, rounds_bfloat16=own.dialect.rounds_bfloat16, masks=own.dialect.masks)
    machine = replace(host(), machine=own.with_(dialect=dialect))
    x = np.random.default_rng(0).standard_normal((5, 32)).astype("float32")
    np.testing.assert_array_equal(native(s.program, {"x": x}, machine=machine)["y"], x * np.float32(3))


def test_functions_carry_the_attributes_of_their_dialect() -> None:
    own = target("aarch64-cortex-a53")
    dialect = replace(own.machine.dialect, attributes="nounwind minsize optsize")
    small = replace(own, machine=own.machine.with_(dialect=dialect))
    text = emit(tripled().program, small).text
    assert "attributes #0 = { nounwind minsize optsize }" in text
    assert compile_ir(text, small)[:4] == b"\x7fELF"


def test_a_buffer_in_another_address_space_is_reached_by_a_generic_pointer() -> None:
    """As in shared memory of a GPU, of which no code runs here: what is written is what LLVM accepts for one."""

    def place(f: CodeEmitter, buffer: Buffer) -> str:
        f.declare("pad_base", "ptr addrspace(3)", [])
        return f.hoist(0, "call ptr addrspace(3) @pad_base()")

    pad = MemoryScope("pad", address_space=3, place=place)
    s = tripled()
    s.cache_read("x", pad, "y")
    text = emit(s.program, target("x86-64-v3").using(scopes=[pad])).text
    assert "addrspacecast ptr addrspace(3)" in text
    llvm.parse_assembly(text).verify()


def test_the_key_of_a_target_holds_the_version_of_a_machine_from_outside() -> None:
    own = target("x86-64-v3")
    other = replace(own, machine=own.machine.with_(version="mine 2"))
    assert other.key == f"{own.key} mine 2"


def test_programs_for_a_machine_without_code_of_ours_are_refused() -> None:
    """An intrinsic that is only declared has code on no CPU."""
    bare = replace(SCALE8, code=None)
    s = tripled()
    s.tensorize(vectors(s), bare)
    with pytest.raises(ScheduleError, match="intrinsic 'scale8' has no code"):
        emit(s.program, extended(intrinsics=[bare]))


def test_a_machine_is_found_by_the_triple() -> None:
    assert machine_for("aarch64-unknown-linux-gnu").name == "aarch64"
    with pytest.raises(TargetError, match="'vax-dec-vms': no machine for vax; known: x86_64, "):
        machine_for("vax-dec-vms")


def test_a_model_is_compiled_for_a_target_with_more(tmp_path: Path) -> None:
    g = GraphBuilder()
    graph = g.build(g.add("relu", g.input("x", (4, 4))))
    module = burnish.compile(graph, target=extended(intrinsics=[SCALE8]), cache_dir=tmp_path)
    x = np.random.default_rng(0).standard_normal((4, 4)).astype("float32")
    np.testing.assert_array_equal(module(x), np.maximum(x, 0))
