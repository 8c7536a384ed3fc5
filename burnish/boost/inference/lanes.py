"""Vectors of 32 rows for numba: tests and selections through a complete tree, and transposition, as LLVM instructions.

A block holds 32 rows by columns: slot s of row i is ``block[32 * s + i]``.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

LANES = 32  # rows of a block: two vectors of AVX-512, four of AVX2, eight of NEON
SQUARE = 16  # rows and columns that are transposed at once

_INT, _LONG = ir.IntType(32), ir.IntType(64)


def _data(context: Any, builder: Any, signature: Any, args: Any) -> list[Any]:
    """The arguments, of arrays the addresses of their elements."""
    return [
        context.make_array(kind)(context, builder, value).data if isinstance(kind, types.Array) else value
        for kind, value in zip(signature.args, args, strict=True)
    ]


def _splat(builder: Any, scalar: Any) -> Any:
    vector = ir.VectorType(scalar.type, LANES)
    one = builder.insert_element(ir.Constant(vector, ir.Undefined), scalar, ir.Constant(_INT, 0))
    zeros = ir.Constant(ir.VectorType(_INT, LANES), [0] * LANES)
    return builder.shuffle_vector(one, ir.Constant(vector, ir.Undefined), zeros)


def _vector_at(builder: Any, base: Any, element: Any, length: int = LANES) -> Any:
    """The address of the vector that begins at an element."""
    return builder.bitcast(builder.gep(base, [element]), ir.PointerType(ir.VectorType(base.type.pointee, length)))


def subtree(height: int, constant: bool) -> Any:
    """Makes a function that selects upwards through `height` levels of a complete tree, in registers.

    The function (blocks, begin, slot, threshold, first, root, source, below, values, target) finds what the rows of the
    block at `begin` get below node `root` of a tree whose nodes begin at `first`, in heap order, and stores it as
    vector `target` of `values`. Node k passes rows with ``block[slot[k] + row] < threshold[k]`` to its first child.
    Below the levels are constants from source[below] on, or, if not `constant`, vectors of `source` from `below` on.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        blocks, begin, slot, threshold, first, root, source, below, values, target = _data(
            context, builder, signature, args
        )
        one, lanes = ir.Constant(_LONG, 1), ir.Constant(_LONG, LANES)
        block = builder.gep(blocks, [begin])
        levels = []
        for level in range(height):  # heap order: level k below the root begins at (root + 1) * 2^k - 1
            start = builder.sub(builder.shl(builder.add(root, one), ir.Constant(_LONG, level)), one)
            start = builder.add(first, start)
            levels.append((builder.gep(slot, [start]), builder.gep(threshold, [start])))
        size = one if constant else lanes
        source = builder.gep(source, [builder.mul(below, size)])

        def load(base: Any, position: int) -> Any:
            return builder.load(builder.gep(base, [ir.Constant(_LONG, position)]), align=4)

        def emit(level: int, position: int) -> Any:
            if level == height:
                if constant:
                    return _splat(builder, load(source, position))
                return builder.load(_vector_at(builder, source, ir.Constant(_LONG, position * LANES)), align=4)
            slots, thresholds = levels[level]
            x = builder.load(_vector_at(builder, block, builder.zext(load(slots, position), _LONG)), align=4)
            passed = builder.fcmp_ordered("<", x, _splat(builder, load(thresholds, position)))
            then, otherwise = emit(level + 1, 2 * position), emit(level + 1, 2 * position + 1)
            return builder.select(passed, then, otherwise)

        result = emit(0, 0)
        builder.store(result, _vector_at(builder, values, builder.mul(target, lanes)), align=4)
        return context.get_dummy_value()

    @intrinsic
    def select(
        typing: Any, blocks: Any, begin: Any, slot: Any, threshold: Any, first: Any, root: Any, source: Any,
        below: Any, values: Any, target: Any,
    ) -> Any:  # fmt: skip
        long = types.int64
        return types.void(blocks, long, slot, threshold, long, long, source, long, values, long), codegen

    return select


@intrinsic
def add_vector(typing: Any, sums: Any, element: Any, values: Any) -> Any:
    """``sums[element : element + 32] += values[:32]``."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        target, index, source = _data(context, builder, signature, args)
        place = _vector_at(builder, target, index)
        more = builder.load(_vector_at(builder, source, ir.Constant(_LONG, 0)), align=4)
        builder.store(builder.fadd(builder.load(place, align=4), more), place, align=4)
        return context.get_dummy_value()

    return types.void(sums, types.int64, values), codegen


@intrinsic
def transpose(typing: Any, table: Any, element: Any, stride: Any, block: Any, lane: Any, slot: Any, group: Any) -> Any:
    """Transposes 16 × 16 values: row i begins at ``table[element + i * stride]``; column j goes to slot[group + j].

    To ``block[slot[group + j] + lane …]``. Returns the number 1 if any of the values is missing, else 0.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        source, begin, step, target, column, slots, offset = _data(context, builder, signature, args)
        rows = []
        for i in range(SQUARE):
            index = builder.add(begin, builder.mul(step, ir.Constant(_LONG, i)))
            rows.append(builder.load(_vector_at(builder, source, index, SQUARE), align=4))
        missing = _any_missing(builder, rows)
        for j, values in enumerate(_transposed(builder, rows)):
            place = builder.load(builder.gep(slots, [builder.add(offset, ir.Constant(_LONG, j))]), align=4)
            index = builder.add(builder.zext(place, _LONG), column)
            builder.store(values, _vector_at(builder, target, index, SQUARE), align=4)
        return missing

    long = types.int64
    return long(
        types.Array(table.dtype, 2, "C", readonly=not table.mutable), long, long, block, long, slot, long
    ), codegen


def _any_missing(builder: Any, rows: list[Any]) -> Any:
    found = [builder.fcmp_unordered("uno", a, b) for a, b in zip(rows[::2], rows[1::2], strict=True)]
    while len(found) > 1:
        found = [builder.or_(a, b) for a, b in zip(found[::2], found[1::2], strict=True)]
    mask = builder.bitcast(found[0], ir.IntType(SQUARE))
    return builder.zext(builder.icmp_unsigned("!=", mask, ir.Constant(ir.IntType(SQUARE), 0)), _LONG)


def _transposed(builder: Any, rows: list[Any]) -> list[Any]:
    """16 vectors of 16, transposed by four rounds of exchanges between rows 1, 2, 4 and 8 apart."""
    for distance in (1, 2, 4, 8):
        low = [i if not i & distance else SQUARE + i - distance for i in range(SQUARE)]
        high = [i + distance if not i & distance else SQUARE + i for i in range(SQUARE)]
        masks = [ir.Constant(ir.VectorType(_INT, SQUARE), mask) for mask in (low, high)]
        exchanged = list(rows)
        for i in range(SQUARE):
            if not i & distance:
                pair = rows[i], rows[i + distance]
                exchanged[i] = builder.shuffle_vector(*pair, masks[0])
                exchanged[i + distance] = builder.shuffle_vector(*pair, masks[1])
        rows = exchanged
    return rows
