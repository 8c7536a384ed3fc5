"""Overheads around a model's own time: import, compile (cold and from the kernel cache), load, one call,
one parallel region.

`python -m benchmarks.overheads [--threads N] [--json]`
"""

import argparse
import ctypes
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np
import onnx
from onnx import helper

import burnish as bn
from benchmarks import models
from benchmarks.provenance import stored
from burnish.machines.target import target
from burnish.measure import peers
from burnish.runtime.entry import driver_image
from burnish.runtime.pool import pool

REGIONS = 1000
EMPTY_REGIONS = """
define void @nothing(ptr %context, i64 %begin, i64 %end, i64 %thread) { ret void }
define void @regions(ptr %parallel, ptr %pool, i64 %extent, i64 %count) {
entry:
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%next, %loop]
  call void %parallel(ptr %pool, ptr @nothing, ptr null, i64 %extent)
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %count
  br i1 %more, label %loop, label %exit
exit:
  ret void
}
"""
REPEATS = 5
MODEL = "light_resnet50"


def import_seconds() -> float:
    """Median time of `import burnish` in a fresh interpreter."""
    code = "import time; start = time.perf_counter(); import burnish; print(time.perf_counter() - start)"
    return statistics.median(float(fresh_python(code)) for _ in range(REPEATS))


def compile_seconds(threads: int, cache: Path) -> float:
    """Time to compile MODEL in a fresh interpreter, the import included, with kernels cached in `cache`."""
    code = (
        "import time; start = time.perf_counter(); import burnish;"
        f"burnish.compile({str(models.build(MODEL))!r}, threads={threads}, cache_dir={str(cache)!r});"
        "print(time.perf_counter() - start)"
    )
    return float(fresh_python(code))


def fresh_python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def load_seconds(path: Path) -> tuple[float, float]:
    """Median times to load an artifact and to just read its bytes, with the file in the page cache."""
    loads, reads = [], []
    for _ in range(REPEATS):
        start = time.perf_counter()
        path.read_bytes()
        middle = time.perf_counter()
        bn.load(path)
        reads.append(middle - start)
        loads.append(time.perf_counter() - middle)
    return statistics.median(loads), statistics.median(reads)


def call_seconds(threads: int) -> float:
    """Median time of one call of a model that adds two numbers."""
    values = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, (2,)) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "add", values[:1], values[1:])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    module = bn.compile(proto, threads=threads)
    x = np.ones(2, np.float32)
    return peers.alternate({"call": lambda: module(x)}, seconds=1)["call"].median


def region_seconds(threads: int) -> float:
    """Median time of one parallel region without work, over blocks of many regions in a row."""
    host = target("cpu")
    workers = pool(driver_image(host.triple), threads)
    workers.start()
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_triple(host.triple).create_target_machine(opt=2)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(EMPTY_REGIONS), machine)
    engine.finalize_object()
    signature = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
    regions = signature(engine.get_function_address("regions"))
    call = partial(regions, workers.parallel, workers.address, threads, REGIONS)
    return peers.alternate({"regions": call}, seconds=1)["regions"].median / REGIONS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        cache, artifact = Path(folder) / "cache", Path(folder) / "model.bn"
        seconds = {"import": import_seconds()}
        seconds[f"compile {MODEL}, cold"] = compile_seconds(arguments.threads, cache)
        seconds[f"compile {MODEL}, cached"] = compile_seconds(arguments.threads, cache)
        bn.compile(models.build(MODEL), threads=arguments.threads, cache_dir=cache).save(artifact)
        seconds[f"load {MODEL}"], seconds["read the same bytes"] = load_seconds(artifact)
    seconds["one call"] = call_seconds(arguments.threads)
    seconds["one parallel region"] = region_seconds(arguments.threads)
    if arguments.json:
        print(stored(seconds, indent=2))
        return
    for name, value in seconds.items():
        print(f"{name:32} {value * 1e3:12.4f} ms")


if __name__ == "__main__":
    main()
