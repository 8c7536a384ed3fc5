"""Features of assembled kernels for a grid of threads: registers, memory, occupancy, and how the grid fills it.

They are known once a candidate is built, which needs no device; one whose registers are spilled is no candidate.
"""

from __future__ import annotations

from math import log2

from burnish.codegen.gridcode import GridCode
from burnish.errors import ScheduleError
from burnish.machines.nvptx.occupancy import occupancy, resident_blocks

ASSEMBLED = ("registers", "shared", "occupancy", "blocks", "resident")
"""Of the launch with most threads: registers of a thread, log2 of 1 + bytes of shared memory of a block, the share of a
multiprocessor's threads that are resident, log2 of the blocks, and blocks that a multiprocessor has at once."""


def assembled(code: GridCode) -> dict[str, float]:
    """The columns of ``ASSEMBLED`` by name; none where the code was not assembled.

    Raises ScheduleError for code that spills registers, with how many bytes of them.
    """
    for launch in code.launches:
        if launch.resources is not None and launch.resources.spilled:
            raise ScheduleError(
                f"kernel '{launch.name}': {launch.resources.spilled} bytes of its {launch.resources.registers} "
                "registers are spilled; allowed: none"
            )
    main = max(code.launches, key=lambda launch: launch.blocks * launch.threads, default=None)
    if main is None or main.resources is None:
        return {}
    asked = code.target, main.threads, main.resources.registers, main.resources.shared
    columns = (
        float(main.resources.registers), log2(1 + main.resources.shared), occupancy(*asked), log2(main.blocks),
        float(resident_blocks(*asked)),
    )  # fmt: skip
    return dict(zip(ASSEMBLED, columns, strict=True))
