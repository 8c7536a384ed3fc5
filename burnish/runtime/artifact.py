"""The artifact ``.bn``: a compiled model in one file: graph, machine code and parameters. No pickle, no LLVM.

An artifact is a program: what is loaded runs with all rights of the process. Its checksums find damage on the way, not
intent: whoever can write the file can make it do anything. Load only what you trust: from a place that others cannot
write, by the SHA-256 of the file, or signed with a key that only you have.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from burnish.errors import ArtifactError, VerificationError
from burnish.loops.size_text import extent_text, parse_extent
from burnish.loops.sizes import Dim, is_size
from burnish.memory.lifetimes import Interval
from burnish.runtime.container import Container, read_container, write_container
from burnish.runtime.executable import CallShare, ConcurrentCalls, Executable, TensorSpec
from burnish.runtime.image import Image
from burnish.runtime.steps import (
    Branch,
    Collective,
    CopyStep,
    Count,
    Host,
    KernelCall,
    Native,
    Pointer,
    Repeat,
    Slot,
    Step,
    Wait,
    While,
)


class NotExecutableError(ArtifactError):
    """A file of ours that is no executable: of another ``kind``, which the header names, with its ``container``."""

    def __init__(self, path: Path, kind: str, container: Container) -> None:
        super().__init__(f"{path} holds {kind}; allowed: an executable, or burnish.load, which reads both")
        self.kind, self.container = kind, container


def save(executable: Executable, path: str | Path, key: bytes | None = None) -> None:
    """Writes ``executable`` to ``path``, atomically: under another name first, never into a file that is in use.

    ``key``: signs the file (HMAC-SHA-256), which then loads with this key alone. Raises OSError, and TypeError if JSON
    cannot hold its ``info``.
    """
    write_container(Path(path), *parts(executable), checked_key(key))


def parts(executable: Executable) -> tuple[dict[str, Any], dict[str, memoryview]]:
    """The executable as a header that JSON can hold and named bytes; :func:`assembled` puts it together again."""
    header: dict[str, Any] = {
        "target": executable.target,
        "inputs": [_spec_to_json(spec) for spec in executable.inputs],
        "outputs": [_spec_to_json(spec) for spec in executable.outputs],
        "steps": [_step_to_json(step) for step in executable.steps],
        "states": [_spec_to_json(spec) for spec in executable.states],
        "arena_bytes": executable.arena_bytes,
        "dims": [[d.name, d.low, d.high, d.hint] for d in executable.dims],
        "buffers": [[b.name, extent_text(b.nbytes), b.first, b.last] for b in executable.buffers],
        "in_place": [list(pair) for pair in executable.in_place],
        "scratch_bytes": executable.scratch_bytes,
        "graph": executable.graph,
        "info": executable.info,
        "images": {"driver": _image_to_json(executable.driver), "code": _image_to_json(executable.code)},
    }
    if executable.concurrent:
        header["concurrent"] = [
            [g.first, g.count, g.threads, [[list(dataclasses.astuple(s)) for s in region] for region in g.regions]]
            for g in executable.concurrent
        ]
    header["digest"] = _digest(header)
    sections = {
        "driver": memoryview(executable.driver.data),
        "code": memoryview(executable.code.data),
        "params": np.ascontiguousarray(executable.params).data,
    }
    if executable.states:
        sections["state"] = np.ascontiguousarray(executable.state).data
        sections["initial"] = np.ascontiguousarray(executable.initial).data
    return header, sections


def read(path: str | Path, sha256: str | None = None, key: bytes | None = None) -> Executable:
    """The executable saved in ``path``, copied into memory: what happens to the file later has no effect.

    ``sha256``: of the file, as ``sha256sum`` prints it; another file is refused. ``key``: what the file is signed with.
    Raises ArtifactError for a file that is no artifact, of another format version, truncated, altered, inconsistent, or
    not the one that is asked for; OSError if it cannot be read or is no regular file. Whether this machine can run it
    is the module's question (``host.check_host``).
    """
    container = read_container(Path(path), sha256, checked_key(key))
    return executable_of(Path(path), container)


def executable_of(path: Path, container: Container) -> Executable:
    """Executable in a container that was read from ``path``. Raises ArtifactError."""
    if "kind" in container.header:
        raise NotExecutableError(path, str(container.header["kind"]), container)
    with consistent(path):
        return assembled(container.header, container.sections)


@contextmanager
def consistent(path: Path) -> Iterator[None]:
    """Raises ArtifactError in the place of what is raised where parts of a file do not fit together."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError, VerificationError) as error:
        raise ArtifactError(f"{path} is inconsistent: {type(error).__name__}: {error}") from error


def assembled(header: Mapping[str, Any], sections: Mapping[str, memoryview]) -> Executable:
    """The executable of these :func:`parts`; its parameters are a view of the bytes.

    Raises LookupError, TypeError, ValueError, AttributeError or VerificationError for what is inconsistent.
    """
    if header["digest"] != _digest(header):
        raise ValueError("the header does not match its own digest; it was edited")
    dims = {name: Dim(name, low, high, hint) for name, low, high, hint in header["dims"]}
    return Executable(
        inputs=tuple(_spec_from_json(spec, dims) for spec in header["inputs"]),
        outputs=tuple(_spec_from_json(spec, dims) for spec in header["outputs"]),
        steps=tuple(_step_from_json(step, dims) for step in header["steps"]),
        driver=_image_from_json(header["images"]["driver"], sections["driver"]),
        code=_image_from_json(header["images"]["code"], sections["code"]),
        params=np.frombuffer(sections["params"], np.uint8),
        arena_bytes=header["arena_bytes"],
        scratch_bytes=header["scratch_bytes"],
        target=header["target"],
        graph=header["graph"],
        info=header["info"],
        buffers=tuple(Interval(name, _extent(n, dims), first, last) for name, n, first, last in header["buffers"]),
        in_place=tuple((dying, born) for dying, born in header["in_place"]),
        states=tuple(_spec_from_json(spec, dims) for spec in header["states"]),
        state=np.frombuffer(sections.get("state", b""), np.uint8),
        initial=np.frombuffer(sections.get("initial", b""), np.uint8),
        concurrent=tuple(_concurrent_from_json(data) for data in header.get("concurrent", ())),
    )


def _digest(header: Mapping[str, Any]) -> str:
    """SHA-256 of what the header says, however it is written: edits by hand are refused, not run."""
    said = {name: value for name, value in header.items() if name not in ("digest", "sections", "writer")}
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def checked_key(key: bytes | None) -> bytes | None:
    """The key itself. Raises TypeError, or ValueError for one that can be guessed."""
    if key is not None and not isinstance(key, bytes):
        raise TypeError(f"key is a {type(key).__name__}, allowed: bytes, such as secrets.token_bytes(32)")
    if key is not None and len(key) < 16:
        raise ValueError(f"key has {len(key)} bytes, allowed: 16 or more, such as secrets.token_bytes(32)")
    return key


def _spec_to_json(spec: TensorSpec) -> list[Any]:
    return [spec.name, list(map(extent_text, spec.shape)), spec.dtype]


def _spec_from_json(data: Sequence[Any], dims: Mapping[str, Dim]) -> TensorSpec:
    name, shape, dtype = data
    return TensorSpec(name, tuple(_extent(extent, dims) for extent in shape), dtype)


def _extent(data: int | str, dims: Mapping[str, Dim]) -> int:
    """Extent: a number, or the size of a text; anything else stays as it is, for the verifier to refuse."""
    found = parse_extent(data, dims) if isinstance(data, str) else data
    return found if is_size(found) else data  # type: ignore[return-value]


def _step_to_json(step: Step) -> list[Any]:
    match step:
        case KernelCall(kernel, args, node):
            return ["call", node, kernel, [_slot_to_json(s) for s in args]]
        case Count(dim, source, node):
            return ["count", node, dim.name, _slot_to_json(source)]
        case CopyStep(source, target, node, nbytes, number):
            rest = [extent_text(nbytes), None if number is None else _slot_to_json(number)]
            plain = number is None and type(nbytes) is int and not nbytes
            return ["copy", node, _slot_to_json(source), _slot_to_json(target), *([] if plain else rest)]
        case Branch(condition, then, other, node):
            then_steps, other_steps = ([_step_to_json(s) for s in part] for part in (then, other))
            return ["if", node, _slot_to_json(condition), then_steps, other_steps]
        case While(limit, condition, number, before, body, node):
            where = [_slot_to_json(slot) for slot in (limit, condition, number)]
            return ["while", node, *where, *([_step_to_json(s) for s in part] for part in (before, body))]
        case Host(operator, args, specs, results, attrs, node):
            typed = [_slot_to_json(s) for s in args], [_spec_to_json(spec) for spec in specs]
            return ["host", node, operator, *typed, results, dict(attrs)]
        case Collective(operation, reduce, source, target, spec, node, result, peer, tag):
            places = [None if slot is None else _slot_to_json(slot) for slot in (source, target)]
            types = [None if t is None else _spec_to_json(t) for t in (spec, result)]
            return ["collective", node, operation, reduce, *places, *types, peer, tag]
        case Wait(number, node):
            return ["wait", node, number]
        case Repeat(count, once, calls, odd, pointers, node):
            listed = [[_step_to_json(call) for call in part] for part in (once, calls, odd)]
            return ["repeat", node, extent_text(count), *listed, [_pointer_to_json(p) for p in pointers]]


def _step_from_json(data: Sequence[Any], dims: Mapping[str, Dim]) -> Step:
    match data:
        case ["call", node, kernel, slots]:
            return KernelCall(kernel, tuple(map(_slot_from_json, slots)), node)
        case ["count", node, name, source]:
            return Count(dims[name], _slot_from_json(source), node)
        case ["copy", node, source, target, *rest]:
            nbytes, number = rest or (0, None)
            where = None if number is None else _slot_from_json(number)
            return CopyStep(_slot_from_json(source), _slot_from_json(target), node, _extent(nbytes, dims), where)
        case ["if", node, condition, then, other]:
            return Branch(_slot_from_json(condition), _natives(then, dims), _natives(other, dims), node)
        case ["while", node, limit, condition, number, before, body]:
            limits, going, rounds = map(_slot_from_json, (limit, condition, number))
            return While(limits, going, rounds, _natives(before, dims), _natives(body, dims), node)
        case ["host", node, operator, slots, specs, results, attrs]:
            types = tuple(_spec_from_json(spec, dims) for spec in specs)
            return Host(operator, tuple(map(_slot_from_json, slots)), types, results, attrs, node)
        case ["collective", node, operation, reduce, source, target, spec, *rest]:
            begin, end = (None if slot is None else _slot_from_json(slot) for slot in (source, target))
            result, peer, tag = rest or (None, -1, 0)
            own = None if result is None else _spec_from_json(result, dims)
            return Collective(operation, reduce, begin, end, _spec_from_json(spec, dims), node, own, peer, tag)
        case ["wait", node, number]:
            return Wait(number, node)
        case ["repeat", node, count, once, calls, odd, pointers]:
            parts = (tuple(_call_from_json(call) for call in part) for part in (once, calls, odd))
            first, even, others = parts
            moving = tuple(_pointer_from_json(p, dims) for p in pointers)
            return Repeat(_extent(count, dims), first, even, others, moving, node)
    raise ValueError(f"a step is {data!r}, allowed: call, copy, count, host, collective, wait, repeat, if, while")


def _natives(data: Sequence[Any], dims: Mapping[str, Dim]) -> tuple[Native, ...]:
    """The steps that another one holds."""
    found = [_step_from_json(each, dims) for each in data]
    native = tuple(step for step in found if isinstance(step, Native))
    if len(native) < len(found):
        raise ValueError(f"steps in another are {data!r}, allowed: call, copy, repeat, if, while")
    return native


def _concurrent_from_json(data: Sequence[Any]) -> ConcurrentCalls:
    first, count, threads, regions = data
    shares = tuple(tuple(CallShare(*share) for share in region) for region in regions)
    return ConcurrentCalls(first, count, threads, shares)


def _call_from_json(data: Sequence[Any]) -> KernelCall:
    kind, node, kernel, slots = data
    if kind != "call":
        raise ValueError(f"a repeated step is {data!r}, allowed: call")
    return KernelCall(kernel, tuple(map(_slot_from_json, slots)), node)


def _pointer_to_json(pointer: Pointer) -> list[Any]:
    before = None if pointer.before is None else _slot_to_json(pointer.before)
    places = [_slot_to_json(slot) for slot in pointer.places]
    return [places, extent_text(pointer.stride), pointer.backwards, before, pointer.nbytes]


def _pointer_from_json(data: Sequence[Any], dims: Mapping[str, Dim]) -> Pointer:
    (even, odd), stride, backwards, before, nbytes = data
    places = _slot_from_json(even), _slot_from_json(odd)
    first = None if before is None else _slot_from_json(before)
    return Pointer(places, _extent(stride, dims), backwards, first, nbytes)


def _slot_to_json(slot: Slot) -> list[Any]:
    return [slot.memory, slot.index, slot.offset, slot.nbytes]


def _slot_from_json(data: Sequence[Any]) -> Slot:
    memory, index, offset, nbytes = data
    return Slot(memory, index, offset, nbytes)


def _image_to_json(image: Image) -> dict[str, Any]:
    return {"machine": image.machine, "symbols": dict(image.symbols), "absolute": image.absolute}


def _image_from_json(data: Mapping[str, Any], code: memoryview) -> Image:
    absolute = tuple((offset, target) for offset, target in data["absolute"])
    return Image(data["machine"], bytes(code), dict(data["symbols"]), absolute)
