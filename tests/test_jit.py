import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import burnish

_MODULE = """
import sys
from burnish.jit import njit

@njit(cache=True, nogil=True)
def double(x):
    return 2 * x

assert double(4) == 8
print(sum(double.stats.cache_hits.values()))
"""


def run(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """A process that calls a function, with its module in ``folder`` and no variables that say where caches are."""
    (folder / "module.py").write_text(_MODULE)
    drop = ("NUMBA_CACHE_DIR", "BURNISH_CACHE", "XDG_CACHE_HOME")
    path = os.pathsep.join([str(folder), str(Path(burnish.__file__).parents[1])])
    own = {k: v for k, v in os.environ.items() if k not in drop} | {"PYTHONPATH": path} | environment
    command = [sys.executable, "-B", "-c", "import os; os.umask(0); import module"]
    return subprocess.run(command, env=own, capture_output=True, text=True, timeout=120)


def test_functions_are_kept_in_the_cache_folder_alone(tmp_path) -> None:
    (tmp_path / "source").mkdir()
    home = str(tmp_path / "home")
    assert [run(tmp_path / "source", HOME=home).stdout for _ in range(2)] == ["0\n", "1\n"]
    assert os.listdir(tmp_path / "source") == ["module.py"]
    (entry,) = (tmp_path / "home" / ".cache" / "burnish").iterdir()
    assert stat.S_IMODE(entry.stat().st_mode) == 0o600 and stat.S_IMODE(entry.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("damage", ["truncated", "flipped", "foreign", "fifo"])
def test_damaged_entries_are_compiled_again(tmp_path, damage) -> None:
    cache = tmp_path / "cache"
    assert run(tmp_path, BURNISH_CACHE=str(cache)).stdout == "0\n"
    (entry,) = cache.iterdir()
    data = entry.read_bytes()
    if damage == "fifo":
        entry.unlink()
        os.mkfifo(entry)
    else:
        changed = {"truncated": data[:-9], "flipped": data[:99] + bytes([data[99] ^ 1]) + data[100:], "foreign": b"?"}
        entry.write_bytes(changed[damage])
    for hits in ("0\n", "1\n"):
        done = run(tmp_path, BURNISH_CACHE=str(cache))
        assert done.stdout == hits
        assert done.stderr.count("\n") == done.stderr.count("compiling kernels") == (hits == "0\n")


def test_where_nothing_can_be_written_functions_are_compiled_with_one_warning(tmp_path) -> None:
    (tmp_path / "file").write_bytes(b"")
    done = run(tmp_path, HOME=str(tmp_path / "file"))
    assert done.stdout == "0\n" and done.stderr.count("Warning") == 1 and "set BURNISH_CACHE" in done.stderr
