import ast
import hashlib
import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest

import burnish as bn
from burnish.driver.loading import load
from burnish.errors import ArtifactError
from burnish.runtime import artifact, container
from burnish.runtime.executable import DRIVER_SYMBOLS
from burnish.runtime.module import Module

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
        "steps",
        "states",
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
        "import sys, numpy as np; from burnish.driver.loading import load; "
        "y = load(sys.argv[1])(np.zeros(1000, np.float32)); assert y[3] == 6; "
        "print([m for m in sys.modules if m.startswith(('llvmlite', 'numba', 'onnx'))])"
    )
    done = subprocess.run([sys.executable, "-c", script, str(saved)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_what_happens_to_a_loaded_file_has_no_effect(make_executable, tmp_path) -> None:
    path = tmp_path / "model.bn"
    for n in (1000, 600_000):
        Module(make_executable(n)).save(path)
        module = load(path)
        assert not module.executable.params.flags.writeable and module.executable.params.ctypes.data % 64 == 0
        x = np.zeros(n, np.float32)
        expected = module(x)
        with open(path, "r+b") as file:  # in place, under the same name
            file.write(bytes(path.stat().st_size))
        assert np.array_equal(module(x), expected)
        os.truncate(path, 0)
        assert np.array_equal(module(x), expected)


def test_loaded_modules_keep_no_files_open(saved) -> None:
    before = len(os.listdir("/proc/self/fd"))
    modules = [load(saved, threads=1) for _ in range(20)]
    assert len(os.listdir("/proc/self/fd")) == before and np.array_equal(modules[0](X), modules[-1](X))


def test_saving_over_a_loaded_file_leaves_it_as_it_was(make_executable, tmp_path) -> None:
    path = tmp_path / "model.bn"
    Module(make_executable()).save(path)
    with open(path, "rb") as before:
        Module(make_executable(2000)).save(path)
        assert artifact.read(path).inputs[0].shape == (2000,)
        assert before.read(8) == container.MAGIC and os.fstat(before.fileno()).st_size < path.stat().st_size


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
    written = f"written by Burnish {bn.__version__}"
    allowed = f"allowed by Burnish {bn.__version__}: {container.VERSION}"
    path = tmp_path / "other.bn"
    for content, message in (
        (b"\x80\x04pickle" + bytes(100), r"no Burnish artifact: it starts with b'\\x80\\x04pickle'"),
        (data[:8] + b"\x63" + data[9:], f"format version 99, {written}; {allowed}; update Burnish"),
        (data[:8] + b"\x01" + data[9:], f"format version 1, {written}; {allowed}; compile the model again"),
        (data[:8] + b"\x01" + data[9:200], f"format version 1; {allowed}; compile the model again"),
    ):
        path.write_bytes(content)
        with pytest.raises(ArtifactError, match=message):
            artifact.read(path)
    (tmp_path / "m.onnx").write_bytes(b"\x08\x08" + bytes(100))
    with pytest.raises(ArtifactError, match=r"m\.onnx is no Burnish artifact.*; compile it first, by burnish\.compile"):
        load(tmp_path / "m.onnx")
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "absent.bn")


def rewritten(saved, path, change, digest: bool = True) -> None:
    """Writes ``saved`` with an edited header and a right seal to ``path``; ``digest``: and with a right digest."""
    whole = container.read_container(saved)
    header = {key: value for key, value in whole.header.items() if key != "sections"} | change
    if digest:
        header["digest"] = artifact._digest(header)
    container.write_container(path, header, whole.sections)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": [["call", "n", "absent", []]]}, "node 'n' calls 'absent', which is undefined"),
        ({"steps": [["call", "n", "add", [["arena", 0, 10**6, 0]]]]}, "allowed: offsets from 0 to 4128"),
        ({"steps": [["call", "n", "add", [["arena", 0, 132, 4000]]]]}, "allowed: offsets from 0 to 128"),
        ({"steps": [["call", "n", "add", [["arena", 1, 0, 4000]]]]}, "which does not exist"),
        ({"steps": [["call", "n", "add", [["input", -1, 0, 0]]]]}, "which does not exist"),
        ({"steps": [["call", "n", "add", [["input", 0, 0, -8]]]]}, "allowed: integers"),
        ({"steps": [["call", "n", "add", [["input", 0, 0.5, 0]]]]}, "allowed: integers"),
        ({"steps": [["call", "n", "add", [["input", 0, True, 0]]]]}, "allowed: integers"),
        ({"steps": [["call", "n", "add", [["heap", 0, 0, 0]]]]}, "which does not exist"),
        ({"steps": [["call", "n", "add", [[["arena"], 0, 0, 0]]]]}, "TypeError"),
        ({"steps": [["call", "n", "add", [["rows", 0, 0, 0]]]]}, "which does not exist"),
        (
            {"steps": [["call", "n", "add", []], ["call", "m", "add", [["input", 0, 0, 4000]]]]},
            "calls of 'add' differ in arguments",
        ),
        (
            {"steps": [["call", "n", "add", [["output", 0, 0, 8]]]]},
            "no kernel has byte 8 of output 'y', which has 4000",
        ),
        ({"steps": []}, "no kernel has byte 0 of output 'y'"),
        ({"steps": [["call", "n", "add", [["output", 0, 0]]]]}, "not enough values"),
        ({"steps": 7}, "TypeError"),
        ({"inputs": [["x", [4]]]}, "ValueError: not enough values"),
        ({"inputs": [["x", [4], "float33"]]}, "float33"),
        ({"inputs": [["x", [4], "object"]]}, "allowed: numbers"),
        ({"inputs": [["x", [4], "O"]]}, "allowed: numbers"),
        ({"inputs": [["x", [4], ">f4"]]}, "allowed: numbers"),
        ({"inputs": [["x", ["4"], "float32"]]}, "allowed: integers from 0"),
        ({"inputs": [["x", [-4], "float32"]]}, "allowed: integers from 0"),
        ({"inputs": [["x", [4, -1], "float32"]]}, "allowed: integers from 0"),
        ({"inputs": [["x", [2**46], "float32"]]}, "allowed: up to 2^47"),
        ({"inputs": [[5, [1000], "float32"]]}, "the name is no text"),
        ({"inputs": [["x", [10], "float32"]], "steps": [["call", "n", "add", [["input", 0, 0, 4000]]]]}, "to -3960"),
        ({"arena_bytes": 2**62}, "arena_bytes is 4611686018427387904"),
        ({"arena_bytes": "64"}, "arena_bytes is '64'"),
        ({"scratch_bytes": -1}, "scratch_bytes is -1"),
        ({"scratch_bytes": None}, "scratch_bytes is None"),
        ({"target": 5}, "target is no text"),
        ({"target": "aarch64-unknown-linux-gnu/a/"}, "the driver is for"),
        ({"info": []}, "info is a list"),
        ({"graph": None}, "graph is no text"),
        ({"images": {}}, "KeyError"),
        ({"images": []}, "TypeError"),
    ],
)
def test_an_inconsistent_header_is_refused(saved, tmp_path, monkeypatch, change, message) -> None:
    rewritten(saved, tmp_path / "odd.bn", change)
    with pytest.raises(ArtifactError, match=f"is inconsistent: .*{re.escape(message)}"):
        artifact.read(tmp_path / "odd.bn")
    rewritten(saved, tmp_path / "odd.bn", change, digest=False)
    with pytest.raises(ArtifactError, match="does not match its own digest"):
        artifact.read(tmp_path / "odd.bn")


@pytest.mark.parametrize("image", ["driver", "code"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda size: {"machine": "riscv64"}, "is for 'riscv64'"),
        (lambda size: {"symbols": {"add": size}}, "symbol 'add' of the"),
        (lambda size: {"symbols": {"add": -16}}, "symbol 'add' of the"),
        (lambda size: {"symbols": {"add": 2**62}}, "symbol 'add' of the"),
        (lambda size: {"symbols": {"add": "0"}}, "symbol 'add' of the"),
        (lambda size: {"symbols": dict.fromkeys(["add", *DRIVER_SYMBOLS], 1)}, "begins at byte 1, allowed: multiples"),
        (lambda size: {"symbols": {}}, ""),
        (lambda size: {"symbols": 3}, "TypeError"),
        (lambda size: {"absolute": [[size - 7, 0]]}, "has an address of"),
        (lambda size: {"absolute": [[-8, 0]]}, "has an address of"),
        (lambda size: {"absolute": [[0, size + 1]]}, "has an address of"),
        (lambda size: {"absolute": [[0, -1]]}, "has an address of"),
        (lambda size: {"absolute": [[0, 2**62]]}, "has an address of"),
        (lambda size: {"absolute": [["0", 0]]}, "has an address of"),
        (lambda size: {"absolute": [0]}, "TypeError"),
    ],
)
def test_inconsistent_code_is_refused(saved, tmp_path, image, change, message) -> None:
    whole = container.read_container(saved)
    images = dict(whole.header["images"])
    images[image] = images[image] | change(len(whole.sections[image]))
    rewritten(saved, tmp_path / "odd.bn", {"images": images})
    with pytest.raises(ArtifactError, match=f"is inconsistent: .*{message}"):
        artifact.read(tmp_path / "odd.bn")


@pytest.mark.parametrize(
    "header",
    [
        b"[]", b"3", b"null", b"nonsense", b"\xff\xfe", b"{}", b'{"sections": 4}', b'{"sections": [4]}',
        b'{"sections": [{}]}', b'{"sections": [{"name": "code", "offset": 4096, "bytes": -1, "checksum": "sha256:"}]}',
        b'{"sections": [{"name": "code", "offset": 4096, "bytes": 4611686018427387904, "checksum": "sha256:"}]}',
        b'{"sections": [{"name": "code", "offset": 0, "bytes": 4096, "checksum": "sha256:"}]}',
        b'{"sections": [{"name": "code", "offset": 4096, "bytes": 1, "checksum": "md5:"}]}',
        b'{"sections": [{"name": "code", "offset": 4096, "bytes": 1, "checksum": "sha256:\xc3\xa9"}]}',
        b'{"sections": [{"name": "code", "offset": 4096, "bytes": 0, "checksum": "crc32:"}]}',
        b"[" * 200_000, b'{"a":' * 200_000,
    ],
)  # fmt: skip
def test_a_header_of_another_form_is_refused(tmp_path, header) -> None:
    text = header.ljust(container.PAGE * (1 + len(header) // container.PAGE) - container._START)
    prefix = container._PREFIX.pack(container.MAGIC, container.VERSION, 0, len(text))
    path = tmp_path / "odd.bn"
    path.write_bytes(prefix + hashlib.sha256(prefix + text).digest() + text)
    with pytest.raises(ArtifactError):
        artifact.read(path)


# Loads and runs mutants of a saved model. Only the header's digest or its seal stands between an edit and the code.
MUTANTS = """
import copy, json, random, sys
import numpy as np
from burnish.errors import ArtifactError
from burnish.runtime import artifact, container
from burnish.driver.loading import load

saved, path, seed, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
whole = container.read_container(saved)
plain = {k: v for k, v in whole.header.items() if k != "sections"}
x = np.linspace(-1, 1, 1000, dtype=np.float32)
right = load(saved, threads=1)(x)
odd = [None, True, -1, 0, 1, 8, 64, 4096, 2**31, 2**47, 2**62, 2**64, -2**62, 1.5, "", "0", "x", [], {}, [[]], [0]]
draw = random.Random(seed)

def places(value, at=()):
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(items):
        yield (*at, key)
        yield from places(inner, (*at, key))

def mutate(header, allowed):
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        *way, last = draw.choice([p for p in places(header) if allowed(p)])
        holder = header
        for key in way:
            holder = holder[key]
        value = holder[last]
        match draw.randrange(4):
            case 0 if isinstance(holder, dict):
                del holder[last]
            case 1 if type(value) is int:
                holder[last] = value + draw.choice((-64, -8, -1, 1, 8, 64, 2**32))
            case 2 if isinstance(value, list) and value:
                value.insert(0, value[draw.randrange(len(value))])
            case _:
                holder[last] = draw.choice(odd)

outcomes = {"refused": 0, "right": 0, "ran": 0}
for number in range(count):
    header, sealed = copy.deepcopy(plain), number % 2
    # With a right digest everything runs that fits together; entries into the code are then not to be checked.
    mutate(header, (lambda p: p[0] != "images") if sealed else (lambda p: True))
    print(number, json.dumps(header)[:3000] if sealed else "", flush=True, file=sys.stderr)
    if sealed:
        header["digest"] = artifact._digest(header)
    container.write_container(__import__("pathlib").Path(path), header, whole.sections)
    try:
        module = load(path, threads=1)
        shape = module.inputs[0].shape if module.inputs else None
        inputs = [np.zeros([1 if n < 0 else n for n in s.shape], s.dtype) for s in module.inputs]
        found = module(x) if not sealed else module(*inputs)
    except ArtifactError:
        outcomes["refused"] += 1
        continue
    same = not sealed and np.array_equal(found, right)
    assert same or sealed, header
    outcomes["right" if same else "ran"] += 1
print(outcomes)
"""


def test_mutants_are_refused_or_right(saved, tmp_path) -> None:
    command = [sys.executable, "-c", MUTANTS, str(saved), str(tmp_path / "mutant.bn"), "0", "400"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    outcomes = ast.literal_eval(done.stdout)
    assert sum(outcomes.values()) == 400 and outcomes["refused"] > 200


def test_another_file_is_refused_by_its_hash(saved, tmp_path, make_executable) -> None:
    digest = hashlib.sha256(saved.read_bytes()).hexdigest()
    assert np.array_equal(load(saved, sha256=digest)(X), load(saved, sha256=digest.upper())(X))
    Module(make_executable(2000)).save(tmp_path / "other.bn")
    for path, wanted in ((tmp_path / "other.bn", digest), (saved, digest[:-1]), (saved, ""), (saved, "é")):
        with pytest.raises(ArtifactError, match=r"has SHA-256 [0-9a-f]{64}, allowed: .*another file"):
            load(path, sha256=wanted)


def test_signed_files_load_with_their_key_alone(saved, tmp_path, make_executable) -> None:
    path, key = tmp_path / "signed.bn", bytes(range(32))
    Module(make_executable(1_100_000)).save(path, key=key)  # parameters of more than 4 MiB are under a strong hash, too
    assert load(path, key=key).memory["params"] == load(path, key=key).executable.params.nbytes
    for file, given, message in (
        (path, None, "is signed; pass the key"),
        (saved, key, "is not signed"),
        (path, key[::-1], "damaged, or was signed with another key"),
    ):
        with pytest.raises(ArtifactError, match=message):
            load(file, key=given)
    data = bytearray(path.read_bytes())
    data[-5000] ^= 1
    path.write_bytes(data)
    with pytest.raises(ArtifactError, match="'params' does not match"):
        load(path, key=key)
    with pytest.raises(ValueError, match="key has 5 bytes"):
        load(saved, key=b"short")
    with pytest.raises(TypeError, match="allowed: bytes"):
        load(saved, key="text of sixteen characters")


def test_what_is_no_regular_file_is_refused_at_once(tmp_path, make_executable) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "loop").symlink_to("loop")
    for path in (tmp_path / "fifo", tmp_path, tmp_path / "loop", "/dev/zero"):
        with pytest.raises(OSError):
            load(path)
        with pytest.raises(OSError):
            Module(make_executable(), threads=1).save(path)


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
