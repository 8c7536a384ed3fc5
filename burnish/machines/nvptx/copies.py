"""Asynchronous copies from global to shared memory: ``cp.async``, its groups, and what waits for them.

A loop of kind ``async`` whose elements lie next to each other on both sides is one instruction of 4, 8 or 16 bytes.
One under a condition copies zeros where that does not hold. Others are copied element by element, at once.

Source: PTX ISA, "cp.async", "cp.async.commit_group", "cp.async.wait_group".
"""

from __future__ import annotations

from burnish.loops.expr import BLOCK_SCOPES, ITEM_BYTES, Binary, Const, Expr, Load, Select
from burnish.loops.linear import to_linear
from burnish.loops.program import COMMIT_COPIES, WAIT_COPIES, For, Intrinsic, Store
from burnish.loops.traverse import conjuncts
from burnish.machines.emitter import CodeEmitter, IntrinsicCode
from burnish.machines.nvptx.threads import GLOBAL_SPACE, SHARED_SPACE

COPY_BYTES = (4, 8, 16)
GROUPS = 8  # that one may wait for all but


def copy_loop(f: CodeEmitter, loop: For) -> None:
    """One instruction, where the loop is such a copy; else its iterations, one after another."""
    r = f.resolver
    if not _copied(f, loop):
        for value in range(loop.extent):
            r.fixed[loop.var] = value
            f.statement(loop.body)
        r.fixed.pop(loop.var, None)


def _copied(f: CodeEmitter, loop: For) -> bool:
    s, r = loop.body, f.resolver
    if not isinstance(s, Store) or s.reduce or s.buffer.scope not in BLOCK_SCOPES:
        return False
    r.fixed[loop.var] = 0
    try:
        value: Expr = r.chosen(s.value)
        cond: Expr | None = None
        if isinstance(value, Select) and isinstance(value.b, Const) and value.b.value == 0:
            if not _alike(f, value.cond, loop):
                return False
            cond = r.expr(value.cond)
            value = value.a
        nbytes = loop.extent * ITEM_BYTES[s.buffer.dtype]
        if isinstance(value, Const) and value.value == 0 and nbytes in COPY_BYTES:
            return _zeroed(f, Load(s.buffer, s.indices), loop, nbytes)
        if not isinstance(value, Load) or value.dtype != s.buffer.dtype or nbytes not in COPY_BYTES:
            return False
        source, target = f.memory[value.buffer.name], f.memory[s.buffer.name]
        if value.buffer.scope != "global" or source.slots is not None or any(i.buffers for i in value.indices):
            return False
        here = [r.address(a) for a in (value, Load(s.buffer, s.indices))]
        for access, address, memory in zip((value, Load(s.buffer, s.indices)), here, (source, target), strict=True):
            if memory.alignment(address.terms, address.const) % nbytes or not _adjacent(f, access, loop):
                return False
        begin, end = (f.pointer(m, a.terms, a.const) for m, a in zip((source, target), here, strict=True))
        count = str(nbytes)
        if cond is not None:
            test = f.value(cond).text
            count = f.result(f"select i1 {test}, i32 {nbytes}, i32 0", "int32").text
        f.declare(f"gpu.copy.{nbytes}", "void", ["ptr", "ptr", "i32"])
        f.emit(f"call void @gpu.copy.{nbytes}(ptr {end}, ptr {begin}, i32 {count})")
        return True
    finally:
        r.fixed.pop(loop.var, None)


def _zeroed(f: CodeEmitter, access: Load, loop: For, nbytes: int) -> bool:
    """Stores zeros by one instruction, where the places lie together."""
    memory, address = f.memory[access.buffer.name], f.resolver.address(access)
    if memory.alignment(address.terms, address.const) % nbytes or not _adjacent(f, access, loop):
        return False
    begin = f.pointer(memory, address.terms, address.const)
    f.emit(f"store <{nbytes // 4} x i32> zeroinitializer, ptr {begin}, align {nbytes}")
    return True


def _adjacent(f: CodeEmitter, access: Load, loop: For) -> bool:
    """Whether the iterations of a loop touch neighbours."""
    r, first = f.resolver, f.resolver.address(access)
    for value in range(1, loop.extent):
        r.fixed[loop.var] = value
        address = r.address(access)
        if address.terms != first.terms or address.const != first.const + value:
            return False
    r.fixed[loop.var] = 0
    return True


def _alike(f: CodeEmitter, cond: Expr, loop: For) -> bool:
    """Whether a condition has one value for all iterations: on their variable it depends by ``x + i < n``, where all
    other terms are multiples of their number.
    """
    for part in conjuncts(cond):
        if part.buffers:
            return False
        if loop.var not in part.variables:
            continue
        if not isinstance(part, Binary) or part.op not in ("<", ">="):
            return False
        del f.resolver.fixed[loop.var]
        terms, const = to_linear(f.resolver.expr(part.a - part.b))
        f.resolver.fixed[loop.var] = 0
        steps = {str(atom): c for atom, c in terms.items()}
        if steps.pop(loop.var, 0) != 1 or any(c % loop.extent for c in (*steps.values(), const)):
            return False
        if any(loop.var in atom.variables for atom in terms if str(atom) != loop.var):
            return False
    return True


def _commit(f: CodeEmitter, s: Intrinsic) -> None:
    """This thread's copies since the last commit are a group."""
    del s
    f.declare("gpu.copies.commit", "void", [])
    f.emit("call void @gpu.copies.commit()")


def _wait(f: CodeEmitter, s: Intrinsic) -> None:
    """All groups of this thread but the latest have arrived; ``publish``: for the tensor cores' own reads too."""
    attrs = dict(s.attrs)
    for name in (f"gpu.copies.wait.{attrs['but']}", *(["gpu.copies.publish"] if "publish" in attrs else [])):
        f.declare(name, "void", [])
        f.emit(f"call void @{name}()")
    f.forget()


COPY_HINTS: dict[str, IntrinsicCode] = {COMMIT_COPIES: _commit, WAIT_COPIES: _wait}


def _copy(nbytes: int) -> str:
    kind = "cg" if nbytes == 16 else "ca"
    name = f"llvm.nvvm.cp.async.{kind}.shared.global.{nbytes}.s"
    return f"""declare void @{name}(ptr addrspace({SHARED_SPACE}), ptr addrspace({GLOBAL_SPACE}), i32)
define internal void @gpu.copy.{nbytes}(ptr %to, ptr %from, i32 %count) alwaysinline {{
  %shared = addrspacecast ptr %to to ptr addrspace({SHARED_SPACE})
  %global = addrspacecast ptr %from to ptr addrspace({GLOBAL_SPACE})
  call void @{name}(ptr addrspace({SHARED_SPACE}) %shared, ptr addrspace({GLOBAL_SPACE}) %global, i32 %count)
  ret void
}}"""


def _waiting(but: int) -> str:
    return f"""define internal void @gpu.copies.wait.{but}() alwaysinline {{
  call void @llvm.nvvm.cp.async.wait.group(i32 {but})
  ret void
}}"""


COPY_PRELUDE = "\n".join(
    [
        *(_copy(nbytes) for nbytes in COPY_BYTES),
        "declare void @llvm.nvvm.cp.async.commit.group()",
        "define internal void @gpu.copies.commit() alwaysinline {",
        "  call void @llvm.nvvm.cp.async.commit.group()",
        "  ret void\n}",
        "declare void @llvm.nvvm.cp.async.wait.group(i32)",
        *(_waiting(but) for but in range(GROUPS)),
    ]
)
"""LLVM IR of copies on a GPU."""


def _moved(nbytes: int) -> str:
    kind = f"<{nbytes // 4} x i32>"
    return f"""define internal void @gpu.copy.{nbytes}(ptr %to, ptr %from, i32 %count) alwaysinline {{
  %none = icmp eq i32 %count, 0
  br i1 %none, label %zero, label %copy
copy:
  %global = addrspacecast ptr %from to ptr addrspace({GLOBAL_SPACE})
  %found = load {kind}, ptr addrspace({GLOBAL_SPACE}) %global, align {nbytes}
  br label %store
zero:
  br label %store
store:
  %value = phi {kind} [ %found, %copy ], [ zeroinitializer, %zero ]
  store {kind} %value, ptr %to, align {nbytes}
  ret void
}}"""


MOVE_PRELUDE = "\n".join(
    [
        *(_moved(nbytes) for nbytes in COPY_BYTES),
        *(
            f"define internal void @gpu.copies.{name}() alwaysinline {{\n  ret void\n}}"
            for name in ("commit", *(f"wait.{but}" for but in range(GROUPS)))
        ),
    ]
)
"""Those functions where threads copy by registers: a copy has arrived when the next statement begins."""
