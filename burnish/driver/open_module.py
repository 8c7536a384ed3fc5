"""Open first extents: a module of code for 1 that takes any, by code for other sizes, compiled when these come."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from burnish.driver.segmented import AT_CALLS, SegmentedModule
from burnish.errors import InputError, ModelError, UnsupportedOperator
from burnish.runtime.callable import ProfileRow
from burnish.runtime.gpu.calls import check_unordered
from burnish.runtime.module import Module


class OpenModule(Module):
    """A :class:`Module` of a model whose first extents are open (``assumed``): it is code for 1, and calls of other
    sizes run what ``make`` gives, which is compiled at the first call of each size.

    What ``save`` writes is the code for 1, of which it warns.
    """

    _make: Callable[[], SegmentedModule]

    @classmethod
    def of(cls, module: Module, make: Callable[[], SegmentedModule], warning: str) -> OpenModule:
        """Module for open first extents, which shares code and parameters of the compiled ``module``.

        ``make``: compiles the model for other sizes. ``warning``: the text of the warning before that.
        """
        made = object.__new__(cls)
        made._externs, made._comm, made._all = module._externs, module._comm, module._all
        made._make, made._warning, made._others = make, warning, None
        made._set_up(module.executable, module._code, module._params, module.state_bytes())
        return made

    _warning: str
    _others: SegmentedModule | None

    def __copy__(self) -> OpenModule:
        made = self.of(self, self._make, self._warning)
        made._others = self._others
        return made

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """As of :class:`Module`, for any first extents. Raises InputError, and what compilation raises."""
        plain = len(args) == self._arguments.count and not kwargs
        if plain and self._quick is not None and (found := self._quick(args)) is not None:
            return found
        if plain and self._others is not None and (form := self._others.form_of(args)) is not None:
            return form.run(args)
        given = args if plain else self._arguments.bind(args, kwargs)
        others = self._of_other_sizes(given)
        if others is None:
            return super().__call__(*given)
        try:
            return others(*given)
        except UnsupportedOperator:
            raise
        except ModelError as error:
            shapes = {spec.name: list(np.shape(v)) for spec, v in zip(self.inputs, given, strict=True)}
            raise InputError(f"inputs {shapes} are of sizes that the model does not take: {error}") from error

    def run_into(self, inputs: Sequence[Any], outputs: Sequence[np.ndarray], *, stream: Any = None) -> None:
        """As of :class:`Module`, for any first extents."""
        others = self._of_other_sizes(inputs)
        if others is None:
            super().run_into(inputs, outputs, stream=stream)
        else:
            check_unordered(stream)
            others.run_into(inputs, outputs)

    def profile(self, /, *args: Any, repeat: int = 20, **kwargs: Any) -> list[ProfileRow]:
        """As of :class:`Module`, for any first extents."""
        given = self._arguments.bind(args, kwargs)
        others = self._of_other_sizes(given)
        if others is None:
            return super().profile(*given, repeat=repeat)
        return others.profile(*given, repeat=repeat)

    def save(self, path: str | Path, *, key: bytes | None = None) -> None:
        """Writes the artifact of the code for 1, and warns that it holds no other. Errors as of :class:`Module`."""
        warnings.warn(f"{path} holds code for one size: {self._warning}", stacklevel=2)
        super().save(path, key=key)

    def _facts(self) -> list[str]:
        """Facts for ``repr``."""
        count = self._others.compilations if self._others is not None else 0
        return [*super()._facts(), f"first extents are open, {count} other sizes compiled"]

    def _of_other_sizes(self, given: Sequence[Any]) -> SegmentedModule | None:
        """Segmented module for calls whose open extents differ from those of the compiled code; None for others."""
        if len(given) != len(self.inputs):
            return None
        other = False
        for spec, value in zip(self.inputs, given, strict=True):
            shape = getattr(value, "shape", None)
            if shape is None or len(shape) != len(spec.shape):
                return None
            if tuple(shape) != spec.shape:
                if spec.name not in self.assumed or tuple(shape[1:]) != spec.shape[1:]:
                    return None
                other = True
        if not other:
            return None
        with self._lock:
            if self._others is None:
                warnings.warn(f"{self._warning}; until then it is compiled {AT_CALLS}", stacklevel=3)
                self._others = self._make()
        return self._others


def unchanged(model: Any) -> Callable[[], Any]:
    """Function that returns the model again, a path or an object. It raises InputError for a file that changed."""
    if not isinstance(model, (str, os.PathLike)):
        return lambda: model

    def state() -> tuple[int, int] | None:
        try:
            found = os.stat(model)
        except OSError:
            return None
        return found.st_size, found.st_mtime_ns

    before = state()

    def again() -> Any:
        if state() != before:
            raise InputError(
                f"found another size than 1, and the model file '{os.fspath(model)}' gone or changed since it was "
                "compiled; allowed: the same file, or shapes= at compile"
            )
        return model

    return again
