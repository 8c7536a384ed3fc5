import errno
import os
import socket
import stat

import pytest

from burnish.base.files import cache_folder, open_regular, private_folder, read_regular, write_atomic


def test_only_regular_files_are_opened(tmp_path) -> None:
    (tmp_path / "file").write_bytes(b"text")
    (tmp_path / "link").symlink_to("file")
    assert read_regular(tmp_path / "link") == read_regular(str(tmp_path / "file")) == b"text"
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "loop").symlink_to("loop")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
    for path, message in (
        (tmp_path, "a directory, allowed: a regular file"),
        (tmp_path / "fifo", "a FIFO, allowed"),
        ("/dev/zero", "a device, allowed"),
        (tmp_path / "loop", "symbolic links"),
        (tmp_path / "socket", "No such device"),
        (tmp_path / "absent", "No such file"),
        (tmp_path / "file" / "below", "Not a directory"),
    ):
        before = len(os.listdir("/proc/self/fd"))
        with pytest.raises(OSError, match=message):
            open_regular(path)
        assert len(os.listdir("/proc/self/fd")) == before


def test_writing_replaces_what_a_link_names_and_nothing_but_files(tmp_path) -> None:
    file, link, fifo = tmp_path / "file", tmp_path / "link", tmp_path / "fifo"
    file.write_bytes(b"old")
    link.symlink_to("file")
    write_atomic(link, [b"n", memoryview(b"ew")])
    assert link.is_symlink() and file.read_bytes() == b"new"
    os.mkfifo(fifo)
    for path in (fifo, tmp_path):
        with pytest.raises(OSError, match="allowed: a regular file"):
            write_atomic(path, [b"new"])
    assert fifo.is_fifo() and sorted(os.listdir(tmp_path)) == ["fifo", "file", "link"]


def test_a_reader_keeps_the_file_that_is_replaced(tmp_path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"old")
    with open_regular(file) as opened:
        write_atomic(file, [b"new"])
        assert opened.read() == b"old"


@pytest.mark.parametrize(("umask", "mode"), [(0, 0o664), (0o022, 0o644), (0o077, 0o600)])
def test_written_files_follow_the_umask_and_are_never_for_all_to_write(tmp_path, umask, mode) -> None:
    before = os.umask(umask)
    try:
        write_atomic(tmp_path / "file", [b""])
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == mode


def test_a_long_name_can_be_written(tmp_path) -> None:
    write_atomic(tmp_path / ("n" * 250), [b"x"])
    assert os.listdir(tmp_path) == ["n" * 250]


def test_private_folders(tmp_path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    private_folder(tmp_path / "open")
    assert stat.S_IMODE((tmp_path / "open").stat().st_mode) == 0o775
    (tmp_path / "sticky").mkdir()
    (tmp_path / "sticky").chmod(0o1777)
    private_folder(tmp_path / "sticky")
    assert stat.S_IMODE((tmp_path / "sticky").stat().st_mode) == 0o1777
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "loop").symlink_to("loop")
    for wrong in ("file", "file/below", "loop"):
        with pytest.raises(OSError) as caught:
            private_folder(tmp_path / wrong)
        assert caught.value.errno in (errno.ENOTDIR, errno.EEXIST, errno.ELOOP)


@pytest.fixture
def environment(monkeypatch):
    """Sets these variables of those that say where caches are, and unsets the others."""

    def use(**values: str) -> None:
        for name in ("BURNISH_CACHE", "XDG_CACHE_HOME", "HOME"):
            monkeypatch.delenv(name, raising=False)
        for name, value in values.items():
            monkeypatch.setenv(name, value)

    return use


def test_the_cache_folder_follows_the_environment(environment, monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    for values, folder in (
        ({"BURNISH_CACHE": "/chosen", "XDG_CACHE_HOME": "/xdg"}, "/chosen"),
        ({"BURNISH_CACHE": "own"}, f"{tmp_path}/own"),
        ({"BURNISH_CACHE": "~/own", "HOME": "/home/me"}, "/home/me/own"),
        ({"BURNISH_CACHE": "~", "HOME": "/home/me"}, "/home/me"),
        ({"XDG_CACHE_HOME": "/xdg", "HOME": "/home/me"}, "/xdg/burnish"),
        ({"XDG_CACHE_HOME": "relative", "HOME": "/home/me"}, "/home/me/.cache/burnish"),
        ({"BURNISH_CACHE": "", "XDG_CACHE_HOME": "", "HOME": "/home/me"}, "/home/me/.cache/burnish"),
    ):
        environment(**values)
        assert str(cache_folder()) == folder


@pytest.mark.parametrize("home", [None, "", "~", "relative"])
def test_without_home_the_list_of_users_is_asked(environment, monkeypatch, home) -> None:
    class User:
        pw_dir = "/home/listed"

    environment(**({} if home is None else {"HOME": home}))
    monkeypatch.setattr("burnish.base.files.pwd.getpwuid", lambda uid: User)
    assert str(cache_folder()) == "/home/listed/.cache/burnish"

    def unknown(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.setattr("burnish.base.files.pwd.getpwuid", unknown)
    assert cache_folder() is None
    monkeypatch.setenv("BURNISH_CACHE", "~/kernels")
    assert cache_folder() is None
