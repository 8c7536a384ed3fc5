"""Tensor cores of Hopper: ``wgmma.mma_async`` by four warps on tiles of 64 x N, operands in swizzled shared memory.

As in ``mma.py`` an intrinsic is declared as one thread sees it: thread 4 g + t of warp w holds the sums [p, j, h, e] of
row 16 w + g + 8 h and column 64 p + 8 j + 2 t + e. The left operand is stored by rows of 64 halves along the depth, the
right one, too, or by panels of 64 columns: [p, k, column]. An instruction takes 16 of the depth.

Instructions begin after ``start_products`` and go on while others do; ``commit_products`` makes a group of them. Sums
may be read, and operands overwritten, once ``wait_products`` has waited for their group.

Source: PTX ISA, "Asynchronous warpgroup level matrix instructions" (fragments, descriptors, canonical layouts).
"""

from __future__ import annotations

from dataclasses import replace

from burnish.errors import ScheduleError
from burnish.loops.expr import ITEM_BYTES, Buffer, Load, Var
from burnish.loops.program import COMMIT_PRODUCTS, START_PRODUCTS, WAIT_PRODUCTS, Intrinsic
from burnish.machines.emitter import Emitter, IntrinsicCode
from burnish.machines.intrinsics import TensorIntrinsic, declare
from burnish.machines.nvptx.mma import (
    FRAGMENT,
    HALVES,
    OWN,
    ROW_BYTES,
    WARP,
    G,
    T,
    own,
    product_of,
    whole_tile,
    words_held,
)
from burnish.machines.nvptx.threads import SHARED_SPACE
from burnish.machines.scopes import SWIZZLED_BYTES

GROUP_WARPS = 4
GROUP = GROUP_WARPS * WARP
ROWS, PANEL, DEPTH = 64, 64, 16
COLUMNS = (64, 128, 256)
TYPES = {"float16": "f16", "bfloat16": "bf16"}
FEATURE = "sm_90a"
ROW = ROW_BYTES // 2  # halves of a row
IN_FLIGHT = 4  # groups that one may wait for all but
_X, _Y, _Z = (Var(f"threadIdx.{axis}") for axis in "xyz")
# g, t and the warp's number in its group by the block's form: a warp along x, or 4 threads along x and 8 along y. Then
# all warps lie along z, and a tile begins 64 rows after that of the group before.
FORMS = ((G, T, _Y), (_Y, _X, _Z))


def _begin(f: Emitter, access: Load, down: int = 0, across: int = 0) -> str:
    """The address of a tile, as descriptors mean it: where its first row begins, plus bytes along the depth.

    Elements from one row of a left operand to the next, or from a thread's columns of a right one to the next thread's.
    """
    address = f.resolver.address(access)
    g, t, warp = next((form for form in FORMS if {*form[:2]} & {*dict(address.terms)}), FORMS[0])
    terms = whole_tile(access, address.terms, *([(g, down), (warp, down * 16)] if down else [(t, across)]))
    if down and warp == _Z:
        terms = (*terms, (_Z // GROUP_WARPS, down * ROWS))
    if any(c * ITEM_BYTES[access.dtype] % SWIZZLED_BYTES for _, c in terms):
        raise ScheduleError(f"operand {access}: a tile does not begin at a multiple of {SWIZZLED_BYTES} bytes")
    return f.pointer(replace(f.memory[access.buffer.name], swizzled=False), terms, address.const)


def _code(name: str, count: int, columns: bool, held: bool = False) -> IntrinsicCode:
    def code(f: Emitter, s: Intrinsic) -> None:
        c, a, b = s.operands
        left = [f"ptr {_begin(f, a, down=ROW)}"] if not held else [f"i32 {word}" for word in words_held(f, a)]
        right = _begin(f, b, across=2 if columns else 2 * ROW)
        kind = "{" + ", ".join(["float"] * count) + "}"
        f.declare(name, kind, [*(operand.split()[0] for operand in left), "ptr", *["float"] * count])
        _renewed(f, own(f, c, count), kind, f"@{name}({', '.join(left)}, ptr {right}, ")

    return code


def _renewed(f: Emitter, places: list[str], kind: str, call: str) -> None:
    """All sums replaced by what a function makes of them."""
    old = [f.result(f"load float, ptr {p}", "float32").text for p in places]
    new = f.result(f"call {kind} {call}{', '.join(f'float {v}' for v in old)})", "float32").text
    for i, place in enumerate(places):
        f.emit(f"store float {f.result(f'extractvalue {kind} {new}, {i}', 'float32').text}, ptr {place}")


def _declared(dtype: str, wide: int, columns: bool) -> TensorIntrinsic:
    panels = wide // PANEL
    p, j, h, e, k = map(Var, "pjhek")
    c, a = Buffer("c", (panels, 8, 2, 2), "float32"), Buffer("a", (2, DEPTH), dtype)
    b = Buffer("b", (panels, DEPTH, 8, 2) if columns else (panels, 8, 2, DEPTH), dtype)
    right = Load(b, (p, k, j, e) if columns else (p, j, e, k))
    body = product_of(Load(c, (p, j, h, e)), Load(a, (h, k)), right)
    loops = (("p", panels), ("j", 8), ("h", 2), ("e", 2), ("k", DEPTH))
    code = _code(function_name(dtype, wide, columns), wide // 2, columns)
    name = f"wgmma_{dtype}_{wide}{'_columns' if columns else ''}"
    return declare(name, (c, a, b), loops, body, free="a b", code=code, needs=FEATURE, collective=GROUP)


def _declared_held(dtype: str) -> TensorIntrinsic:
    """As ``mma.DOT_HELD``, of a panel of 64 columns: the left operand is what four threads hold of a row."""
    j, h, e, p, t, q = map(Var, "jheptq")
    c, a = Buffer("c", (8, 2, 2), "float32"), Buffer("a", (4, *OWN), dtype)
    b = Buffer("b", (2, 4, 2, 8, 2), dtype)
    body = product_of(Load(c, (j, h, e)), Load(a, (t, p, h, q)), Load(b, (p, t, q, j, e)))
    loops = [(name, {"j": 8, "t": 4}.get(name, 2)) for name in "jheptq"]
    code = _code(function_name(dtype, PANEL, True, True), PANEL // 2, True, True)
    name = f"wgmma_{dtype}_held"
    return declare(name, (c, a, b), loops, body, free="b", code=code, needs=FEATURE, collective=GROUP)


def function_name(dtype: str, wide: int, columns: bool, held: bool = False) -> str:
    """The function that one instruction is."""
    return f"gpu.wgmma.{TYPES[dtype]}.n{wide}{'.columns' if columns else ''}{'.held' if held else ''}"


WGMMA = {(d, n, side): _declared(d, n, side) for d in HALVES for n in COLUMNS for side in (False, True)}
WGMMA_HELD = {d: _declared_held(d) for d in HALVES}
WGMMA_INTRINSICS = (*WGMMA.values(), *WGMMA_HELD.values())


def _start(f: Emitter, s: Intrinsic) -> None:
    del s
    f.declare("gpu.products.start", "void", [])
    f.emit("call void @gpu.products.start()")


def _commit(f: Emitter, s: Intrinsic) -> None:
    del s
    f.declare("gpu.products.commit", "void", [])
    f.emit("call void @gpu.products.commit()")


def _wait(f: Emitter, s: Intrinsic) -> None:
    """All groups but the latest have ended. Where none is left, sums are read after this, which the code says by making
    them anew.
    """
    but = int(dict(s.attrs)["but"])
    if but:
        f.declare(f"gpu.products.wait.{but}", "void", [])
        f.emit(f"call void @gpu.products.wait.{but}()")
        return
    for memory in list(f.memory.values()):
        if memory.buffer.scope == FRAGMENT.name:
            count = memory.buffer.size
            kind, name = "{" + ", ".join(["float"] * count) + "}", f"gpu.products.end.f{count}"
            f.declare(name, kind, ["float"] * count)
            _renewed(f, [f.pointer(memory, (), i) for i in range(count)], kind, f"@{name}(")
    f.forget()


PRODUCT_HINTS: dict[str, IntrinsicCode] = {START_PRODUCTS: _start, COMMIT_PRODUCTS: _commit, WAIT_PRODUCTS: _wait}


def _descriptor(name: str, panels: bool) -> str:
    """A matrix in shared memory: its address, bytes between panels and between groups of eight rows, in units of 16."""
    between = ROWS * ROW_BYTES // 16 if panels else 1
    fixed = 1 << 62 | (SWIZZLED_BYTES // 16) << 32 | between << 16
    return f"""  %{name}s = addrspacecast ptr %{name} to ptr addrspace({SHARED_SPACE})
  %{name}i = ptrtoint ptr addrspace({SHARED_SPACE}) %{name}s to i32
  %{name}u = lshr i32 %{name}i, 4
  %{name}n = and i32 %{name}u, 16383
  %{name}w = zext i32 %{name}n to i64
  %{name}d = or i64 %{name}w, {fixed}"""


def _tied(count: int) -> tuple[str, str, str, str]:
    """Of ``count`` sums that an instruction changes: their type, parameters, constraints, and names in its text."""
    kind = "{" + ", ".join(["float"] * count) + "}"
    given = ", ".join(f"float %c{i}" for i in range(count))
    constraints = ",".join([*["=f"] * count, *map(str, range(count))])
    return kind, given, constraints, ", ".join(f"${i}" for i in range(count))


def _instruction_held(dtype: str) -> str:
    """The left operand from registers, the right one by columns."""
    count, words = PANEL // 2, ", ".join(f"i32 %w{i}" for i in range(4))
    kind, given, constraints, names = _tied(count)
    what = f"wgmma.mma_async.sync.aligned.m{ROWS}n{PANEL}k{DEPTH}.f32.{TYPES[dtype]}.{TYPES[dtype]}"
    left = ", ".join(f"${2 * count + i}" for i in range(4))
    text = f"{{ .reg .pred p; setp.ne.b32 p, 1, 0; {what} {{{names}}}, {{{left}}}, ${2 * count + 4}, p, 1, 1, 1; }}"
    head = f"define internal {kind} @{function_name(dtype, PANEL, True, True)}({words}, ptr %b, {given})"
    return f"""{head} alwaysinline convergent {{
{_descriptor("b", True)}
  %new = call {kind} asm sideeffect "{text}", "{constraints},r,r,r,r,l"({given}, {words}, i64 %bd) convergent
  ret {kind} %new
}}"""


def _instruction(dtype: str, wide: int, columns: bool) -> str:
    count = wide // 2
    kind, given, constraints, names = _tied(count)
    what = f"wgmma.mma_async.sync.aligned.m{ROWS}n{wide}k{DEPTH}.f32.{TYPES[dtype]}.{TYPES[dtype]}"
    text = (
        f"{{ .reg .pred p; setp.ne.b32 p, 1, 0; {what} {{{names}}}, ${2 * count}, ${2 * count + 1}, "
        f"p, 1, 1, 0, {int(columns)}; }}"
    )
    head = f"define internal {kind} @{function_name(dtype, wide, columns)}(ptr %a, ptr %b, {given})"
    return f"""{head} alwaysinline convergent {{
{_descriptor("a", False)}
{_descriptor("b", columns)}
  %new = call {kind} asm sideeffect "{text}", "{constraints},l,l"({given}, i64 %ad, i64 %bd) convergent
  ret {kind} %new
}}"""


def _ended(count: int) -> str:
    kind, given, constraints, _ = _tied(count)
    return f"""define internal {kind} @gpu.products.end.f{count}({given}) alwaysinline convergent {{
  %new = call {kind} asm sideeffect "wgmma.wait_group.sync.aligned 0;", "{constraints}"({given}) convergent
  ret {kind} %new
}}"""


def _plain(name: str, instruction: str) -> str:
    return f"""define internal void @{name}() alwaysinline convergent {{
  call void asm sideeffect "{instruction};", "~{{memory}}"() convergent
  ret void
}}"""


WGMMA_PRELUDE = "\n".join(
    [
        *(_instruction(*key) for key in WGMMA),
        *(_instruction_held(dtype) for dtype in WGMMA_HELD),
        *(_ended(count) for count in (16, 32, 64, 96, 128)),
        _plain("gpu.products.start", "wgmma.fence.sync.aligned"),
        _plain("gpu.products.commit", "wgmma.commit_group.sync.aligned"),
        *(_plain(f"gpu.products.wait.{n}", f"wgmma.wait_group.sync.aligned {n}") for n in range(1, IN_FLIGHT)),
        _plain("gpu.copies.publish", "fence.proxy.async.shared::cta"),
    ]
)
"""What the functions of groups of warps are on a GPU, as LLVM IR."""
