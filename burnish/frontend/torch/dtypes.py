"""PyTorch dtypes and tensors as Burnish dtypes and NumPy arrays, without copies."""

from __future__ import annotations

from typing import Any

import numpy as np

from burnish.errors import InputError, UnsupportedOperator
from burnish.loops.expr import DTYPES
from burnish.loops.numeric import numpy_dtype


def dtype_name(dtype: Any, where: str) -> str:
    """The dtype of a ``torch.dtype``; UnsupportedOperator, naming ``where``, if there is none."""
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise UnsupportedOperator(f"{where}: dtype: found {name}; allowed: {', '.join(DTYPES)}")
    return name


DEVICES = ("cpu", "cuda", "meta")  # of tensors that are read: the target decides where a model runs


def require_device(tensor: Any, where: str) -> None:
    """Raises UnsupportedOperator, naming ``where``, for a tensor on another kind of device than ``DEVICES``."""
    if tensor.device.type not in DEVICES:
        raise UnsupportedOperator(f"{where}: found device {tensor.device}; allowed: {', '.join(DEVICES)}")


def on_cpu(value: Any) -> Any:
    """A tensor on a GPU copied to the CPU, a device that is a GPU as the CPU; anything else as it is."""
    kind = getattr(value, "type", None) if type(value).__name__ == "device" else None
    if kind is not None:
        return type(value)("cpu") if kind in DEVICES else value
    return value.cpu() if getattr(value, "is_cuda", False) else value


def to_numpy(tensor: Any, where: str) -> np.ndarray:
    """A tensor's memory as an array, with the strides it has. Raises InputError for one that is not in CPU memory."""
    found = tensor.detach()
    try:
        if str(found.dtype) == "torch.bfloat16":
            import torch

            return found.view(torch.int16).numpy().view(numpy_dtype("bfloat16"))
        return found.resolve_neg().numpy()
    except (TypeError, RuntimeError) as error:
        kind = f"{str(tensor.layout).removeprefix('torch.')} on device {tensor.device}"
        raise InputError(f"{where}: found a tensor, {kind}; allowed: dense tensors in CPU memory ({error})") from None


def to_torch(array: Any) -> Any:
    """An array's memory as a tensor, which keeps it alive; also of an array elsewhere, by DLPack."""
    import torch

    if not isinstance(array, np.ndarray):
        return torch.from_dlpack(array)
    if array.dtype.kind == "V":  # of NumPy's own view on bfloat16
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)
