"""`burnish cache info | clear | path`: the folder that compiled kernels are kept in between runs."""

import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from burnish.base.cache import MAX_BYTES, ObjectCache
from burnish.cli.compile_options import Json
from burnish.cli.output import print_answer
from burnish.errors import ParameterError

CacheDir = Annotated[Path | None, typer.Option(help="Another folder than the default one.", show_default=False)]


def path(cache_dir: CacheDir = None, as_json: Json = False) -> None:
    """Print the folder's path; it is made when something is first kept. The variable BURNISH_CACHE names another."""
    folder = _folder(cache_dir)
    print_answer(as_json, {"path": str(folder)}, str(folder))


def info(cache_dir: CacheDir = None, as_json: Json = False) -> None:
    """Show how many entries there are, how large they are, and when they were last used."""
    store = ObjectCache(_folder(cache_dir))
    entries = store.entries()
    ages = [max(0.0, time.time() - used) for used, _, _ in entries]
    total = sum(size for _, size, _ in entries)
    report = {"path": str(store.directory), "entries": len(entries), "bytes": total, "max_bytes": MAX_BYTES}
    lines = [f"{store.directory}: {len(entries)} entries, {total / 1e6:.1f} MB of at most {MAX_BYTES / 1e6:.0f} MB"]
    if ages:
        report |= {"newest_seconds": round(min(ages)), "oldest_seconds": round(max(ages))}
        lines.append(f"last used {_duration(min(ages))} to {_duration(max(ages))} ago")
    print_answer(as_json, report, *lines)


def clear(cache_dir: CacheDir = None, as_json: Json = False) -> None:
    """Remove all entries, and nothing else: models are compiled anew from now on."""
    store = ObjectCache(_folder(cache_dir))
    removed = freed = 0
    for _, size, file in store.entries():
        with suppress(FileNotFoundError):  # another process may be removing it, too
            file.unlink()
            removed, freed = removed + 1, freed + size
    report = {"path": str(store.directory), "removed": removed, "bytes": freed}
    print_answer(as_json, report, f"{store.directory}: {removed} entries removed, {freed / 1e6:.1f} MB")


def _folder(cache_dir: Path | None) -> Path:
    """The folder of entries. Raises ParameterError where there is none: this user has no home directory."""
    folder = ObjectCache(cache_dir).directory
    if folder is None:
        raise ParameterError("cache: this user has no home directory; set BURNISH_CACHE, or pass --cache-dir")
    return folder


def _duration(seconds: float) -> str:
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} seconds"
