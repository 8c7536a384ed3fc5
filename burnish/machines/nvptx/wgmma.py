"""Tensor cores of Hopper: ``wgmma.mma_async`` by four warps on tiles of 64 x N, operands in swizzled shared memory.

As in ``mma.py`` an intrinsic is declared as one thread sees it: thread 4 g + t of warp w holds the sums [p, j, h, e] of
row 16 w + g + 8 h and column 64 p + 8 j + 2 t + e. The left operand is stored by rows of 128 bytes along the depth, the
right one, too, or, of halves, by panels of 64 columns: [p, k, column]. An instruction takes 32 bytes of the depth: 16
halves, 8 float32 (of which 19 bits count) or 32 bytes.

Instructions begin after ``start_products`` and go on while others do; ``commit_products`` makes a group of them. Sums
may be read, and operands overwritten, once ``wait_products`` has waited for their group.

Source: PTX ISA, "Asynchronous warpgroup level matrix instructions" (fragments, descriptors, canonical layouts).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from burnish.errors import ScheduleError
from burnish.loops.expr import ITEM_BYTES, Buffer, Const, Load, Var
from burnish.loops.program import (
    COMMIT_PRODUCTS,
    START_PRODUCTS,
    WAIT_PRODUCTS,
    Intrinsic,
    LoopProgram,
    Stmt,
    Store,
    seq,
)
from burnish.machines.emitter import CodeEmitter, IntrinsicCode
from burnish.machines.intrinsics import TensorIntrinsic, nest
from burnish.machines.nvptx.mma import (
    CORES,
    FRAGMENT,
    HALVES,
    ROW_BYTES,
    WARP,
    G,
    T,
    depth_of,
    own,
    product_of,
    row_elements,
    whole_tile,
    words_held,
)
from burnish.machines.nvptx.threads import SHARED_SPACE
from burnish.machines.scopes import SWIZZLED_BYTES

GROUP_WARPS = 4
GROUP = GROUP_WARPS * WARP
ROWS, PANEL = 64, 64
COLUMNS = (64, 128, 192, 256)
TYPES = {"float16": "f16", "bfloat16": "bf16", "float32": "tf32", "int8": "s8"}
_SUMS = {"float32": ("float", "f"), "int32": ("i32", "r")}  # of LLVM; a register's letter in constraints, and in names
FEATURE = "sm_90a"
IN_FLIGHT = 4  # groups that one may wait for all but
_X, _Y, _Z = (Var(f"threadIdx.{axis}") for axis in "xyz")
# g, t and the warp's number in its group by the block's form: a warp along x, or 4 threads along x and 8 along y. Then
# all warps lie along z, and a tile begins 64 rows after that of the group before.
FORMS = ((G, T, _Y), (_Y, _X, _Z))


def _begin(f: CodeEmitter, access: Load, down: int = 0, across: int = 0) -> str:
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


@dataclass(frozen=True)
class WgmmaShape:
    """One instruction: the type of its operands, the columns that it computes, how the right operand is stored.

    ``held``: the left operand is in registers, as sums of products are. ``first``: the sums begin with its products.
    """

    dtype: str
    wide: int
    columns: bool = False
    held: bool = False
    first: bool = False

    @property
    def sums(self) -> str:
        """Element type of the sums."""
        return CORES[self.dtype][1]

    @property
    def suffix(self) -> str:
        """Name suffix, unique among instructions of one type and width."""
        words = ("columns", "held", "first")
        return "".join(f".{word}" for word in words if getattr(self, word))

    @property
    def function(self) -> str:
        """The function that it is."""
        return f"gpu.wgmma.{TYPES[self.dtype]}.n{self.wide}{self.suffix}"


def _code(form: WgmmaShape) -> IntrinsicCode:
    name, count, row = form.function, form.wide // 2, row_elements(form.dtype)
    element, _ = _SUMS[form.sums]

    def code(f: CodeEmitter, s: Intrinsic) -> None:
        c, a, b = s.operands
        held = [f"i32 {word}" for word in words_held(f, a)] if form.held else []
        left = held or [f"ptr {_begin(f, a, down=row)}"]
        right = _begin(f, b, across=2 if form.columns else 2 * row)
        kind = "{" + ", ".join([element] * count) + "}"
        f.declare(name, kind, [*(operand.split()[0] for operand in left), "ptr", *[element] * count])
        _renewed(f, own(f, c, count), kind, f"@{name}({', '.join(left)}, ptr {right}, ", form.first, form.sums)

    return code


def _renewed(
    f: CodeEmitter, places: list[str], kind: str, call: str, first: bool = False, dtype: str = "float32"
) -> None:
    """All sums replaced by what a function makes of them; ``first``: of zeros."""
    element, _ = _SUMS[dtype]
    old = ["0.0" if first else f.result(f"load {element}, ptr {p}", dtype).text for p in places]
    new = f.result(f"call {kind} {call}{', '.join(f'{element} {v}' for v in old)})", dtype).text
    for i, place in enumerate(places):
        f.emit(f"store {element} {f.result(f'extractvalue {kind} {new}, {i}', dtype).text}, ptr {place}")


def _declared(form: WgmmaShape) -> TensorIntrinsic:
    """Loops v, j, h, e of the sums, panels of eight times two columns of a thread, and k of the depth; or p, t, q where
    a thread holds of the left operand [p, h, q] in columns 8 p + 2 t + q.
    """
    panels, dtype = form.wide // PANEL, form.dtype
    sums = [("v", panels), ("j", 8), ("h", 2), ("e", 2)]
    deep = [("p", 2), ("t", 4), ("q", 2)] if form.held else [("k", depth_of(dtype))]
    extents = dict([*sums, *deep])

    def shaped(name: str, axes: str, kind: str) -> Load:
        return Load(Buffer(name, tuple(extents[x] for x in axes), kind), tuple(map(Var, axes)))

    k = "ptq" if form.held else "k"
    c = shaped("c", "vjhe", form.sums)
    a = shaped("a", "tphq" if form.held else "hk", dtype)
    b = shaped("b", f"v{k}je" if form.columns else f"vje{k}", dtype)
    body: Stmt = nest([*sums, *deep], product_of(c, a, b))
    if form.first:
        body = seq(nest(sums, Store(c.buffer, c.indices, Const(0.0, "float32"))), body)
    buffers = tuple(x.buffer for x in (c, a, b))
    free, spread = frozenset({"b"} if form.held else {"a", "b"}), frozenset({"a"} if form.held else ())
    name = f"wgmma_{dtype}_{form.wide}{form.suffix.replace('.', '_')}"
    program = LoopProgram(name, buffers, body)
    return TensorIntrinsic(name, program, free, _code(form), frozenset({FEATURE}), GROUP, spread)


WGMMA = {
    (d, n, side): _declared(WgmmaShape(d, n, side))
    for d in TYPES
    for n in COLUMNS
    for side in ((False, True) if d in HALVES else (False,))
}
HELD_FORMS = tuple(
    form
    for d in HALVES
    for form in (
        *(WgmmaShape(d, PANEL, columns=True, held=True, first=first) for first in (False, True)),
        *(WgmmaShape(d, n, held=True, first=first) for n in (PANEL, 2 * PANEL) for first in (False, True)),
    )
)
WGMMA_HELD = {form: _declared(form) for form in HELD_FORMS}
WGMMA_INTRINSICS = (*WGMMA.values(), *WGMMA_HELD.values())


def _start(f: CodeEmitter, s: Intrinsic) -> None:
    del s
    f.declare("gpu.products.start", "void", [])
    f.emit("call void @gpu.products.start()")


def _commit(f: CodeEmitter, s: Intrinsic) -> None:
    del s
    f.declare("gpu.products.commit", "void", [])
    f.emit("call void @gpu.products.commit()")


def _wait(f: CodeEmitter, s: Intrinsic) -> None:
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
            count, dtype = memory.buffer.size, memory.buffer.dtype
            element, letter = _SUMS[dtype]
            kind, name = "{" + ", ".join([element] * count) + "}", f"gpu.products.end.{letter}{count}"
            f.declare(name, kind, [element] * count)
            _renewed(f, [f.pointer(memory, (), i) for i in range(count)], kind, f"@{name}(", dtype=dtype)
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


def _tied(count: int, dtype: str) -> tuple[str, str, str, str]:
    """Operands for ``count`` sums that an instruction updates: type, parameters, constraints, and names in its text."""
    element, letter = _SUMS[dtype]
    kind = "{" + ", ".join([element] * count) + "}"
    given = ", ".join(f"{element} %c{i}" for i in range(count))
    constraints = ",".join([*[f"={letter}"] * count, *map(str, range(count))])
    return kind, given, constraints, ", ".join(f"${i}" for i in range(count))


def _instruction(form: WgmmaShape) -> str:
    count, wide = form.wide // 2, form.wide
    kind, given, tied, names = _tied(count, form.sums)
    outputs, at = ",".join(["=f"] * count), count if form.first else 2 * count
    kinds = f"{TYPES[form.dtype]}.{TYPES[form.dtype]}"
    words = [f"i32 %w{i}" for i in range(4)]
    left = "{" + ", ".join(f"${at + i}" for i in range(4)) + "}" if form.held else f"${at}"
    right = f"${at + (4 if form.held else 1)}"
    signs = "p" if form.sums == "int32" else "p, 1, 1"
    if form.dtype in HALVES:  # others are stored along the depth only
        signs += f", {'' if form.held else '0, '}{int(form.columns)}"
    shape, sums = f"m{ROWS}n{wide}k{depth_of(form.dtype)}", "s32" if form.sums == "int32" else "f32"
    text = (
        f"{{ .reg .pred p; setp.ne.b32 p, {int(not form.first)}, 0; "
        f"wgmma.mma_async.sync.aligned.{shape}.{sums}.{kinds} {{{names}}}, {left}, {right}, {signs}; }}"
    )
    constraints = f"{outputs if form.first else tied},{'r,r,r,r' if form.held else 'l'},l"
    operands = [*([] if form.first else [given]), *(words if form.held else ["i64 %ad"]), "i64 %bd"]
    taken = ", ".join([*(words if form.held else ["ptr %a"]), "ptr %b", given])
    return f"""define internal {kind} @{form.function}({taken}) alwaysinline convergent {{
{"" if form.held else _descriptor("a", False)}
{_descriptor("b", form.columns)}
  %new = call {kind} asm sideeffect "{text}", "{constraints}"({", ".join(operands)}) convergent
  ret {kind} %new
}}"""


def _ended(count: int, dtype: str) -> str:
    kind, given, constraints, _ = _tied(count, dtype)
    return f"""define internal {kind} @gpu.products.end.{_SUMS[dtype][1]}{count}({given}) alwaysinline convergent {{
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
        *(_instruction(WgmmaShape(*key)) for key in WGMMA),
        *(_instruction(form) for form in HELD_FORMS),
        *(_ended(count, dtype) for dtype in _SUMS for count in (16, 32, 64, 96, 128)),
        _plain("gpu.products.start", "wgmma.fence.sync.aligned"),
        _plain("gpu.products.commit", "wgmma.commit_group.sync.aligned"),
        *(_plain(f"gpu.products.wait.{n}", f"wgmma.wait_group.sync.aligned {n}") for n in range(1, IN_FLIGHT)),
        _plain("gpu.copies.publish", "fence.proxy.async.shared::cta"),
    ]
)
"""LLVM IR of groups of warps on a GPU."""
