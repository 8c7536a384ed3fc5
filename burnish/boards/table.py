"""Table of devices: a small TOML file of boards by name and kind, and how each is reached."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from burnish.base.files import open_regular, write_atomic
from burnish.errors import ParameterError

VARIABLE = "BURNISH_DEVICES"  # environment: the path of the file
REACHES = ("ssh", "local", "emulator")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_ADDRESS = re.compile(r"([A-Za-z0-9_][A-Za-z0-9_.-]*@)?[A-Za-z0-9_\[:][A-Za-z0-9_.:%\]-]*")


@dataclass(frozen=True)
class BoardEntry:
    """A board. ``kind``: what tuners ask for, by default the target that its code is compiled for; ``reach``: one of
    REACHES: by SSH at ``address`` (``user@host``, or a name of SSH's own configuration), as a process of this machine,
    or as one with an emulator of ARM CPUs. ``python``: its interpreter, from 3.8 on.
    """

    name: str
    kind: str
    reach: str = "local"
    address: str = ""
    target: str = ""
    python: str = ""

    def __post_init__(self) -> None:
        """Raises ParameterError, naming the field, what was found and what is allowed."""
        for field in fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, str):
                raise ParameterError(f"device {self.name!r}: {field.name}: found {value!r}; allowed: text")
        if not _NAME.fullmatch(self.name):
            raise ParameterError(f"device: found the name {self.name!r}; allowed: letters, digits, '.', '_' and '-'")
        if not self.kind:
            raise ParameterError(f"device '{self.name}': no kind; allowed: a name that boards of its kind share")
        if self.reach not in REACHES:
            raise ParameterError(f"device '{self.name}': reach {self.reach!r}; allowed: {', '.join(REACHES)}")
        if self.reach == "ssh" and not _ADDRESS.fullmatch(self.address):
            raise ParameterError(
                f"device '{self.name}': found the address {self.address!r}; allowed with ssh: host or user@host"
            )
        if self.reach != "ssh" and self.address:
            raise ParameterError(f"device '{self.name}': an address with reach '{self.reach}'; allowed: with ssh")

    @property
    def target_name(self) -> str:
        """The target that its code is compiled for."""
        return self.target or self.kind


def default_path() -> Path:
    """``$BURNISH_DEVICES``, or ``burnish/devices.toml`` in the user's folder of configurations."""
    named = os.environ.get(VARIABLE)
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "burnish" / "devices.toml"


def read(path: str | Path) -> list[BoardEntry]:
    """The devices of a file. Raises ParameterError, naming the file and the entry; OSError if it cannot be read."""
    with open_regular(path) as file:
        text = file.read()
    try:
        document = tomllib.loads(text.decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ParameterError(f"devices: '{path}' is no TOML file: {error}") from None
    entries = document.pop("device", [])
    if document or not (isinstance(entries, list) and all(isinstance(entry, dict) for entry in entries)):
        found = ", ".join(document) or "device, which is no list"
        raise ParameterError(f"devices: '{path}' has {found}; allowed: tables [[device]]")
    known = [field.name for field in fields(BoardEntry)]
    found_devices = []
    for number, entry in enumerate(entries, 1):
        strange, missing = set(entry) - set(known), {"name", "kind"} - set(entry)
        if strange or missing:
            wrong = f"unknown: {', '.join(sorted(strange))}" if strange else f"missing: {', '.join(sorted(missing))}"
            raise ParameterError(f"devices: '{path}': device {number}: {wrong}; allowed: {', '.join(known)}")
        found_devices.append(BoardEntry(**entry))
    check_names(found_devices)
    return found_devices


def check_names(devices: Sequence[BoardEntry]) -> None:
    """Raises ParameterError where two devices have the same name."""
    twice = [name for name, count in Counter(device.name for device in devices).items() if count > 1]
    if twice:
        raise ParameterError(f"devices: {', '.join(map(repr, twice))} twice; allowed: each name once")


def add(path: Path, device: BoardEntry) -> None:
    """Adds a device to a file, whose other lines stay as they are. Raises ParameterError if it has one of that name."""
    before = ""
    if path.exists():
        check_names([*read(path), device])
        before = path.read_text(encoding="utf-8").rstrip() + "\n\n"
    given = [(field.name, getattr(device, field.name)) for field in fields(device)]
    lines = [f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in given if value]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, [(before + "\n".join(["[[device]]", *lines]) + "\n").encode()])
