"""Output of the command line, and checks of the files that a command is given, made before any work."""

import json
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

import burnish
from burnish.errors import ParameterError

VERSION = 1  # of the JSON that commands print: raised where what a key means changes, or one goes


def print_json(report: dict[str, Any]) -> None:
    """One JSON object on standard output, with the versions of its form and of Burnish."""
    print(json.dumps({"version": VERSION, "burnish": burnish.__version__, **report}, indent=2))


def print_answer(as_json: bool, report: dict[str, Any], *lines: str) -> None:
    """Prints a command's result: the report as JSON, or lines of text."""
    if as_json:
        print_json(report)
    for line in lines if not as_json else ():
        print(line)


def print_table(table: Any) -> None:
    """A table on standard output."""
    Console(highlight=False).print(table)


def on_terminal() -> bool:
    """Whether progress on standard error can be drawn over, instead of being written in lines."""
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


def show_warnings() -> None:
    """Warnings are one line each on standard error, as errors are."""

    def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        print(f"burnish: warning: {message}", file=sys.stderr)

    warnings.showwarning = show


def check_input(path: Path, what: str) -> None:
    """Raises ParameterError unless ``path`` is a file that can be read."""
    if not path.exists():
        raise ParameterError(f"{what}: no file '{path}'")
    if path.is_dir():
        raise ParameterError(f"{what}: '{path}' is a folder; allowed: a file")
    if not os.access(path, os.R_OK):
        raise ParameterError(f"{what}: '{path}' may not be read")


def check_output(
    path: Path,
    option: str = "--output",
    *,
    inputs: Sequence[Path] = (),
    is_ours: Callable[[Path], bool] | None = None,
    force: bool = False,
) -> None:
    """Raises ParameterError unless ``path`` can be written: nothing is worked out for a file that cannot be kept.

    ``inputs`` must not be overwritten. A file that is there already and that ``is_ours`` does not know as what this
    command writes is overwritten only with ``force``.
    """
    folder = path.absolute().parent
    if path.is_dir():
        raise ParameterError(f"{option}: '{path}' is a folder; allowed: the name of a file")
    if not folder.is_dir():
        raise ParameterError(f"{option}: '{path}': there is no folder '{folder}'; make it first")
    if path.exists():
        if not path.is_file():
            raise ParameterError(f"{option}: '{path}' is not a regular file")
        if any(other.exists() and os.path.samefile(path, other) for other in inputs):
            raise ParameterError(f"{option}: '{path}' is what the command reads; allowed: another file")
        if is_ours is not None and not force and not is_ours(path):
            raise ParameterError(f"{option}: '{path}' exists and is not what this command writes; --force replaces it")
        if not os.access(path, os.W_OK):
            raise ParameterError(f"{option}: '{path}' may not be written")
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ParameterError(f"{option}: '{path}' cannot be written: {error.strerror}") from None


def check_records(path: Path) -> None:
    """Raises ParameterError unless tuning records can be added to the file, which need not exist yet."""
    from burnish.tune.records import is_records  # takes a while to import, which `--help` need not wait for

    if path.is_file() and not os.access(path, os.W_OK):
        raise ParameterError(f"--records: '{path}' may not be written")
    if not path.is_file():
        check_output(path, "--records")
    elif not is_records(path):
        raise ParameterError(f"--records: '{path}' is no file of tuning records; nothing is added to it")


def begins(mark: bytes) -> Callable[[Path], bool]:
    """Whether a file begins with the mark, or is empty."""

    def found(path: Path) -> bool:
        with path.open("rb") as file:
            return file.read(len(mark)) in (b"", mark)

    return found


is_artifact, is_svg = begins(b"BURNISH\n"), begins(b"<svg")


def is_json(path: Path) -> bool:
    """Whether a file holds one JSON object, as models of trees do, or is empty."""
    text = path.read_bytes()
    try:
        return not text or isinstance(json.loads(text), dict)
    except ValueError:
        return False
