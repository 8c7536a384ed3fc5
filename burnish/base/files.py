"""Files and folders: only regular files are read, what is written is complete or absent, caches are private.

Paths come from users, and cache folders may be written by other programs: a FIFO there would make a reader wait for
ever, and a file or folder that everyone may write would let others decide which code runs here.
"""

from __future__ import annotations

import errno
import os
import pwd
import secrets
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

PRIVATE_FILE, PRIVATE_FOLDER = 0o600, 0o700  # nobody but the owner, whatever the umask
_SHARED_FILE = 0o664  # at most, and less the umask: what users keep is theirs to share, but never for all to write
_KINDS = (
    (stat.S_ISDIR, "a directory"), (stat.S_ISFIFO, "a FIFO"), (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"), (stat.S_ISBLK, "a device"),
)  # fmt: skip


def open_regular(path: str | Path) -> BinaryIO:
    """Opens a file for reading, without a buffer, if it is a regular file or a link to one.

    Raises OSError for what is missing or may not be read, for a loop of links, and at once for a directory, FIFO,
    socket or device, naming which.
    """
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK)
    try:
        refuse_irregular(os.fstat(file).st_mode, path)
        return os.fdopen(file, "rb", buffering=0)
    except BaseException:
        os.close(file)
        raise


def read_regular(path: str | Path) -> bytes:
    """The bytes of a regular file. Raises OSError as ``open_regular`` does."""
    with open_regular(path) as file:
        return file.read()


def refuse_irregular(mode: int, path: str | Path) -> None:
    """Raises OSError unless ``mode`` (``st_mode``) is that of a regular file."""
    if not stat.S_ISREG(mode):
        kind = next((name for test, name in _KINDS if test(mode)), "no regular file")
        code = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
        raise OSError(code, f"{kind}, allowed: a regular file", str(path))


def write_atomic(path: Path, parts: Iterable[bytes | memoryview], mode: int = _SHARED_FILE, sync: bool = False) -> None:
    """Writes the parts one after another under a temporary name in the same directory, then renames it to ``path``.

    Readers, other writers and a crash never see or leave an incomplete ``path``; who has the old file open keeps it.
    ``sync``: the file is on the disk before it has its name, and its name when this returns: a crash of the machine
    leaves the old file or the new one. The file's permissions are ``mode`` less the umask. A link is followed: the file
    that it names is replaced. Raises OSError, also where ``path`` is a directory, device or FIFO, which is left as it
    is.
    """
    path = Path(os.path.realpath(path))
    with suppress(FileNotFoundError):
        refuse_irregular(os.stat(path).st_mode, path)
    temporary = path.with_name(f".{path.name[:100]}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb") as file:
            for part in parts:
                file.write(part)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
        if sync:
            _sync_folder(path.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _sync_folder(path: Path) -> None:
    """Puts the names of a folder's files on the disk."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def cache_folder() -> Path | None:
    """The one folder under which everything is cached, an absolute path that need not exist yet.

    ``$BURNISH_CACHE``, else ``$XDG_CACHE_HOME/burnish``, else ``.cache/burnish`` in the home directory: ``$HOME``, or
    what the system's list of users says. None if there is no home directory: then nothing is cached on disk.
    ``~`` in ``$BURNISH_CACHE``, which no shell has replaced, is the home directory.
    """
    if chosen := os.environ.get("BURNISH_CACHE"):
        if chosen != "~" and not chosen.startswith("~/"):
            return Path(chosen).absolute()
        home = _home()
        return home and home / chosen[1:].lstrip("/")
    base = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(base):  # others are to be ignored, by the specification of base directories
        return Path(base) / "burnish"
    home = _home()
    return home and home / ".cache" / "burnish"


def _home() -> Path | None:
    """The user's home directory; None for a user that has none, as in many containers."""
    found = os.environ.get("HOME", "")
    if not os.path.isabs(found):
        try:
            found = pwd.getpwuid(os.getuid()).pw_dir
        except KeyError:
            return None
    return Path(found) if os.path.isabs(found) else None


def private_folder(path: Path) -> None:
    """Makes a folder, and those above it that are missing, for this user alone.

    One that exists keeps its permissions, but is not left for all to write. Raises OSError, also where that cannot be
    taken from it; a folder with the sticky bit, such as ``/tmp``, is let be.
    """
    missing = []
    while not path.exists():
        missing.append(path)
        path = path.parent
    for each in reversed(missing):
        with suppress(FileExistsError):  # another process makes it, too
            each.mkdir(PRIVATE_FOLDER)
    folder = missing[0] if missing else path
    mode = folder.stat().st_mode
    if not stat.S_ISDIR(mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        folder.chmod(stat.S_IMODE(mode) & ~stat.S_IWOTH)


def is_trusted(file: os.stat_result, folder: Path) -> bool:
    """Whether a regular file in a cache folder can only have been written by this user, root, or the folder's owner."""
    if not stat.S_ISREG(file.st_mode) or file.st_mode & stat.S_IWOTH:
        return False
    return file.st_uid in (os.geteuid(), 0) or file.st_uid == folder.stat().st_uid
