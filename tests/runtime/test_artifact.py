import json
import os
import subprocess
import sys

import numpy as np
import pytest

from burnish.errors import ArtifactError
from burnish.runtime import artifact, container
from burnish.runtime.module import Module, load

X = np.linspace(-1, 1, 1000, dtype=np.float32)


@pytest.fixture(scope="module")
def saved(make_executable, tmp_path_factory):
    path = tmp_path_factory.mktemp("artifact") / "model.bn"
    Module(make_executable()).save(path)
    return path


def sections(path) -> dict[str, tuple[int, int]]:
    """Name -> first byte and byte after the last (with padding) of every part of the file."""
    header = container.read_container(path).header["sections"]
    found = {s["name"]: (s["offset"], s["offset"] + -(-s["bytes"] // 4096) * 4096) for s in header}
    return {"header": (0, header[0]["offset"]), **found}


def test_a_saved_model_loads_and_runs(saved, make_executable) -> None:
    before, after = Module(make_executable()), load(saved)
    assert np.array_equal(before(X), after(X))
    for field in (
        "inputs",
        "outputs",
        "calls",
        "driver",
        "code",
        "arena_bytes",
        "scratch_bytes",
        "target",
        "graph",
        "info",
    ):
        expected, found = getattr(before.executable, field), getattr(after.executable, field)
        if field in ("driver", "code"):
            expected, found = expected.digest, found.digest
        assert found == expected, field
    assert np.array_equal(before.executable.params, after.executable.params)


def test_a_loaded_model_saves_to_the_same_bytes(saved, tmp_path) -> None:
    load(saved).save(tmp_path / "again.bn")
    assert (tmp_path / "again.bn").read_bytes() == saved.read_bytes()


def test_loading_imports_no_llvm(saved) -> None:
    script = (
        "import sys, numpy as np; from burnish.runtime.module import load; "
        "y = load(sys.argv[1])(np.zeros(1000, np.float32)); assert y[3] == 6; "
        "print([m for m in sys.modules if m.startswith(('llvmlite', 'numba', 'onnx'))])"
    )
    done = subprocess.run([sys.executable, "-c", script, str(saved)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_parameters_stay_in_the_file_and_are_aligned(saved) -> None:
    params = artifact.read(saved).params
    assert not params.flags.owndata and not params.flags.writeable
    assert params.ctypes.data % 4096 == 0


def test_no_byte_can_change_unnoticed(saved, tmp_path) -> None:
    data = saved.read_bytes()
    spans = sections(saved)
    assert {"header", "driver", "code", "params"} == set(spans)
    assert max(end for _, end in spans.values()) == len(data)
    damaged = tmp_path / "damaged.bn"
    rng = np.random.default_rng(0)
    for name, (start, end) in spans.items():
        first = 60 if name == "header" else start
        for position in {first, end - 1, *rng.integers(first, end, 12).tolist()}:
            damaged.write_bytes(data[:position] + bytes([data[position] ^ 16]) + data[position + 1 :])
            with pytest.raises(ArtifactError, match=f"section '{name}' does not match its checksum"):
                artifact.read(damaged)
    for position in range(60):  # magic, version, length, hash: each has its own message
        damaged.write_bytes(data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :])
        with pytest.raises(ArtifactError):
            artifact.read(damaged)


def test_no_byte_of_large_parameters_can_change_unnoticed(make_executable, tmp_path) -> None:
    path = tmp_path / "large.bn"
    executable = make_executable(2_100_000)  # two chunks of 4 MiB and a bit
    artifact.save(executable, path)
    assert np.array_equal(artifact.read(path).params, executable.params)
    start, end = sections(path)["params"]
    for position in (start, start + 4096 * 1024 - 1, start + 4096 * 1024, start + 4096 * 2048 + 5, end - 1):
        with open(path, "r+b") as file:
            file.seek(position)
            byte = file.read(1)[0]
            file.seek(position)
            file.write(bytes([byte ^ 1]))
        with pytest.raises(ArtifactError, match="section 'params' does not match its checksum"):
            artifact.read(path)
        with open(path, "r+b") as file:
            file.seek(position)
            file.write(bytes([byte]))
    artifact.read(path)


def test_truncated_and_extended_files_are_refused(saved, tmp_path) -> None:
    data = saved.read_bytes()
    path = tmp_path / "short.bn"
    spans = sections(saved)
    for length, message in (
        (0, "no Burnish artifact, or truncated: 0 bytes"),
        (55, "no Burnish artifact, or truncated: 55 bytes"),
        (1000, "truncated or damaged in section 'header'"),
        (spans["code"][0] + 10, "truncated in section 'code'"),
        (len(data) - 1, "truncated in section 'params'"),
        (spans["params"][0], "truncated in section 'params'"),
    ):
        path.write_bytes(data[:length])
        with pytest.raises(ArtifactError, match=message):
            artifact.read(path)
    path.write_bytes(data + b"x")
    with pytest.raises(ArtifactError, match="has 1 bytes after its last section"):
        artifact.read(path)


def test_other_formats_and_versions_are_refused(saved, tmp_path) -> None:
    data = saved.read_bytes()
    path = tmp_path / "other.bn"
    for content, message in (
        (b"\x80\x04pickle" + bytes(100), r"no Burnish artifact: it starts with b'\\x80\\x04pickle'"),
        (data[:8] + b"\x63" + data[9:], f"format version 99, allowed: {container.VERSION}; update Burnish"),
        (data[:8] + b"\x01" + data[9:], f"format version 1, allowed: {container.VERSION}; compile the model again"),
    ):
        path.write_bytes(content)
        with pytest.raises(ArtifactError, match=message):
            artifact.read(path)
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "absent.bn")


def test_an_inconsistent_header_is_refused(saved, tmp_path) -> None:
    whole = container.read_container(saved)
    header = {key: value for key, value in whole.header.items() if key != "sections"}
    for change, message in (
        ({"calls": [["absent", "n", []]]}, "node 'n' calls 'absent', which is undefined"),
        ({"calls": [["add", "n", [["arena", 0, 10**6]]]]}, "allowed: offsets from 0 to 4128"),
        ({"inputs": [["x", [4]]]}, "ValueError: not enough values"),
        ({"inputs": [["x", [4], "float33"]], "calls": [["add", "n", [["input", 0, 0]]]]}, "float33"),
    ):
        container.write_container(tmp_path / "odd.bn", header | change, whole.sections)
        with pytest.raises(ArtifactError, match=f"is inconsistent: .*{message}"):
            artifact.read(tmp_path / "odd.bn")


def test_a_model_for_another_machine_is_refused(saved, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("burnish.runtime.host.host_machine", lambda: "riscv64")
    with pytest.raises(ArtifactError, match=r"compiled for .*linux.*, but this machine is riscv64 under linux"):
        load(saved)


def test_saving_leaves_nothing_else_behind_and_the_old_file_on_failure(saved, tmp_path, make_executable) -> None:
    path = tmp_path / "model.bn"
    path.write_bytes(b"old")
    executable = make_executable()
    object.__setattr__(executable, "info", {"bad": {1, 2}})
    with pytest.raises(TypeError, match="JSON"):
        artifact.save(executable, path)
    assert path.read_bytes() == b"old"
    artifact.save(make_executable(), path)
    assert os.listdir(tmp_path) == ["model.bn"]
    assert path.read_bytes() == saved.read_bytes()


def test_the_header_is_readable_text(saved) -> None:
    data = saved.read_bytes()
    length = int.from_bytes(data[16:24], "little")
    header = json.loads(data[56 : 56 + length])
    assert header["graph"] == "y = 2 * (x + weights)"
    assert header["info"] == {"options": {"exact": True}}
