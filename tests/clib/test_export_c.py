"""C libraries: what they hold is right without a compiler, and runs, where one is installed, as modules do."""

import ctypes
import json
import os
import re
import resource
import shutil
import subprocess
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

import burnish as bn
from benchmarks import models
from burnish.cli import app
from burnish.clib.library import CODES, FUNCTIONS, CLibrary
from burnish.driver import concurrent
from burnish.errors import ParameterError, TargetError
from burnish.frontend.onnx.rounds import UNROLLED
from burnish.graph.graph import Graph, GraphBuilder
from burnish.loops.sizes import dim
from burnish.machines.x86.cpuid import CPUID, CPUID_CODE
from burnish.machines.x86.flags import FLAGS
from burnish.runtime.elf import parse
from burnish.runtime.executable import Repeat
from burnish.runtime.host import cpu_flags, host_machine
from burnish.runtime.image import Image, LoadedImage
from burnish.runtime.module import Module

MAIN = r"""
#include <stdio.h>
#include <stdlib.h>
#include "m.h"
/* threads, rounds; lines of stdin: "size I VALUE", "input I FILE", "run FILES of outputs..." */
static int fail(const char *what, int code) { printf("%s: %s\n", what, m_error(code)); return 1; }
int main(int count, char **words) {
  (void)count;
  int rounds = atoi(words[2]);
  for (int round = 0; round < rounds; round++) {
    m *c;
    int code = m_create(atoi(words[1]), &c);
    if (code) return fail("create", code);
    void *kept[64];
    int held = 0;
    for (int w = 3; words[w]; ) {
      if (words[w][0] == 's') { code = m_set_size(c, atoi(words[w + 1]), atol(words[w + 2])); w += 3; }
      else if (words[w][0] == 'i') {
        FILE *f = fopen(words[w + 2], "rb");
        fseek(f, 0, SEEK_END);
        long n = ftell(f);
        rewind(f);
        void *data = kept[held++] = malloc(n + 1);
        if (fread(data, 1, n, f) != (size_t)n) return 2;
        fclose(f);
        code = m_set_input(c, atoi(words[w + 1]), data, n);
        w += 3;
      } else {
        code = m_run(c);
        for (int o = 0; !code && o < M_OUTPUTS; o++) {
          int64_t shape[16] = {0}, n = m_output_bytes(c, o);
          code = m_output_shape(c, o, shape);
          FILE *f = fopen(words[w + 1 + o], "wb");
          fwrite(m_output(c, o), 1, n, f);
          fclose(f);
        }
        w += 1 + M_OUTPUTS;
      }
      if (code) return fail("step", code);
    }
    m_destroy(c);
    while (held) free(kept[--held]);
  }
  return 0;
}
"""

CYCLES = r"""
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include "m.h"
/* Creates and destroys contexts, of which every fiftieth runs; the process' peak in KiB at each tenth of them. */
int main(int count, char **words) {
  int cycles = atoi(words[count - 1]);
  for (int i = 0; i <= cycles; i++) {
    m *c;
    int code = m_create(2, &c);
    if (!code && i % 50 == 0) {
      SIZES
      size_t bytes = m_input_bytes(c, 0);
      void *data = calloc(1, bytes);
      code = m_set_input(c, 0, data, bytes);
      if (!code) code = m_run(c);
      free(data);
    }
    if (code) { puts(m_error(code)); return 1; }
    m_destroy(c);
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    if (i % (cycles / 10) == 0) printf("%ld\n", used.ru_maxrss);
  }
  return 0;
}
"""


def installed(*names: str) -> str:
    """The path of a tool, which a user may have or not: without it, objects are only parsed (below)."""
    found = next((path for name in names if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip(f"{' or '.join(names)} is not installed")
    return found


class Program:
    """A module as a C program that reads inputs from files and writes outputs to files."""

    def __init__(self, module: bn.Module, folder: Path, more: Sequence[str] = ()) -> None:
        self.module, self.folder = module, folder
        self.paths = bn.export_c(module, folder, "m")
        (folder / "main.c").write_text(MAIN)
        flags = ["-O1", "-std=c99", "-Wall", "-Wextra", "-Werror", "-I", str(folder), *more]
        self.program = folder / "main"
        source = [str(folder / "main.c"), str(self.paths["archive"])]
        subprocess.run([installed("cc"), *flags, *source, "-o", str(self.program), "-lpthread"], check=True)

    def __call__(
        self, calls: Sequence[Sequence[np.ndarray]], sizes: Sequence[int] = (), threads: int = 0, rounds: int = 1,
        under: Sequence[str] = (),
    ) -> list[list[np.ndarray]]:  # fmt: skip
        """The outputs of some calls of one context."""
        words: list[str] = []
        for number, value in enumerate(sizes):
            words += ["size", str(number), str(value)]
        for c, arrays in enumerate(calls):
            for i, array in enumerate(arrays):
                path = self.folder / f"in{c}.{i}"
                np.ascontiguousarray(array).tofile(path)
                words += ["input", str(i), str(path)]
            words += ["run", *(str(self.folder / f"out{c}.{o}") for o in range(len(self.module.outputs)))]
        done = subprocess.run(
            [*under, str(self.program), str(threads), str(rounds), *words], capture_output=True, text=True, check=False
        )
        self.said = done.stdout + done.stderr
        if done.returncode:
            raise AssertionError(self.said)
        dtypes = [spec.dtype for spec in self.module.outputs]
        return [
            [np.fromfile(self.folder / f"out{c}.{o}", dtype) for o, dtype in enumerate(dtypes)]
            for c in range(len(calls))
        ]


def check(program: Program, calls: Sequence[Sequence[np.ndarray]], twin: bn.Module, **how: Any) -> None:
    """The program's answers are the module's, bit for bit."""
    for found, inputs in zip(program(calls, **how), calls, strict=True):
        expected = twin(*inputs)
        for a, b in zip(found, expected if isinstance(expected, tuple) else (expected,), strict=True):
            np.testing.assert_array_equal(a.reshape(np.shape(b)), b)


RNG = np.random.default_rng(0)


def dense(rows: Any = 5) -> Graph:
    b = GraphBuilder()
    x, w = b.input("x", (rows, 12)), b.constant(RNG.standard_normal((12, 7), np.float32), "w")
    return b.build(b.add("relu", b.add("matmul", x, w), name="y"))


def rows(n: int) -> np.ndarray:
    return RNG.standard_normal((n, 12), np.float32)


def test_a_network_of_fixed_size(tmp_path: Path) -> None:
    module = bn.compile(dense())
    program, x = Program(module, tmp_path), rows(5)
    for threads in (0, 1, 3):  # more than there are cores, too
        check(program, [[x], [-x]], module, threads=threads)
    header = (tmp_path / "m.h").read_text()
    assert "input 0: x, float32[5, 12] (float)" in header and "M_OK = 0" in header


def test_every_size_up_to_its_bound(tmp_path: Path) -> None:
    module = bn.compile(dense(dim("rows", 1, 64)))
    program = Program(module, tmp_path)
    for n in (1, 7, 64):
        check(program, [[rows(n)]], module, sizes=[n])
    with pytest.raises(AssertionError, match="an argument is out of its range"):
        program([[rows(65)]], sizes=[65])
    with pytest.raises(AssertionError, match="of another size than the model's"):
        program([[rows(8)]], sizes=[9])


def test_dimensions_that_a_run_counts(tmp_path: Path) -> None:
    b = GraphBuilder()
    module = bn.compile(b.build(*b.add_many("nonzero", b.input("x", (6,)), count=dim("n", 0, 6))), rewrite=False)
    program = Program(module, tmp_path)
    for values in ([0, 1, 0, 2, 3, 0], [0] * 6, [1] * 6):
        check(program, [[np.array(values, np.float32)]], module)


def test_repeated_steps(tmp_path: Path) -> None:
    """A table's rows into a recurrent network, whose steps are one loop of calls."""
    steps = UNROLLED + 6
    arrays = {
        "table": RNG.standard_normal((50, 16)), "w": RNG.standard_normal((1, 64, 16)) / 4,
        "r": RNG.standard_normal((1, 64, 16)) / 4,
    }  # fmt: skip
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["x"]),
        helper.make_node("LSTM", ["x", "w", "r"], ["y"], hidden_size=16),
    ]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("ids", TensorProto.INT64, (steps, 2))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value.astype(np.float32), name) for name, value in arrays.items()],
    )  # fmt: skip
    module = bn.compile(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    program, ids = Program(module, tmp_path), RNG.integers(0, 50, (steps, 2))
    assert any(isinstance(step, Repeat) for step in module.executable.steps)
    check(program, [[ids]], module)


def test_an_index_that_no_row_has(tmp_path: Path) -> None:
    ids = torch.arange(9)
    module = bn.compile(torch.nn.Embedding(9, 4), (ids,))
    program = Program(module, tmp_path)
    check(program, [[ids.numpy()]], module)
    for wrong in (9, -1):
        with pytest.raises(AssertionError, match="an index or a label in an input is out of range"):
            program([[np.full(9, wrong)]])


def test_a_training_step_keeps_its_weights(tmp_path: Path) -> None:
    module = bn.compile(dense(), train=bn.Train("mse", bn.SGD(0.1)))
    program, x, y = Program(module, tmp_path), rows(5), RNG.standard_normal((5, 7), np.float32)
    check(program, [[x, y]] * 4, module)
    assert program([[x, y]])[0][0] != module(x, y), "the library begins where the module was"


def test_boosted_trees(tmp_path: Path) -> None:
    x = RNG.standard_normal((300, 6), np.float32)
    model = bn.boost.train({"max_depth": 4}, bn.boost.Dataset.of(x, label=x[:, 0] * x[:, 1]), 12)
    module = bn.compile(model)
    program = Program(module, tmp_path)
    for n in (1, 37, 300):
        check(program, [[x[:n]]], module, sizes=[n])


def test_contexts_come_and_go(tmp_path: Path) -> None:
    """Memory of 3,000 contexts is no more than that of 300."""
    module = bn.compile(dense())
    program, x = Program(module, tmp_path), rows(5)
    peaks = []
    for rounds in (300, 3000):
        check(program, [[x]], module, rounds=rounds)
        peaks.append(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
    assert peaks[1] <= peaks[0] + 256, f"{peaks} KiB"


def forest(target: str) -> tuple[bn.Module, np.ndarray, list[int]]:
    """Boosted trees, what they are fed, and the sizes of that."""
    model = bn.boost.train({"max_depth": 4}, bn.boost.Dataset.of(rows(300), label=rows(300)[:, 0]), 12)
    return bn.compile(model, target=target), rows(20), [20]


def resnet18(target: str) -> tuple[bn.Module, np.ndarray, list[int]]:
    """ResNet-18 on small images."""
    proto = onnx.load(models.build("resnet18"))
    for axis in (2, 3):
        proto.graph.input[0].type.tensor_type.shape.dim[axis].dim_value = 64
    del proto.graph.value_info[:]
    module = bn.compile(proto, target=target, threads=2, rewrite=False)
    return module, RNG.standard_normal((1, 3, 64, 64), np.float32), []


@pytest.mark.slow
@pytest.mark.parametrize("made", [forest, resnet18])
def test_valgrind_finds_nothing(made: Callable[..., Any], tmp_path: Path) -> None:
    module, x, sizes = made("x86-64-v3")  # instructions that valgrind knows
    under = [installed("valgrind"), "--error-exitcode=3", "--leak-check=full", "--errors-for-leak-kinds=definite", "-q"]
    check(Program(module, tmp_path), [[x]], module, sizes=sizes, threads=1, rounds=2, under=under)


@pytest.mark.slow
@pytest.mark.parametrize("made", [forest, resnet18])
def test_sanitizers_find_nothing(made: Callable[..., Any], tmp_path: Path) -> None:
    """Memory that is lost, freed twice or left by what calls the library, on two threads."""
    module, x, sizes = made("cpu")
    program = Program(module, tmp_path, ["-g", "-fsanitize=address,undefined", "-fno-omit-frame-pointer"])
    check(program, [[x], [-x]], module, sizes=sizes, threads=2, rounds=20)


@pytest.mark.slow
@pytest.mark.parametrize("made", [forest, resnet18])
def test_ten_thousand_contexts_take_the_memory_of_a_thousand(made: Callable[..., Any], tmp_path: Path) -> None:
    module, _, sizes = made("cpu")
    bn.export_c(module, tmp_path, "m")
    size = "".join(f"m_set_size(c, {n}, {value});" for n, value in enumerate(sizes))
    (tmp_path / "cycles.c").write_text(CYCLES.replace("SIZES", size))
    command = [installed("cc"), "-O1", "-Wall", "-Werror", "-I", str(tmp_path), str(tmp_path / "cycles.c")]
    program = tmp_path / "cycles"
    subprocess.run([*command, str(tmp_path / "libm.a"), "-o", str(program), "-lpthread"], check=True)
    peaks = subprocess.run([program, "10000"], capture_output=True, text=True, check=True).stdout.split()
    assert len(peaks) == 11 and int(peaks[-1]) <= int(peaks[1]) + 256, f"{peaks} KiB"


def test_the_shared_library_shows_its_own_functions_alone(tmp_path: Path) -> None:
    paths = bn.export_c(bn.compile(dense()), tmp_path / "net")
    assert ("shared" in paths) == bool(shutil.which("ld.lld") or shutil.which("ld"))
    installed("ld.lld", "ld")
    loaded = ctypes.CDLL(str(paths["shared"]))
    assert all(hasattr(loaded, f"net_{name}") for name in FUNCTIONS)
    assert not any(hasattr(loaded, name) for name in ("net_params", "net_code", "burnish_run", "burnish_parallel"))
    loaded.net_error.restype = ctypes.c_char_p
    assert [loaded.net_error(code).decode() for code in CODES] == [words for _, words in CODES.values()]
    assert loaded.net_error(99) == b"unknown code" and loaded.net_create(-1, None) == 1


@pytest.mark.skipif(host_machine() != "x86_64", reason="a jump in machine code of x86-64")
def test_code_that_holds_addresses_of_its_own(tmp_path: Path) -> None:
    """Kernels that are reached through a table of addresses, as compilers write for jumps."""
    module = bn.compile(dense())
    code = module.executable.code
    at = len(code.data) + -len(code.data) % 16
    jump = b"\xff\x25\x02\x00\x00\x00\x90\x90"  # jmp [rip + 2], and padding up to the address
    (name, entry), *others = code.symbols.items()
    data = code.data.ljust(at, b"\0") + jump + bytes(8)
    table = Image(code.machine, data, {name: at, **dict(others)}, ((at + 8, entry),))
    twin = bn.Module(replace(module.executable, code=table))
    program = Program(twin, tmp_path)
    check(program, [[rows(5)]], module, rounds=3)


def test_contexts_of_two_threads_at_once(tmp_path: Path) -> None:
    module = bn.compile(dense(200))
    paths = bn.export_c(module, tmp_path / "net")
    assert ("shared" in paths) == bool(shutil.which("ld.lld") or shutil.which("ld"))
    installed("ld.lld", "ld")
    library = ctypes.CDLL(str(paths["shared"]))
    library.net_set_input.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t]
    library.net_get_output.argtypes = library.net_set_input.argtypes
    library.net_run.argtypes = [ctypes.c_void_p]
    wrong: list[int] = []

    def work(seed: int) -> None:
        x = np.random.default_rng(seed).standard_normal((200, 12), np.float32)
        expected, y = module(x), np.zeros((200, 7), np.float32)
        context = ctypes.c_void_p()
        wrong.append(library.net_create(3, ctypes.byref(context)))
        wrong.append(library.net_set_input(context, 0, x.ctypes.data, x.nbytes))
        for _ in range(300):
            y[:] = np.nan
            code = library.net_run(context) or library.net_get_output(context, 0, y.ctypes.data, y.nbytes)
            wrong.append(code or int(not np.array_equal(y, expected)))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(wrong) == 4 * 302 and not any(wrong)


def java_with_foreign_functions() -> Path:
    """A Java of 22 or newer: of JAVA_HOME, of the path, or beside others where Linux keeps them."""
    homes = [Path(os.environ["JAVA_HOME"])] if "JAVA_HOME" in os.environ else []
    paths = [*(home / "bin/java" for home in homes), *map(Path, filter(None, [shutil.which("java")]))]
    version_text = "none is installed"
    for path in (*paths, *sorted(Path("/usr/lib/jvm").glob("*/bin/java"))):
        version_text = subprocess.run([path, "-version"], capture_output=True, text=True, check=True).stderr
        found = re.search(r'version "(\d+)', version_text)
        if found is not None and int(found.group(1)) >= 22:
            return path
    pytest.skip(f"Java 22 or newer is not installed: {version_text.splitlines()[0]}")


def test_the_example_in_java(tmp_path: Path) -> None:
    java = java_with_foreign_functions()
    module = bn.compile(dense())
    paths = bn.export_c(module, tmp_path / "net")
    source = Path(__file__).parents[2] / "examples/java/Net.java"
    words = [java, "--enable-native-access=ALL-UNNAMED", str(source), str(paths["shared"]), "net"]
    said = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
    expected = module(np.full((5, 12), 0.5, np.float32)).ravel()[:8]
    np.testing.assert_allclose([float(word) for word in said[4:12]], expected, rtol=1e-6)


def test_the_wrapper_of_cpp(tmp_path: Path) -> None:
    cpp = installed("c++")
    module = bn.compile(dense())
    paths = bn.export_c(module, tmp_path, "m")
    (tmp_path / "main.cpp").write_text(
        """
#include <cstdio>
#include <utility>
#include "m.hpp"
int main() {
  burnish_m::Model first(1), model(std::move(first));
  std::vector<float> x(60, 0.5f);
  model.set_input(0, x);
  model.run();
  for (float y : model.output<float>(0)) std::printf("%.9g ", y);
  for (int64_t n : model.output_shape(0, M_OUTPUT0_RANK)) std::printf("%lld ", (long long)n);
  try { model.set_input(0, x.data(), 59); } catch (const std::runtime_error &e) { std::puts(e.what()); }
}
"""
    )
    command = [cpp, "-std=c++11", "-Wall", "-Wextra", "-Werror", str(tmp_path / "main.cpp"), str(paths["archive"])]
    subprocess.run([*command, "-o", str(tmp_path / "main"), "-lpthread"], check=True)
    said = subprocess.run([str(tmp_path / "main")], capture_output=True, text=True, check=True).stdout
    words = said.split(maxsplit=37)
    np.testing.assert_array_equal(
        np.array(words[:35], np.float32).reshape(5, 7), module(np.full((5, 12), 0.5, np.float32))
    )
    assert words[35:] == ["5", "7", CODES[1][1] + "\n"]


@pytest.mark.parametrize("target", ["x86-64-v2", "sapphirerapids", "aarch64-neoverse-n1", "riscv64"])
def test_objects_of_other_cpus_are_read_without_a_compiler(tmp_path: Path, target: str) -> None:
    """What is written is what a reader of ELF finds, and every symbol that one object misses the other one has."""
    library = CLibrary(bn.compile(dense(), target=target).current_executable(), "m")
    objects = {name: parse(name, data) for name, data in library.object_files.items()}
    held = {s.name for o in objects.values() for s in o.symbols if s.section and s.binding}
    missing = {s.name for o in objects.values() for s in o.symbols if s.name and not s.section} - held
    assert held >= {f"m_{name}" for name in FUNCTIONS}
    assert all(not name.startswith(("m_", "burnish")) for name in missing), missing
    assert library.archive().startswith(b"!<arch>\n") and library.archive() == library.archive()
    data = next(s.data for s in objects["data.o"].sections if s.name == ".rodata.m_params")
    assert data == library.executable.params.tobytes()


def test_the_command_exports_a_file_of_several_cpus(tmp_path: Path) -> None:
    bn.compile(dense(), target=["x86-64-v2", "aarch64-neoverse-n1"]).save(tmp_path / "m.bn")
    words = [
        "export",
        str(tmp_path / "m.bn"),
        "--c",
        str(tmp_path / "net"),
        "--variant",
        "aarch64-neoverse-n1",
        "--json",
    ]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    files = json.loads(done.stdout)["files"]
    assert {"archive", "header", "wrapper"} <= files.keys() and "aarch64" in (tmp_path / "net/net.h").read_text()
    assert files["archive"]["bytes"] == (tmp_path / "net/libnet.a").stat().st_size


def test_a_name_of_c_and_a_model_that_native_code_runs(tmp_path: Path) -> None:
    module = bn.compile(dense())
    with pytest.raises(ParameterError, match="name: found '1m'; allowed: a letter"):
        bn.export_c(module, tmp_path, "1m")
    with pytest.raises(ParameterError, match="export_c: found a Graph; allowed: a Module"):
        bn.export_c(dense(), tmp_path)  # type: ignore[arg-type]
    with pytest.raises(TargetError, match=r"a C library: found the target .nvptx64-nvidia-cuda.*allowed: CPUs"):
        bn.export_c(bn.compile(dense(), target="cuda:sm_80"), tmp_path)
    assert not any(tmp_path.iterdir())


def test_every_feature_that_code_is_compiled_with_can_be_asked_of_the_cpu() -> None:
    assert CPUID.keys() == FLAGS.keys()
    if host_machine() == "x86_64" and cpu_flags():
        loaded = LoadedImage(Image("x86_64", CPUID_CODE, {"cpuid": 0}))
        ask = ctypes.CFUNCTYPE(None, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_void_p)(loaded.address("cpuid"))
        words = (ctypes.c_uint32 * 4)()
        for feature, (leaf, sub, register, bit) in CPUID.items():
            ask(leaf & 0x80000000, 0, ctypes.addressof(words))
            known = words[0] >= leaf
            ask(leaf, sub, ctypes.addressof(words))
            has = known and bool(words[register] >> bit & 1)
            assert has or FLAGS[feature] not in cpu_flags(), f"{feature}: the system says it, CPUID does not"


def test_concurrent_kernels_are_one_call_in_c(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(concurrent, "GAIN", -1e9)
    g, random = GraphBuilder(), np.random.default_rng(0)
    x = g.input("x", (64, 96))
    weights = [g.constant(random.standard_normal((96, 80), dtype=np.float32)) for _ in range(3)]
    graph = g.build(*(g.add("softmax", g.add("matmul", x, w), axis=1) for w in weights))
    made = bn.compile(graph, threads=2, rewrite=False).executable
    module = Module(replace(made, concurrent=tuple(replace(calls, threads=2) for calls in made.concurrent)), 2)
    tables = CLibrary(module.executable, "m")._tables
    assert module.executable.concurrent and len(tables.joined) < len(module.executable.steps)
    given = random.standard_normal((64, 96), dtype=np.float32)
    program = Program(module, tmp_path)
    for threads in (1, 2):  # of which one is too few to run side by side
        (found,) = program([[given]], threads=threads)
        for own, other in zip(found, module(given), strict=True):
            np.testing.assert_array_equal(own, other.ravel())
