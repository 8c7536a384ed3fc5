"""Copies of boxes of tensors by the tensor memory accelerator (TMA): ``cp.async.bulk.tensor`` and its mbarriers.

One thread of a block begins a copy; the hardware finds the box by a tensor map, a parameter of the kernel, writes zeros
where it is beyond the tensor, and exchanges pieces of 16 bytes as a swizzled buffer does. An mbarrier in shared memory
counts the bytes that have arrived; every thread waits for the phase of it that a step's bytes complete.

Source: PTX ISA, "cp.async.bulk.tensor", "mbarrier", "Async proxy".
"""

from __future__ import annotations

from dataclasses import dataclass

from burnish.errors import ScheduleError
from burnish.loops.boxes import box_extents
from burnish.loops.expr import INDEX, ITEM_BYTES, SWIZZLED, Const, Load
from burnish.loops.program import COPY_TENSOR, EXPECT_COPIES, INIT_ARRIVALS, WAIT_ARRIVALS, Intrinsic
from burnish.machines.emitter import CodeEmitter, IntrinsicCode, pointer_to
from burnish.machines.nvptx.threads import SHARED_SPACE
from burnish.machines.nvptx.wgmma import FEATURE
from burnish.machines.scopes import SWIZZLED_BYTES

MAP_BYTES, MAP_ALIGNMENT = 128, 64  # of a tensor map
RANKS = range(1, 6)
BARRIER_BYTES = 8  # of an mbarrier


@dataclass(frozen=True)
class TensorMap:
    """Tensor map: a tensor [shape] of dense rows at an offset of an argument, and the box that is copied.

    ``argument``: the number of the kernel's buffer, or of its workspace, behind these.
    """

    argument: int
    offset: int
    dtype: str
    shape: tuple[int, ...]
    box: tuple[int, ...]


@dataclass(frozen=True)
class TensorView:
    """A tensor map of a buffer by its name, before it is known where that is."""

    buffer: str
    dtype: str
    shape: tuple[int, ...]
    box: tuple[int, ...]


def _copy(f: CodeEmitter, s: Intrinsic) -> None:
    """One box: where to, which, and what counts its bytes."""
    if FEATURE not in f.target.features:
        raise ScheduleError(f"'{s.name}' needs {FEATURE}, which '{f.target.name}' has not")
    target, source, place = s.operands
    if source.buffer.scope != "global" or target.buffer.scope != SWIZZLED:
        raise ScheduleError(
            f"'{s.name}': {source.buffer.scope} to {target.buffer.scope}; allowed: global to {SWIZZLED}"
        )
    address = f.resolver.address(target)
    size = ITEM_BYTES[target.dtype]
    if any(c * size % SWIZZLED_BYTES for c in (address.const, *(c for _, c in address.terms))):
        raise ScheduleError(f"operand {target}: a box does not begin at a multiple of {SWIZZLED_BYTES} bytes")
    view = TensorView(source.buffer.name, source.dtype, source.buffer.shape, box_extents(s))
    if view not in f.tensor_views:
        f.tensor_views.append(view)
    to, arrivals = pointer_to(f, target), _mbarrier(f, place)
    where = []
    for index in reversed(source.indices):
        wide = f.value(f.resolver.expr(index)).text
        where.append(f"i32 {f.result(f'trunc i64 {wide} to i32', 'int32').text}")
    name = f"gpu.tensor.copy.{len(where)}"
    f.declare(name, "void", ["ptr", "ptr", "ptr", *["i32"] * len(where)])
    f.emit(f"call void @{name}(ptr {to}, ptr %map{f.tensor_views.index(view)}, ptr {arrivals}, {', '.join(where)})")


def _mbarrier(f: CodeEmitter, place: Load) -> str:
    """The address of the mbarrier of a copy of the buffers, which both of its phases have."""
    return pointer_to(f, Load(place.buffer, (Const(0, INDEX), place.indices[1])))


def _called(f: CodeEmitter, name: str, place: Load, number: str) -> None:
    f.declare(name, "void", ["ptr", "i32"])
    f.emit(f"call void @{name}(ptr {_mbarrier(f, place)}, i32 {number})")


def _init(f: CodeEmitter, s: Intrinsic) -> None:
    """Each mbarrier waits for one thread, the one that says how many bytes are to come."""
    for number in range(int(dict(s.attrs)["count"])):
        _called(f, "gpu.arrivals.init", Load(s.operands[0].buffer, (Const(0, INDEX), Const(number, INDEX))), "1")
    f.declare("gpu.arrivals.publish", "void", [])
    f.emit("call void @gpu.arrivals.publish()")


def _expect(f: CodeEmitter, s: Intrinsic) -> None:
    _called(f, "gpu.arrivals.expect", s.operands[0], str(dict(s.attrs)["bytes"]))


def _wait(f: CodeEmitter, s: Intrinsic) -> None:
    """This thread waits for the phase whose number is even or odd, as the first index says."""
    place = s.operands[0]
    parity = f.value(f.resolver.expr(place.indices[0])).text
    _called(f, "gpu.arrivals.wait", place, f.result(f"trunc i64 {parity} to i32", "int32").text)
    f.forget()


TENSOR_HINTS: dict[str, IntrinsicCode] = {
    COPY_TENSOR: _copy,
    INIT_ARRIVALS: _init,
    EXPECT_COPIES: _expect,
    WAIT_ARRIVALS: _wait,
}


def _shared(name: str) -> str:
    """The address of a pointer to shared memory there."""
    return f"""  %{name}s = addrspacecast ptr %{name} to ptr addrspace({SHARED_SPACE})
  %{name}i = ptrtoint ptr addrspace({SHARED_SPACE}) %{name}s to i32"""


def _box_copy(rank: int) -> str:
    given = ", ".join(f"i32 %x{d}" for d in range(rank))
    where = ", ".join(f"${d + 3}" for d in range(rank))
    text = (
        f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.mbarrier::complete_tx::bytes "
        f"[$0], [$1, {{{where}}}], [$2];"
    )
    return f"""define internal void @gpu.tensor.copy.{rank}(ptr %to, ptr %map, ptr %bar, {given}) alwaysinline {{
{_shared("to")}
{_shared("bar")}
  call void asm sideeffect "{text}", "r,l,r,{",".join("r" * rank)},~{{memory}}"(i32 %toi, ptr %map, i32 %bari, {given})
  ret void
}}"""


def _on_mbarrier(name: str, text: str) -> str:
    return f"""define internal void @gpu.arrivals.{name}(ptr %bar, i32 %n) alwaysinline {{
{_shared("bar")}
  call void asm sideeffect "{text}", "r,r,~{{memory}}"(i32 %bari, i32 %n)
  ret void
}}"""


_TRIED = "{ .reg .pred p; again: mbarrier.try_wait.parity.shared::cta.b64 p, [$0], $1; @p bra done; bra again; done: }"
TENSOR_PRELUDE = "\n".join(
    [
        *map(_box_copy, RANKS),
        _on_mbarrier("init", "mbarrier.init.shared::cta.b64 [$0], $1;"),
        _on_mbarrier("expect", "mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;"),
        _on_mbarrier("wait", _TRIED),
        "define internal void @gpu.arrivals.publish() alwaysinline {",
        '  call void asm sideeffect "fence.proxy.async.shared::cta;", "~{memory}"()',
        "  ret void\n}",
    ]
)
"""LLVM IR of tensor copies on a GPU."""
