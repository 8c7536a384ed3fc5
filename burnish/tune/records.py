"""Tuning records: a file of JSON lines that several processes may append to.

A line is one record and is written by one ``write`` under a lock, so that a process which is killed at any moment loses
at most the record it was about to write. A line that cannot be read costs that line alone.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import re
import statistics
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from burnish.base.cache import cache_key
from burnish.base.files import open_regular, refuse_irregular, write_atomic
from burnish.errors import RecordError
from burnish.kernels.task import Choice, KernelTask
from burnish.machines.target import Target
from burnish.pipeline.kernel import task_key
from burnish.runtime.host import fingerprint
from burnish.schedule.schedule import Call
from burnish.tune.evaluate.building import KernelTrial
from burnish.tune.evaluate.measurement import OUTCOMES, Measurement
from burnish.tune.features import EDITION

VERSION = 1
_BEGIN = b'{"version":'  # of every line that Record.line has written
_DECIMALS = 3  # of features, which are logarithms to base 2, ratios and marks
_MOST = 1e300  # of any number: JSON's integers have no end, floats do
_SHOWN = 3  # unreadable lines that a warning names


@dataclass(frozen=True)
class Record:
    """One measurement of one candidate.

    ``target``: the machine's fingerprint; ``threads``: those that ran it; ``cold``: whether constants came from memory.
    ``key`` is ``kernel.task_key``: what is computed, by which version of the compiler; ``family`` is the same for all
    shapes of an operator. ``trace`` is the schedule, for ``schedule.replay``; ``times`` are seconds a run, by batch;
    ``tuner`` says who asked, ``date`` when (UTC, ISO 8601). ``won``: it beat the default in a paired measurement, or is
    the default that a former winner beats no longer; of several, the last counts. Then ``node`` is the signature of a
    node whose algorithm was open, and ``algorithm`` the label of the one that won.
    ``kernel`` is the same for all ways to compute the same, whose times in one setting may be compared.
    ``features`` are what other kernels can learn from: columns of ``features.INVARIANT``, of that edition. ``cost``:
    the seconds by which the search ranked the candidate, free of the machine's drift; 0 where there was no search.
    """

    target: str
    threads: int
    cold: bool
    key: str
    family: str
    template: str
    choice: Choice
    trace: Sequence[Call]
    times: tuple[float, ...]
    outcome: str = "ok"
    error: str = ""
    tuner: str = ""
    date: str = ""
    won: bool = False
    node: str = ""
    algorithm: str = ""
    kernel: str = ""
    edition: int = 0
    features: tuple[float, ...] = ()
    cost: float = 0.0

    @property
    def seconds(self) -> float:
        """The median of the times; infinite without times."""
        return statistics.median(self.times) if self.times else math.inf

    @property
    def ranked(self) -> float:
        """The seconds to compare with those of other candidates of the same search; infinite without times."""
        return self.cost if self.cost and self.times else self.seconds

    def line(self) -> str:
        """The record as one line of a file, with its end."""
        own = {"version": VERSION, **vars(self), "choice": dict(self.choice)}
        return json.dumps(own, separators=(",", ":"), allow_nan=False) + "\n"


def machine(target: Target) -> str:
    """The fingerprint by which records tell machines apart."""
    return fingerprint(target.triple, target.cpu, target.features)


def family(task: KernelTask) -> str:
    """The same for tasks that differ in nothing but numbers: extents, paddings, strides, values."""
    text = "\n".join(str(t) for t in (*task.inputs, *task.stages()))
    layouts = sorted((name, str(layout)) for name, layout in task.layouts.items())
    parts = (task.label, text, str(layouts), " ".join(sorted(task.constants)))
    return cache_key(*(re.sub(r"\d+(\.\d+)?(e[+-]?\d+)?", "#", part) for part in parts))


def record(
    trial: KernelTrial,
    made: Measurement,
    target: Target,
    threads: int,
    *,
    cold: bool = False,
    tuner: str = "",
    kernel: str = "",
    features: Sequence[float] = (),
    cost: float = 0.0,
) -> Record:
    """Tuning record of a measured trial."""
    choice = {knob: value if isinstance(value, str) else int(value) for knob, value in trial.choice.items()}
    date = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return Record(
        machine(target), threads, cold, task_key(trial.task, target), family(trial.task), trial.template, choice,
        tuple(made.trace), made.times, made.outcome, made.error, tuner, date,
        kernel=kernel, edition=EDITION if len(features) else 0, features=tuple(map(_short, features)),
        cost=cost if math.isfinite(cost) else 0.0,
    )  # fmt: skip


def _short(number: float) -> float:
    """To as many decimals as a model can use, and without them where there are none: files hold many of these."""
    rounded = round(float(number), _DECIMALS)
    return int(rounded) if rounded == int(rounded) else rounded


def parse(text: str) -> Record:
    """The record of a line. Raises RecordError, saying what is wrong with it."""
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise RecordError(f"a {type(fields).__name__}, allowed: an object")
    if (version := fields.pop("version", None)) != VERSION:
        raise RecordError(f"version {version!r}, allowed: {VERSION}")
    fields = {**_LATER, **fields}
    for name, (check, allowed) in _FIELDS.items():
        if name not in fields:
            raise RecordError(f"field '{name}' is missing")
        if not check(fields[name]):
            raise RecordError(f"field '{name}' is {str(fields[name])[:60]!r}, allowed: {allowed}")
    known = {name: fields[name] for name in _FIELDS}
    trace = tuple((name, arguments) for name, arguments in known["trace"])
    numbers = {name: tuple(map(float, known[name])) for name in ("times", "features")}
    return Record(**{**known, "trace": trace, **numbers})


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_time(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < _MOST


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and -_MOST < value < _MOST


def _is_trace(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(call, list) and len(call) == 2 and isinstance(call[0], str) and isinstance(call[1], list)
        for call in value
    )


_TEXT = (_is_text, "text")
_FIELDS = {
    "target": _TEXT,
    "threads": (lambda v: type(v) is int and v > 0, "a positive integer"),
    "cold": (lambda v: isinstance(v, bool), "true or false"),
    "key": _TEXT,
    "family": _TEXT,
    "template": _TEXT,
    "choice": (
        lambda v: isinstance(v, dict) and all(type(c) in (int, str) for c in v.values()),
        "an object of integers and text",
    ),
    "trace": (_is_trace, "a list of [primitive, arguments]"),
    "times": (lambda v: isinstance(v, list) and all(map(_is_time, v)), "a list of positive seconds"),
    "outcome": (lambda v: v in OUTCOMES, ", ".join(OUTCOMES)),
    "error": _TEXT,
    "tuner": _TEXT,
    "date": _TEXT,
    "won": (lambda v: isinstance(v, bool), "true or false"),
    "node": _TEXT,
    "algorithm": _TEXT,
    "kernel": _TEXT,
    "edition": (lambda v: type(v) is int and v >= 0, "an integer from 0"),
    "features": (lambda v: isinstance(v, list) and all(map(_is_number, v)), "a list of finite numbers"),
    "cost": (lambda v: _is_number(v) and v >= 0, "seconds, or 0"),
}
_LATER: dict[str, Any] = {"kernel": "", "edition": 0, "features": [], "cost": 0.0}  # fields that older files have not


class RecordFile:
    """File of tuning records, which need not exist yet; every query first reads what has been appended since.

    What a writer that was killed has left of its last record is cut off; a file that may not be written is only read.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if self.path.exists():
            with suppress(OSError), _locked(self.path) as file:
                _repair(file)
        self.unreadable: list[str] = []  # what is wrong with which line
        self._records: list[Record] = []
        self._file: tuple[int, int] | None = None  # device and number of the file that was read
        self._offset = 0
        self._lines = 0

    def append(self, records: Iterable[Record]) -> None:
        """Adds records, all with one write. Raises OSError, and RecordError for a file that holds something else."""
        data = "".join(each.line() for each in records).encode()
        if data:
            with _locked(self.path) as file:
                if not _holds_records(file):
                    raise RecordError(f"records: '{self.path}' is no file of tuning records; nothing is added to it")
                _repair(file)
                _write(file, data)

    def all(self) -> list[Record]:
        """Every readable record, in the order of writing. Raises OSError; lines that cannot be read are warned of."""
        self._refresh()
        return list(self._records)

    def measurements(self, target: str, threads: int, key: str, cold: bool = False) -> list[Record]:
        """Records of a task on this very machine, fastest first, failures last."""
        self._refresh()
        wanted = (target, threads, key, cold)
        return sorted((r for r in self._records if _setting(r) == wanted), key=lambda r: r.seconds)

    def best(self, target: str, threads: int, key: str, cold: bool = False) -> Record | None:
        """The fastest measurement of a task on this very machine."""
        found = self.measurements(target, threads, key, cold)
        return found[0] if found and found[0].outcome == "ok" else None

    def merge(self, others: Iterable[str | Path]) -> int:
        """Appends the records of other files that this one does not hold; their number. Raises OSError."""
        known = {each.line() for each in self.all()}
        new: dict[str, Record] = {}
        for path in others:
            if not Path(path).exists():
                raise FileNotFoundError(f"records: no file '{path}'")
            new.update({r.line(): r for r in RecordFile(path).all() if r.line() not in known})
        self.append(new.values())
        return len(new)

    def compact(self, keep: int = 8) -> int:
        """Keeps winners and the ``keep`` fastest candidates of every setting; the number of records dropped.

        Failures and unreadable lines go. A candidate that was measured several times keeps its last record, as a
        winner if it was one. Others may append meanwhile. Raises OSError.
        """
        with _locked(self.path):
            before = self.all()
            good = sorted((r for r in before if r.outcome == "ok"), key=lambda r: r.won)
            last = {(_setting(r), r.template, tuple(sorted(r.choice.items()))): r for r in good}
            ranks: dict[tuple[str, int, str, bool], int] = {}
            kept = set()
            for each in sorted(last.values(), key=lambda r: r.seconds):
                rank = ranks[_setting(each)] = ranks.get(_setting(each), 0) + 1
                if rank <= keep or each.won:
                    kept.add(id(each))
            lines = [r.line().encode() for r in before if id(r) in kept]
            write_atomic(self.path, lines)
            return len(before) - len(lines)

    def _refresh(self) -> None:
        try:
            file = open_regular(self.path)
        except FileNotFoundError:
            return
        with file:
            status = os.fstat(file.fileno())
            if self._file != (status.st_dev, status.st_ino) or status.st_size < self._offset:
                self._file = (status.st_dev, status.st_ino)
                self._records, self.unreadable, self._offset, self._lines = [], [], 0, 0
            file.seek(self._offset)
            data = file.read()
        complete = data[: data.rfind(b"\n") + 1]  # the rest is being written, or was cut off and is lost
        self._offset += len(complete)
        before = len(self.unreadable)
        for line in complete.splitlines():
            self._lines += 1
            try:
                self._records.append(parse(line.decode("utf-8")))
            except (RecordError, UnicodeDecodeError) as error:
                self.unreadable.append(f"line {self._lines}: {error}")
        if len(self.unreadable) > before:
            new = self.unreadable[before:]
            shown = "; ".join(new[:_SHOWN]) + ("; …" if len(new) > _SHOWN else "")
            warnings.warn(
                f"records: '{self.path}': {len(new)} of {self._lines} lines cannot be read and are skipped: {shown}",
                RuntimeWarning, stacklevel=3,
            )  # fmt: skip


def _setting(each: Record) -> tuple[str, int, str, bool]:
    return each.target, each.threads, each.key, each.cold


@contextmanager
def _locked(path: Path) -> Iterator[int]:
    """The file, open for appending and locked: the one that has this name now, not one that compaction replaced."""
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o644)
        try:
            refuse_irregular(os.fstat(file).st_mode, path)
            fcntl.flock(file, fcntl.LOCK_EX)
            try:
                named_now = os.stat(path)
            except FileNotFoundError:
                continue
            if os.path.samestat(os.fstat(file), named_now):
                yield file
                return
        finally:
            os.close(file)


def is_records(path: Path) -> bool:
    """Whether a file begins as one of records does, or is empty."""
    file = os.open(path, os.O_RDONLY)
    try:
        return _holds_records(file)
    finally:
        os.close(file)


def _holds_records(file: int) -> bool:
    begin = os.pread(file, len(_BEGIN), 0)
    return begin == _BEGIN[: len(begin)]


def _repair(file: int) -> None:
    """Ends a last line that has no end; cuts it off if it is only the beginning of a record. The file is locked.

    A file of another program, such as a model whose name was given by mistake, is left as it is.
    """
    if not _holds_records(file):
        return
    size = os.fstat(file).st_size
    end = size
    while end > 0:
        begin = max(0, end - 4096)
        found = os.pread(file, end - begin, begin).rfind(b"\n")
        if found >= 0:
            end = begin + found + 1
            break
        end = begin
    if end < size:
        try:
            parse(os.pread(file, size - end, end).decode("utf-8", errors="replace"))
        except RecordError:
            os.ftruncate(file, end)
        else:
            _write(file, b"\n")


def _write(file: int, data: bytes) -> None:
    """All of it or, if the disk is full, nothing."""
    before = os.fstat(file).st_size
    written = os.write(file, data)
    if written < len(data):
        os.ftruncate(file, before)
        raise OSError(f"records: only {written} of {len(data)} bytes could be written")
