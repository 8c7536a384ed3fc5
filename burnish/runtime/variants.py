"""Variants: code of one model for several CPUs in one artifact, of which loading takes one that this machine can run.

header  ::= {"kind": "variants", "variants": [variant, ...]}
variant ::= {"name", "target", "header": that of an artifact of its own, "sections": {name: [bytes, [piece, ...]]}}
piece   ::= [byte of the section, section of the file, byte in that, bytes]

Parameters are cut where steps begin to read them. Pieces of equal bytes are stored once, beside those that the same
variants have, so that what another machine needs is not read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from burnish.errors import ArtifactError
from burnish.runtime import artifact
from burnish.runtime.buffers import ALIGNMENT, allocate, round_up
from burnish.runtime.container import read_container, write_container
from burnish.runtime.executable import Executable
from burnish.runtime.host import cpu_flags, features_of, obstacle

KIND = "variants"


@dataclass(frozen=True)
class Variant:
    """A model for one target, by the target's name."""

    name: str
    executable: Executable

    def noted(self, facts: Mapping[str, Any]) -> Variant:
        """The variant with more ``info``."""
        return replace(self, executable=replace(self.executable, info={**self.executable.info, **facts}))


def choose(targets: Mapping[str, str], wanted: str | None = None) -> str:
    """The variant to run here, of those whose ``host.fingerprint`` is given by name: of the ones that this CPU and the
    system allow, the one that uses most instruction sets, or the first of several. Where the system does not tell what
    the CPU has, it is the one that uses fewest.

    ``wanted``: this one and no other. Raises ArtifactError, naming what there is and what is in the way.
    """
    if wanted is not None and wanted not in targets:
        raise ArtifactError(f"variant: found {wanted!r}; allowed: {', '.join(targets)}")
    obstacles = {name: obstacle(target) for name, target in targets.items()}
    usable = [name for name in targets if not obstacles[name]]
    if wanted is not None and wanted not in usable:
        here = ", ".join(usable) or "none"
        raise ArtifactError(f"variant '{wanted}' was compiled for {obstacles[wanted]}; allowed here: {here}")
    if wanted is not None:
        return wanted
    if not usable:
        listed = "; ".join(f"'{name}' for {reason}" for name, reason in obstacles.items())
        raise ArtifactError(f"no variant of the model runs on this machine: {listed}; compile it for this machine")
    best = max if cpu_flags() else min
    return best(usable, key=lambda name: len(features_of(targets[name])))


def save(variants: Sequence[Variant], path: str | Path, key: bytes | None = None) -> None:
    """Writes one file of several variants; else as :func:`artifact.save`."""
    write_container(Path(path), *parts(variants), artifact.checked_key(key))


def read(
    path: str | Path,
    sha256: str | None = None,
    key: bytes | None = None,
    wanted: str | None = None,
    anywhere: bool = False,
) -> Executable:
    """The executable of the variant that :func:`choose` picks, or what a file without variants holds.

    ``wanted``: the variant of this name. ``anywhere``: whether something else than this CPU will run it, which then
    has to be named. Raises ArtifactError as :func:`artifact.read` and :func:`choose`; sections of other variants are
    not looked at.
    """
    taken: dict[str, Any] = {}

    def sections(header: Mapping[str, Any]) -> Collection[str] | None:
        if header.get("kind") != KIND:
            return None
        with artifact.consistent(Path(path)):
            targets = {v["name"]: v["target"] for v in header["variants"]}
        if anywhere and wanted is None:
            raise ArtifactError(f"{path} holds variants for {', '.join(targets)}; a device runs one that is named")
        name = wanted if anywhere and wanted in targets else choose(targets, wanted)
        with artifact.consistent(Path(path)):
            taken.update(next(v for v in header["variants"] if v["name"] == name))
            return {piece[1] for _, pieces in taken["sections"].values() for piece in pieces}

    container = read_container(Path(path), sha256, artifact.checked_key(key), sections)
    if not taken:
        if wanted is not None:
            raise ArtifactError(
                f"variant: found {wanted!r}; allowed: None, for {path} holds one model without variants"
            )
        return artifact.executable_of(Path(path), container)
    with artifact.consistent(Path(path)):
        executable = _executable(taken, container.sections)
        if executable.target != taken["target"]:
            raise ValueError(f"variant {taken['name']!r} is for {executable.target!r}, not for {taken['target']!r}")
        return executable


def described(path: str | Path, key: bytes | None = None) -> list[dict[str, Any]]:
    """The variants of a file, from its header alone: ``name``, ``target``, ``bytes`` of code and parameters, and the
    ``obstacle`` to running it here (empty: none). None in a file without variants. Raises ArtifactError and OSError.
    """
    header = read_container(Path(path), None, artifact.checked_key(key), lambda header: ()).header
    if header.get("kind") != KIND:
        return []
    with artifact.consistent(Path(path)):
        return [
            {
                "name": v["name"],
                "target": v["target"],
                "bytes": sum(size for size, _ in v["sections"].values()),
                "obstacle": obstacle(v["target"]),
            }
            for v in header["variants"]
        ]


def executables(header: Mapping[str, Any], sections: Mapping[str, memoryview]) -> list[Executable]:
    """All that :func:`parts` took apart, in order. Raises as :func:`artifact.assembled`."""
    return [_executable(variant, sections) for variant in header["variants"]]


def _executable(variant: Mapping[str, Any], sections: Mapping[str, memoryview]) -> Executable:
    own = {name: _gathered(size, pieces, sections) for name, (size, pieces) in variant["sections"].items()}
    return artifact.assembled(variant["header"], own)


def with_state(variants: Sequence[Variant], state: np.ndarray) -> list[Variant]:
    """The variants with another present state, which lies in memory alike in all of them."""
    return [replace(v, executable=replace(v.executable, state=state)) for v in variants]


def parts(variants: Sequence[Variant]) -> tuple[dict[str, Any], dict[str, memoryview]]:
    """Header and sections of a file of these variants."""
    made = [artifact.parts(v.executable) for v in variants]
    data: dict[tuple[str, bytes], memoryview] = {}
    users: dict[tuple[str, bytes], dict[int, None]] = {}
    cut: list[dict[str, list[tuple[int, tuple[str, bytes]]]]] = []
    for number, (variant, (_, sections)) in enumerate(zip(variants, made, strict=True)):
        cut.append({})
        for name, whole in sections.items():
            spans = _spans(variant.executable) if name == "params" else [(0, len(whole))]
            own = cut[-1][name] = []
            for begin, end in spans:
                piece = whole[begin:end]
                content = (name, hashlib.sha256(piece).digest())
                own.append((begin, content))
                data[content] = piece
                users.setdefault(content, {})[number] = None
    places, stored = _grouped(data, users)
    listed = [
        {
            "name": variant.name,
            "target": variant.executable.target,
            "header": header,
            "sections": {
                name: [len(sections[name]), [[begin, *places[c], len(data[c])] for begin, c in own]]
                for name, own in cuts.items()
            },
        }
        for variant, (header, sections), cuts in zip(variants, made, cut, strict=True)
    ]
    return {"kind": KIND, "variants": listed}, stored


def _spans(executable: Executable) -> list[tuple[int, int]]:
    """The parameters in pieces: from each place where steps begin to read to the next one."""
    slots = (slot for step in executable.steps for slot in step.slots if slot.memory == "param")
    begins = sorted({0, *(slot.offset for slot in slots)} - {executable.params.nbytes})
    return list(pairwise([*begins, executable.params.nbytes]))


def _grouped(
    data: Mapping[tuple[str, bytes], memoryview], users: Mapping[tuple[str, bytes], Mapping[int, None]]
) -> tuple[dict[tuple[str, bytes], tuple[str, int]], dict[str, memoryview]]:
    """Section layout: the place of each content, (section of the file, byte), and the sections, one for all of the same
    users.
    """
    groups: dict[str, list[tuple[str, bytes]]] = {}
    for content, numbers in users.items():
        groups.setdefault(f"{content[0]} {','.join(map(str, numbers))}", []).append(content)
    places: dict[tuple[str, bytes], tuple[str, int]] = {}
    sections: dict[str, memoryview] = {}
    for group, contents in groups.items():
        total = sum(round_up(len(data[c]), ALIGNMENT) for c in contents)
        room, at = np.zeros(total, np.uint8), 0
        for content in contents:
            places[content] = group, at
            room[at : at + len(data[content])] = np.frombuffer(data[content], np.uint8)
            at += round_up(len(data[content]), ALIGNMENT)
        sections[group] = room.data
    return places, sections


def _gathered(size: int, pieces: Sequence[Sequence[Any]], sections: Mapping[str, memoryview]) -> memoryview:
    """A section of a variant from its pieces. Raises ValueError where these lie outside of it or of the file's."""
    if len(pieces) == 1 and pieces[0][0] == 0 and pieces[0][3] == size:
        _, name, begin, nbytes = pieces[0]
        return _piece(sections[name], begin, nbytes)
    room = allocate(size)
    room[:] = 0
    for to, name, begin, nbytes in pieces:
        if not 0 <= to <= to + nbytes <= size:
            raise ValueError(f"a piece lies at {to} to {to + nbytes}, allowed: in {size} bytes")
        room[to : to + nbytes] = np.frombuffer(_piece(sections[name], begin, nbytes), np.uint8)
    return room.data


def _piece(section: memoryview, begin: int, nbytes: int) -> memoryview:
    if not 0 <= begin <= begin + nbytes <= len(section):
        raise ValueError(f"a piece is read at {begin} to {begin + nbytes}, allowed: in {len(section)} bytes")
    return section[begin : begin + nbytes]
