import os
import stat
import subprocess
import sys
from functools import partial
from pathlib import Path
from shutil import copytree
from types import SimpleNamespace

import numba
import pytest

import burnish
from burnish.ahead.bake import bake
from burnish.ahead.tasks import TASKS
from burnish.base.baselines import BASELINES
from burnish.base.cache import Archive, ObjectCache
from burnish.base.jit import Cache, _levels, _machine, njit
from burnish.machines.probe import host_features, host_triple
from tests.marks import slow, slow_except

_MODULE = """
import sys
from burnish.base.jit import njit

@njit(cache=True, nogil=True)
def double(x):
    return 2 * x

assert double(4) == 8
print(sum(double.stats.cache_hits.values()))
"""


def run(folder: Path, before: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """A process that calls a function, with its module in ``folder`` and no variables that say where caches are."""
    (folder / "module.py").write_text(_MODULE)
    drop = ("NUMBA_CACHE_DIR", "BURNISH_CACHE", "XDG_CACHE_HOME")
    path = os.pathsep.join([str(folder), str(Path(burnish.__file__).parents[1])])
    own = {k: v for k, v in os.environ.items() if k not in drop} | {"PYTHONPATH": path} | environment
    command = [sys.executable, "-B", "-c", f"import os; os.umask(0)\n{before}\nimport module"]
    return subprocess.run(command, env=own, capture_output=True, text=True, timeout=120)


def test_functions_are_kept_in_the_cache_folder_alone(tmp_path) -> None:
    (tmp_path / "source").mkdir()
    home = str(tmp_path / "home")
    assert [run(tmp_path / "source", HOME=home).stdout for _ in range(2)] == ["0\n", "1\n"]
    assert os.listdir(tmp_path / "source") == ["module.py"]
    (entry,) = (tmp_path / "home" / ".cache" / "burnish").iterdir()
    assert stat.S_IMODE(entry.stat().st_mode) == 0o600 and stat.S_IMODE(entry.parent.stat().st_mode) == 0o700


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a module and with the cache of a process that has called its function."""
    folder = tmp_path_factory.mktemp("kept")
    assert run(folder, BURNISH_CACHE=str(folder / "cache")).stdout == "0\n"
    return folder


@pytest.mark.parametrize("damage", slow_except(["truncated", "flipped", "foreign", "fifo"], "flipped"))
def test_damaged_entries_are_compiled_again(tmp_path, kept, damage) -> None:
    cache = copytree(kept / "cache", tmp_path / "cache")
    (entry,) = cache.iterdir()
    data = entry.read_bytes()
    if damage == "fifo":
        entry.unlink()
        os.mkfifo(entry)
    else:
        changed = {"truncated": data[:-9], "flipped": data[:99] + bytes([data[99] ^ 1]) + data[100:], "foreign": b"?"}
        entry.write_bytes(changed[damage])
    for hits in ("0\n", "1\n"):
        done = run(kept, BURNISH_CACHE=str(cache))
        assert done.stdout == hits
        assert done.stderr.count("\n") == done.stderr.count("compiling kernels") == (hits == "0\n")


def test_where_nothing_can_be_written_functions_are_compiled_with_one_warning(tmp_path) -> None:
    (tmp_path / "file").write_bytes(b"")
    done = run(tmp_path, HOME=str(tmp_path / "file"))
    assert done.stdout == "0\n" and done.stderr.count("Warning") == 1 and "set BURNISH_CACHE" in done.stderr


ARCHITECTURE = host_triple().split("-")[0]
OWN = {name for name, on in host_features().items() if on}
USABLE = [level for level, needed in BASELINES.get(ARCHITECTURE, {}).items() if needed <= OWN]
_READING = "import burnish.base.jit, pathlib; burnish.base.jit.archive_path = lambda level: pathlib.Path(%r) / level"


@pytest.fixture(scope="module")
def ahead(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What a process keeps that compiles for the narrowest baseline CPU, by key; nothing where there is none."""
    if not USABLE:
        return {}
    folder = tmp_path_factory.mktemp("ahead")
    cache = folder / "cache"
    made = run(folder, BURNISH_CACHE=str(cache), NUMBA_CPU_NAME=USABLE[-1], NUMBA_CPU_FEATURES="")
    assert made.stdout == "0\n", made.stderr
    return {
        path.name.partition(".")[0]: ObjectCache(cache).get(path.name.partition(".")[0]) for path in cache.iterdir()
    }


@pytest.mark.parametrize("damage", slow(["none", "flipped", "writable", "left out"], "flipped", "left out"))
def test_what_was_compiled_ahead_is_used_and_nothing_is_written(tmp_path, ahead, damage) -> None:
    path = tmp_path / USABLE[-1] if USABLE else tmp_path / "none"
    Archive.write(path, ahead)
    data = path.read_bytes()
    if damage == "flipped":
        path.write_bytes(data[:-99] + bytes([data[-99] ^ 1]) + data[-98:])
    elif damage == "writable":
        path.chmod(0o666)
    asked = {"BURNISH_AHEAD": "0"} if damage == "left out" else {}
    done = run(tmp_path, _READING % str(tmp_path), BURNISH_CACHE=str(tmp_path / "own"), **asked)
    used = bool(ahead) and damage == "none"
    assert (done.stdout, done.stderr.count("compiling")) == (("1\n", 0) if used else ("0\n", 1))
    assert (tmp_path / "own").exists() != used


@pytest.mark.parametrize("wide", [False, True])
def test_code_that_wants_wide_vectors_is_taken_of_the_best_baseline_alone(wide, monkeypatch) -> None:
    asked = []
    archives = {level: SimpleNamespace(get=partial(asked.append)) for level in ("x86-64-v4", "x86-64-v3")}
    monkeypatch.setattr("burnish.base.jit._archive", archives.get)
    monkeypatch.setattr("burnish.base.jit._store", lambda: SimpleNamespace(get=lambda key: None))
    cache = Cache(run, wide)
    assert [*cache._entries("()", ("x86_64-unknown-linux-gnu", "znver4", AVX512))] == []
    keys = [cache._key("()", "x86_64", level) for level in archives]
    assert asked == keys[: 1 if wide else 2]


AVX2 = ",".join(f"+{name}" for name in sorted(BASELINES["x86_64"]["x86-64-v3"]))
AVX512 = ",".join(f"+{name}" for name in sorted(BASELINES["x86_64"]["x86-64-v4"]))


@pytest.mark.parametrize(
    ("magic", "levels", "machine"),
    [
        (("x86_64-unknown-linux-gnu", "znver4", AVX512), ["x86-64-v4", "x86-64-v3"], 3),
        (("x86_64-unknown-linux-gnu", "haswell", f"{AVX2},-avx512f"), ["x86-64-v3"], 3),
        (("x86_64-unknown-linux-gnu", "nehalem", "+sse4.2,-avx2"), [], 3),
        (("x86_64-unknown-linux-gnu", "x86-64-v3", ""), ["x86-64-v3"], ("x86_64", "x86-64-v3")),
        (("x86_64-unknown-linux-gnu", "x86-64-v4", "-avx512f"), [], 3),
        (("x86_64-apple-darwin", "haswell", AVX2), [], 3),
        (("aarch64-unknown-linux-gnu", "neoverse-n1", "+neon"), ["generic"], 3),
        (("riscv64-unknown-linux-gnu", "generic-rv64", ""), [], 3),
    ],
)
def test_baselines_are_those_whose_features_the_cpu_has(magic, levels, machine) -> None:
    assert _levels(magic)[1] == levels
    assert _machine(magic) == (magic if machine == 3 else machine)


def test_a_constant_is_no_reason_to_compile_anew() -> None:
    @njit(inner=True)
    def times(x, factor):
        return x * factor if factor else x

    @njit()
    def called(x):
        return times(x, 3) + times(x, 4) + times(x, x) + times(x, factor=5) + times(x, True)

    assert called(2) == 6 + 8 + 4 + 10 + 2
    assert [signature[1] for signature in times.signatures] == [numba.int64, numba.boolean]


def test_every_task_is_a_function() -> None:
    for task, module in TASKS.items():
        assert callable(getattr(__import__(f"burnish.ahead.{module}", fromlist=[task]), task))


_FIT = """
import numba.core.event as events, numpy as np
compiled = []
class Listener(events.Listener):
    on_start = lambda self, event: compiled.append(event.data["dispatcher"].py_func.__module__)
    on_end = lambda self, event: None
events.register("numba:compile", Listener())
from burnish import boost
x = np.random.default_rng(0).normal(size=(1000, 10)).astype(np.float32)
model = boost.train({}, boost.Dataset.of(x, label=x[:, 0] - x[:, 1]), 3)
print(sum(name.startswith("burnish.") for name in compiled), boost.predict(model, x).tobytes().hex())
"""


@pytest.mark.slow
def test_the_first_model_compiles_nothing_and_is_the_same_as_one_compiled_for_this_cpu(tmp_path) -> None:
    written = bake(["common"], tmp_path)
    assert bool(written) == bool(USABLE)
    for path in written:
        path.rename(tmp_path / path.stem.removeprefix("kernels-"))
    found = []
    for text in (_READING % str(tmp_path), _READING % str(tmp_path / "none")):
        environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
        environment["BURNISH_CACHE"] = str(tmp_path / str(len(text)))
        command = [sys.executable, "-c", text + "\n" + _FIT]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=300)
        found.append(done.stdout.split())
    assert found[0][1] == found[1][1]
    assert int(found[0][0]) == 0 or not USABLE
    assert 0 < int(found[1][0]) <= 60
