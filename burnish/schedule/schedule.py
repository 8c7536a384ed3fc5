"""A program being scheduled: one method a primitive, each call recorded so that it can be replayed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

from burnish.errors import ScheduleError
from burnish.loops.layout import Layout
from burnish.loops.program import For, Program, Stmt, Store
from burnish.schedule import expand, loops, memory, padding, partition, prefetch, reduce, stages
from burnish.schedule.intrinsics import INTRINSICS, TensorIntrinsic
from burnish.schedule.nest import find_loop, stage_names, stage_nests
from burnish.schedule.prefix_cache import Steps
from burnish.schedule.tensorize import tensorize

Call = tuple[str, list[Any]]  # (primitive, arguments): strings, numbers, None and lists of them


def _tensorize(program: Program, loop: str, name: str) -> Program:
    if name not in INTRINSICS:
        raise ScheduleError(f"tensorize: loop '{loop}': unknown intrinsic '{name}'; known: {', '.join(INTRINSICS)}")
    return tensorize(program, loop, INTRINSICS[name])


PRIMITIVES: Mapping[str, Callable[..., Program]] = {
    "split": loops.split, "tile": loops.tile, "fuse": loops.fuse, "reorder": loops.reorder, "reverse": loops.reverse,
    "unroll": loops.unroll, "vectorize": loops.vectorize, "parallel": loops.parallel, "bind": loops.bind,
    "vthread": loops.vthread, "serial": loops.serial, "compute_at": stages.compute_at,
    "compute_inline": stages.compute_inline, "inline_all": stages.inline_all,
    "reverse_compute_at": stages.reverse_compute_at, "cache_read": memory.cache_read,
    "cache_write": memory.cache_write, "set_scope": memory.set_scope, "transform_layout": memory.transform_layout,
    "hoist_alloc": memory.hoist_alloc, "pad": padding.pad, "fill": padding.fill,
    "partition": partition.partition, "peel": partition.peel,
    "distribute": partition.distribute, "rfactor": reduce.rfactor, "expand": expand.expand,
    "tensorize": _tensorize,
    "prefetch": prefetch.prefetch,
}  # fmt: skip


def replay(program: Program, trace: Iterable[Sequence[Any]]) -> Program:
    """``program`` after every call of a trace, as recorded by :class:`Schedule` or read back from JSON."""
    for name, args in trace:
        if name not in PRIMITIVES:
            raise ScheduleError(f"replay: unknown primitive '{name}'; known: {', '.join(PRIMITIVES)}")
        program = PRIMITIVES[name](program, *args)
    return program


class Schedule:
    """``program`` is the current one, ``trace`` the calls that led to it. What makes loops returns their names.

    ``steps``: where a process that makes many schedules remembers programs between primitives; by default nowhere.
    """

    steps: ClassVar[Steps | None] = None

    def __init__(self, program: Program) -> None:
        self.program = program
        self.trace: list[Call] = []

    def __str__(self) -> str:
        return str(self.program)

    def _apply(self, name: str, *args: Any) -> None:
        while args and args[-1] is None:
            args = args[:-1]
        program = self.program

        def take() -> Program:
            return PRIMITIVES[name](program, *args)

        step = name, *(tuple(a) if isinstance(a, list) else a for a in args)
        self.program = self.steps.after(program, step, take) if self.steps else take()
        self.trace.append((name, list(args)))

    # --- look-up ------------------------------------------------------------------------------------------------------

    def stages(self) -> list[str]:
        """Buffers the program computes, in order of their first store."""
        return stage_names(self.program)

    def loops(self, stage: str) -> list[str]:
        """The stage's own loops around its combining store (its only one, if it does not reduce), outermost first."""
        stores = self._stores(stage)
        return next((path for path, reduces in stores if reduces), stores[0][0])

    def init_loops(self, stage: str) -> list[str]:
        """The stage's own loops around the store of the reduction's identity; empty where there is no reduction."""
        stores = self._stores(stage)
        return next((path for path, reduces in stores if not reduces), []) if any(r for _, r in stores) else []

    def enclosing(self, stage: str) -> list[str]:
        """The loops of other stages around ``stage``, outermost first."""
        return stage_nests(self.program, stage, "enclosing")[-1].loops

    def extent(self, loop: str) -> int:
        """Number of iterations of ``loop``."""
        return find_loop(self.program, loop, "extent").loop.extent

    def _stores(self, stage: str) -> list[tuple[list[str], bool]]:
        """The loops around each store to the stage, and whether it combines."""
        found: list[tuple[list[str], bool]] = []

        def visit(s: Stmt, loops: list[str]) -> None:
            if stage in s.writes:
                if isinstance(s, Store):
                    found.append((loops, s.reduce is not None))
                inside = [*loops, s.var] if isinstance(s, For) else loops
                for inner in s.parts:
                    visit(inner, inside)

        for nest in stage_nests(self.program, stage, "loops"):
            visit(nest.stmt, [])
        return found

    # --- loops --------------------------------------------------------------------------------------------------------

    def split(
        self, loop: str, factor: int | None = None, names: tuple[str, str] | None = None, parts: int | None = None
    ) -> tuple[str, str]:
        self._apply("split", loop, factor, list(names) if names else None, parts)
        return names or loops.split_names(loop)

    def tile(self, y: str, x: str, y_factor: int, x_factor: int) -> tuple[str, str, str, str]:
        self._apply("tile", y, x, y_factor, x_factor)
        (yo, yi), (xo, xi) = loops.split_names(y), loops.split_names(x)
        return yo, xo, yi, xi

    def fuse(self, outer: str, inner: str, name: str | None = None) -> str:
        self._apply("fuse", outer, inner, name)
        return name or loops.fused_name(outer, inner)

    def reorder(self, *names: str) -> None:
        self._apply("reorder", *names)

    def reverse(self, loop: str) -> None:
        self._apply("reverse", loop)

    def unroll(self, loop: str) -> None:
        self._apply("unroll", loop)

    def vectorize(self, loop: str) -> None:
        self._apply("vectorize", loop)

    def parallel(self, loop: str) -> None:
        self._apply("parallel", loop)

    def bind(self, loop: str, thread: str) -> None:
        self._apply("bind", loop, thread)

    def vthread(self, loop: str) -> None:
        self._apply("vthread", loop)

    def serial(self, loop: str) -> None:
        self._apply("serial", loop)

    def pad(self, loop: str, multiple: int) -> None:
        self._apply("pad", loop, multiple)

    def fill(self, loop: str, multiple: int) -> None:
        self._apply("fill", loop, multiple)

    def partition(self, loop: str, at: int) -> tuple[str, str]:
        self._apply("partition", loop, at)
        return loop, f"{loop}.tail"

    def peel(self, loop: str, head: int = 0, tail: int = 0) -> None:
        self._apply("peel", loop, head, tail)

    def distribute(self, loop: str) -> None:
        self._apply("distribute", loop)

    # --- stages -------------------------------------------------------------------------------------------------------

    def compute_at(self, stage: str, loop: str) -> None:
        self._apply("compute_at", stage, loop)

    def compute_inline(self, stage: str) -> None:
        self._apply("compute_inline", stage)

    def inline_all(self, keep: Sequence[str] = ()) -> None:
        self._apply("inline_all", list(keep))

    def reverse_compute_at(self, stage: str, loop: str) -> None:
        self._apply("reverse_compute_at", stage, loop)

    def rfactor(self, stage: str, loop: str, position: int = 0, name: str | None = None) -> str:
        self._apply("rfactor", stage, loop, position, name)
        return name or f"{stage}.rf"

    def expand(self, stage: str) -> None:
        self._apply("expand", stage)

    def tensorize(self, loop: str, intrinsic: TensorIntrinsic | str) -> None:
        self._apply("tensorize", loop, intrinsic if isinstance(intrinsic, str) else intrinsic.name)

    def prefetch(
        self,
        buffer: str,
        loop: str,
        over: str | Sequence[str],
        distance: int = 1,
        share: str | None = None,
        locality: int = 2,
    ) -> None:
        ahead = over if isinstance(over, str) else list(over)
        self._apply("prefetch", buffer, loop, ahead, distance, share, locality)

    # --- buffers ------------------------------------------------------------------------------------------------------

    def cache_write(self, buffer: str, scope: str, name: str | None = None) -> str:
        self._apply("cache_write", buffer, scope, name)
        return name or f"{buffer}.{scope}"

    def cache_read(self, buffer: str, scope: str, consumer: str, name: str | None = None) -> str:
        self._apply("cache_read", buffer, scope, consumer, name)
        return name or f"{buffer}.{scope}"

    def set_scope(self, buffer: str, scope: str) -> None:
        self._apply("set_scope", buffer, scope)

    def transform_layout(self, buffer: str, layout: Layout | str) -> None:
        self._apply("transform_layout", buffer, str(layout))

    def hoist_alloc(self, buffer: str, loop: str) -> None:
        self._apply("hoist_alloc", buffer, loop)
