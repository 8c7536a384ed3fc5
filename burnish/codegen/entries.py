"""Entry points of parallel regions: functions by which iterations of a kernel's loops run in a region of several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from burnish.loops.program import Alloc, For, Seq, Stmt


@dataclass(frozen=True)
class RegionBody:
    """A parallel loop as a function, and what its context holds behind the runtime: of each address whether it is an
    argument's ("args") or in the scratch memory of the first thread ("scratch"), and its number or byte there; None of
    what lives in the kernel.
    """

    name: str
    context: tuple[tuple[str, int] | None, ...]


def region_loops(s: Stmt) -> list[For]:
    """The parallel loops of known extents that a statement consists of, one after another; empty if there is more in
    it than these.
    """
    match s:
        case Alloc(_, body):
            return region_loops(body)
        case Seq(stmts):
            parts = [region_loops(inner) for inner in stmts]
            return [loop for part in parts for loop in part] if all(parts) else []
        case For(_, extent, "parallel", _) if type(extent) is int and extent > 1:
            return [s]
    return []


def entry_name(kernel: str, region: int) -> str:
    """Symbol of the entry point of a kernel's region."""
    return f"{kernel}.region{region}"


def region_entries(kernel: str, bodies: Sequence[RegionBody], attributes: str) -> list[str]:
    """The entry points ``void kernel.regionN(ptr args, ptr rt, i64 begin, i64 end, i64 thread)`` as LLVM IR; none where
    a region needs something that lives in the kernel.
    """
    contexts = [[place for place in body.context if place is not None] for body in bodies]
    if any(len(places) < len(body.context) for places, body in zip(contexts, bodies, strict=True)):
        return []
    return [
        _entry(entry_name(kernel, number), body.name, places, attributes)
        for number, (places, body) in enumerate(zip(contexts, bodies, strict=True))
    ]


def _entry(name: str, body: str, places: Sequence[tuple[str, int]], attributes: str) -> str:
    """See :func:`region_entries`."""
    lines = [
        f"define void @{name}(ptr %args, ptr %rt, i64 %begin, i64 %end, i64 %thread) {attributes} {{",
        "entry:",
        f"  %ctx = alloca [{1 + len(places)} x i64], align 8",
        "  store ptr %rt, ptr %ctx",
    ]
    if any(kind == "scratch" for kind, _ in places):
        lines += ["  %scratch.at = getelementptr i64, ptr %rt, i64 2", "  %scratch = load ptr, ptr %scratch.at"]
    for i, (kind, at) in enumerate(places, 1):
        if kind == "args":
            lines += [f"  %a{i} = getelementptr ptr, ptr %args, i64 {at}", f"  %b{i} = load ptr, ptr %a{i}"]
        else:
            lines.append(f"  %b{i} = getelementptr i8, ptr %scratch, i64 {at}")
        lines += [f"  %s{i} = getelementptr i64, ptr %ctx, i64 {i}", f"  store ptr %b{i}, ptr %s{i}"]
    call = f"  call void @{body}(ptr %ctx, i64 %begin, i64 %end, i64 %thread) noinline"
    return "\n".join([*lines, call, "  ret void", "}"])
