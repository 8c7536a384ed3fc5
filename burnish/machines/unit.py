"""Matrix units: coprocessors of a core that multiply tiles, with registers of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from burnish.machines.intrinsics import TensorIntrinsic


@dataclass(frozen=True, eq=False)
class MatrixUnit:
    """``c[rows, columns] += a[rows, depth] b[depth, columns]`` on ``dtype`` operands, c in float32 and in registers.

    ``zero``, ``dot`` and ``store`` clear, accumulate and store a tile: register buffers that they use are its tiles.
    ``feature``: the instruction set that it needs, ``state`` the one whose use the system must allow, by ``permit``;
    without it all features that begin with ``prefix`` are off. ``operations``: declared, a core and second. Functions
    that hold tiles begin with ``enter`` and end with ``leave``; ``constants`` are of the module, ``declarations`` what
    these call: name, result, parameters. ``probe`` is LLVM IR of ``void NAME_probe(i64 n)``, which does
    ``probe_operations`` n times, to measure its rate.
    """

    name: str
    feature: str
    state: str
    prefix: str
    permit: Callable[[], bool]
    dtype: str
    rows: int
    columns: int
    depth: int
    operations: float
    zero: TensorIntrinsic
    dot: TensorIntrinsic
    store: TensorIntrinsic
    constants: str = ""
    probe: str = ""
    probe_operations: float = 0.0
    declarations: tuple[tuple[str, str, tuple[str, ...]], ...] = ()
    enter: tuple[str, ...] = ()
    leave: tuple[str, ...] = ()

    @property
    def intrinsics(self) -> tuple[TensorIntrinsic, ...]:
        """Its tensor intrinsics: clear a tile, multiply tiles and add, store one."""
        return self.zero, self.dot, self.store
