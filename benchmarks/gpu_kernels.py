"""Rows, attention, windows, maps and convolutions on a GPU, beside PyTorch (cuDNN, its fused attention).

``python -m benchmarks.gpu_kernels build FOLDER`` compiles a module for each, on any machine; ``... run FOLDER [--json
FILE]`` checks and times them where there is a GPU: replays of the module's graph of launches, and of a CUDA graph of
PyTorch's call, in turn; medians of 9 times 20. Without a GPU it says so and ends. Not yet run on a GPU.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import burnish as bn
from benchmarks.layers import CONVOLUTIONS, DEPTHWISE
from burnish.graph import Graph, GraphBuilder
from burnish.optional import require
from burnish.runtime.gpu.cuda import CudaDevice, CudaRunner

REPEATS, REPLAYS = 9, 20
TOLERANCE = {"float32": 1e-4, "float16": 1e-2}
MACHINE = "cuda:sm_90a"


@dataclass(frozen=True)
class Row:
    """A graph of a few operators on random ``inputs`` (weights last are constants of the graph), and PyTorch's call."""

    name: str
    graph: Callable[[GraphBuilder, list[np.ndarray]], str]
    inputs: tuple[tuple[int, ...], ...]
    torch: Callable[[Any, list[Any]], Any]
    dtype: str = "float32"

    def arrays(self) -> list[np.ndarray]:
        """Random inputs."""
        rng = np.random.default_rng(len(self.name))
        return [(rng.standard_normal(shape) * 0.3).astype(self.dtype) for shape in self.inputs]

    def build(self) -> Graph:
        """The graph."""
        b = GraphBuilder()
        return b.build(self.graph(b, self.arrays()))


def _called(op: str, **attrs: Any) -> Callable[[GraphBuilder, list[np.ndarray]], str]:
    """One operator on inputs."""

    def made(b: GraphBuilder, arrays: list[np.ndarray]) -> str:
        return b.add(op, *(b.input(f"x{i}", a.shape, str(a.dtype)) for i, a in enumerate(arrays)), **attrs)

    return made


def _weighted(op: str, **attrs: Any) -> Callable[[GraphBuilder, list[np.ndarray]], str]:
    """One operator on an input and constant weights, with a relu."""

    def made(b: GraphBuilder, arrays: list[np.ndarray]) -> str:
        x = b.input("x0", arrays[0].shape, str(arrays[0].dtype))
        return b.add("relu", b.add(op, x, *(b.constant(a) for a in arrays[1:]), **attrs))

    return made


def _attention(b: GraphBuilder, arrays: list[np.ndarray]) -> str:
    q, k, v = (b.input(f"x{i}", a.shape, str(a.dtype)) for i, a in enumerate(arrays))
    scale = b.constant(np.array(arrays[0].shape[-1] ** -0.5, arrays[0].dtype))
    scores = b.add("mul", b.add("matmul", q, k, transpose_b=True), scale)
    return b.add("matmul", b.add("softmax", scores, axis=-1), v)


def _convolutions(batch: int) -> list[Row]:
    rows = []
    for layer in (*CONVOLUTIONS, *DEPTHWISE):
        pad, stride, groups = layer.kernel // 2, layer.stride, layer.groups
        attrs = {"pads": (pad,) * 4, "strides": (stride,) * 2, "groups": groups}

        def call(torch: Any, t: list[Any], pad: int = pad, stride: int = stride, groups: int = groups) -> Any:
            return torch.relu(torch.nn.functional.conv2d(t[0], t[1], None, stride, pad, 1, groups))

        shape = (batch, *layer.input_shape[1:])
        rows.append(Row(f"{layer.name} b{batch}", _weighted("conv2d", **attrs), (shape, layer.weight_shape), call))
    return rows


def _rows_of_matrices() -> list[Row]:
    rows = []
    for count, width in ((1536, 128), (8192, 1024), (2048, 16384), (64, 50257)):
        rows.append(
            Row(f"softmax {count}x{width}", _called("softmax"), ((count, width),), lambda t, x: t.softmax(x[0], -1))
        )
    for dtype in TOLERANCE:
        shapes = ((8192, 768), (768,), (768,))
        rows.append(
            Row(f"layer_norm {dtype}", _called("layer_norm"), shapes,
                lambda t, x: t.nn.functional.layer_norm(x[0], (768,), x[1], x[2]), dtype)
        )  # fmt: skip
    mean = _called("reduce_mean", axes=(2, 3))
    rows.append(Row("mean 64x2048x7x7", mean, ((64, 2048, 7, 7),), lambda t, x: x[0].mean((2, 3), keepdim=True)))
    return rows


def _attentions() -> list[Row]:
    def call(torch: Any, t: list[Any]) -> Any:
        return torch.nn.functional.scaled_dot_product_attention(*t)

    sizes = ((1, 12, 128, 128), (8, 12, 512, 512), (1, 16, 4096, 4096), (1, 12, 1, 1024), (16, 12, 1, 4096))
    return [
        Row(f"attention {dtype} {b}x{h}x{rows}x{keys}", _attention, ((b, h, rows, 64), *((b, h, keys, 64),) * 2), call,
            dtype)
        for dtype in TOLERANCE for b, h, rows, keys in sizes
    ]  # fmt: skip


def rows() -> list[Row]:
    """Everything that is measured."""
    pool = _called("max_pool2d", kernel=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1))
    shape = (64, 64, 112, 112)
    return [
        *_rows_of_matrices(),
        *_attentions(),
        Row("max_pool 64x64x112x112", pool, (shape,), lambda t, x: t.nn.functional.max_pool2d(x[0], 3, 2, 1)),
        Row("add 64x64x112x112", _called("add"), (shape, shape), lambda t, x: x[0] + x[1]),
        *_convolutions(1),
        *_convolutions(64),
    ]


def build(folder: Path, chosen: str) -> None:
    """Writes a module for each row."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, row in enumerate(rows()):
        if chosen in row.name:
            module = bn.compile(row.build(), target=MACHINE, cache_dir=folder / "cache")
            module.save(folder / f"{number}.bn")
            print(f"{row.name}: {', '.join(step.label for step in module.executable.steps)}", flush=True)


def _torch_times(torch: Any, row: Row, tensors: list[Any]) -> tuple[Any, Callable[[], float]]:
    """PyTorch's result, and what gives milliseconds of a replay of its call."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    for _ in range(3):
        result = row.torch(torch, tensors)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        row.torch(torch, tensors)

    def timed() -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(REPLAYS):
            graph.replay()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / REPLAYS

    return result, timed


def _own_times(path: Path, arrays: list[np.ndarray]) -> tuple[np.ndarray, Callable[[], float]]:
    """A module's result, and what gives milliseconds of a replay."""
    device: Any = _Device()
    module = bn.load(path, device=device)
    result = np.asarray(module(*arrays[: len(module.executable.inputs)]))
    loaded: Any = device.made._loaded
    begin, end = (loaded.ask("cuEventCreate", 0) for _ in range(2))

    def timed() -> float:
        loaded.ask("cuEventRecord", begin, loaded.stream)
        for _ in range(REPLAYS):
            loaded.replay()
        loaded.ask("cuEventRecord", end, loaded.stream)
        loaded.ask("cuEventSynchronize", end)
        return float(loaded.ask("cuEventElapsedTime", begin, end)) / REPLAYS

    return result, timed


def measured(row: Row, path: Path, torch: Any) -> dict[str, Any]:
    """One row: the error, and both medians in milliseconds."""
    arrays = row.arrays()
    own, ours = _own_times(path, arrays)
    tensors = [torch.from_numpy(a).cuda() for a in arrays]
    with torch.no_grad():
        expected, theirs = _torch_times(torch, row, tensors)
        times = [(ours(), theirs()) for _ in range(REPEATS)]
    wanted = expected.float().cpu().numpy()
    error = float(np.max(np.abs(own.astype(np.float32).reshape(wanted.shape) - wanted)) / np.max(np.abs(wanted)))
    mine, other = (median(column) for column in zip(*times, strict=True))
    right = error < TOLERANCE[row.dtype]
    return {"row": row.name, "error": error, "right": right, "ms": mine, "torch_ms": other, "ratio": other / mine}


class _Device(CudaDevice):
    """A GPU that keeps its runner, whose launches are timed without copies from and to this machine."""

    made: CudaRunner

    def runner(self, executable: Any, kernels: Any, params: Any, state: Any, externs: Any, comm: Any) -> CudaRunner:
        """As that of the class above."""
        self.made = super().runner(executable, kernels, params, state, externs, comm)
        return self.made


def main() -> None:
    """Builds modules, or runs those that were built."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("build", "run"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="a part of the names of rows")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.what == "build":
        build(args.folder, args.only)
        return
    torch: Any = require("torch", extra="torch")
    if not torch.cuda.is_available():
        print("no device: PyTorch finds no GPU")
        return
    found = []
    for number, row in enumerate(rows()):
        path = args.folder / f"{number}.bn"
        if args.only in row.name and path.exists():
            found.append(measured(row, path, torch))
            print(found[-1], flush=True)
    if args.json:
        args.json.write_text(json.dumps({"device": torch.cuda.get_device_name(), "rows": found}, indent=1))


if __name__ == "__main__":
    main()
