"""Streams of other libraries: their handles, and the one that a call's arrays are computed on."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

from burnish.errors import InputError
from burnish.runtime.gpu.memory import DEFAULT_STREAM

ALLOWED = "a stream of PyTorch, CuPy or cuda.core, a handle as int, or None"


def handle_of(stream: Any) -> int:
    """Handle of a stream: itself, or of ``__cuda_stream__``, PyTorch's or CuPy's. Raises InputError for others."""
    found = getattr(stream, "__cuda_stream__", None)
    if found is not None:
        found = found() if callable(found) else found
        handle = found[1]
    else:
        handle = getattr(stream, "cuda_stream", getattr(stream, "ptr", stream))
    if isinstance(handle, (bool, float)) or not hasattr(handle, "__int__"):
        raise InputError(f"stream: found {type(stream).__name__}; allowed: {ALLOWED}")
    return named(int(handle))


def named(handle: int) -> int:
    """One handle of a stream: the default one has two."""
    return DEFAULT_STREAM if handle == 1 else handle


def stream_of(values: Iterable[Any]) -> int | None:
    """Stream that PyTorch asks in this thread now, if one of the arrays is a tensor; None: nobody says."""
    torch = sys.modules.get("torch")
    if torch is None or not any(isinstance(value, torch.Tensor) and value.is_cuda for value in values):
        return None
    return named(current_stream()(0))


@cache
def current_stream() -> Callable[[int], int]:
    """PyTorch's function from the number of a GPU to the handle of the stream that it asks in this thread now."""
    import torch

    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return raw or (lambda number: torch.cuda.current_stream(number).cuda_stream)
