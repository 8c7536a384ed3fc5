"""A program being scheduled: one method a primitive, each call recorded so that it can be replayed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from burnish.errors import ScheduleError
from burnish.loops.layout import Layout
from burnish.loops.program import For, LoopProgram, Stmt, Store
from burnish.machines.intrinsics import TensorIntrinsic, TensorRule
from burnish.machines.known import INTRINSICS
from burnish.machines.scopes import MemoryScope
from burnish.schedule import (
    balance,
    divide,
    expand,
    loops,
    memory,
    padding,
    partition,
    pipeline,
    precompute,
    prefetch,
    reduce,
    scatter,
    stages,
    tensor_copy,
)
from burnish.schedule.nest import find_loop, stage_names, stage_nests
from burnish.schedule.prefix_cache import Steps
from burnish.schedule.tensorize import tensorize

Call = tuple[str, list[Any]]  # (primitive, arguments): strings, numbers, None and lists of them


def _tensorize(program: LoopProgram, loop: str, intrinsic: TensorIntrinsic | str) -> LoopProgram:
    known = INTRINSICS.get(intrinsic) if isinstance(intrinsic, str) else intrinsic
    if known is None:
        raise ScheduleError(
            f"tensorize: loop '{loop}': unknown intrinsic '{intrinsic}'; known: {', '.join(INTRINSICS)}, and those "
            f"that the schedule is given"
        )
    return tensorize(program, loop, known)


PRIMITIVES: Mapping[str, Callable[..., LoopProgram]] = {
    "split": loops.split, "stride": loops.stride, "tile": loops.tile, "fuse": loops.fuse, "reorder": loops.reorder,
    "reverse": loops.reverse,
    "unroll": loops.unroll, "vectorize": loops.vectorize, "parallel": loops.parallel, "bind": loops.bind,
    "vthread": loops.vthread, "copy_async": loops.copy_async, "pipeline": pipeline.pipeline, "serial": loops.serial,
    "copy_tensor": tensor_copy.copy_tensor,
    "compute_at": stages.compute_at,
    "compute_inline": stages.compute_inline, "inline_all": stages.inline_all,
    "reverse_compute_at": stages.reverse_compute_at, "cache_read": memory.cache_read,
    "cache_write": memory.cache_write, "set_scope": memory.set_scope, "transform_layout": memory.transform_layout,
    "hoist_alloc": memory.hoist_alloc, "pad": padding.pad, "fill": padding.fill,
    "partition": partition.partition, "peel": partition.peel,
    "distribute": partition.distribute, "rfactor": reduce.rfactor, "expand": expand.expand,
    "scatter": scatter.scatter,
    "tensorize": _tensorize,
    "prefetch": prefetch.prefetch, "balance": balance.balance, "divide": divide.divide,
    "precompute": precompute.precompute,
}  # fmt: skip


SCOPED = ("cache_read", "cache_write", "set_scope")  # primitives whose second argument is a scope


@dataclass
class Vocabulary:
    """Tensor intrinsics and memory scopes that a trace names, in addition to those of the package."""

    intrinsics: dict[str, TensorIntrinsic]
    scopes: dict[str, MemoryScope]

    @staticmethod
    def of(intrinsics: Iterable[TensorIntrinsic], scopes: Iterable[MemoryScope]) -> Vocabulary:
        """Vocabulary of these intrinsics and scopes, by their names."""
        return Vocabulary({t.name: t for t in intrinsics}, {s.name: s for s in scopes})

    def named(self, args: Sequence[Any]) -> list[Any]:
        """The arguments as a trace holds them: names in place of objects, which are remembered."""
        for arg in args:
            if isinstance(arg, TensorIntrinsic):
                self.intrinsics[arg.name] = arg
            elif isinstance(arg, MemoryScope):
                self.scopes[arg.name] = arg
        return [arg.name if isinstance(arg, TensorIntrinsic | MemoryScope) else arg for arg in args]

    def meant(self, primitive: str, args: Sequence[Any]) -> list[Any]:
        """The arguments with the objects that they name."""
        known: Mapping[str, Any] = self.intrinsics if primitive == "tensorize" else self.scopes
        if len(args) < 2 or not known or primitive not in ("tensorize", *SCOPED):
            return list(args)
        return [args[0], known.get(args[1], args[1]), *args[2:]]


def replay(
    program: LoopProgram,
    trace: Iterable[Sequence[Any]],
    intrinsics: Iterable[TensorIntrinsic] = (),
    scopes: Iterable[MemoryScope] = (),
) -> LoopProgram:
    """``program`` after every call of a trace, as recorded by :class:`Schedule` or read back from JSON.

    ``intrinsics`` and ``scopes``: those from outside of the package that its calls name.
    """
    vocabulary = Vocabulary.of(intrinsics, scopes)
    for name, args in trace:
        if name not in PRIMITIVES:
            raise ScheduleError(f"replay: unknown primitive '{name}'; known: {', '.join(PRIMITIVES)}")
        program = PRIMITIVES[name](program, *vocabulary.meant(name, args))
    return program


class Schedule:
    """``program`` is the current one, ``trace`` the calls that led to it. What makes loops returns their names.

    ``intrinsics`` and ``scopes``: those from outside of the package that calls may name; one that is passed to a call
    as an object is known from then on. ``steps``: where a process that makes many schedules remembers programs between
    primitives; by default nowhere.
    """

    steps: ClassVar[Steps | None] = None

    def __init__(
        self, program: LoopProgram, intrinsics: Iterable[TensorIntrinsic] = (), scopes: Iterable[MemoryScope] = ()
    ) -> None:
        self.program = program
        self.trace: list[Call] = []
        self.vocabulary = Vocabulary.of(intrinsics, scopes)

    def __str__(self) -> str:
        return str(self.program)

    def _apply(self, name: str, *args: Any) -> None:
        while args and args[-1] is None:
            args = args[:-1]
        program = self.program
        recorded = self.vocabulary.named(args)
        meant = self.vocabulary.meant(name, recorded)

        def take() -> LoopProgram:
            return PRIMITIVES[name](program, *meant)

        step = name, *(tuple(a) if isinstance(a, list) else a for a in meant)
        self.program = self.steps.after(program, step, take) if self.steps else take()
        self.trace.append((name, recorded))

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
        """Cuts a loop into an outer and an inner one of ``factor`` iterations, or ``parts`` outer ones; their names."""
        self._apply("split", loop, factor, list(names) if names else None, parts)
        return names or loops.split_names(loop)

    def tile(self, y: str, x: str, y_factor: int, x_factor: int) -> tuple[str, str, str, str]:
        """Splits two nested loops and orders the halves y.o, x.o, y.i, x.i; their names in that order."""
        self._apply("tile", y, x, y_factor, x_factor)
        (yo, yi), (xo, xi) = loops.split_names(y), loops.split_names(x)
        return yo, xo, yi, xi

    def stride(self, loop: str, parts: int) -> tuple[str, str]:
        """Deals a loop's iterations out to ``parts`` in turn; the names of the loops over parts, and over turns."""
        self._apply("stride", loop, parts)
        return loops.stride_names(loop)

    def fuse(self, outer: str, inner: str, name: str | None = None) -> str:
        """Makes one loop of two perfectly nested ones; its name."""
        self._apply("fuse", outer, inner, name)
        return name or loops.fused_name(outer, inner)

    def reorder(self, *names: str) -> None:
        """Puts perfectly nested loops into this order, in the places they occupy."""
        self._apply("reorder", *names)

    def reverse(self, loop: str) -> None:
        """Runs a loop's iterations from the last to the first; refused where one depends on another."""
        self._apply("reverse", loop)

    def unroll(self, loop: str) -> None:
        """Marks a loop to be written out iteration by iteration; its extent is a number."""
        self._apply("unroll", loop)

    def vectorize(self, loop: str) -> None:
        """Marks a loop to run as the lanes of one vector; one that only reduces becomes a horizontal reduction."""
        self._apply("vectorize", loop)

    def parallel(self, loop: str) -> None:
        """Spreads a loop's iterations over threads; refused where two of them touch the same element."""
        self._apply("parallel", loop)

    def bind(self, loop: str, thread: str) -> None:
        """Binds a loop to a GPU index, such as ``blockIdx.x`` or ``threadIdx.x``."""
        self._apply("bind", loop, thread)

    def vthread(self, loop: str) -> None:
        """Makes a loop virtual threads, interleaved into one instruction stream."""
        self._apply("vthread", loop)

    def copy_async(self, loop: str) -> None:
        """Makes a loop one copy of at most 16 bytes that goes on while others do."""
        self._apply("copy_async", loop)

    def copy_tensor(self, loop: str) -> None:
        """Makes the nest at a loop one copy of a box of a tensor that goes on while others do."""
        self._apply("copy_tensor", loop)

    def pipeline(self, loop: str, stages: int, behind: int | None = None, over: str | None = None) -> None:
        """Fetches what ``loop`` computes with some iterations ahead, into ``stages`` copies of its buffers.

        ``behind``: where products are asynchronous, of how many iterations they may go on meanwhile. ``over``: a loop
        around, whose next iteration is fetched for while one ends.
        """
        self._apply("pipeline", loop, stages, behind, over)

    def serial(self, loop: str) -> None:
        """Takes back any other kind of a loop."""
        self._apply("serial", loop)

    def pad(self, loop: str, multiple: int) -> None:
        """Extends a spatial loop up to a multiple; refused where it could touch elements that hold data."""
        self._apply("pad", loop, multiple)

    def fill(self, loop: str, multiple: int) -> None:
        """Extends a spatial loop of an intermediate, one plain store, up to a multiple; what is added is zero."""
        self._apply("fill", loop, multiple)

    def balance(self, loop: str, parts: int, offsets: str) -> str:
        """Runs a loop in parallel parts of equal work, which ``offsets`` says; the name of the loop over parts."""
        self._apply("balance", loop, parts, offsets)
        return f"{loop}.part"

    def divide(self, loop: str) -> None:
        """Divides the rows that ``loop`` reduces among the parts of the balanced loop around it."""
        self._apply("divide", loop)

    def precompute(self, stage: str, loop: str, over: str) -> str:
        """Computes what ``over`` repeats once in each iteration of ``loop``; the name of what holds it."""
        self._apply("precompute", stage, loop, over)
        return f"{stage}.part"

    def partition(self, loop: str, at: int) -> tuple[str, str]:
        """Runs a loop as two, before and from iteration ``at``; the names of both, that of the second in ``.tail``."""
        self._apply("partition", loop, at)
        return loop, f"{loop}.tail"

    def peel(self, loop: str, head: int = 0, tail: int = 0) -> None:
        """Runs the first ``head`` and the last ``tail`` iterations as loops of their own, ``.head`` and ``.tail``."""
        self._apply("peel", loop, head, tail)

    def distribute(self, loop: str) -> None:
        """Gives each statement in a loop's body a loop of its own, named ``loop``, ``loop.1``, ``loop.2``, …"""
        self._apply("distribute", loop)

    # --- stages -------------------------------------------------------------------------------------------------------

    def compute_at(self, stage: str, loop: str) -> None:
        """Computes a stage inside ``loop``, before its first consumer there, and only the part that is read there."""
        self._apply("compute_at", stage, loop)

    def compute_inline(self, *stages: str) -> None:
        """Replaces every read of some stages, each one plain store, by the values stored there."""
        if stages:
            self._apply("compute_inline", *stages)

    def inline_all(self, keep: Sequence[str] = ()) -> None:
        """Inlines every intermediate stage that is one plain store, except those in ``keep``."""
        self._apply("inline_all", list(keep))

    def reverse_compute_at(self, stage: str, loop: str) -> None:
        """Computes a stage, a plain store, at the end of ``loop`` of its producer: what that just finished."""
        self._apply("reverse_compute_at", stage, loop)

    def rfactor(self, stage: str, loop: str, position: int = 0, name: str | None = None) -> str:
        """Makes a reduction loop a dimension of partial results, at ``position`` of a new stage; its name."""
        self._apply("rfactor", stage, loop, position, name)
        return name or f"{stage}.rf"

    def expand(self, stage: str) -> None:
        """Turns a stage's sums of products with literals into one expression for every row of literals."""
        self._apply("expand", stage)

    def scatter(self, loop: str) -> None:
        """Runs of a loop around a reduction only the iteration that a condition demands: ``y[index[k]] += x[k]``."""
        self._apply("scatter", loop)

    def tensorize(self, loop: str, intrinsic: TensorIntrinsic | TensorRule | str) -> None:
        """Replaces the nest of ``loop``, which must compute what the intrinsic means, by the intrinsic.

        Of a rule by the first of its members that the nest means.
        """
        if not isinstance(intrinsic, TensorRule):
            self._apply("tensorize", loop, intrinsic)
            return
        reasons = []
        for member in intrinsic.members:
            try:
                self._apply("tensorize", loop, member)
                return
            except ScheduleError as error:
                reasons.append(str(error))
        raise ScheduleError("; ".join(reasons))

    def prefetch(
        self,
        buffer: str,
        loop: str,
        over: str | Sequence[str],
        distance: int = 1,
        share: str | None = None,
        locality: int = 2,
    ) -> None:
        """Hints, in each iteration of ``loop``, at what it reads of ``buffer`` when ``over`` is ``distance`` on.

        ``over``: that loop, or some around it, outermost first, the innermost of which reads it where ``loop`` does
        not. The iterations of ``share``, ``loop`` or one between them, divide the cache lines.
        """
        ahead = over if isinstance(over, str) else list(over)
        self._apply("prefetch", buffer, loop, ahead, distance, share, locality)

    # --- buffers ------------------------------------------------------------------------------------------------------

    def cache_write(self, buffer: str, scope: str | MemoryScope, name: str | None = None) -> str:
        """Computes a buffer into a new one of ``scope``, from which a new nest copies; the new buffer's name."""
        self._apply("cache_write", buffer, scope, name)
        return name or f"{buffer}.{scope if isinstance(scope, str) else scope.name}"

    def cache_read(self, buffer: str, scope: str | MemoryScope, consumer: str, name: str | None = None) -> str:
        """Copies a buffer into a new one of ``scope``, which the stage ``consumer`` reads instead; its name."""
        self._apply("cache_read", buffer, scope, consumer, name)
        return name or f"{buffer}.{scope if isinstance(scope, str) else scope.name}"

    def set_scope(self, buffer: str, scope: str | MemoryScope) -> None:
        """Puts an intermediate buffer into another memory."""
        self._apply("set_scope", buffer, scope)

    def transform_layout(self, buffer: str, layout: Layout | str) -> None:
        """Stores a buffer, also a parameter, in a layout: accesses go through its index map."""
        self._apply("transform_layout", buffer, str(layout))

    def hoist_alloc(self, buffer: str, loop: str) -> None:
        """Allocates a buffer outside of ``loop`` instead of anew in each of its iterations."""
        self._apply("hoist_alloc", buffer, loop)
