"""Entry points of parallel regions: functions by which iterations of a kernel's loops run in a region of several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from burnish.loops.program import Alloc, For, Seq, Stmt


@dataclass(frozen=True)
class RegionBody:
    """A parallel loop as a function, which takes the names of ``buffers`` and of ``variables`` by its context."""

    name: str
    buffers: tuple[str, ...]
    variables: tuple[str, ...]


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


def region_entries(
    kernel: str, bodies: Sequence[RegionBody], places: Mapping[str, tuple[str, int]], attributes: str
) -> list[str] | None:
    """The entry points ``void kernel.regionN(ptr args, ptr rt, i64 begin, i64 end, i64 thread)`` as LLVM IR.

    ``places``: of each buffer whether it is an argument ("args") or in the scratch memory of the first thread
    ("scratch"), and its number or byte there. None where a region needs something else that lives in the kernel.
    """
    if any(body.variables or not places.keys() >= {*body.buffers} for body in bodies):
        return None
    return [_entry(kernel, number, body, places, attributes) for number, body in enumerate(bodies)]


def _entry(kernel: str, number: int, body: RegionBody, places: Mapping[str, tuple[str, int]], attributes: str) -> str:
    """See :func:`region_entries`."""
    lines = [
        f"define void @{entry_name(kernel, number)}(ptr %args, ptr %rt, i64 %begin, i64 %end, i64 %thread) "
        f"{attributes} {{",
        "entry:",
        f"  %ctx = alloca [{1 + len(body.buffers)} x i64], align 8",
        "  store ptr %rt, ptr %ctx",
    ]
    if any(places[name][0] == "scratch" for name in body.buffers):
        lines += ["  %scratch.at = getelementptr i64, ptr %rt, i64 2", "  %scratch = load ptr, ptr %scratch.at"]
    for i, name in enumerate(body.buffers, 1):
        kind, at = places[name]
        if kind == "args":
            lines += [f"  %a{i} = getelementptr ptr, ptr %args, i64 {at}", f"  %b{i} = load ptr, ptr %a{i}"]
        else:
            lines.append(f"  %b{i} = getelementptr i8, ptr %scratch, i64 {at}")
        lines += [f"  %s{i} = getelementptr i64, ptr %ctx, i64 {i}", f"  store ptr %b{i}, ptr %s{i}"]
    call = f"  call void @{body.name}(ptr %ctx, i64 %begin, i64 %end, i64 %thread) noinline"
    return "\n".join([*lines, call, "  ret void", "}"])
