"""The artifact ``.bn``: a compiled model in one file: graph, machine code and parameters. No pickle, no LLVM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from burnish.errors import ArtifactError, VerificationError
from burnish.runtime.container import read_container, write_container
from burnish.runtime.executable import Call, Executable, Slot, TensorSpec
from burnish.runtime.image import Image


def save(executable: Executable, path: str | Path) -> None:
    """Writes ``executable`` to ``path``, atomically. Raises OSError, and TypeError if JSON cannot hold its ``info``."""
    write_container(Path(path), *parts(executable))


def parts(executable: Executable) -> tuple[dict[str, Any], dict[str, memoryview]]:
    """The executable as a header that JSON can hold and named bytes; :func:`assembled` puts it together again."""
    header = {
        "target": executable.target,
        "inputs": [_spec_to_json(spec) for spec in executable.inputs],
        "outputs": [_spec_to_json(spec) for spec in executable.outputs],
        "calls": [
            [call.kernel, call.node, [[slot.space, slot.index, slot.offset] for slot in call.args]]
            for call in executable.calls
        ],
        "arena_bytes": executable.arena_bytes,
        "scratch_bytes": executable.scratch_bytes,
        "graph": executable.graph,
        "info": executable.info,
        "images": {"driver": _image_to_json(executable.driver), "code": _image_to_json(executable.code)},
    }
    sections = {
        "driver": memoryview(executable.driver.data),
        "code": memoryview(executable.code.data),
        "params": np.ascontiguousarray(executable.params).data,
    }
    return header, sections


def read(path: str | Path) -> Executable:
    """The executable saved in ``path``; its parameters are a view of the mapped file.

    Raises ArtifactError for a file that is no artifact, of another format version, truncated, altered or inconsistent;
    OSError if it cannot be read. Whether this machine can run it is the module's question (``host.check_host``).
    """
    container = read_container(Path(path))
    try:
        return assembled(container.header, container.sections)
    except (KeyError, TypeError, ValueError, VerificationError) as error:
        raise ArtifactError(f"{path} is inconsistent: {type(error).__name__}: {error}") from error


def assembled(header: Mapping[str, Any], sections: Mapping[str, memoryview]) -> Executable:
    """The executable of these :func:`parts`; its parameters are a view of the bytes.

    Raises KeyError, TypeError, ValueError or VerificationError for what is inconsistent.
    """
    return Executable(
        inputs=tuple(_spec_from_json(spec) for spec in header["inputs"]),
        outputs=tuple(_spec_from_json(spec) for spec in header["outputs"]),
        calls=tuple(_call_from_json(call) for call in header["calls"]),
        driver=_image_from_json(header["images"]["driver"], sections["driver"]),
        code=_image_from_json(header["images"]["code"], sections["code"]),
        params=np.frombuffer(sections["params"], np.uint8),
        arena_bytes=int(header["arena_bytes"]),
        scratch_bytes=int(header["scratch_bytes"]),
        target=header["target"],
        graph=header["graph"],
        info=header["info"],
    )


def _spec_to_json(spec: TensorSpec) -> list[Any]:
    return [spec.name, list(spec.shape), spec.dtype]


def _spec_from_json(data: Sequence[Any]) -> TensorSpec:
    name, shape, dtype = data
    return TensorSpec(name, tuple(int(extent) for extent in shape), dtype)


def _call_from_json(data: Sequence[Any]) -> Call:
    kernel, node, slots = data
    return Call(kernel, tuple(Slot(space, int(index), int(offset)) for space, index, offset in slots), node)


def _image_to_json(image: Image) -> dict[str, Any]:
    return {"machine": image.machine, "symbols": dict(image.symbols), "absolute": image.absolute}


def _image_from_json(data: Mapping[str, Any], code: memoryview) -> Image:
    absolute = tuple((int(offset), int(target)) for offset, target in data["absolute"])
    return Image(data["machine"], bytes(code), dict(data["symbols"]), absolute)
