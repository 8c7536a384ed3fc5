"""Stores on disk: pieces come back as they were, anything altered is refused by name, nothing half-written is left."""

import os
import time
from pathlib import Path

import numpy as np
import pytest

from burnish.boost.data import Dataset
from burnish.boost.outofcore.codec import Codec, codec, disk_rate, suited_codec
from burnish.boost.outofcore.ingest import ingest
from burnish.boost.outofcore.store import BLOCKS, INDEX, PARTIAL, ColumnStore, StoreWriter, remove
from burnish.errors import DataError, MissingDependencyError, ParameterError
from burnish.runtime.threads import Workers

PIECES = [
    [np.zeros(5000, np.uint8), np.arange(300, dtype=np.uint16)],
    [np.random.default_rng(0).integers(0, 256, 4000).astype(np.uint8), np.zeros(0, np.uint8)],
    [np.full(9000, 7, np.uint8), np.ones(1, np.uint8)],
]


def write(folders, compression="zlib"):
    with StoreWriter(folders, compression) as writer:
        writer.shape(len(PIECES), 2)
        for number, pieces in enumerate(PIECES):
            for piece, data in enumerate(pieces):
                writer.write(number, piece, data)
        writer.finish({"rows": 3}, {"cuts": np.arange(4.0)})


def read(store, number, piece):
    into = np.empty(PIECES[number][piece].nbytes, np.uint8)
    store.read(number, piece, into, bytearray())
    return into


def folders_of(path: Path, count: int) -> list[Path]:
    return [path / f"disk{k}" for k in range(count)]


@pytest.mark.parametrize("compression", ["none", "zlib", "zstd", "lz4"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_pieces_come_back(tmp_path, compression, count):
    folders = folders_of(tmp_path, count)
    try:
        write(folders, compression)
    except MissingDependencyError as error:
        pytest.skip(str(error))
    with ColumnStore.open(folders) as store:
        for number, pieces in enumerate(PIECES):
            for piece, data in enumerate(pieces):
                assert read(store, number, piece).tobytes() == data.tobytes()
        assert store.header["rows"] == 3
        assert store.arrays["cuts"].tolist() == [0, 1, 2, 3]
        compressed = store.pieces["compressed"]
    # What does not compress is kept as it is.
    assert compressed.any() == (compression != "none")
    assert not compressed[1, 0]


def test_a_single_folder_may_be_named_as_text(tmp_path):
    write(str(tmp_path / "one"))
    ColumnStore.open(str(tmp_path / "one")).close()


def test_unknown_compression_and_folders(tmp_path):
    with pytest.raises(ParameterError, match="compression is 'brotli', must be one of"):
        StoreWriter([tmp_path / "a"], "brotli")
    with pytest.raises(ParameterError, match="folders is empty"):
        StoreWriter([])
    with pytest.raises(ParameterError, match="names a folder twice"):
        StoreWriter([tmp_path / "a", tmp_path / "b" / ".." / "a"])
    assert not list(tmp_path.iterdir())


def test_every_altered_byte_is_noticed(tmp_path):
    folders = folders_of(tmp_path, 2)
    write(folders)
    for path in (folders[0] / INDEX, folders[0] / BLOCKS, folders[1] / BLOCKS):
        whole = path.read_bytes()
        for at in range(0, len(whole), 7):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x40]) + whole[at + 1 :])
            with pytest.raises(DataError, match="burnish-store"), ColumnStore.open(folders) as store:
                for number, pieces in enumerate(PIECES):
                    for piece in range(len(pieces)):
                        read(store, number, piece)
        path.write_bytes(whole)


def test_an_altered_piece_is_named(tmp_path):
    write([tmp_path / "a"])
    with ColumnStore.open([tmp_path / "a"]) as store:
        offset = int(store.pieces[2, 0]["offset"])
    data = bytearray((tmp_path / "a" / BLOCKS).read_bytes())
    data[offset] ^= 1
    (tmp_path / "a" / BLOCKS).write_bytes(data)
    with ColumnStore.open([tmp_path / "a"]) as store:
        read(store, 0, 0)
        with pytest.raises(DataError, match=r"piece 0 of block 2 in .*burnish-store.blocks is truncated or altered"):
            read(store, 2, 0)


@pytest.mark.parametrize("name", [INDEX, BLOCKS])
def test_truncated_files_are_refused_when_opened(tmp_path, name):
    write([tmp_path / "a"])
    path = tmp_path / "a" / name
    for size in (0, 10, 40, path.stat().st_size - 1):
        path.write_bytes(path.read_bytes()[:size])
        with pytest.raises(DataError, match=name):
            ColumnStore.open([tmp_path / "a"])


def test_folders_of_other_stores_or_in_another_order_are_refused(tmp_path):
    one, other = folders_of(tmp_path / "one", 2), folders_of(tmp_path / "other", 2)
    write(one)
    write(other)
    for mixed in ([one[0], other[1]], [one[0], one[0].parent]):
        with pytest.raises(DataError):
            ColumnStore.open(mixed)
    with pytest.raises(DataError, match="2 folders, but 1 are named"):
        ColumnStore.open(one[:1])
    with pytest.raises(DataError, match="holds no store: its ingest did not finish"):
        ColumnStore.open([one[1], one[0]])
    with pytest.raises(DataError, match="holds no store"):
        ColumnStore.open([tmp_path / "nowhere"])


def test_a_store_is_not_overwritten(tmp_path):
    write([tmp_path / "a"])
    before = (tmp_path / "a" / BLOCKS).read_bytes()
    with pytest.raises(DataError, match="holds a store already"):
        write([tmp_path / "a"])
    assert (tmp_path / "a" / BLOCKS).read_bytes() == before
    with pytest.raises(DataError, match="holds a store already"):
        write([tmp_path / "b", tmp_path / "a"])
    assert not (tmp_path / "b").exists()


def test_an_abandoned_ingest_leaves_nothing(tmp_path):
    (tmp_path / "kept").mkdir()
    with pytest.raises(KeyboardInterrupt), StoreWriter([tmp_path / "new" / "deep", tmp_path / "kept"]) as writer:
        writer.shape(1, 1)
        writer.write(0, 0, np.zeros(10, np.uint8))
        raise KeyboardInterrupt
    assert not (tmp_path / "new" / "deep").exists()
    assert not list((tmp_path / "kept").iterdir())


def test_a_failure_while_the_index_is_written_leaves_nothing(tmp_path, monkeypatch):
    def fail(source, target):
        if str(target).endswith(INDEX):
            raise OSError("no space left")
        real(source, target)

    real = os.replace
    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(DataError, match="no space left"):
        write(folders_of(tmp_path, 2))
    assert not list(tmp_path.iterdir())


def test_what_a_killed_ingest_left_is_no_store_and_is_replaced(tmp_path):
    folder = tmp_path / "a"
    folder.mkdir()
    (folder / (BLOCKS + PARTIAL)).write_bytes(b"left over" * 1000)
    (folder / BLOCKS).write_bytes(b"left over")
    with pytest.raises(DataError, match="its ingest did not finish"):
        ColumnStore.open([folder])
    write([folder])
    with ColumnStore.open([folder]) as store:
        assert read(store, 2, 0).tobytes() == PIECES[2][0].tobytes()


def test_two_writers_of_a_folder(tmp_path):
    with StoreWriter([tmp_path / "a"]), pytest.raises(DataError, match="being written by another process"):
        StoreWriter([tmp_path / "a"])


def test_remove(tmp_path):
    folders = folders_of(tmp_path, 2)
    write(folders)
    (folders[1] / "mine").write_text("kept")
    remove(folders)
    assert not folders[0].exists()
    assert [path.name for path in folders[1].iterdir()] == ["mine"]
    remove(folders)  # a second time does no harm


def test_compressible_data_shrinks(tmp_path):
    write([tmp_path / "a"])
    assert (tmp_path / "a" / BLOCKS).stat().st_size < 5000 + sum(p.nbytes for q in PIECES for p in q) / 2
    assert codec("none") is None


def paced(seconds_a_byte):
    """A codec that makes a quarter of everything, and takes its time to unpack."""

    def decompress(data, size):
        end = time.thread_time() + size * seconds_a_byte
        while time.thread_time() < end:
            pass
        return bytes(size)

    return Codec(lambda data: bytes(len(data) // 4), decompress)


@pytest.mark.parametrize(
    ("disk", "expected"), [(1e8, "dense"), (float("inf"), "none"), (4e9, "none")], ids=["slow", "cached", "fast"]
)
def test_the_codec_suits_the_disk(disk, expected):
    """At 100 MB/s a quarter of the bytes is worth 1 ns a byte of unpacking, not 20; at 4 GB/s nothing is."""
    sample = [bytes(1 << 18)] * 2
    assert suited_codec(sample, disk, {"slow": paced(2e-8), "dense": paced(1e-9)}) == expected


def test_what_does_not_compress_is_stored_as_it_is():
    noise = [np.random.default_rng(0).bytes(1 << 16)]
    assert suited_codec(noise, 1e6) == "none"
    assert suited_codec([bytes(1 << 20)], 1e5) != "none"


def test_the_disk_is_measured_unless_the_data_stay_in_memory(tmp_path):
    with open(tmp_path / "blocks", "w+b") as file:
        file.write(bytes(1 << 20))
        file.flush()
        assert disk_rate(file.fileno(), 1 << 20) == float("inf")
        assert 0 < disk_rate(file.fileno(), 1 << 60) < float("inf")


def test_an_ingest_chooses_its_codec(tmp_path, monkeypatch):
    data = np.repeat(np.arange(4096, dtype=np.float32)[:, None] // 64, 8, axis=1)
    for disk, compressed in ((1e5, True), (float("inf"), False)):
        monkeypatch.setattr("burnish.boost.outofcore.spool.disk_rate", lambda file, again, disk=disk: disk)
        folder = tmp_path / str(compressed)
        with ingest([Dataset.of(data, label=data[:, 0])], folder, 64, Workers(1), memory=1 << 26) as found:
            assert bool(found.pieces["compressed"].any()) == compressed
