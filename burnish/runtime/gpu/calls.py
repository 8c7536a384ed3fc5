"""Calls on arrays in a GPU's memory: what a module checks before its runner takes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from burnish.errors import InputError
from burnish.runtime.gpu.arrays import is_on_gpu
from burnish.runtime.gpu.cuda import CudaRunner
from burnish.runtime.gpu.streams import handle_of


class GpuCalls:
    """Calls of a ``module.Module`` whose runner works in a GPU's memory; they hold the module's lock. The module, which
    has them, is given to each: it frees its memory with the last reference to it.
    """

    def __init__(self, module: Any) -> None:
        self._runner, own = module._runner, module.executable
        self._whole = len(module.inputs) == len(own.inputs) and not any(i.low is None for i in module._integers)
        self._named = {spec.name for spec in module.inputs}

    @staticmethod
    def of(module: Any) -> GpuCalls | None:
        """The calls of a module; None where no GPU runs it."""
        return GpuCalls(module) if isinstance(module._runner, CudaRunner) else None

    def stream_in(self, kwargs: Mapping[str, Any]) -> tuple[dict[str, Any], int | None]:
        """The arguments by name without ``stream``, which is no input's name, and the handle of that, if it is given.
        Raises InputError.
        """
        rest = dict(kwargs)
        stream = None if "stream" in self._named else rest.pop("stream", None)
        return rest, None if stream is None else handle_of(stream)

    def __call__(
        self, module: Any, inputs: Sequence[Any], outputs: Sequence[Any] | None, stream: int | None
    ) -> list[Any]:
        """The outputs, new ones if none are given. Raises InputError for arrays that do not fit."""
        self._check()
        if len(inputs) != len(module.inputs) or (outputs is not None and len(outputs) != len(module.outputs)):
            has = f"the model has {len(module.inputs)}, and {len(module.outputs)} outputs"
            raise InputError(f"{len(inputs)} inputs and {len(outputs or module.outputs)} outputs given, {has}")
        given = [
            value if is_on_gpu(value) else np.ascontiguousarray(module._arguments.converted(spec, value))
            for spec, value in zip(module.inputs, inputs, strict=True)
        ]
        module.check_integers([None if is_on_gpu(value) else value for value in given])
        with module._lock:
            return self._runner.run_there(given, outputs, stream)

    def at(self, module: Any, inputs: Sequence[int], outputs: Sequence[int], stream: int) -> None:
        """A call on addresses, as of :meth:`CudaRunner.run_at`."""
        self._check()
        with module._lock:
            self._runner.run_at(inputs, outputs, stream)

    def _check(self) -> None:
        """Raises InputError where inputs are checked or completed in this machine's memory."""
        if not self._whole:
            raise InputError("found arrays of a GPU for a model whose labels or rows are checked; allowed: of the CPU")


def check_unordered(stream: Any) -> None:
    """Raises InputError for a stream that is given for arrays which none is needed for."""
    if stream is not None:
        raise InputError("stream: found one for arrays in this machine's memory; allowed: None, or arrays on a GPU")
