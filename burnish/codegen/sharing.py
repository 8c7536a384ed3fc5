"""Shared memory of a launch: where its buffers are, and which of it the launch has to ask for.

Up to 48 KiB of a kernel's shared arrays are part of its code. More has to be asked for at the launch, as one array:
then buffers are places in that.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from burnish.errors import ScheduleError
from burnish.loops.expr import BLOCK_SCOPES
from burnish.loops.program import allocations
from burnish.lower.threads import Launch
from burnish.machines.nvptx.threads import SHARED_ALIGNMENT, SHARED_SPACE, shared_name
from burnish.machines.target import Target

STATIC = 48 << 10  # bytes that need not be asked for
DYNAMIC = "gpu_shared"
_ARRAY = re.compile(rf"^@([\w.]+) = internal addrspace\({SHARED_SPACE}\) global .*\n", re.MULTILINE)


def shared_places(launch: Launch, target: Target) -> tuple[Mapping[str, int], int]:
    """Where the arrays of a launch begin if it asks for shared memory, and the bytes that it asks for, or 0.

    Raises ScheduleError for more than a block may have.
    """
    places, end = {}, 0
    for alloc in allocations(launch.body):
        if alloc.buffer.scope in BLOCK_SCOPES:
            places[shared_name(alloc.buffer)] = end
            end += -(-alloc.buffer.nbytes // SHARED_ALIGNMENT) * SHARED_ALIGNMENT
    most = target.shared_bytes
    if end > most:
        raise ScheduleError(f"target '{target.name}': {end} bytes of shared memory; allowed: {most} of a block")
    return places, end if end > STATIC else 0


def with_dynamic(text: str, places: Mapping[str, int]) -> str:
    """LLVM IR whose shared arrays of these names are places in the array that a launch asks for."""
    if not places:
        return text
    text = _ARRAY.sub(lambda m: "" if m[1] in places else m[0], text)
    array = f"ptr addrspace({SHARED_SPACE}) @{DYNAMIC}"

    def placed(m: re.Match[str]) -> str:
        return f"getelementptr (i8, {array}, i64 {places[m[1]]})" if m[1] in places else m[0]

    text = re.sub(r"@(shared\.[\w.]+)", placed, text)
    return f"@{DYNAMIC} = external addrspace({SHARED_SPACE}) global [0 x i8], align {SHARED_ALIGNMENT}\n{text}"
