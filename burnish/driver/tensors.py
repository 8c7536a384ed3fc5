"""Compiled models over PyTorch tensors: kernels read and write the tensors' own memory, also on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from burnish.frontend.torch.dtypes import to_numpy, to_torch
from burnish.machines.nvptx.machine import VECTOR_BYTES
from burnish.runtime.gpu.arrays import DEVICE, is_on_gpu
from burnish.runtime.gpu.calls import check_unordered
from burnish.runtime.gpu.streams import current_stream, named
from burnish.runtime.module import Module
from burnish.runtime.sized import Sized


class TensorModule(Module):
    """A :class:`Module` with :meth:`run`, which takes and gives tensors."""

    @classmethod
    def of(cls, module: Module) -> TensorModule:
        """The compiled ``module``, of which it shares code and parameters."""
        made = object.__new__(cls)
        made._externs, made._comm, made._all = module._externs, module._comm, module._all
        made._set_up(module.executable, module._code, module._params, module.state_bytes())
        made._take_tensors()
        return made

    def _take_tensors(self) -> None:
        import torch

        self._tensor, self._plain, self._empty = torch.Tensor, (torch.Tensor, torch.nn.Parameter), torch.empty
        self._input_dtypes = [getattr(torch, spec.dtype) for spec in self.inputs]
        self._output_dtypes = [getattr(torch, spec.dtype) for spec in self.outputs]
        self._on_gpu = torch.device("cuda", DEVICE)

    def run(self, tensors: Sequence[Any], stream: int | None = None) -> list[Any]:
        """The outputs for tensors in the order of the inputs, dense and new. ``stream``: of a GPU, as of a call. Raises
        InputError for wrong ones.
        """
        now = self._fixed or self._seen.get(tuple([getattr(t, "shape", None) for t in tensors]))
        there = self._gpu is not None and stream is None and _is_cuda(tensors)
        addresses = None if now is None else self._addresses(tensors, now, there)
        if now is None or addresses is None:  # of sizes not seen, other strides or devices, or none that are allowed
            named = {} if stream is None else {"stream": stream}
            found = super().__call__(*self._readable(tensors), **named)
            return [to_torch(a) for a in (found if isinstance(found, tuple) else (found,))]
        if there:
            return self._run_there(addresses, now)
        check_unordered(stream)
        if self._integers:
            places = {each.position for each in self._integers}
            self.check_integers([t.numpy() if i in places else None for i, t in enumerate(tensors)])
        empty = self._empty
        results = [empty(s, dtype=d) for (s, _), d in zip(now.outputs, self._output_dtypes, strict=True)]
        addresses += [r.data_ptr() for r in results]
        self._execute(addresses + now.values, now)
        return results

    def _run_there(self, addresses: list[int], now: Sized) -> list[Any]:
        """As :meth:`run`, for tensors on a GPU at these addresses, on the stream that torch asks now."""
        assert self._gpu is not None
        empty, device = self._empty, self._on_gpu
        results = [
            empty(shape, dtype=dtype, device=device)
            for (shape, _), dtype in zip(now.outputs, self._output_dtypes, strict=True)
        ]
        stream = named(current_stream()(DEVICE))
        self._gpu.at(self, addresses, [r.data_ptr() for r in results], stream)
        return results

    def _readable(self, values: Sequence[Any], role: str = "input") -> list[Any]:
        """Tensors as arrays on their memory; those on a GPU, which a module for one takes, as they are, inputs of them
        made contiguous. Raises InputError.
        """
        given: list[Any] = []
        for i, value in enumerate(values):
            if not isinstance(value, self._tensor):
                given.append(value)
            elif self._gpu is None or not is_on_gpu(value):
                given.append(to_numpy(value, f"{role} {i}"))
            else:
                there = value.detach()
                given.append(there.resolve_neg().contiguous() if role == "input" else there)
        return given

    def _addresses(self, tensors: Sequence[Any], now: Sized, there: bool) -> list[int] | None:
        """Where dense tensors of the expected types lie, on the CPU or on the GPU; None if one is anything else."""
        if len(tensors) != len(now.inputs):
            return None
        plain = self._plain
        found = []
        for tensor, (shape, _), dtype in zip(tensors, now.inputs, self._input_dtypes, strict=True):
            if (
                type(tensor) not in plain
                or tensor.dtype is not dtype
                or tensor.shape != shape
                or not (tensor.is_cuda if there else tensor.is_cpu)
                or tensor.is_sparse
                or not tensor.is_contiguous()
                or tensor.is_neg()
            ):
                return None
            address = tensor.data_ptr()
            if there and (address % VECTOR_BYTES or tensor.get_device() != DEVICE):
                return None
            found.append(address)
        return found


def _is_cuda(tensors: Sequence[Any]) -> bool:
    """Whether the first of some arguments is a tensor on a GPU, as all must be that are read where they are."""
    return bool(tensors) and getattr(tensors[0], "is_cuda", False)
