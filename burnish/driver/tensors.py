"""Compiled models over PyTorch tensors: kernels read and write the tensors' own memory, also on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from burnish.frontend.torch.dtypes import to_numpy, to_torch
from burnish.runtime.gpu.arrays import is_on_gpu
from burnish.runtime.module import Module
from burnish.runtime.sized import Sized


class TensorModule(Module):
    """A :class:`Module` with :meth:`run`, which takes and gives tensors."""

    @classmethod
    def of(cls, module: Module) -> TensorModule:
        """The compiled ``module``, of which it shares code and parameters."""
        made = object.__new__(cls)
        made._externs, made._comm, made._all = module._externs, module._comm, module._all
        made._set_up(module.executable, module._code, module._params, module._state_bytes)
        made._take_tensors()
        return made

    def _take_tensors(self) -> None:
        import torch

        self._tensor, self._parameter, self._empty = torch.Tensor, torch.nn.Parameter, torch.empty
        self._input_dtypes = [getattr(torch, spec.dtype) for spec in self.inputs]
        self._output_dtypes = [getattr(torch, spec.dtype) for spec in self.outputs]

    def run(self, tensors: Sequence[Any]) -> list[Any]:
        """The outputs for tensors in the order of the inputs, dense and new. Raises InputError for wrong ones."""
        now = self._fixed or self._seen.get(tuple([getattr(t, "shape", None) for t in tensors]))
        addresses = None if now is None else self._addresses(tensors, now)
        if now is None or addresses is None:  # of sizes not seen, other strides or devices, or none that are allowed
            found = super().__call__(*self._readable(tensors))
            return [to_torch(a) for a in (found if isinstance(found, tuple) else (found,))]
        if self._integers:
            places = {each.position for each in self._integers}
            self.check_integers([t.numpy() if i in places else None for i, t in enumerate(tensors)])
        empty = self._empty
        results = [empty(s, dtype=d) for (s, _), d in zip(now.outputs, self._output_dtypes, strict=True)]
        addresses += [r.data_ptr() for r in results]
        self._execute(addresses + now.values, now)
        return results

    def _readable(self, values: Sequence[Any], role: str = "input") -> list[Any]:
        """Tensors as arrays on their memory; those on a GPU, which a module for one takes, as they are, inputs of them
        made contiguous. Raises InputError.
        """
        given: list[Any] = []
        for i, value in enumerate(values):
            if not isinstance(value, self._tensor):
                given.append(value)
            elif self._there is None or not is_on_gpu(value):
                given.append(to_numpy(value, f"{role} {i}"))
            else:
                there = value.detach()
                given.append(there.resolve_neg().contiguous() if role == "input" else there)
        return given

    def _addresses(self, tensors: Sequence[Any], now: Sized) -> list[int] | None:
        """Where dense tensors of the expected types lie; None if one is anything else."""
        if len(tensors) != len(now.inputs):
            return None
        plain = (self._tensor, self._parameter)
        found = []
        for tensor, (shape, _), dtype in zip(tensors, now.inputs, self._input_dtypes, strict=True):
            if (
                type(tensor) not in plain
                or tensor.dtype is not dtype
                or tensor.shape != shape
                or not tensor.is_cpu
                or tensor.is_sparse
                or not tensor.is_contiguous()
                or tensor.is_neg()
            ):
                return None
            found.append(tensor.data_ptr())
        return found
