"""Dialect of generated code: which loop kinds a machine lowers and how, and what its functions carry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from burnish.machines.emitter import IntrinsicCode, LoopCode


@dataclass(frozen=True)
class LaunchGrid:
    """Kernels that a device launches over a grid of blocks of threads.

    Each outermost nest of a program is a launch: a function of its own, whose parameters are the addresses of the
    kernel's buffers and of its workspace. ``prelude``: LLVM IR of the functions that code calls for what threads and
    their devices do, of which a kernel takes those that it uses; ``older``: by a feature, those in their place where
    the target has it not. ``threads``: the most that a block may have.
    ``aligned``: the bytes of which addresses of buffers are multiples, so that a thread moves as many at once (0: of an
    element). ``rolled``: intrinsics whose operands fill registers: a loop around them stays one, which an assembler
    would write out in part.
    """

    prelude: str
    threads: int
    aligned: int = 0
    rolled: frozenset[str] = frozenset()
    older: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Dialect:
    """``loops``: kind -> its code; None: the emitter's own (unrolled, lanes of vectors, the thread pool).

    What is not listed is refused. A parallel loop inside of another runs serially, on the thread that it is on.
    ``hints``: intrinsics that change nothing. ``kernel``: LLVM's calling convention of the kernel itself, and
    ``attributes`` of every function. ``saturates``:
    vectors of floats become integers by one instruction that saturates. ``rounds_bfloat16``: the feature by which
    float32 is rounded to bfloat16; ``masks``: the one by which some lanes of a vector are loaded and
    stored as fast as all. ``dots_bytes``: that with which ``byte_dots`` are there: by number of int32 lanes, the LLVM
    intrinsic that adds to each the dot product of four unsigned bytes and four signed ones. ``low_byte_dots``: where
    the unsigned bytes are below 128, by feature and lanes: one such intrinsic, or one that gives sums of two products
    in int16 and one that adds up two products of these with others. ``counts_bits``: the feature by which the bits of
    all lanes of a vector are counted at once. ``element_bytes``: of a vector one element of which may be the factor of
    all lanes of another; 0: such a factor is broadcast. ``grid``: how kernels of a device with a grid of threads are
    written; None: a kernel is one function that is called.
    """

    loops: Mapping[str, LoopCode | None]
    hints: Mapping[str, IntrinsicCode] = field(default_factory=dict)
    kernel: str = ""
    attributes: str = 'nounwind "no-builtins" "prefer-vector-width"="512"'
    saturates: bool = True
    rounds_bfloat16: str | None = None
    dots_bytes: str | None = None
    byte_dots: tuple[tuple[int, str], ...] = ()
    counts_bits: str | None = None
    low_byte_dots: tuple[tuple[str, int, tuple[str, ...]], ...] = ()
    masks: str | None = None
    element_bytes: int = 0
    grid: LaunchGrid | None = None
