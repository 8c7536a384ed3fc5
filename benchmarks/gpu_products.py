"""Matrix products on a GPU, by template and choice, against those of cuBLAS through PyTorch.

``python -m benchmarks.gpu_products build FOLDER`` assembles all kernels, on any machine with ptxas; ``... run FOLDER
[--json FILE]`` checks and times them where there is a GPU, every kernel in a process of its own. Times are medians of
CUDA events around ten launches; inputs are random numbers.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.provenance import stored
from burnish.base.optional import require
from burnish.codegen.grid import compile_grid
from burnish.codegen.gridcode import GridCode
from burnish.kernels.task import KernelTask
from burnish.kernels.templates import tunable_matches
from burnish.loops.tensor import placeholder
from burnish.machines.target import target
from burnish.ops import OPERATORS
from burnish.runtime.gpu.driver import LaunchArguments
from burnish.runtime.gpu.tensor_maps import TensorMaps

SECONDS = 25.0  # for one kernel
REPEATS, LAUNCHES = 9, 10
TORCH = {"float32": "float32", "tf32": "float32", "float16": "float16", "bfloat16": "bfloat16", "int8": "int8"}
Variant = tuple[str, str, tuple[int, int, int], dict[str, Any]]
WARPGROUP, TENSOR, SHARED = "warpgroup_product", "tensor_product", "shared_product"
BOXES = {"fetch": "boxes"}  # of factors by the tensor memory accelerator, beside copies of threads
TOLERANCE = {"float32": 1e-5, "tf32": 2e-3, "float16": 2e-3, "bfloat16": 1e-2, "int8": 0.0}  # of norms


def variants() -> list[Variant]:
    """Template, element type, rows, depth and columns, and the choices that differ from the default."""
    small, large, odd = (4096, 4096, 4096), (8192, 8192, 8192), (200, 136, 328)
    found: list[Variant] = [
        (WARPGROUP, "bfloat16", odd, {"tile": "64x64"}),
        (WARPGROUP, "float16", odd, {"tile": "128x128"}),
        (WARPGROUP, "bfloat16", odd, {"tile": "64x64", **BOXES}),
        (WARPGROUP, "float16", odd, {"tile": "128x128", **BOXES}),
        (TENSOR, "float16", odd, {}),
        (SHARED, "float32", (203, 131, 77), {}),
    ]
    for size in (small, large):
        for tile, stages in (("128x256", 4), ("128x256", 3), ("128x192", 4), ("256x128", 4)):
            choice = {"tile": tile, "stages": stages}
            found += [(WARPGROUP, "bfloat16", size, {**choice, **fetch}) for fetch in ({}, BOXES)]
    best, shallow, going_on = {"tile": "128x256", "stages": 4}, (4096, 1024, 4096), {"persistent": 1}
    for size in (small, large, shallow):
        found += [(WARPGROUP, "bfloat16", size, {**best, **going_on, **fetch}) for fetch in ({}, BOXES)]
    found += [(WARPGROUP, "bfloat16", shallow, {**best, **fetch}) for fetch in ({}, BOXES)]
    side = {"tile_m": 128, "tile_n": 128}
    found += [(TENSOR, "bfloat16", small, {**side, "stages": 3, **more}) for more in ({}, going_on)]
    fine = ((8, 2), (16, 2), (16, 4), (32, 2))
    found += [(SHARED, "float32", small, {**side, "depth": depth, "stages": stages}) for depth, stages in fine]
    found += [(SHARED, "float32", large, {**side, "depth": 16, "stages": 2})]
    return found


def kind_of(variant: Variant) -> str:
    """The arithmetic of a variant: float32 on tensor cores is TF32."""
    return "tf32" if variant[1] == "float32" and variant[0] != SHARED else variant[1]


def code_of(variant: Variant, machine: str) -> GridCode:
    """A variant, assembled."""
    template, dtype, (m, k, n), choice = variant
    inputs = [placeholder(shape, dtype, f"x{i}") for i, shape in enumerate(((m, k), (k, n)))]
    task = KernelTask(
        "kernel", tuple(inputs), tuple(OPERATORS["matmul"].define("y", inputs, {})), "matmul", {}, frozenset()
    )
    own = target(f"{machine},tf32" if kind_of(variant) == "tf32" else machine)
    match = next(found for found in tunable_matches(task, own) if found.name == template)
    return compile_grid(match.apply({**match.space.default, **choice}).program, own)


def build(folder: Path, machine: str) -> None:
    """Writes each kernel, and a list of them."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for number, variant in enumerate(variants()):
        code = code_of(variant, machine)
        (launch,) = code.launches
        (folder / f"{number}.kernel").write_bytes(code.packed())
        name = " ".join([*variant[:2], "x".join(map(str, variant[2])), *(f"{k}={v}" for k, v in variant[3].items())])
        row: dict[str, Any] = {"name": name, "kind": kind_of(variant), "sizes": variant[2]}
        if launch.resources is not None:
            row |= {"registers": launch.resources.registers, "spilled": launch.resources.spilled}
        rows.append({**row, "shared": launch.dynamic})
        print(rows[-1], flush=True)
    (folder / "kernels.json").write_text(json.dumps(rows, indent=1))


def reference(kind: str, sizes: tuple[int, int, int], data: Path) -> dict[str, Any]:
    """Writes random inputs and their product; milliseconds of cuBLAS."""
    torch: Any = require("torch", extra="torch")
    torch.backends.cuda.matmul.allow_tf32 = kind == "tf32"
    torch.manual_seed(sum(sizes))
    m, k, n = sizes
    draw = torch.randint if kind == "int8" else torch.randn
    low = (-8, 8) if kind == "int8" else ()
    x, y = (draw(*low, size, device="cuda").to(getattr(torch, TORCH[kind])) for size in ((m, k), (k, n)))
    path = data / f"{kind}-{m}-{k}-{n}"
    if not path.exists():
        path.mkdir()
        for name, one in (("x", x), ("y", y)):
            one.view(torch.uint8).cpu().numpy().tofile(path / name)
        torch.backends.cuda.matmul.allow_tf32 = False
        (x.float() @ y.float()).cpu().numpy().tofile(path / "product")
        torch.backends.cuda.matmul.allow_tf32 = kind == "tf32"
    multiply = torch._int_mm if kind == "int8" else torch.matmul
    try:
        multiply(x, y)
    except RuntimeError as error:
        return {"error": str(error)[:80]}
    torch.cuda.synchronize()
    times = []
    for _ in range(REPEATS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(LAUNCHES):
            multiply(x, y)
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / LAUNCHES)
    return {"ms": median(times), "least": min(times)}


class Driver:
    """The first GPU by the driver's own interface."""

    def __init__(self) -> None:
        self.library = require("cuda.bindings.driver", extra="cuda")
        self.ask("cuInit", 0)
        self.ask("cuCtxSetCurrent", self.ask("cuDevicePrimaryCtxRetain", self.ask("cuDeviceGet", 0)))

    def ask(self, name: str, *args: Any) -> Any:
        """Calls the driver. Raises RuntimeError where it fails."""
        code, *results = getattr(self.library, name)(*args)
        if int(code):
            raise RuntimeError(f"{name}: {code}")
        return results[0] if len(results) == 1 else tuple(results)


def one(folder: Path, number: int, data: Path) -> dict[str, Any]:
    """Error and milliseconds of one kernel."""
    row = json.loads((folder / "kernels.json").read_text())[number]
    code = GridCode.unpacked((folder / f"{number}.kernel").read_bytes())
    driver, (launch,) = Driver(), code.launches
    function = driver.ask("cuModuleGetFunction", driver.ask("cuModuleLoadData", code.cubin), launch.name.encode())
    if launch.dynamic:
        limit = driver.library.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        driver.ask("cuFuncSetAttribute", function, limit, launch.dynamic)
    path = data / f"{row['kind']}-{'-'.join(map(str, row['sizes']))}"
    arrays = [np.fromfile(path / name, np.uint8) for name in ("x", "y")]
    result = np.full(code.nbytes[2], 0xFF, np.uint8)
    places = [driver.ask("cuMemAlloc", nbytes) for nbytes in (*code.nbytes, max(code.workspace, 256))]
    for place, array in zip(places, (*arrays, result), strict=False):
        driver.ask("cuMemcpyHtoD", place, array.ctypes.data, array.nbytes)
    given = LaunchArguments(launch, [*map(int, places)], TensorMaps(driver.ask))

    def run() -> None:
        driver.ask("cuLaunchKernel", function, *launch.grid, *launch.block, launch.dynamic, 0, given.address, 0)

    run()
    driver.ask("cuCtxSynchronize")
    driver.ask("cuMemcpyDtoH", result.ctypes.data, places[2], result.nbytes)
    error = distance(result, row["kind"], np.fromfile(path / "product", np.float32))
    begin, end = (driver.ask("cuEventCreate", 0) for _ in range(2))
    times = []
    for _ in range(REPEATS):
        driver.ask("cuEventRecord", begin, 0)
        for _ in range(LAUNCHES):
            run()
        driver.ask("cuEventRecord", end, 0)
        driver.ask("cuEventSynchronize", end)
        times.append(driver.ask("cuEventElapsedTime", begin, end) / LAUNCHES)
    return {"error": error, "ms": median(times), "least": min(times)}


def distance(result: np.ndarray, kind: str, wanted: np.ndarray) -> float:
    """The norm of what differs over that of what is wanted; not a number where something was not written."""
    if kind == "bfloat16":
        found = (result.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    else:
        found = result.view({"float16": np.float16, "int8": np.int32}.get(kind, np.float32)).astype(np.float32)
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


def run(folder: Path, data: Path, only: str) -> list[dict[str, Any]]:
    """Times cuBLAS, then every kernel, then cuBLAS again."""
    rows = [row for row in json.loads((folder / "kernels.json").read_text()) if only in row["name"]]
    numbers = [i for i, row in enumerate(json.loads((folder / "kernels.json").read_text())) if only in row["name"]]
    data.mkdir(exist_ok=True)
    cases = dict.fromkeys((row["kind"], tuple(row["sizes"])) for row in rows)
    before = {case: reference(*case, data) for case in cases}
    for number, row in zip(numbers, rows, strict=True):
        command = [sys.executable, "-m", "benchmarks.gpu_products", "one", str(folder), str(number), str(data)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
            row |= json.loads(done.stdout) if not done.returncode else {"failed": done.stderr.strip()[-160:]}
        except subprocess.TimeoutExpired:
            row["failed"] = "it did not end"
    after = {case: reference(*case, data) for case in cases}
    for row in rows:
        case = row["kind"], tuple(row["sizes"])
        row["cublas"] = [before[case].get("ms"), after[case].get("ms")]
    return rows


def shown(rows: list[dict[str, Any]]) -> str:
    """The table."""
    lines = []
    for row in rows:
        m, k, n = row["sizes"]
        if "failed" in row:
            lines.append(f"{row['name']:75s} FAILED {row['failed']}")
            continue
        right = row["error"] <= TOLERANCE[row["kind"]]
        theirs = [t for t in row["cublas"] if t]
        ratio = min(theirs) / row["ms"] if theirs else float("nan")
        rate = 2e-9 * m * k * n / row["ms"]
        lines.append(
            f"{row['name']:75s} {row['ms']:8.4f} ms {rate:7.1f} TFLOP/s {ratio:5.2f} of cuBLAS "
            f"({min(theirs, default=0):.4f}) error {row['error']:.1e}{'' if right else ' WRONG'}"
        )
    return "\n".join(lines)


def main() -> None:
    """Builds, or runs what was built."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("build", "run", "one"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("number", type=int, nargs="?", default=0)
    parser.add_argument("data", type=Path, nargs="?", default=Path("/dev/shm/products"))
    parser.add_argument("--machine", default="cuda:sm_90a")
    parser.add_argument("--only", default="")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.what == "build":
        build(args.folder, args.machine)
    elif args.what == "one":
        print(json.dumps(one(args.folder, args.number, args.data)), flush=True)
        os._exit(0)  # an illegal access of the kernel would show when the driver ends
    else:
        torch: Any = require("torch", extra="torch")
        rows = run(args.folder, args.data, args.only)
        if args.json:
            args.json.write_text(stored({"device": torch.cuda.get_device_name(), "rows": rows}, indent=1))
        print(shown(rows))


if __name__ == "__main__":
    main()
