"""Export of a network by PyTorch's exporters: by torch.export or TorchScript, extents fixed or open."""

from __future__ import annotations

import inspect
import os
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks.brought.recipe import Made, with_random_constants

Axes = dict[int, dict[int, str]]  # of each input the extents that may stay open, by name
BATCH: Axes = {0: {0: "batch"}}
SEQUENCE: Axes = {0: {0: "batch", 1: "seq"}}
TOLERANCES = {"float16": 2e-2, "bfloat16": 1e-1}


@dataclass(frozen=True)
class Network:
    """A module, its arguments, and the extents that may stay open. ``names``: of the inputs."""

    module: Any
    arguments: tuple[Any, ...]
    axes: Axes = field(default_factory=dict)
    names: Sequence[str] = ()


@dataclass(frozen=True)
class Architecture:
    """Architecture: its constructor, and the forms it is exported in. ``opset``: None for the exporter's own."""

    make: Callable[[], Network]
    forms: str
    needs: tuple[str, ...]
    dtype: str = ""
    opset: int | None = None


def image(size: int, channels: int = 3, batch: int = 2) -> Any:
    import torch

    return torch.randn(batch, channels, size, size)


def ids(batch: int = 2, length: int = 16, high: int = 200) -> Any:
    import torch

    return torch.randint(3, high, (batch, length))


def export(architecture: Architecture, form: str) -> Made:
    """Form "static" (torch.export, all extents fixed), "open" (the same with open extents) or "script" (TorchScript's
    exporter, open extents).
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import torch

    torch.manual_seed(0)
    network = architecture.make()
    module = _settled(network.module)
    arguments = network.arguments
    if architecture.dtype:
        dtype = getattr(torch, architecture.dtype)
        module = module.to(dtype)
        arguments = tuple(a.to(dtype) if a.is_floating_point() else a for a in arguments)
    names = list(network.names) or [f"x{i}" for i in range(len(arguments))]
    options: dict[str, Any] = {"input_names": names}
    if architecture.opset:
        options["opset_version"] = architecture.opset
    if form == "script":
        options["dynamic_axes"] = {names[i]: dict(axes) for i, axes in network.axes.items()} or None
    elif form == "open":
        options["dynamic_shapes"] = _dynamic(module, network.axes, len(arguments))
    torch.backends.mha.set_fastpath_enabled(False)  # what its kernels do, exporters cannot say
    with tempfile.TemporaryDirectory() as folder, torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder) / "model.onnx"
        if form == "script":
            torch.onnx.export(module, arguments, path, dynamo=False, **options)
        else:
            torch.onnx.export(module, arguments, path, dynamo=True, external_data=False, verbose=False, **options)
        model = onnx.load(path)
    arrays = dict(zip(names, (a.detach().numpy() for a in arguments), strict=True))
    left = [value.name for value in model.graph.input]
    if not set(left) <= arrays.keys():  # an exporter may name inputs of its own
        arrays = dict(zip(left, arrays.values(), strict=True))
    inputs = {name: np.ascontiguousarray(arrays[name]) for name in left}
    return Made(with_random_constants(model), inputs, TOLERANCES.get(architecture.dtype, 1e-3))


def _settled(module: Any) -> Any:
    """In its form of inference, with statistics of batches that are not the neutral ones."""
    import torch

    for layer in module.modules():
        if isinstance(layer, torch.nn.modules.batchnorm._BatchNorm) and layer.running_mean is not None:
            layer.running_mean.normal_(0, 0.1)
            layer.running_var.uniform_(0.5, 1.5)
    return module.eval()


def _dynamic(module: Any, axes: Axes, count: int) -> tuple[Any, ...]:
    """Open extents as torch.export takes them: those of ``*args`` are one tuple."""
    import torch

    dims = [dict.fromkeys(axes.get(i, {}), torch.export.Dim.AUTO) for i in range(count)]
    positional = list(inspect.signature(module.forward).parameters.values())
    fixed = sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in positional)
    variadic = any(p.kind == p.VAR_POSITIONAL for p in positional)
    return (*dims[:fixed], tuple(dims[fixed:])) if variadic else tuple(dims)
