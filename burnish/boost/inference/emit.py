"""A model as LLVM IR: every tree straight-line code on vectors of rows; for single rows, 32 trees side by side.

The kernel is ``void name(ptr args, ptr rt)`` like those of the compiler: args are the table x (rows, features) and the
margins (rows, outputs), float32, row-major, and the number of rows itself. Sums are those of predictor.py to the last
bit: base score, then tree after tree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from burnish.boost.inference.emit_text import Text, constant
from burnish.boost.inference.emit_trees import row_tables, tree_function, walks
from burnish.boost.inference.forest import CompiledForest

if TYPE_CHECKING:
    from burnish.boost.ensemble import Ensemble

NODES_OF_STEP = 27  # nodes of straight-line code that take as long as one step of a walk,
MOST_NODES = 1 << 17  # and nodes of deep trees that are compiled so at most, in about 4 s
DEEPEST_STRAIGHT = 7  # levels of trees that are never slower so, nor long
_BLOCKS, _BLOCK_BYTES = 256, 512 << 10  # blocks of a chunk: at most so many, and in about so much of a cache
_ROWS = 64  # rows of a chunk that are walked
_SQUARE = 16  # rows and columns that are transposed at once, at most


@dataclass(frozen=True)
class KernelIR:
    """IR of one kernel. `main` is to be optimised; `trees`, long straight-line code ("" for none), is not worth it."""

    main: str
    trees: str
    scratch_bytes: int  # of each thread


@dataclass(frozen=True)
class _Shape:
    """Shape of a kernel's blocks, shared by its functions."""

    name: str
    lanes: int  # rows of a block
    features: int
    outputs: int
    columns: NDArray[np.int32]  # the features that a block holds
    blocks: int  # of a chunk, at most

    @property
    def block(self) -> int:
        """Floats of a block."""
        return max(1, len(self.columns)) * self.lanes


def emit(model: Ensemble, name: str, lanes: int = 16) -> KernelIR:
    """The kernel `name` that predicts margins, for vectors of `lanes` float32 (4, 8, 16 or 32)."""
    columns = CompiledForest(model.trees).columns
    block_bytes = 4 * lanes * (max(1, len(columns)) + model.outputs)
    blocks = max(8, min(_BLOCKS, _BLOCK_BYTES // block_bytes))
    shape = _Shape(name, lanes, model.features, model.outputs, columns, blocks)
    listed = any(len(tree.category) for tree in model.trees)
    straight = listed or _pays(model)
    parts = [constant("base", "float", model.base_score)]
    if straight:
        parts += [f"declare void @{name}.trees(ptr, ptr, i64)", _fill(shape), _chunks(shape)]
    if not listed:
        tables, width = row_tables(model, columns)
        parts += [tables, _rows(shape, len(model.trees), width)]
    parts.append(_kernel(shape, straight, not listed))
    scratch = max(shape.blocks * block_bytes, 4 * (32 + 2 * _ROWS * len(columns)))
    return KernelIR(_module(parts), _trees(model, shape) if straight else "", scratch)


def _pays(model: Ensemble) -> bool:
    """Whether straight-line code, which makes all tests of a tree, takes less time for many rows than walks."""
    steps = [walks(tree) for tree in model.trees]
    nodes = sum(tree.size // 2 for tree in model.trees)
    return max(steps, default=0) <= DEEPEST_STRAIGHT or nodes <= min(NODES_OF_STEP * sum(steps), MOST_NODES)


def _module(parts: list[str]) -> str:
    return "\n\n".join([*parts, 'attributes #0 = { nounwind "no-builtins" "prefer-vector-width"="512" }', ""])


def _trees(model: Ensemble, shape: _Shape) -> str:
    """``name.trees(x, sums, blocks)``: every tree on all blocks of a chunk before the next."""
    slot = {int(column): number for number, column in enumerate(shape.columns)}
    parts = [tree_function(f"tree{t}", tree, slot, shape.lanes) for t, tree in enumerate(model.trees)]
    text = Text(f"define void @{shape.name}.trees(ptr %x, ptr %sums, i64 %blocks)")
    size = shape.blocks * shape.lanes
    sums = [text.value(f"getelementptr float, ptr %sums, i64 {output * size}") for output in range(shape.outputs)]
    for number in range(len(model.trees)):
        text.line(f"call void @tree{number}(ptr %x, ptr {sums[number % shape.outputs]}, i64 %blocks)")
    return _module([*parts, text.finish()])


def _kernel(shape: _Shape, straight: bool, by_rows: bool) -> str:
    """Splits the rows over the pool; its functions find in ctx: x, out, rows, scratch, its stride, rows of a chunk."""
    text = Text(f"define void @{shape.name}(ptr noalias %args, ptr noalias %rt)")
    x, out, rows = (text.load(kind, "%args", i) for i, kind in enumerate(("ptr", "ptr", "i64")))
    parallel, pool, scratch = (text.load("ptr", "%rt", i) for i in range(3))
    stride, threads = text.load("i64", "%rt", 3), text.load("i64", "%rt", 4)
    context = text.value("alloca [6 x i64], align 8")
    for i, (kind, value) in enumerate((("ptr", x), ("ptr", out), ("i64", rows), ("ptr", scratch), ("i64", stride))):
        text.store(kind, value, context, i)
    if by_rows:
        few = text.value(f"icmp slt i64 {rows}, {max(2, shape.lanes // 4) if straight else 2}")
        text.line(f"br i1 {few}, label %few, label %many")
        text.label("few")
        text.line(f"call void @rows(ptr {context}, i64 0, i64 {rows}, i64 0)")
        text.line("ret void")
        text.label("many")
    if straight:
        blocks = text.ceil(rows, str(shape.lanes))
        each = text.least(text.ceil(blocks, threads), str(shape.blocks))
        each = text.most(each, "1")
        text.store("i64", text.value(f"mul i64 {each}, {shape.lanes}"), context, 5)
        count = text.ceil(blocks, each)
        text.line(f"call void {parallel}(ptr {pool}, ptr @chunks, ptr {context}, i64 {count})")
    else:
        text.line(f"call void {parallel}(ptr {pool}, ptr @rows, ptr {context}, i64 {rows})")
    return text.finish()


def _chunks(shape: _Shape) -> str:
    """Predicts chunks of rows: fills blocks, starts the sums with the base score, adds the trees, writes margins."""
    lanes, outputs = shape.lanes, shape.outputs
    text = Text("define internal void @chunks(ptr %ctx, i64 %begin, i64 %end, i64 %thread)")
    x, out, rows, scratch = (text.load(kind, "%ctx", i) for i, kind in enumerate(("ptr", "ptr", "i64", "ptr")))
    stride, size = text.load("i64", "%ctx", 4), text.load("i64", "%ctx", 5)
    blocks = text.value(f"getelementptr i8, ptr {scratch}, i64 {text.value(f'mul i64 {stride}, %thread')}")
    sums = text.value(f"getelementptr float, ptr {blocks}, i64 {shape.blocks * shape.block}")
    with text.loop("%end", "%begin") as chunk:
        first = text.value(f"mul i64 {chunk}, {size}")
        count = text.least(text.value(f"sub i64 {rows}, {first}"), size)
        number = text.ceil(count, str(lanes))
        text.line(f"call void @fill(ptr {x}, i64 {rows}, i64 {first}, i64 {number}, ptr {blocks})")
        padded = text.value(f"mul i64 {number}, {lanes}")
        for output in range(outputs):
            base = text.load("float", "@base", output)
            start = text.value(f"getelementptr float, ptr {sums}, i64 {output * shape.blocks * lanes}")
            with text.loop(padded) as row:
                text.store("float", base, start, row)
        text.line(f"call void @{shape.name}.trees(ptr {blocks}, ptr {sums}, i64 {number})")
        for output in range(outputs):
            start = text.value(f"getelementptr float, ptr {sums}, i64 {output * shape.blocks * lanes}")
            with text.loop(count) as row:
                place = text.value(f"mul i64 {text.value(f'add i64 {first}, {row}')}, {outputs}")
                place = text.value(f"add i64 {place}, {output}")
                text.store("float", text.load("float", start, row), out, place)
    return text.finish()


def _fill(shape: _Shape) -> str:
    """``fill(x, rows, first, blocks, to)``: transposes rows into blocks; past the last row, it is that row again."""
    lanes, columns = shape.lanes, shape.columns
    side = min(lanes, _SQUARE)
    text = Text("define internal void @fill(ptr %x, i64 %rows, i64 %first, i64 %blocks, ptr %to)")
    last = text.value("sub i64 %rows, 1")
    with text.loop("%blocks") as block:
        start = text.value(f"add i64 %first, {text.value(f'mul i64 {block}, {lanes}')}")
        to = text.value(f"getelementptr float, ptr %to, i64 {text.value(f'mul i64 {block}, {shape.block}')}")
        if shape.features < side:
            with text.loop(str(lanes)) as lane:
                source = _row(text, shape, text.value(f"add i64 {start}, {lane}"), last)
                for number, column in enumerate(columns.tolist()):
                    place = text.value(f"add i64 {lane}, {number * lanes}")
                    text.store("float", text.load("float", source, column), to, place)
        for begin in range(0, lanes if shape.features >= side else 0, side):
            rows = [_row(text, shape, text.value(f"add i64 {start}, {begin + lane}"), last) for lane in range(side)]
            for group in _groups(columns, shape.features, side):
                vectors = [text.vector_load(side, source, group) for source in rows]
                for offset, vector in enumerate(_transposed(text, vectors, side)):
                    number = int(np.searchsorted(columns, group + offset))
                    if number < len(columns) and columns[number] == group + offset:
                        text.vector_store(side, vector, to, number * lanes + begin)
    return text.finish()


def _row(text: Text, shape: _Shape, row: str, last: str) -> str:
    place = text.value(f"mul i64 {text.least(row, last)}, {shape.features}")
    return text.value(f"getelementptr float, ptr %x, i64 {place}")


def _groups(columns: NDArray[np.int32], features: int, lanes: int) -> list[int]:
    """First features of groups of `lanes` that hold all columns."""
    starts: list[int] = []
    for column in columns.tolist():
        if not starts or column >= starts[-1] + lanes:
            starts.append(min(column, features - lanes))
    return starts


def _transposed(text: Text, rows: list[str], lanes: int) -> list[str]:
    """Transposes a square of vectors by exchanges between rows 1, 2, 4, … apart."""
    distance = 1
    while distance < lanes:
        low = [i if not i & distance else lanes + i - distance for i in range(lanes)]
        high = [i + distance if not i & distance else lanes + i for i in range(lanes)]
        exchanged = list(rows)
        for i in range(lanes):
            if not i & distance:
                pair = rows[i], rows[i + distance]
                exchanged[i] = text.shuffle(lanes, pair, low)
                exchanged[i + distance] = text.shuffle(lanes, pair, high)
        rows, distance = exchanged, 2 * distance
    return rows


def _rows(shape: _Shape, trees: int, width: int) -> str:
    """Predicts rows by walks through `width` trees at once, what they give summed in their order.

    A chunk of rows takes the same trees before it goes on to the next, whose tables then stay in a cache.
    """
    columns, outputs = len(shape.columns), shape.outputs
    text = Text("define internal void @rows(ptr %ctx, i64 %begin, i64 %end, i64 %thread)")
    x, out, scratch = text.load("ptr", "%ctx", 0), text.load("ptr", "%ctx", 1), text.load("ptr", "%ctx", 3)
    stride = text.load("i64", "%ctx", 4)
    values = text.value(f"getelementptr i8, ptr {scratch}, i64 {text.value(f'mul i64 {stride}, %thread')}")
    copies = text.value(f"getelementptr float, ptr {values}, i64 {width}")
    groups, kind = -(-trees // width), f"<{width} x float>"
    with text.loop(text.ceil(text.value("sub i64 %end, %begin"), str(_ROWS))) as chunk:
        first = text.value(f"add i64 %begin, {text.value(f'mul i64 {chunk}, {_ROWS}')}")
        count = text.least(text.value(f"sub i64 %end, {first}"), str(_ROWS))
        with text.loop(count) as row:
            _copy_row(text, shape, (x, out, copies), text.value(f"add i64 {first}, {row}"), row)
        with text.loop(str(groups)) as group, text.loop(count) as row:
            copy = text.value(f"getelementptr float, ptr {copies}, i64 {text.value(f'mul i64 {row}, {2 * columns}')}")
            given = text.value(f"call {kind} @group(ptr {copy}, i64 {group})")
            place = text.value(f"mul i64 {text.value(f'add i64 {first}, {row}')}, {outputs}")
            to = text.value(f"getelementptr float, ptr {out}, i64 {place}")
            if outputs == 1:
                old = text.load("float", to, 0)
                total = text.value(f"call float @llvm.vector.reduce.fadd.v{width}f32(float {old}, {kind} {given})")
                text.store("float", total, to, 0)
            else:
                text.vector_store(width, given, values, 0)
                done = text.value(f"mul i64 {group}, {width}")
                left = text.value(f"sub i64 {trees}, {done}")
                with text.loop(text.least(left, str(width))) as lane:
                    tree = text.value(f"add i64 {done}, {lane}")
                    which = text.value(f"urem i64 {tree}, {outputs}")
                    total = text.value(
                        f"fadd float {text.load('float', to, which)}, {text.load('float', values, lane)}"
                    )
                    text.store("float", total, to, which)
    declared = f"declare float @llvm.vector.reduce.fadd.v{width}f32(float, {kind})"
    return f"{declared}\n\n{text.finish()}"


def _copy_row(text: Text, shape: _Shape, places: tuple[str, str, str], row: str, number: str) -> None:
    """Copies the columns of a row, and their negatives, to copy `number`; its margins begin with the base score."""
    columns, (x, out, copies) = len(shape.columns), places
    source = text.value(f"getelementptr float, ptr {x}, i64 {text.value(f'mul i64 {row}, {shape.features}')}")
    copy = text.value(f"getelementptr float, ptr {copies}, i64 {text.value(f'mul i64 {number}, {2 * columns}')}")
    with text.loop(str(columns)) as place:
        column = text.value(f"zext i32 {text.load('i32', '@columns', place)} to i64")
        value = text.load("float", source, column)
        text.store("float", value, copy, place)
        text.store("float", text.value(f"fneg float {value}"), copy, text.value(f"add i64 {place}, {columns}"))
    to = text.value(f"getelementptr float, ptr {out}, i64 {text.value(f'mul i64 {row}, {shape.outputs}')}")
    for output in range(shape.outputs):
        text.store("float", text.load("float", "@base", output), to, output)
