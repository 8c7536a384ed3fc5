"""Records survive whatever happens to their writers, and give back the kernel they were made from."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from burnish.driver.compilation import compile_kernels
from burnish.errors import RecordError
from burnish.graph.graph import GraphBuilder
from burnish.kernels.cpu import GENERIC
from burnish.kernels.task import KernelTask
from burnish.loops.tensor import compute, placeholder
from burnish.machines.target import host
from burnish.pipeline.kernel import CompiledKernel, compile_program, named, packing
from burnish.schedule.schedule import replay
from burnish.tune.evaluate import Evaluator, KernelTrial, Measurement
from burnish.tune.records import Record, RecordFile, family, machine, parse, record

EXAMPLE = Record(
    "x86_64-linux/fast/avx2", 2, False, "key", "family", "generic", {"tile": 4, "outer": "oc"},
    (("split", ["i", 4]), ("reorder", ["i.o", "i.i"])), (2e-3, 1e-3, 3e-3), tuner="test", date="2026-01-01T00:00:00Z",
)  # fmt: skip

WRITER = """
import sys
from dataclasses import replace
from tests.tune.test_records import EXAMPLE
from burnish.tune.records import RecordFile
records, name = RecordFile(sys.argv[1]), sys.argv[2]
for i in range(500):
    choice = {"writer": name, "i": i}
    records.append([replace(EXAMPLE, tuner=f"{name} {i}", choice=choice, error="x" * (i * 37 % 3000))])
"""

# Twenty writers, each killed at a random moment; of each, it prints how many records were told to be written.
KILLER = """
import os, random, signal, sys, time
from dataclasses import replace
from tests.tune.test_records import EXAMPLE
from burnish.tune.records import RecordFile
moments = random.Random(0)
for generation in range(20):
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        records, i = RecordFile(sys.argv[1]), 0
        while True:
            records.append([replace(EXAMPLE, tuner=f"{generation} {i}", error="x" * (i * 37 % 3000))])
            os.write(writer, b".")
            i += 1
    os.close(writer)
    os.read(reader, 1)
    time.sleep(moments.uniform(0.0, 0.02))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    count = 1
    while dots := os.read(reader, 65536):
        count += len(dots)
    os.close(reader)
    print(count)
"""


def python(program: str, *arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def test_a_line_is_a_record() -> None:
    assert parse(EXAMPLE.line()) == EXAMPLE
    assert EXAMPLE.line().count("\n") == 1
    assert EXAMPLE.seconds == 2e-3
    assert replace(EXAMPLE, times=(), outcome="crashed", error="a\nb \x00 ü").line().count("\n") == 1


def test_records_are_found_by_setting(tmp_path: Path) -> None:
    records = RecordFile(tmp_path / "deep" / "r.jsonl")
    assert records.all() == []
    assert records.best(EXAMPLE.target, 2, "key") is None
    faster = replace(EXAMPLE, times=(1e-3,))
    failed = replace(EXAMPLE, times=(), outcome="timeout", error="took long")
    elsewhere = replace(EXAMPLE, target="aarch64-linux/small/neon", times=(1e-9,))
    alone, cold = replace(EXAMPLE, threads=1, times=(1e-9,)), replace(EXAMPLE, cold=True, times=(1e-9,))
    other = replace(EXAMPLE, key="other", times=(1e-9,))
    records.append([failed, EXAMPLE, elsewhere])
    records.append([alone, cold, other, faster])
    assert records.measurements(EXAMPLE.target, 2, "key") == [faster, EXAMPLE, failed]
    assert records.best(EXAMPLE.target, 2, "key") == faster
    assert records.best(EXAMPLE.target, 2, "key", cold=True) == cold


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"version": 2}, "version 2, allowed: 1"),
        ({"threads": 0}, "field 'threads' is '0', allowed: a positive integer"),
        ({"threads": True}, "field 'threads' is 'True'"),
        ({"times": [1.0, -1.0]}, "field 'times'"),
        ({"times": [1e999]}, "field 'times'"),
        ({"choice": {"tile": 1.5}}, "field 'choice'"),
        ({"trace": [["split", 3]]}, "field 'trace'"),
        ({"outcome": "fine"}, "field 'outcome' is 'fine', allowed: ok, wrong, crashed, timeout, build failed"),
        ({"key": None}, "field 'key'"),
    ],
)
def test_a_wrong_line_says_what_is_wrong(change: dict[str, object], error: str) -> None:
    with pytest.raises(RecordError) as raised:
        parse(json.dumps({**json.loads(EXAMPLE.line()), **change}))
    assert error in str(raised.value)


def test_unreadable_lines_are_counted_named_and_skipped(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    lines = [EXAMPLE.line().encode() for _ in range(8)]
    lines[1], lines[3], lines[4] = b"\xff\xfe\n", b'{"version": 1}\n', lines[4][:50] + b"\n"
    lines[6] = b"[1, 2]\n"
    path.write_bytes(b"".join(lines))
    records = RecordFile(path)
    with pytest.warns(RuntimeWarning, match="4 of 8 lines cannot be read and are skipped: line 2: .*line 4: .*line 5"):
        assert records.all() == [EXAMPLE] * 4
    assert [text.split(":")[0] for text in records.unreadable] == ["line 2", "line 4", "line 5", "line 7"]
    records.append([EXAMPLE])
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # each bad line is warned of once
        assert len(records.all()) == 5


def test_every_cut_loses_at_most_the_last_record(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    line = EXAMPLE.line().encode()
    for cut in range(len(line) + 1):
        path.write_bytes(line + line[:cut])
        records = RecordFile(path)
        whole = 2 if cut >= len(line) - 1 else 1  # only the end of the line may be missing
        assert len(records.all()) == whole
        records.append([replace(EXAMPLE, tuner="after")])
        assert [r.tuner for r in RecordFile(path).all()] == ["test"] * whole + ["after"]
        assert records.all() == RecordFile(path).all()


def test_a_writer_that_dies_while_another_is_open(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    records = RecordFile(path)
    records.append([EXAMPLE])
    with path.open("ab") as file:
        file.write(EXAMPLE.line().encode()[:100])
    assert records.all() == [EXAMPLE]
    records.append([EXAMPLE])
    assert records.all() == [EXAMPLE] * 2
    assert path.read_bytes() == EXAMPLE.line().encode() * 2


@pytest.mark.slow
def test_killed_writers_lose_nothing_that_was_written(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    output, _ = python(KILLER, str(path)).communicate(timeout=120)
    counts = [int(line) for line in output.split()]
    assert len(counts) == 20
    records = RecordFile(path)
    found = [r.tuner for r in records.all()]
    assert not records.unreadable
    for generation, count in enumerate(counts):
        mine = [name for name in found if name.startswith(f"{generation} ")]
        assert mine == [f"{generation} {i}" for i in range(len(mine))]
        assert count <= len(mine) <= count + 1  # written, and killed before it could say so


def test_two_writers_while_the_file_is_read_and_compacted(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    processes = [python(WRITER, str(path), name) for name in ("a", "b")]
    records = RecordFile(path)
    while any(process.poll() is None for process in processes):
        records.all()
        records.compact(keep=10**6)  # puts another file in the place of this one
        time.sleep(0.01)
    assert [process.communicate()[0] for process in processes] == ["", ""]
    assert [process.returncode for process in processes] == [0, 0]
    found = [r.tuner for r in RecordFile(path).all()]
    for name in ("a", "b"):
        assert [t for t in found if t.startswith(name)] == [f"{name} {i}" for i in range(500)]
    assert len(found) == 1000
    assert records.all() == RecordFile(path).all()
    assert not records.unreadable


def test_merging_and_compacting(tmp_path: Path) -> None:
    one, other = RecordFile(tmp_path / "one"), RecordFile(tmp_path / "other")
    tiles = [replace(EXAMPLE, choice={"tile": tile}, times=(tile * 1e-3,)) for tile in (5, 1, 4, 2, 3)]
    one.append(tiles[:3])
    other.append([*tiles[2:], replace(EXAMPLE, key="other"), replace(EXAMPLE, times=(), outcome="wrong")])
    assert one.merge([other.path]) == 4
    assert one.merge([other.path]) == 0
    one.append([replace(tiles[0], times=(0.5e-3,))])  # the candidate of tile 5 again, now the fastest
    assert one.compact(keep=2) == 5
    assert [(r.key, r.choice["tile"]) for r in one.all()] == [("key", 1), ("other", 4), ("key", 5)]
    assert RecordFile(one.path).all() == one.all()
    with pytest.raises(FileNotFoundError, match="no file"):
        one.merge([tmp_path / "none"])


def test_a_file_that_may_not_be_written_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "r.jsonl"
    path.write_bytes(EXAMPLE.line().encode() + b'{"vers')
    real = os.open

    def refuse(name: object, flags: int, *rest: int) -> int:
        if flags & os.O_RDWR:
            raise PermissionError("read-only")
        return real(name, flags, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", refuse)
    records = RecordFile(path)
    assert records.all() == [EXAMPLE]
    with pytest.raises(PermissionError):
        records.append([EXAMPLE])


def convolution(channels: int, size: int) -> KernelTask:
    """A row-wise sum: one operator in many shapes."""
    x = placeholder((channels, size), "float32", "x")
    return KernelTask("k", (x,), (compute((channels, size), lambda c, i: x[c, i] * 3.0, "y"),), "mul", {}, frozenset())


def test_a_family_is_one_operator_in_all_shapes() -> None:
    assert family(convolution(4, 8)) == family(convolution(16, 100))
    assert family(convolution(4, 8)) != family(replace(convolution(4, 8), label="add"))
    assert family(convolution(4, 8)) != family(replace(convolution(4, 8), constants=frozenset({"x"})))


def replayed(found: Record, task: KernelTask) -> CompiledKernel:
    """The kernel that a record's trace makes of its task."""
    made = host()
    program = named(task, found.key).program()
    scheduled = replay(program, found.trace, made.machine.named_intrinsics.values(), made.machine.scopes)
    return compile_program(scheduled, made, packing(found.trace, task), found.template, found.choice)


def test_a_record_replays_to_the_same_bytes(evaluator: Evaluator, product: KernelTask, tmp_path: Path) -> None:
    default = evaluator.default(product)
    trials = [default, KernelTrial(product, GENERIC.name, GENERIC.on(product, host()).space.default)]
    records = RecordFile(tmp_path / "r.jsonl")
    builds = evaluator.build(trials)
    for trial, built in zip(trials, builds, strict=True):
        made = evaluator.measure(trial, built)
        assert made.outcome == "ok"
        records.append([record(trial, made, host(), 2, tuner="test")])
    for built, found in zip(builds, RecordFile(records.path).all(), strict=True):
        assert found.target == machine(host())
        assert replayed(found, product) == built.kernel
        assert replayed(found, product).code == replayed(found, product).code


def test_kernels_of_a_model_replay_to_the_same_bytes(evaluator: Evaluator) -> None:
    b = GraphBuilder()
    random = np.random.default_rng(0)
    x = b.input("x", (1, 16, 12, 12))
    for kernel, groups in ((3, 1), (3, 32), (1, 1)):
        channels = b.types[x].shape[1]
        weight = random.standard_normal((32, channels // groups, kernel, kernel)).astype(np.float32)
        pads = (kernel // 2,) * 4
        x = b.add("relu", b.add("conv2d", x, b.constant(weight), groups=groups, pads=pads))
    made = compile_kernels(b.build(x), host())
    trials = [KernelTrial(s.task, s.kernel.template, s.kernel.choice) for s in made.stages]
    assert len({trial.template for trial in trials}) >= 2
    for stage, trial, built in zip(made.stages, trials, evaluator.build(trials), strict=True):
        found = parse(record(trial, Measurement((1.0,), trace=built.trace), host(), 2).line())
        assert built.kernel is not None
        assert replayed(found, trial.task).code == built.kernel.code == stage.kernel.code


@pytest.mark.parametrize(
    "line",
    [
        "[" * 100_000, '{"a":' * 100_000, EXAMPLE.line().replace("[0.002,", "[1" + "0" * 400 + ","),
        EXAMPLE.line().replace('"cost":0.0', '"cost":1' + "0" * 400), EXAMPLE.line().replace("0.002", "1e999"),
        EXAMPLE.line().replace("0.002", "9" * 5_000), "null", "[]", "3", '"text"',
    ],
)  # fmt: skip
def test_lines_that_no_writer_wrote_cost_themselves_alone(tmp_path: Path, line: str) -> None:
    assert line != EXAMPLE.line()
    with pytest.raises(RecordError):
        parse(line)
    path = tmp_path / "r.jsonl"
    path.write_text(EXAMPLE.line() + line.strip() + "\n" + EXAMPLE.line())
    with pytest.warns(RuntimeWarning, match="1 of 3 lines cannot be read"):
        assert len(RecordFile(path).all()) == 2


def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "loop").symlink_to("loop")
    for path in (tmp_path / "fifo", tmp_path / "loop", tmp_path, Path("/dev/zero")):
        records = RecordFile(path)
        with pytest.raises(OSError):
            records.all()
        with pytest.raises(OSError):
            records.append([EXAMPLE])
