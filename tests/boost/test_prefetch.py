"""Blocks read ahead equal what was stored, for any number of folders, resident blocks and columns that are wanted."""

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.boost.outofcore.layout import (
    ColumnLayout,
    decode_sparse,
    encode_dense,
    encode_sparse,
    plan_columns,
    sparse_entries,
)
from burnish.boost.outofcore.prefetch import Prefetcher, column_stride
from burnish.boost.outofcore.store import BLOCKS, ColumnStore, StoreWriter
from burnish.errors import DataError

ROWS, BLOCK_ROWS, FEATURES = 1000, 128, 7
SPARSE = np.array([0, 1, 1, 0, 0, 1, 0], np.bool_)


@given(st.lists(st.lists(st.integers(0, 65535), unique=True, max_size=30), min_size=1, max_size=6), st.booleans())
@settings(deadline=None)
def test_sparse_columns_survive(columns, wide):
    dtype = np.dtype(np.uint16 if wide else np.uint8)
    generator = np.random.default_rng(1)
    entries = [(np.array(sorted(c), np.uint16), generator.integers(0, 256, len(c)).astype(dtype)) for c in columns]
    data = np.frombuffer(encode_sparse(entries, dtype), np.uint8)
    total = sparse_entries(len(data), len(columns), dtype)
    assert total == sum(map(len, columns))
    counts, offsets, bins = np.empty(len(columns), np.int64), np.empty(total, np.uint16), np.empty(total, dtype)
    decode_sparse(data, counts, offsets, bins)
    assert counts.tolist() == [len(c) for c in columns]
    assert offsets.tolist() == [row for rows, _ in entries for row in rows]
    assert bins.tolist() == [b for _, column in entries for b in column]


def test_groups_are_of_one_kind_and_of_bounded_size():
    present = np.array([1000, 10, 900, 5, 0, 300, 1000])
    sparse = present < 500
    layout = plan_columns(sparse, present, 1000, 1000, np.dtype(np.uint8))
    assert sorted(layout.order) == list(range(7))
    for group in range(layout.groups):
        assert len(set(sparse[layout.members(group)])) == 1
    wide = plan_columns(np.zeros(3, np.bool_), np.full(3, 1 << 16), 1 << 16, 1 << 16, np.dtype(np.uint8))
    assert wide.groups == 1  # four columns of a full block are a piece: they share words in memory
    again = ColumnLayout.from_arrays(layout.arrays(), layout.bin_dtype)
    assert (again.order == layout.order).all()
    assert (again.sparse == layout.sparse).all()


def test_columns_are_spread_over_cache_sets():
    assert column_stride(1 << 16) % 4096 == 64
    assert column_stride(1) >= 1


@pytest.fixture
def data():
    generator = np.random.default_rng(0)
    return generator.integers(0, 200, (ROWS, FEATURES)), generator.random((ROWS, FEATURES)) < np.where(SPARSE, 0.1, 1.0)


def write(folders, data, dtype):
    bins, there = data
    dtype = np.dtype(dtype)
    layout = plan_columns(SPARSE, there.sum(axis=0), ROWS, BLOCK_ROWS, dtype)
    with StoreWriter(folders) as writer:
        blocks = -(-ROWS // BLOCK_ROWS)
        writer.shape(blocks, layout.groups)
        for number in range(blocks):
            rows = slice(number * BLOCK_ROWS, (number + 1) * BLOCK_ROWS)
            for group in range(layout.groups):
                members = layout.members(group)
                if SPARSE[members[0]]:
                    at = [np.flatnonzero(there[rows, f]).astype(np.uint16) for f in members]
                    pairs = [(o, bins[rows, f][o]) for o, f in zip(at, members, strict=True)]
                    writer.write(number, group, encode_sparse(pairs, dtype))
                else:
                    writer.write(number, group, encode_dense([bins[rows, f] for f in members], dtype))
        writer.finish({"rows": ROWS, "block_rows": BLOCK_ROWS}, layout.arrays())
    return layout


def check(block, data, wanted):
    bins, there = (part[block.first : block.first + block.rows] for part in data)
    for feature in range(FEATURES):
        row, column = block.selection.dense_row[feature], block.selection.sparse_row[feature]
        if row >= 0:
            found = block.dense[row, : block.rows] >> block.selection.shift[feature].astype(block.dense.dtype)
            assert ((found & np.iinfo(block.bins.dtype).max) == bins[:, feature]).all()
        elif column >= 0:
            entries = slice(block.start[column], block.start[column + 1])
            assert (block.offsets[entries] == np.flatnonzero(there[:, feature])).all()
            assert (block.bins[entries] == bins[there[:, feature], feature]).all()
        else:
            assert wanted is not None
            assert not wanted[feature]


@pytest.mark.parametrize("folders", [1, 2, 3])
@pytest.mark.parametrize("resident", [0, 1, 4, 99])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_every_pass_yields_every_block(tmp_path, data, folders, resident, dtype):
    paths = [tmp_path / str(k) for k in range(folders)]
    layout = write(paths, data, dtype)
    with ColumnStore.open(paths) as store:
        prefetcher = Prefetcher(store, layout, depth=2, resident=resident)
        for wanted in (None, np.arange(FEATURES) % 3 == 1, np.zeros(FEATURES, np.bool_), None):
            numbers = []
            for block in prefetcher.scan(wanted):
                check(block, data, wanted)
                numbers.append(block.number)
            assert numbers == list(range(prefetcher.blocks))


def test_a_pass_that_is_given_up_ends_its_threads(tmp_path, data):
    layout = write([tmp_path / "a", tmp_path / "b"], data, np.uint8)
    with ColumnStore.open([tmp_path / "a", tmp_path / "b"]) as store:
        prefetcher = Prefetcher(store, layout)
        for consumed in (1, 3):
            scan = prefetcher.scan()
            for _ in range(consumed):
                next(scan)
            scan.close()
            assert not [thread for thread in threading.enumerate() if thread.name == "burnish-prefetch"]
        assert len(list(prefetcher.scan())) == prefetcher.blocks


def test_no_more_blocks_are_in_memory_than_the_ring_has(tmp_path, data):
    layout = write([tmp_path / "a"], data, np.uint8)
    with ColumnStore.open([tmp_path / "a"]) as store:
        addresses = {block.dense.ctypes.data for block in Prefetcher(store, layout, depth=2).scan()}
    assert len(addresses) == 2


def test_an_altered_piece_ends_the_pass_with_its_name(tmp_path, data):
    layout = write([tmp_path / "a"], data, np.uint8)
    with ColumnStore.open([tmp_path / "a"]) as store:
        offset = int(store.pieces[5, 0]["offset"])
        with open(tmp_path / "a" / BLOCKS, "r+b") as file:
            file.seek(offset)
            file.write(b"\xff\xff\xff")
        seen = []
        with pytest.raises(DataError, match="piece 0 of block 5"):
            for block in Prefetcher(store, layout).scan():
                seen.append(block.number)
        assert not [thread for thread in threading.enumerate() if thread.name == "burnish-prefetch"]
    assert seen == [0, 1, 2, 3, 4]
