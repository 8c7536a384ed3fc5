import os
import stat
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from burnish.base.cache import Archive, ObjectCache, cache_key


def test_what_is_put_is_got_also_by_another_process(tmp_path) -> None:
    cache = ObjectCache(tmp_path / "deep" / "cache")
    assert cache.get("a") is None
    cache.put("a", b"code")
    cache.put("empty", b"")
    assert cache.get("a") == b"code" and cache.get("empty") == b""
    script = "import sys; from burnish.base.cache import ObjectCache; print(ObjectCache(sys.argv[1]).get('a'))"
    done = subprocess.run(
        [sys.executable, "-c", script, str(cache.directory)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "b'code'"


@pytest.mark.parametrize(
    "damage", [lambda d: d[:-1], lambda d: d[:10], lambda d: b"", lambda d: d[:-1] + b"?", lambda d: d + b"x"]
)
def test_damaged_entries_are_ignored_and_can_be_replaced(tmp_path, damage) -> None:
    cache = ObjectCache(tmp_path)
    cache.put("a", b"some code")
    (file,) = tmp_path.iterdir()
    file.write_bytes(damage(file.read_bytes()))
    assert cache.get("a") is None
    cache.put("a", b"new code")
    assert cache.get("a") == b"new code"


def test_the_least_recently_used_entries_go_first(tmp_path) -> None:
    cache = ObjectCache(tmp_path, max_bytes=1000)
    for i in range(8):
        cache.put(str(i), bytes(100))
        os.utime(tmp_path / f"{i}.bnobj", (i + 1, i + 1))
    assert cache.get("0") is not None  # used now
    cache.prune()
    assert [i for i in range(8) if cache.get(str(i)) is not None] == [0, 4, 5, 6, 7]
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= 750


def test_pruning_removes_abandoned_writes_but_no_foreign_files(tmp_path) -> None:
    cache = ObjectCache(tmp_path, max_bytes=100)
    abandoned, foreign = tmp_path / ".a.bnobj.1.ab.tmp", tmp_path / "photo.jpg"
    abandoned.write_bytes(bytes(5000))
    foreign.write_bytes(bytes(5000))
    cache.prune()
    assert foreign.exists() and not abandoned.exists()


def test_writing_prunes(tmp_path) -> None:
    cache = ObjectCache(tmp_path, max_bytes=10_000)
    for i in range(300):
        cache.put(str(i), bytes(500))
    assert len(list(tmp_path.iterdir())) < 100


def test_a_process_looks_through_a_directory_once_in_many_writes(tmp_path, monkeypatch) -> None:
    """Not for every object that writes there: a compilation has one of its own, and users have 10,000s of entries."""
    looks, prune = [], ObjectCache.prune
    monkeypatch.setattr(ObjectCache, "prune", lambda cache: (looks.append(cache.directory), prune(cache)))
    for i in range(300):
        ObjectCache(tmp_path / str(i % 2)).put(str(i), b"code")
    assert looks == [tmp_path / "0", tmp_path / "1"]
    for i in range(300):
        ObjectCache(tmp_path / "0", max_bytes=100).put(str(i), b"code")
    assert looks == [tmp_path / "0", tmp_path / "1", tmp_path / "0"]


def test_an_unwritable_directory_warns_once_and_keeps_entries_in_memory(tmp_path) -> None:
    (tmp_path / "file").write_bytes(b"")
    cache = ObjectCache(tmp_path / "file" / "cache")
    with pytest.warns(RuntimeWarning, match="object cache: .*set BURNISH_CACHE"):
        cache.put("a", b"code")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cache.put("b", b"more")
    assert (cache.get("a"), cache.get("b"), cache.get("c")) == (b"code", b"more", None)


def test_processes_may_write_the_same_entries_at_once(tmp_path) -> None:
    script = (
        "import sys; from burnish.base.cache import ObjectCache; cache = ObjectCache(sys.argv[1])\n"
        "for i in range(300):\n"
        "    key = str(i % 7); found = cache.get(key); assert found in (None, key.encode() * 5000)\n"
        "    cache.put(key, key.encode() * 5000)\n"
    )
    writers = [subprocess.Popen([sys.executable, "-c", script, str(tmp_path)]) for _ in range(3)]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    assert len(list(tmp_path.iterdir())) == 7


def test_keys_tell_parts_apart() -> None:
    assert cache_key("ab", "c") != cache_key("a", "bc")
    assert cache_key("ab", b"c") == cache_key(b"ab", "c")
    assert len(cache_key()) == 64


def test_an_entry_counts_under_its_own_key_alone(tmp_path) -> None:
    cache = ObjectCache(tmp_path)
    cache.put("a", b"code of a")
    (tmp_path / "b.bnobj").write_bytes((tmp_path / "a.bnobj").read_bytes())
    assert cache.get("b") is None and cache.get("a") == b"code of a"


def _fifo(path) -> None:
    os.mkfifo(path)


def _loop(path) -> None:
    path.symlink_to(path)


def _folder(path) -> None:
    (path / "in").mkdir(parents=True)


def _device(path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("make", [_fifo, _loop, _folder, _device])
def test_what_is_no_regular_file_is_no_entry(tmp_path, make) -> None:
    make(tmp_path / "a.bnobj")
    cache = ObjectCache(tmp_path)
    assert cache.get("a") is None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cache.put("a", b"new")
    assert cache.get("a") == b"new"
    cache.put("b", b"other")
    assert ObjectCache(tmp_path).get("b") == b"other"
    assert Path("/dev/zero").is_char_device()


def test_a_folder_that_cannot_be_written_for_one_entry_keeps_the_others(tmp_path) -> None:
    _folder(tmp_path / "a.bnobj")
    cache = ObjectCache(tmp_path)
    with pytest.warns(RuntimeWarning, match="object cache"):
        cache.put("a", b"1")
    cache.put("b", b"2")
    assert (cache.get("a"), cache.get("b")) == (b"1", b"2")
    assert ObjectCache(tmp_path).get("b") == b"2"


def test_entries_and_folders_are_private_under_any_umask(tmp_path) -> None:
    before = os.umask(0)
    try:
        ObjectCache(tmp_path / "new" / "cache").put("a", b"code")
    finally:
        os.umask(before)
    modes = [stat.S_IMODE(p.stat().st_mode) for p in (tmp_path / "new", *sorted((tmp_path / "new").rglob("*")))]
    assert modes == [0o700, 0o700, 0o600]


def test_entries_that_all_may_write_are_not_taken(tmp_path) -> None:
    cache = ObjectCache(tmp_path)
    cache.put("a", b"code")
    (tmp_path / "a.bnobj").chmod(0o666)
    assert cache.get("a") is None


def test_without_a_home_directory_entries_stay_in_memory(monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("burnish.base.cache.cache_folder", lambda: None)
    cache = ObjectCache()
    assert cache.get("a") is None
    with pytest.warns(RuntimeWarning, match="no home directory.*set BURNISH_CACHE"):
        cache.put("a", b"code")
    cache.prune()
    assert cache.get("a") == b"code" and not list(tmp_path.iterdir())


ENTRIES = {cache_key("a"): b"first" * 1000, cache_key("b"): b"", cache_key("c"): b"third"}


def test_an_archive_gives_back_what_was_written(tmp_path) -> None:
    path = tmp_path / "kernels.bnlib"
    Archive.write(path, ENTRIES)
    archive = Archive(path)
    assert {key: archive.get(key) for key in ENTRIES} == ENTRIES
    assert archive.get(cache_key("d")) is None
    assert path.stat().st_size < 1000


def test_every_damage_of_an_archive_is_an_absent_entry(tmp_path) -> None:
    path = tmp_path / "kernels.bnlib"
    Archive.write(path, ENTRIES)
    data = path.read_bytes()
    for at in range(len(data)):
        for changed in (data[:at], data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :]):
            path.write_bytes(changed)
            assert all(Archive(path).get(key) in (None, value) for key, value in ENTRIES.items())


@pytest.mark.parametrize("make", [_fifo, _loop, _folder, _device], ids=lambda make: make.__name__[1:])
def test_what_is_no_regular_file_is_no_archive(tmp_path, make) -> None:
    path = tmp_path / "kernels.bnlib"
    assert Archive(path).get(cache_key("a")) is None
    make(path)
    assert Archive(path).get(cache_key("a")) is None


def test_an_archive_that_all_may_write_is_not_taken(tmp_path) -> None:
    path = tmp_path / "kernels.bnlib"
    Archive.write(path, ENTRIES)
    path.chmod(0o666)
    assert Archive(path).get(cache_key("a")) is None
