"""Kernels that send blocks of 32 rows through packed trees; a sum per row and output, tree after tree, in float32."""

from typing import Any

import numpy as np
from numba import njit

from burnish.boost.inference.forest import CATEGORICAL, COMPLETE
from burnish.boost.inference.lanes import LANES, SQUARE, add_vector, subtree, transpose

_OPTIONS: dict[str, Any] = {"cache": True, "nogil": True}

_select1, _select2, _select3, _select4, _select5, _select6 = (subtree(height, True) for height in range(1, 7))
_combine1, _combine2 = subtree(1, False), subtree(2, False)


@njit(**_OPTIONS)
def fill_dense(table, first_row, last_row, columns, groups, places, blocks, size):  # type: ignore[no-untyped-def]
    """Fills blocks, `size` floats apart, with rows of a table; slot c is column columns[c].

    Where `groups` has columns, they are transposed 16 × 16 from there on, to the places given for each of the 16.
    Returns whether any value is missing.
    """
    missing = 0
    features = table.shape[1]
    for row in range(first_row, last_row, LANES):
        base = np.uint64((row - first_row) // LANES * size)
        count = min(LANES, last_row - row)
        if count == LANES and len(groups):
            block = blocks[base : base + np.uint64(size)]
            for g in range(len(groups)):
                for lane in range(0, LANES, SQUARE):
                    element = (row + lane) * features + groups[g]
                    missing |= transpose(table, element, features, block, lane, places, g * SQUARE)
            continue
        for lane in range(np.uint64(count)):
            for c in range(np.uint64(len(columns))):
                x = table[np.uint64(row) + lane, np.uint64(columns[c])]
                missing |= np.isnan(x)
                blocks[base + c * np.uint64(LANES) + lane] = x
    return missing


@njit(**_OPTIONS)
def fill_sparse(start, column, entry, first_row, last_row, place, blocks, size):  # type: ignore[no-untyped-def]
    """As fill_dense from rows of a Sparse table; feature f goes to slot place[f], if that is not -1."""
    blocks[: ((last_row - first_row + LANES - 1) // LANES) * size] = np.nan
    for row in range(first_row, last_row):
        base = (row - first_row) // LANES * size + (row - first_row) % LANES
        for j in range(start[row], start[row + 1]):
            if place[column[j]] >= 0:
                blocks[base + place[column[j]] * LANES] = entry[j]


@njit(**_OPTIONS)
def add_negatives(blocks, count, columns, size):  # type: ignore[no-untyped-def]
    """Writes the negative of every column behind the columns of `count` blocks."""
    for block in range(count):
        for i in range(columns * LANES):
            blocks[block * size + columns * LANES + i] = -blocks[block * size + i]


@njit(**_OPTIONS)
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


@njit(**_OPTIONS)
def _walk(block, slot, threshold, child, first, depth, nodes):  # type: ignore[no-untyped-def]
    """The leaves of a block's rows, step by step: no row takes its next before all have taken one."""
    for lane in range(LANES):
        nodes[lane] = 0
    for _ in range(depth):
        moved = np.uint64(0)
        for lane in range(np.uint64(LANES)):
            at = np.uint64(nodes[lane])
            k = np.uint64(first) + at
            x = block[np.uint64(slot[k]) + lane]
            side = np.uint64(0) if x < threshold[k] else np.uint64(1)
            to = child[k * np.uint64(2) + side]
            moved |= np.uint64(to) ^ at
            nodes[lane] = to
        if not moved:
            break


@njit(**_OPTIONS)
def _walk_categorical(block, slot, threshold, child, category_start, category, first, depth, nodes):  # type: ignore[no-untyped-def]
    """As `_walk`, one row after another, where some nodes list the categories that go right."""
    for lane in range(LANES):
        at = np.uint32(0)
        for _ in range(depth):
            k = np.int64(first + at)
            x = block[slot[k] + lane]
            begin, end = category_start[k], category_start[k + 1]
            if begin == end:
                passed = x < threshold[k]
            elif threshold[k] < 0:  # the children have changed sides: missing goes left
                passed = _listed(category, begin, end, x)
            else:
                passed = not np.isnan(x) and not _listed(category, begin, end, x)
            to = child[2 * k + (0 if passed else 1)]
            if to == at:
                break
            at = to
        nodes[lane] = at


@njit(**_OPTIONS)
def add_blocks(  # type: ignore[no-untyped-def]
    blocks, size, values, sums, form, depth, node_start, leaf_start, slot, threshold, leaf, child, category_start,
    category, first_row, last_row, first_tree, last_tree, outputs, margin,
):  # fmt: skip
    """Adds what the trees give the rows of blocks, `size` floats apart, to their margins (outputs, rows)."""
    nodes = np.zeros(LANES, np.uint32)
    for row in range(first_row, last_row, LANES):
        count = min(LANES, last_row - row)
        block = blocks[(row - first_row) // LANES * size :]
        for output in range(margin.shape[0]):
            for lane in range(count):
                sums[output * LANES + lane] = margin[output, row + lane]
        output = first_tree % outputs
        for tree in range(first_tree, last_tree):
            first, first_leaf, levels = node_start[tree], leaf_start[tree], depth[tree]
            if form[tree] == COMPLETE and levels:
                # No function of its own: calls count references to arrays, by atomic additions to lines of memory
                # that all threads share.
                if levels == 6:
                    _select6(block, slot, threshold, first, 0, leaf, first_leaf, values, 0)
                elif levels == 5:
                    _select5(block, slot, threshold, first, 0, leaf, first_leaf, values, 0)
                elif levels == 4:
                    _select4(block, slot, threshold, first, 0, leaf, first_leaf, values, 0)
                elif levels == 3:
                    _select3(block, slot, threshold, first, 0, leaf, first_leaf, values, 0)
                elif levels == 2:
                    _select2(block, slot, threshold, first, 0, leaf, first_leaf, values, 0)
                elif levels == 1:
                    _select1(block, slot, threshold, first, 0, leaf, first_leaf, values, 0)
                else:
                    roots = 1 << (levels - 6)
                    for j in range(roots):
                        _select6(block, slot, threshold, first, roots - 1 + j, leaf, first_leaf + 64 * j, values, j)
                    if roots == 2:
                        _combine1(block, slot, threshold, first, 0, values, 0, values, 0)
                    else:
                        _combine2(block, slot, threshold, first, 0, values, 0, values, 0)
            else:
                if form[tree] == CATEGORICAL:
                    _walk_categorical(block, slot, threshold, child, category_start, category, first, levels, nodes)
                else:
                    _walk(block, slot, threshold, child, first, levels, nodes)
                for lane in range(LANES):
                    values[lane] = leaf[first_leaf + nodes[lane]]
            add_vector(sums, output * LANES, values)
            output = output + 1 if output + 1 < outputs else 0
        for output in range(margin.shape[0]):
            for lane in range(count):
                margin[output, row + lane] = sums[output * LANES + lane]
