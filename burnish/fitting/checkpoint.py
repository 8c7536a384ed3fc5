"""Checkpoints of training: everything that lasts, in one safetensors file that is complete or absent.

A file holds ``state/NAME`` of every state of the step, ``random/NAME`` of generators of the data, ``history/NAME``, and
in its metadata, as JSON, where training was. It carries the SHA-256 of all of it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, deserialize
from safetensors.numpy import save

from burnish.base.files import read_regular, write_atomic
from burnish.errors import CheckpointError
from burnish.runtime.buffers import numpy_dtype

VERSION = 1
SUFFIX = ".safetensors"
BEST = f"best{SUFFIX}"
_DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
    "I16": "int16", "I8": "int8", "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip
_CHUNK = 1 << 20  # bytes written at a time
_NAME = re.compile(r"step-(\d{10})\.safetensors")
_UNFINISHED = re.compile(r"\.(?:step-\d{10}|best)\.safetensors\.(\d+)\.[0-9a-f]{8}\.tmp")  # of files.write_atomic


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """Training state to resume from: ``states`` by name, ``random`` and ``history`` likewise, and ``facts``, JSON."""

    states: Mapping[str, np.ndarray]
    facts: Mapping[str, Any]
    random: Mapping[str, np.ndarray] = field(default_factory=dict)
    history: Mapping[str, np.ndarray] = field(default_factory=dict)

    def write(self, path: Path) -> None:
        """Writes the file: complete, and on the disk, or not at all. Raises OSError."""
        tensors = {
            f"{group}/{name}": np.ascontiguousarray(value).reshape(np.shape(value))
            for group, values in (("state", self.states), ("random", self.random), ("history", self.history))
            for name, value in values.items()
        }
        facts = json.dumps(dict(self.facts))
        metadata = {"burnish.checkpoint": str(VERSION), "sha256": _digest(facts, tensors), "facts": facts}
        write_atomic(path, _chunks(save(tensors, metadata)), sync=True)

    @classmethod
    def read(cls, path: Path) -> Checkpoint:
        """The checkpoint in a file. Raises CheckpointError, naming the file and what is wrong, and OSError."""
        data = read_regular(path)
        try:
            tensors = {name: _array(entry) for name, entry in deserialize(data)}
            metadata = _metadata(data)
        except (SafetensorError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{path}: found no complete safetensors file: {error}") from error
        if metadata.get("burnish.checkpoint") != str(VERSION):
            found = metadata.get("burnish.checkpoint", "none")
            raise CheckpointError(f"{path}: found form {found}; allowed: a checkpoint of Burnish of form {VERSION}")
        if _digest(metadata.get("facts", ""), tensors) != metadata.get("sha256"):
            raise CheckpointError(f"{path}: found contents that differ from those that were written")
        groups: dict[str, dict[str, np.ndarray]] = {"state": {}, "random": {}, "history": {}}
        for key, value in tensors.items():
            group, _, name = key.partition("/")
            groups.setdefault(group, {})[name] = value
        return cls(groups["state"], json.loads(metadata["facts"]), groups["random"], groups["history"])

    def named_as(self, wanted: Iterable[str]) -> Checkpoint:
        """The checkpoint with the names in ``wanted`` for states that its file calls as torch.export does.

        Of networks of PyTorch, files up to Burnish 0.2 have `p_0_weight` for `0.weight`, `b_1_running_mean` for
        `1.running_mean`.
        """
        missing = [name for name in wanted if name not in self.states]
        count = Counter(map(_flat, missing))
        new = {_flat(name): name for name in missing if count[_flat(name)] == 1}
        old = {name: new.get(_flat(name[2:]), name) if name[:2] in ("p_", "b_") else name for name in self.states}
        return replace(self, states={old[name]: value for name, value in self.states.items()})

    def check_states(self, wanted: Mapping[str, tuple[tuple[int, ...], str]], path: Path) -> None:
        """Raises CheckpointError unless the states have these names, shapes and dtypes."""
        found = {name: (value.shape, str(value.dtype)) for name, value in self.states.items()}
        for name in sorted({*wanted, *found}):
            if found.get(name) != wanted.get(name):
                held, needed = (_text(types.get(name)) for types in (found, wanted))
                raise CheckpointError(f"{path}: state '{name}': found {held}; allowed: {needed}, as the model has it")


class Folder:
    """A folder of checkpoints ``step-NUMBER.safetensors``, of which the last ``keep`` stay, and of the best one."""

    def __init__(self, path: str | Path, keep: int = 2) -> None:
        """Makes the folder; removes what writers that were killed have left. Raises OSError."""
        self.path, self._keep = Path(path), keep
        self.path.mkdir(parents=True, exist_ok=True)
        for file in self.path.iterdir():
            match = _UNFINISHED.fullmatch(file.name)
            if match is not None and not _runs(int(match[1])):
                file.unlink(missing_ok=True)

    def paths(self) -> list[Path]:
        """The numbered checkpoints, the oldest first."""
        return sorted(file for file in self.path.iterdir() if _NAME.fullmatch(file.name))

    def add(self, number: int, checkpoint: Checkpoint) -> Path:
        """Writes a checkpoint; only then removes old ones. Raises OSError."""
        path = self.path / f"step-{number:010d}{SUFFIX}"
        checkpoint.write(path)
        for old in self.paths()[: -self._keep]:
            if old != path:
                old.unlink(missing_ok=True)
        return path

    def keep_best(self, checkpoint: Checkpoint) -> None:
        """Writes the checkpoint of the best evaluation. Raises OSError."""
        checkpoint.write(self.path / BEST)

    def latest(self) -> tuple[Path, Checkpoint] | None:
        """The newest checkpoint; None if there is none.

        Raises CheckpointError if it cannot be read, with the name of the next one that can.
        """
        paths = self.paths()
        if not paths:
            return None
        try:
            return paths[-1], Checkpoint.read(paths[-1])
        except CheckpointError as error:
            whole = next((path.name for path in reversed(paths[:-1]) if _is_whole(path)), None)
            if whole is None:
                raise
            raise CheckpointError(f"{error}; '{whole}' is whole: move the other away") from error


class ReadFolder(Folder):
    """A folder of checkpoints that another worker writes."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.path.mkdir(parents=True, exist_ok=True)

    def add(self, number: int, checkpoint: Checkpoint) -> Path:
        """Nothing: what is to be written has been gathered."""
        return self.path / f"step-{number:010d}{SUFFIX}"

    def keep_best(self, checkpoint: Checkpoint) -> None:
        """Nothing, likewise."""


def _is_whole(path: Path) -> bool:
    try:
        Checkpoint.read(path)
    except CheckpointError:
        return False
    return True


def _array(entry: Mapping[str, Any]) -> np.ndarray:
    """A tensor of a safetensors file; those of the library's own reader have no bfloat16."""
    return np.frombuffer(entry["data"], numpy_dtype(_DTYPES[entry["dtype"]])).reshape(entry["shape"])


def _metadata(data: bytes) -> dict[str, str]:
    """The metadata of a safetensors file: those of its header, whose length its first 8 bytes tell."""
    length = int.from_bytes(data[:8], "little")
    return dict(json.loads(data[8 : 8 + length]).get("__metadata__", {}))


def _digest(facts: str, tensors: Mapping[str, np.ndarray]) -> str:
    """The SHA-256 of the facts, and of names, types and bytes in the order of names."""
    found = hashlib.sha256(facts.encode())
    for name in sorted(tensors):
        value = tensors[name]
        found.update(f"{name}:{value.dtype}{list(value.shape)};".encode())
        found.update(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)
    return found.hexdigest()


def _chunks(data: bytes) -> Iterator[memoryview]:
    view = memoryview(data)
    for begin in range(0, len(view), _CHUNK):
        yield view[begin : begin + _CHUNK]


def _flat(name: str) -> str:
    """A name as torch.export writes it."""
    return re.sub(r"[^a-z0-9]", "_", name.lower())


def _text(found: tuple[tuple[int, ...], str] | None) -> str:
    return "nothing" if found is None else f"{found[1]}{list(found[0])}"


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
