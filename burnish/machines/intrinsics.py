"""Tensor intrinsics: operations of a machine on small tiles, each declared by the loop program that it computes.

Source: thesis-chen section 4.3.3 (tensorization separates an intrinsic's behaviour from the primitive that applies it).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from burnish.loops.expr import Buffer, Expr, Load, Var, cast
from burnish.loops.interpret import IntrinsicFunction, run_program
from burnish.loops.program import For, LoopProgram, Stmt, Store
from burnish.machines.emitter import IntrinsicCode


@dataclass(frozen=True, slots=True)
class TensorIntrinsic:
    """``program`` computes what the intrinsic computes: one perfect nest, its first parameter the output.

    Parameters are dense row-major tiles. An operand in a program must have the same strides; its address is that of the
    tile's first element. ``code`` writes its LLVM IR (None: only a machine with a form of code of its own has it);
    ``needs`` are the features of a target without which it is refused. ``collective``: of how many neighbouring threads
    it is the work of all together (a warp of a GPU); their loop, ``threadIdx.x``, is not around it, or it is declared
    as one of them sees it. ``spread``: operands of whose tiles' first dimension neighbouring threads hold an element
    each.
    """

    name: str
    program: LoopProgram
    free: frozenset[str] = frozenset()  # operands of any strides but the last, by attributes: see ``stride_name``
    code: IntrinsicCode | None = None
    needs: frozenset[str] = frozenset()
    collective: int = 1
    spread: frozenset[str] = frozenset()

    @property
    def operands(self) -> tuple[Buffer, ...]:
        """Tiles in the order of the operands, the output first."""
        return self.program.params


@dataclass(frozen=True, slots=True)
class TensorRule:
    """Tensorization of a stage that reduces: by one that ``update``s a tile of it with a part of the reduction,
    one that ``reset``s the tile to the identity, and one that does both, ``compute``s it from a whole reduction.

    Their operands have the same names. ``Schedule.tensorize`` takes the first of compute, update and reset that the
    nest of a loop means; ``compute`` is declared as two nests, those of ``reset`` and ``update``.
    """

    update: TensorIntrinsic
    reset: TensorIntrinsic | None = None
    compute: TensorIntrinsic | None = None

    @property
    def members(self) -> tuple[TensorIntrinsic, ...]:
        """The instructions that there are."""
        return tuple(t for t in (self.compute, self.update, self.reset) if t is not None)


def declare(
    name: str,
    operands: tuple[Buffer, ...],
    loops: Sequence[tuple[str, int]],
    body: Stmt,
    free: str = "",
    code: IntrinsicCode | None = None,
    needs: str = "",
    collective: int = 1,
    spread: str = "",
) -> TensorIntrinsic:
    """An intrinsic that is a nest of ``loops`` around one store; ``free``, ``needs`` and ``spread``: words."""
    program, words = (
        LoopProgram(name, operands, nest(loops, body)),
        [frozenset(w.split()) for w in (free, needs, spread)],
    )
    return TensorIntrinsic(name, program, words[0], code, words[1], collective, words[2])


def nest(loops: Sequence[tuple[str, int]], body: Stmt) -> Stmt:
    """Serial loops, outermost first, around a statement."""
    for name, extent in reversed(loops):
        body = For(name, extent, "serial", body)
    return body


def lane_dot(
    name: str,
    lanes: int,
    width: int,
    a: str,
    b: str,
    accumulator: str,
    code: IntrinsicCode | None = None,
    needs: str = "",
) -> TensorIntrinsic:
    """``out[i] += sum(x[k] * w[i, k])``: ``width`` products for each of ``lanes`` outputs, which share ``x``."""
    out = Buffer("out", (lanes,), accumulator)
    x, w = Buffer("x", (width,), a), Buffer("w", (lanes, width), b)
    i, k = Var("i"), Var("k")
    left: Expr = cast(accumulator, Load(x, (k,)))
    body = Store(out, (i,), left * cast(accumulator, Load(w, (i, k))), "sum")
    return declare(name, (out, x, w), [("i", lanes), ("k", width)], body, code=code, needs=needs)


def stride_name(tile: Buffer, dimension: int) -> str:
    """The attribute that holds the elements from one position in a dimension of an operand to the next."""
    return f"{tile.name}_stride{dimension or ''}"


def reference(intrinsic: TensorIntrinsic) -> IntrinsicFunction:
    """Reference implementation of an intrinsic for the interpreter: its declaration, on tiles at the operands."""

    def run(operands: Sequence[tuple[np.ndarray, tuple[int, ...]]], attrs: Mapping[str, int | str]) -> None:
        tiles = []
        for (array, index), tile in zip(operands, intrinsic.operands, strict=True):
            start = int(np.ravel_multi_index(index, array.shape))
            flat = array.reshape(-1)[start:]
            steps = np.cumprod([1, *tile.shape[:0:-1]])[::-1].tolist()
            steps = [int(attrs.get(stride_name(tile, d), step)) for d, step in enumerate(steps)]
            tiles.append(np.lib.stride_tricks.as_strided(flat, tile.shape, [step * flat.itemsize for step in steps]))
        arrays = {tile.name: view for tile, view in zip(intrinsic.operands, tiles, strict=True)}
        tiles[0][...] = run_program(intrinsic.program, arrays)[intrinsic.operands[0].name]

    return run
