"""What tests of GPUs share: a task of one operator, its kernel, and what the coroutine runner makes of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from burnish.codegen.grid import compile_grid
from burnish.codegen.gridcode import GridCode
from burnish.kernels.task import KernelTask
from burnish.kernels.templates import tunable_matches
from burnish.loops.evaluate import evaluate
from burnish.loops.numeric import numpy_dtype
from burnish.loops.program import LoopProgram
from burnish.loops.tensor import placeholder
from burnish.machines.target import Target, target
from burnish.ops import OPERATORS
from burnish.runtime.gpu.records import LaunchCounts
from burnish.simulators.gpu.emulator import GridEmulator

SM80, TF32 = target("cuda:sm_80"), target("cuda:sm_80,tf32")


@dataclass(frozen=True)
class Case:
    """One operator on random inputs, scheduled by a template (None: the first) with choices beside its defaults."""

    op: str
    shapes: Sequence[tuple[int, ...]]
    attrs: Mapping[str, Any]
    dtypes: Sequence[str] = ()
    template: str | None = None
    choice: Mapping[str, Any] | None = None
    machine: Target | None = None

    def task(self) -> KernelTask:
        """What the kernel computes."""
        dtypes = self.dtypes or ["float32"] * len(self.shapes)
        inputs = [placeholder(s, d, f"x{i}") for i, (s, d) in enumerate(zip(self.shapes, dtypes, strict=True))]
        found = OPERATORS[self.op].define("y", inputs, dict(self.attrs))
        return KernelTask("kernel", tuple(inputs), tuple(found), self.op, {}, frozenset())

    def program(self) -> tuple[LoopProgram, str]:
        """The scheduled program, and the template's name."""
        matches = tunable_matches(self.task(), self.machine or SM80)
        match = matches[0] if self.template is None else next(m for m in matches if m.name == self.template)
        return match.apply({**match.space.default, **(self.choice or {})}).program, match.name

    def arrays(self, seed: int = 0) -> dict[str, np.ndarray]:
        """Inputs by name."""
        rng = np.random.default_rng(seed)
        found = {}
        for t in self.task().inputs:
            kind = numpy_dtype(t.dtype)
            whole = "int" in t.dtype
            drawn = rng.integers(-9 if t.dtype == "int8" else 0, 5, t.shape) if whole else rng.standard_normal(t.shape)
            found[t.name] = drawn.astype(kind)
        return found


def execute(code: GridCode, case: Case, seed: int = 0) -> tuple[list[np.ndarray], list[np.ndarray], LaunchCounts]:
    """Results of a kernel, expected ones, and counts."""
    task, arrays = case.task(), case.arrays(seed)
    expected = evaluate(task.outputs, arrays)
    results = [np.zeros_like(e) for e in expected]
    device = GridEmulator(seed)
    device.run(code.packed(), [a.reshape(-1).view(np.uint8) for a in (*arrays.values(), *results)])
    return results, expected, device.counts


def check(case: Case, tolerance: float = 1e-5) -> LaunchCounts:
    """Runs a case without ptxas and compares; its counts."""
    results, expected, counts = execute(compile_grid(case.program()[0], SM80, assembled=False), case)
    for result, wanted in zip(results, expected, strict=True):
        scale = float(np.max(np.abs(wanted), initial=1e-6))
        np.testing.assert_allclose(result, wanted, rtol=0, atol=tolerance * scale)
    return counts
