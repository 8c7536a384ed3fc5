"""Trees as LLVM IR: one tree on vectors of rows, and tables of 32 trees each that one row walks at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from burnish.boost.inference.emit_text import Text, constant, float_text
from burnish.boost.inference.forest import CompiledForest
from burnish.boost.tree import Tree

if TYPE_CHECKING:
    from burnish.boost.ensemble import Ensemble

GROUP = 32  # trees whose values are summed at once, at most
TOGETHER = 8  # trees that take their steps together; as many are summed if they are large
_DEEPEST_HEAP = 8  # levels of trees in heap order, whose children need no table


def walks(tree: Tree) -> int:
    """Levels of tests in a tree."""
    return int(CompiledForest((tree,)).depth[0])


def tree_function(name: str, tree: Tree, slot: Mapping[int, int], lanes: int) -> str:
    """``name(x, sums, blocks)`` adds the tree's values to the sums of all rows of blocks; `slot` of each feature.

    All tests are made, and values selected upwards: no branch can be predicted wrongly, no address depends on data.
    Constants are loaded from a table: spread out to vectors by the compiler, they would take 16 times the memory.
    """
    kind = f"<{lanes} x float>"
    text = Text(f"define internal void @{name}(ptr noalias %x, ptr noalias %sums, i64 %blocks)")
    with text.loop("%blocks") as block:
        place = text.value(f"mul i64 {block}, {max(1, len(slot)) * lanes}")
        x = text.value(f"getelementptr float, ptr %x, i64 {place}")
        sums = text.value(f"getelementptr float, ptr %sums, i64 {text.value(f'mul i64 {block}, {lanes}')}")
        values: list[str] = []
        stack = [(0, "")]  # a node to enter, or with its test to leave: first all below it on the left, then right
        while stack:
            node, test = stack.pop()
            if tree.left[node] < 0:
                values.append(_spread(text, f"@{name}.c", tree.size + node, lanes))
            elif not test:
                column = text.vector_load(lanes, x, slot[int(tree.feature[node])] * lanes)
                stack.append((node, _goes_left(text, tree, node, column, lanes, f"@{name}.c")))
                stack += [(int(tree.right[node]), ""), (int(tree.left[node]), "")]
            else:
                right, left = values.pop(), values.pop()
                values.append(text.value(f"select <{lanes} x i1> {test}, {kind} {left}, {kind} {right}"))
        total = text.value(f"fadd {kind} {text.vector_load(lanes, sums, 0)}, {values[0]}")
        text.vector_store(lanes, total, sums, 0)
    table = constant(f"{name}.c", "float", np.concatenate([tree.threshold, tree.value]))
    return f"{table}\n{text.finish()}"


def _spread(text: Text, table: str, index: int, lanes: int) -> str:
    """A vector of ``table[index]``."""
    one = text.value(f"insertelement <{lanes} x float> poison, float {text.load('float', table, index)}, i32 0")
    return text.shuffle(lanes, (one, "poison"), [0] * lanes)


def _goes_left(text: Text, tree: Tree, node: int, x: str, lanes: int, table: str) -> str:
    """Which lanes go left: one comparison that missing values pass or fail; of categories, one for each run of them."""
    kind, bits = f"<{lanes} x float>", f"<{lanes} x i1>"
    listed = tree.categories(node)
    default_left = bool(tree.default_left[node])
    if not len(listed):
        test = "ult" if default_left else "olt"
        return text.value(f"fcmp {test} {kind} {x}, {_spread(text, table, node, lanes)}")
    right = ""
    for run in np.split(listed, np.flatnonzero(np.diff(listed) > 1) + 1):
        above = text.value(f"fcmp oge {kind} {x}, splat (float {float_text(run[0])})")
        below = text.value(f"fcmp olt {kind} {x}, splat (float {float_text(run[-1] + 1)})")
        inside = text.value(f"and {bits} {above}, {below}")
        right = text.value(f"or {bits} {right}, {inside}") if right else inside
    if not default_left:
        right = text.value(f"or {bits} {right}, {text.value(f'fcmp uno {kind} {x}, {x}')}")
    return text.value(f"xor {bits} {right}, splat (i1 true)")


def row_tables(model: Ensemble, columns: NDArray[np.int32]) -> tuple[str, int]:
    """The function ``group(row, number)`` -> what 32 trees, or 8 large ones, give a row, and its tables; which of both.

    The row is followed by its negative: where missing goes left, the test is ``-x < the float after -t`` and the
    children have changed sides, so that a missing value, which passes no test, comes to its default side.
    """
    trees = [_Walked(tree, columns) for tree in model.trees]
    deepest = max((tree.depth for tree in trees), default=0)
    depth = deepest if deepest <= _DEEPEST_HEAP else None
    width = TOGETHER if depth is None else GROUP
    nodes: list[NDArray[np.int32]] = []
    leaves: list[NDArray[np.float32]] = []
    starts: list[tuple[int, int, int]] = []
    sizes = [0, 0]
    for first in range(0, len(trees), width):
        group = trees[first : first + width]
        starts.append((sizes[0], sizes[1], max(tree.depth for tree in group)))
        table, leaf = _walk_table(group) if depth is None else _heap_table(group, depth)
        nodes.append(table)
        leaves.append(leaf)
        sizes = [sizes[0] + len(table), sizes[1] + len(leaf)]
    joined = np.concatenate([np.zeros(0, np.int32), *nodes])
    values = np.concatenate([np.zeros(0, np.float32), *leaves])
    tables = "\n".join(
        [
            constant("columns", "i32", columns),
            constant("nodes", "i32", joined if len(joined) else np.zeros(1, np.int32)),
            constant("leaves", "float", values if len(values) else np.zeros(1, np.float32)),
            constant("starts", "i32", np.array(starts or [(0, 0, 0)], np.int32).reshape(-1)),
            _group_function(depth, width),
        ]
    )
    return tables, width


class _Walked:
    """A tree's tests as a row and its negative want them; a leaf's children are itself."""

    def __init__(self, tree: Tree, columns: NDArray[np.int32]) -> None:
        inner = tree.left >= 0
        flip = inner & tree.default_left
        own = np.arange(tree.size, dtype=np.int32)
        slot = np.searchsorted(columns, tree.feature) + np.where(flip, len(columns), 0)
        self.slot = np.where(inner, slot, 0).astype(np.int32)
        after = np.nextafter(-tree.threshold, np.float32(np.inf))
        self.threshold = np.where(flip, after, tree.threshold).astype(np.float32)
        self.passed = np.where(inner, np.where(flip, tree.right, tree.left), own)
        self.failed = np.where(inner, np.where(flip, tree.left, tree.right), own)
        self.value = tree.value
        self.depth = walks(tree)


def _heap_table(group: list[_Walked], depth: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Slot and threshold of tree j's node k = 1, 2, … in heap order at 2 (j 2^depth + k), its leaves at j 2^depth.

    Trees are padded to one depth; such as are missing at the end give -0.0, which leaves every sum as it is.
    """
    table = np.zeros((GROUP, 1 << depth, 2), np.int32)
    leaf = np.full((GROUP, 1 << depth), -0.0, np.float32)
    for j, tree in enumerate(group):
        level = np.zeros(1, np.int64)
        for height in range(depth):
            places = slice(1 << height, 2 << height)
            table[j, places, 0] = tree.slot[level]
            table[j, places, 1] = tree.threshold[level].view(np.int32)
            level = np.stack([tree.passed[level], tree.failed[level]], 1).reshape(-1).astype(np.int64)
        leaf[j] = tree.value[level]
    return table.reshape(-1), leaf.reshape(-1)


def _walk_table(group: list[_Walked]) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Slot, threshold and both children of every node at 4 k, its value at k; the roots are the first 8 nodes."""
    sizes = [len(tree.slot) for tree in group]
    begins = np.cumsum([TOGETHER, *(size - 1 for size in sizes)])[:-1]  # of the nodes after the root
    table = np.zeros((TOGETHER + sum(sizes) - len(group), 4), np.int32)
    table[:TOGETHER, 2:] = np.arange(TOGETHER)[:, None]
    leaf = np.full(len(table), -0.0, np.float32)
    for j, tree in enumerate(group):
        place = np.concatenate([[j], begins[j] + np.arange(sizes[j] - 1)])
        table[place, 0] = tree.slot
        table[place, 1] = tree.threshold.view(np.int32)
        table[place, 2], table[place, 3] = place[tree.passed], place[tree.failed]
        leaf[place] = tree.value
    return table.reshape(-1), leaf


def _group_function(depth: int | None, width: int) -> str:
    """``group(row, number)``: 8 trees at a time take their steps together, so that none waits alone for memory.

    `depth`: of all trees, in heap order; None if they keep their nodes. Loads are scalar: the gathers of many
    processors are slower, since they were mended against data sampling.
    """
    text = Text(f"define internal <{width} x float> @group(ptr %row, i64 %number)")
    if depth is None:
        start = text.value("mul i64 %number, 3")
        places = [text.load("i32", "@starts", text.value(f"add i64 {start}, {i}")) for i in range(3)]
        node, leaf, levels = (text.value(f"zext i32 {place} to i64") for place in places)
    else:
        leaf = text.value(f"mul i64 %number, {GROUP << depth}")
        node, levels = text.value(f"shl i64 {leaf}, 1"), str(depth)
    table = text.value(f"getelementptr i32, ptr @nodes, i64 {node}")
    values = text.value(f"getelementptr float, ptr @leaves, i64 {leaf}")
    result = "poison"
    for first in range(0, width, TOGETHER):
        lanes = range(first, first + TOGETHER)
        roots = {j: str(j) if depth is None else "1" for j in lanes}
        with text.loop(levels, carried=[(f"%k{j}", roots[j], f"%to{j}") for j in lanes]):
            for j in lanes:
                _step(text, table, j, depth)
        for j in lanes:
            place = f"%k{j}" if depth is None else text.value(f"add i64 %k{j}, {(j - 1) << depth}")
            value = text.load("float", values, place)
            result = text.value(f"insertelement <{width} x float> {result}, float {value}, i32 {j}")
    return text.finish(f"<{width} x float> {result}")


def _step(text: Text, table: str, j: int, depth: int | None) -> None:
    """One step of tree j, from node %kj to node %toj: of node k in heap order to 2 k or 2 k + 1."""
    if depth is None:
        base = text.value(f"getelementptr i32, ptr {table}, i64 {text.value(f'shl i64 %k{j}, 2')}")
    else:
        base = text.value(f"getelementptr i32, ptr {table}, i64 {2 * j << depth}")
        base = text.value(f"getelementptr [2 x i32], ptr {base}, i64 %k{j}")
    slot = text.value(f"zext i32 {text.load('i32', base, 0)} to i64")
    failed = text.value(f"fcmp uge float {text.load('float', '%row', slot)}, {text.load('float', base, 1)}")
    side = text.value(f"zext i1 {failed} to i64")
    if depth is None:
        child = text.load("i32", base, text.value(f"add i64 {side}, 2"))
        text.line(f"%to{j} = zext i32 {child} to i64")
    else:
        text.line(f"%to{j} = add i64 {text.value(f'shl i64 %k{j}, 1')}, {side}")
