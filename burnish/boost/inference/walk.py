"""Kernels that send blocks of 32 rows through packed trees; a sum per row and output, tree after tree, in float32.

There is one for each form of tree: which are compiled depends on the model. `trees` are as `Forest.plain` describes
them, and `part` is (first row, last row, first tree, last tree, outputs): plain tuples, which numba tells the types of
faster than those of named ones, and that counts where one row is predicted.
"""

import numpy as np

from burnish.boost.inference.lanes import LANES, SQUARE, add_vector, subtree, transpose
from burnish.boost.kernels import inlined, lean, wide

_DEEPEST = 4  # levels whose tests and selections are written out; a deeper tree is two of them, one below the other
_select1, _select2, _select3, _select4 = (subtree(height, True) for height in range(1, _DEEPEST + 1))
_combine1, _combine2, _combine3, _combine4 = (subtree(height, False) for height in range(1, _DEEPEST + 1))


@wide
def fill_dense(table, first_row, last_row, columns, groups, places, blocks, size):  # type: ignore[no-untyped-def]
    """Fills blocks, `size` floats apart, with rows of a table; slot c is column columns[c].

    Where `groups` has columns, they are transposed 16 × 16 from there on, to the places given for each of the 16.
    Returns whether any value is missing.
    """
    missing = 0
    features = table.shape[1]
    for row in range(first_row, last_row, LANES):
        base = np.uint64((row - first_row) // LANES * size)
        count = last_row - row if last_row - row < LANES else LANES
        if count == LANES and len(groups):
            for g in range(len(groups)):
                for lane in range(0, LANES, SQUARE):
                    element = (row + lane) * features + groups[g]
                    missing |= transpose(table, element, features, blocks, np.int64(base) + lane, places, g * SQUARE)
            continue
        for lane in range(np.uint64(count)):
            for c in range(np.uint64(len(columns))):
                x = table[np.uint64(row) + lane, np.uint64(columns[c])]
                missing |= x != x
                blocks[base + c * np.uint64(LANES) + lane] = x
    return missing


@lean
def fill_sparse(start, column, entry, first_row, last_row, place, blocks, size):  # type: ignore[no-untyped-def]
    """As fill_dense from rows of a Sparse table; feature f goes to slot place[f], if that is not -1."""
    for i in range(((last_row - first_row + LANES - 1) // LANES) * size):
        blocks[i] = np.nan
    for row in range(first_row, last_row):
        base = (row - first_row) // LANES * size + (row - first_row) % LANES
        for j in range(start[row], start[row + 1]):
            if place[column[j]] >= 0:
                blocks[base + place[column[j]] * LANES] = entry[j]


@lean
def add_negatives(blocks, count, columns, size):  # type: ignore[no-untyped-def]
    """Writes the negative of every column behind the columns of `count` blocks."""
    for block in range(count):
        for i in range(columns * LANES):
            blocks[block * size + columns * LANES + i] = -blocks[block * size + i]


@inlined
def _listed(category, begin, end, x):  # type: ignore[no-untyped-def]
    """Whether category x is among the ascending category[begin:end]; what is no category number is not."""
    if not 0 <= x < 16777216.0:
        return False
    wanted = np.int32(x)
    while begin < end:
        middle = (begin + end) // 2
        if category[middle] < wanted:
            begin = middle + 1
        elif category[middle] > wanted:
            end = middle
        else:
            return True
    return False


@lean
def add_walked(blocks, size, trees, part, nodes, margin):  # type: ignore[no-untyped-def]
    """As `add_complete` for trees of form WALK: step by step, no row takes its next before all have taken one.

    nodes: scratch, (32,) uint32.
    """
    depth, node_start, leaf_start, slot, threshold, leaf, child, _, _ = trees
    first_row, last_row, first_tree, last_tree, outputs = part
    for row in range(first_row, last_row, LANES):
        block = np.uint64((row - first_row) // LANES * size)
        count = last_row - row if last_row - row < LANES else LANES
        for tree in range(first_tree, last_tree):
            first = np.uint64(node_start[tree])
            for lane in range(LANES):
                nodes[lane] = 0
            for _ in range(depth[tree]):
                moved = np.uint64(0)
                for lane in range(np.uint64(LANES)):
                    at = np.uint64(nodes[lane])
                    k = first + at
                    x = blocks[block + np.uint64(slot[k]) + lane]
                    side = np.uint64(0) if x < threshold[k] else np.uint64(1)
                    to = child[k * np.uint64(2) + side]
                    moved |= np.uint64(to) ^ at
                    nodes[lane] = to
                if not moved:
                    break
            output = tree % outputs
            for lane in range(count):
                margin[output, row + lane] += leaf[leaf_start[tree] + nodes[lane]]


@lean
def add_categorical(blocks, size, trees, part, margin):  # type: ignore[no-untyped-def]
    """As `add_walked`, one row after another, for trees in which some nodes list the categories that go right."""
    depth, node_start, leaf_start, slot, threshold, leaf, child, category_start, category = trees
    first_row, last_row, first_tree, last_tree, outputs = part
    for row in range(first_row, last_row):
        block = (row - first_row) // LANES * size + (row - first_row) % LANES
        for tree in range(first_tree, last_tree):
            at = np.uint32(0)
            for _ in range(depth[tree]):
                k = np.int64(node_start[tree] + at)
                x = blocks[block + slot[k]]
                begin, end = category_start[k], category_start[k + 1]
                if begin == end:
                    passed = x < threshold[k]
                elif threshold[k] < 0:  # the children have changed sides: missing goes left
                    passed = _listed(category, begin, end, x)
                else:
                    passed = x == x and not _listed(category, begin, end, x)
                to = child[2 * k + (0 if passed else 1)]
                if to == at:
                    break
                at = to
            margin[tree % outputs, row] += leaf[leaf_start[tree] + at]


@lean
def add_complete(blocks, size, trees, part, values, sums, margin):  # type: ignore[no-untyped-def]
    """Adds what complete trees give the rows of blocks, `size` floats apart, to their margins (outputs, rows).

    values, of 32 floats for each place above the lowest levels, and sums, of as many for each output, are scratch.
    """
    depth, node_start, leaf_start, slot, threshold, leaf = trees[:6]
    first_row, last_row, first_tree, last_tree, outputs = part
    for row in range(first_row, last_row, LANES):
        count = last_row - row if last_row - row < LANES else LANES
        block = (row - first_row) // LANES * size
        for output in range(outputs):
            for lane in range(count):
                sums[output * LANES + lane] = margin[output, row + lane]
        output = first_tree % outputs
        for tree in range(first_tree, last_tree):
            first, at, levels = node_start[tree], leaf_start[tree], depth[tree]
            above = levels - _DEEPEST if levels > _DEEPEST else 0
            roots = 1 << above
            if levels >= 4:
                for j in range(roots):
                    _select4(blocks, block, slot, threshold, first, roots - 1 + j, leaf, at + 16 * j, values, j)
            elif levels == 3:
                _select3(blocks, block, slot, threshold, first, 0, leaf, at, values, 0)
            elif levels == 2:
                _select2(blocks, block, slot, threshold, first, 0, leaf, at, values, 0)
            elif levels == 1:
                _select1(blocks, block, slot, threshold, first, 0, leaf, at, values, 0)
            else:
                for lane in range(LANES):
                    values[lane] = leaf[at]
            if above == 1:
                _combine1(blocks, block, slot, threshold, first, 0, values, 0, values, 0)
            elif above == 2:
                _combine2(blocks, block, slot, threshold, first, 0, values, 0, values, 0)
            elif above == 3:
                _combine3(blocks, block, slot, threshold, first, 0, values, 0, values, 0)
            elif above == 4:
                _combine4(blocks, block, slot, threshold, first, 0, values, 0, values, 0)
            add_vector(sums, output * LANES, values)
            output = output + 1 if output + 1 < outputs else 0
        for output in range(outputs):
            for lane in range(count):
                margin[output, row + lane] = sums[output * LANES + lane]
