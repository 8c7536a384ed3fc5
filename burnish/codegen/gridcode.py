"""Code of a kernel for a grid of threads, as bytes: its launches, PTX, what ptxas made of it, and LLVM IR.

The first line is a head in JSON, then follow the sections. The IR is what a runner without a GPU executes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from burnish.errors import ArtifactError
from burnish.machines.nvptx.tensor_copies import TensorMap

Extents = tuple[int, int, int]


@dataclass(frozen=True)
class Resources:
    """Resource usage of a function, from ptxas: registers, bytes of stack and of spills a thread; bytes of shared
    memory of a block.
    """

    registers: int
    stack: int
    spilled: int
    shared: int


@dataclass(frozen=True)
class LaunchCode:
    """One function and the grid that it is launched over; ``resources``: None where it was not assembled. ``dynamic``:
    bytes of shared memory that the launch asks for, beside those of the code. ``maps``: tensor maps that the function
    takes behind its buffers and the workspace.
    """

    name: str
    grid: Extents
    block: Extents
    resources: Resources | None = None
    dynamic: int = 0
    maps: tuple[TensorMap, ...] = ()

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.block[0] * self.block[1] * self.block[2]

    @property
    def blocks(self) -> int:
        """Blocks of the grid."""
        return self.grid[0] * self.grid[1] * self.grid[2]


@dataclass(frozen=True)
class GridCode:
    """A kernel: its ``launches`` follow each other. Every function takes the addresses of the ``params`` buffers,
    multiples of what the machine moves at once, then that of ``workspace`` bytes of global memory. ``written``: the
    numbers of the buffers that it changes. ``nbytes``: of the buffers. ``target``: the LLVM CPU that it is for.
    ``cubin``: empty where it was not assembled.
    """

    launches: tuple[LaunchCode, ...]
    nbytes: tuple[int, ...]
    written: tuple[int, ...]
    workspace: int
    target: str
    ptx: str
    ir: str
    cubin: bytes = b""
    notes: Mapping[str, Any] = field(default_factory=dict)

    def packed(self) -> bytes:
        """As bytes."""
        sections = [self.ptx.encode(), self.ir.encode(), self.cubin]
        head = {
            "launches": [asdict(launch) for launch in self.launches],
            "nbytes": self.nbytes,
            "written": self.written,
            "workspace": self.workspace,
            "target": self.target,
            "notes": dict(self.notes),
            "sections": [len(s) for s in sections],
        }
        return b"\n".join([json.dumps(head).encode(), b"".join(sections)])

    @staticmethod
    def unpacked(code: bytes) -> GridCode:
        """Kernel from the bytes that :meth:`packed` makes; without tensor maps where there is no word of them. Raises
        ArtifactError for others.
        """
        first, _, rest = code.partition(b"\n")
        try:
            head = json.loads(first)
            a, b, c = head["sections"]
            if len(rest) != a + b + c:
                raise ValueError(f"{len(rest)} bytes of sections, {a + b + c} in the head")
            launches = tuple(
                LaunchCode(
                    one["name"], _extents(one["grid"]), _extents(one["block"]),
                    None if one["resources"] is None else Resources(**one["resources"]), int(one["dynamic"]),
                    tuple(_map(found) for found in one.get("maps", ())),
                )
                for one in head["launches"]
            )  # fmt: skip
            return GridCode(
                launches, tuple(head["nbytes"]), tuple(head["written"]), int(head["workspace"]), head["target"],
                rest[:a].decode(), rest[a : a + b].decode(), rest[a + b :], head["notes"],
            )  # fmt: skip
        except (ValueError, KeyError, TypeError, UnicodeDecodeError) as error:
            raise ArtifactError(f"code of a kernel for a grid is damaged: {error}") from error


def _map(found: Mapping[str, Any]) -> TensorMap:
    shape, box = (tuple(int(n) for n in found[name]) for name in ("shape", "box"))
    return TensorMap(int(found["argument"]), int(found["offset"]), str(found["dtype"]), shape, box)


def _extents(found: Any) -> Extents:
    x, y, z = (int(n) for n in found)
    return x, y, z
