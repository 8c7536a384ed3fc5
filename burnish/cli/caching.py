"""`burnish cache info | clear | path`: the folder that compiled kernels are kept in between runs."""

import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from burnish.cache import MAX_BYTES, ObjectCache
from burnish.cli.output import print_json
from burnish.errors import ParameterError

CacheDir = Annotated[Path | None, typer.Option(help="Another folder than the default one.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def path(cache_dir: CacheDir = None, as_json: Json = False) -> None:
    """Print the folder's path; it is made when something is first kept. The variable BURNISH_CACHE names another."""
    folder = _folder(cache_dir)
    if as_json:
        print_json({"path": str(folder)})
    else:
        print(folder)


def info(cache_dir: CacheDir = None, as_json: Json = False) -> None:
    """Show how many entries there are, how large they are, and when they were last used."""
    store = ObjectCache(_folder(cache_dir))
    entries = store.entries()
    ages = [max(0.0, time.time() - used) for used, _, _ in entries]
    total = sum(size for _, size, _ in entries)
    if as_json:
        ends = {"newest_seconds": round(min(ages)), "oldest_seconds": round(max(ages))} if ages else {}
        report = {"path": str(store.directory), "entries": len(entries), "bytes": total, "max_bytes": MAX_BYTES}
        print_json({**report, **ends})
        return
    print(f"{store.directory}: {len(entries)} entries, {total / 1e6:.1f} MB of at most {MAX_BYTES / 1e6:.0f} MB")
    if ages:
        print(f"last used {_duration(min(ages))} to {_duration(max(ages))} ago")


def clear(cache_dir: CacheDir = None, as_json: Json = False) -> None:
    """Remove all entries, and nothing else: models are compiled anew from now on."""
    store = ObjectCache(_folder(cache_dir))
    removed = freed = 0
    for _, size, file in store.entries():
        with suppress(FileNotFoundError):  # another process may be removing it, too
            file.unlink()
            removed, freed = removed + 1, freed + size
    if as_json:
        print_json({"path": str(store.directory), "removed": removed, "bytes": freed})
    else:
        print(f"{store.directory}: {removed} entries removed, {freed / 1e6:.1f} MB")


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
