"""One artifact for several CPUs: which variant is taken, what is refused, and that nothing illegal is executed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import burnish as bn
from burnish.errors import ArtifactError, ParameterError, TargetError
from burnish.graph.evaluate import evaluate
from burnish.graph.graph import Graph, GraphBuilder
from burnish.machines import flags
from burnish.machines.target import target
from burnish.machines.x86.cores import MODELS
from burnish.machines.x86.flags import FLAGS
from burnish.measure.accuracy import scaled_error
from burnish.runtime import host, variants
from burnish.runtime.container import read_container
from burnish.simulators.emulator import CpuEmulator

NAMES = ("x86-64-v2", "x86-64-v3", "x86-64-v4", "cascadelake", "sapphirerapids", "aarch64-cortex-a53")
WORDS = {model.name: {FLAGS[f] for f in model.features.split()} for model in MODELS}  # the kernel's, by target
X = np.random.default_rng(0).standard_normal((1, 32, 6, 6)).astype(np.float32)


def network() -> Graph:
    """A convolution with a bias, and a product."""
    random = np.random.default_rng(1)
    b = GraphBuilder()
    x = b.input("x", X.shape)
    w = b.constant(random.standard_normal((64, 32, 3, 3)).astype(np.float32) / 10)
    y = b.add("conv2d", x, w, b.constant(random.standard_normal(64).astype(np.float32)), pads=(1, 1, 1, 1))
    y = b.add("reshape", b.add("relu", y), shape=(1, 64 * 36))
    return b.build(b.add("matmul", y, b.constant(random.standard_normal((64 * 36, 10)).astype(np.float32) / 50)))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("variants") / "model.bn"
    bn.compile(network(), target=list(NAMES), threads=1, rewrite=False).save(path)
    return path


@pytest.fixture(scope="module")
def wanted() -> np.ndarray:
    (result,) = evaluate(network(), {"x": X}).values()
    return result


def on(monkeypatch: pytest.MonkeyPatch, machine: str, words: set[str], tiles: bool = True) -> None:
    """Makes the system tell of another CPU."""
    monkeypatch.setattr(host, "host_machine", lambda: machine)
    monkeypatch.setattr(host, "cpu_flags", lambda: frozenset(words))
    monkeypatch.setattr(variants, "cpu_flags", lambda: frozenset(words))
    monkeypatch.setitem(flags.PERMISSIONS, "amx-tile", lambda: tiles)


AMX = WORDS["sapphirerapids"]


@pytest.mark.parametrize(
    ("machine", "words", "tiles", "expected"),
    [
        ("x86_64", WORDS["x86-64-v2"], True, "x86-64-v2"),
        ("x86_64", WORDS["x86-64-v3"], True, "x86-64-v3"),
        ("x86_64", WORDS["x86-64-v3"] - {"fma"}, True, "x86-64-v2"),
        ("x86_64", WORDS["x86-64-v4"], True, "x86-64-v4"),
        ("x86_64", WORDS["x86-64-v4"] - {"avx512vl"}, True, "x86-64-v3"),
        ("x86_64", WORDS["cascadelake"], True, "cascadelake"),
        ("x86_64", AMX, True, "sapphirerapids"),
        ("x86_64", AMX, False, "cascadelake"),  # the kernel keeps the tiles from this process
        ("x86_64", AMX - {"amx_tile"}, True, "cascadelake"),
        ("x86_64", set(), True, "x86-64-v2"),  # the system does not tell
        ("aarch64", {"asimd", "fp"}, True, "aarch64-cortex-a53"),
    ],
)
def test_the_best_that_cpu_and_system_allow_is_chosen(
    monkeypatch: pytest.MonkeyPatch, machine: str, words: set[str], tiles: bool, expected: str, saved: Path
) -> None:
    on(monkeypatch, machine, words, tiles)
    targets = {v["name"]: v["target"] for v in variants.described(saved)}
    assert tuple(targets) == NAMES
    assert variants.choose(targets) == expected


@pytest.mark.skipif(host.host_machine() != "x86_64", reason="runs x86-64 code")
@pytest.mark.parametrize("name", NAMES[:4])
def test_every_variant_computes_the_same(name: str, saved: Path, wanted: np.ndarray) -> None:
    if variants.obstacle(next(v["target"] for v in variants.described(saved) if v["name"] == name)):
        pytest.skip(f"this machine is no {name}")
    module = bn.load(saved, variant=name)
    assert (module.variant, module.threads) == (name, 1)
    assert scaled_error([module(X)], [wanted]) <= 1e-5


@pytest.mark.skipif(host.host_machine() != "x86_64", reason="runs x86-64 code")
def test_features_masked_off_take_another_variant(
    monkeypatch: pytest.MonkeyPatch, saved: Path, wanted: np.ndarray
) -> None:
    here = host.cpu_flags()
    if not here >= WORDS["x86-64-v3"]:
        pytest.skip("this machine has no AVX2")
    on(monkeypatch, "x86_64", {word for word in here if not word.startswith(("avx512", "amx"))})
    module = bn.load(saved)
    assert module.variant == "x86-64-v3"
    assert scaled_error([module(X)], [wanted]) <= 1e-5


def test_the_wrong_variant_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, saved: Path) -> None:
    on(monkeypatch, "x86_64", WORDS["x86-64-v3"])
    with pytest.raises(ArtifactError, match=r"'sapphirerapids' was .* lacks amx-bf16, .*here: x86-64-v2, x86-64-v3$"):
        bn.load(saved, variant="sapphirerapids")
    with pytest.raises(ArtifactError, match=r"'aarch64-cortex-a53' was compiled for aarch64-.* this machine is x86_64"):
        bn.load(saved, variant="aarch64-cortex-a53")
    with pytest.raises(ArtifactError, match="variant: found 'avx9'; allowed: x86-64-v2, x86-64-v3, x86-64-v4, "):
        bn.load(saved, variant="avx9")
    on(monkeypatch, "x86_64", AMX, tiles=False)
    with pytest.raises(ArtifactError, match="lacks permission from the kernel to use amx-tile"):
        bn.load(saved, variant="sapphirerapids")


def test_without_a_usable_variant_all_are_named(monkeypatch: pytest.MonkeyPatch, saved: Path) -> None:
    on(monkeypatch, "x86_64", {"sse2"})
    with pytest.raises(ArtifactError, match="no variant of the model runs on this machine: ") as found:
        bn.load(saved)
    for name in NAMES:
        assert f"'{name}' for " in str(found.value)
    on(monkeypatch, "riscv64", {"sse2"})
    with pytest.raises(ArtifactError, match="this machine is riscv64"):
        bn.load(saved)


def test_a_loaded_variant_is_checked_again(monkeypatch: pytest.MonkeyPatch, saved: Path) -> None:
    """Whatever a file's list says, what runs is what the code itself was made for."""
    monkeypatch.setattr(variants, "choose", lambda targets, wanted=None: "aarch64-cortex-a53")
    with pytest.raises(ArtifactError, match=r"was compiled for aarch64-unknown-linux-gnu|this machine is aarch64"):
        on(monkeypatch, "x86_64", AMX)
        bn.load(saved)


def test_what_other_machines_need_is_carried_and_not_loaded(
    monkeypatch: pytest.MonkeyPatch, saved: Path, tmp_path: Path
) -> None:
    last = str(len(NAMES) - 1)
    container = read_container(saved)
    entry = next(s for s in container.header["sections"] if s["name"] == f"code {last}")
    data = bytearray(saved.read_bytes())
    data[entry["offset"]] ^= 255
    damaged = tmp_path / "damaged.bn"
    damaged.write_bytes(data)
    on(monkeypatch, "x86_64", WORDS["x86-64-v2"])
    assert variants.read(damaged).target.startswith("x86_64-")
    with pytest.raises(ArtifactError, match=f"section 'code {last}' does not match its checksum"):
        variants.read(damaged, wanted=NAMES[-1], anywhere=True)
    with pytest.raises(ArtifactError, match=f"section 'code {last}' does not match its checksum"):
        variants.read(damaged, sha256="0" * 64)


def test_constants_of_equal_packing_are_stored_once(saved: Path) -> None:
    sizes = {s["name"]: s["bytes"] for s in read_container(saved).header["sections"]}
    packed = sum(size for name, size in sizes.items() if name.startswith("params "))
    alone = sum(variants.read(saved, wanted=name, anywhere=True).params.nbytes for name in NAMES)
    assert any(name.startswith("params ") and "2,3" in name for name in sizes)  # AVX-512 with VNNI and without
    assert packed < 0.75 * alone


def test_an_emulated_baseline_has_no_newer_instruction(saved: Path, wanted: np.ndarray) -> None:
    """The emulator's x86-64 has no AVX: the baseline runs on it, the others do not."""
    found = bn.load(saved, variant="x86-64-v2", device=CpuEmulator())(X)
    assert scaled_error([found], [wanted]) <= 1e-5
    assert scaled_error([bn.load(saved, variant=NAMES[-1], device=CpuEmulator())(X)], [wanted]) <= 1e-5
    with pytest.raises(TargetError, match="Invalid instruction"):
        bn.load(saved, variant="x86-64-v3", device=CpuEmulator())(X)
    with pytest.raises(ArtifactError, match="a device runs one that is named"):
        bn.load(saved, device=CpuEmulator())


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        ([], "found no targets"),
        (["x86-64-v3", "x86-64-v3"], "'x86-64-v3' twice"),
        (["x86-64-v3", "vdla"], "'vdla' among several; allowed there: CPUs"),
        (["x86-64-v3", "cuda:sm_80"], "'cuda:sm_80' among several"),
    ],
)
def test_what_one_file_cannot_hold_is_refused(targets: list[str], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        bn.compile(network(), target=targets)


def test_an_unknown_target_among_several_is_refused() -> None:
    with pytest.raises(TargetError, match="'abacus' is unknown"):
        bn.compile(network(), target=["x86-64-v3", "abacus"])
    with pytest.raises(ParameterError, match=r"tune: .*None for several targets"):
        bn.compile(network(), target=["x86-64-v3", "x86-64-v2"], tune=bn.Tune(trials=1))


def test_a_variant_is_asked_of_a_file_that_holds_them(tmp_path: Path) -> None:
    b = GraphBuilder()
    bn.compile(b.build(b.add("relu", b.input("x", (4,)))), target="cpu").save(tmp_path / "one.bn")
    assert variants.described(tmp_path / "one.bn") == []
    with pytest.raises(ArtifactError, match="holds one model without variants"):
        bn.load(tmp_path / "one.bn", variant="cpu")


def test_states_are_saved_as_they_are_in_all_variants(tmp_path: Path) -> None:
    b = GraphBuilder()
    x = b.input("x", (3,))
    total = b.state("total", np.zeros(3, np.float32))
    b.update("total", b.add("add", total, x))
    graph = b.build(b.add("mul", total, b.constant(np.float32([2.0]))))
    module = bn.compile(graph, target=["cpu", "aarch64-cortex-a53"])
    module(np.ones(3, np.float32))
    module.save(tmp_path / "model.bn")
    for name in ("cpu", "aarch64-cortex-a53"):
        held = variants.read(tmp_path / "model.bn", wanted=name, anywhere=True)
        assert held.state[:12].view(np.float32).tolist() == [1.0, 1.0, 1.0]
        assert held.initial[:12].view(np.float32).tolist() == [0.0, 0.0, 0.0]


def test_features_left_out_are_forbidden_to_code() -> None:
    """A CPU's name stands for features that a target may be without; LLVM is told not to use them."""
    found = target("x86-64-v4,-avx512").code_features.split(",")
    assert "-avx512vl" in found and "+avx2" in found
    assert found.index("-avx512vl") < found.index("+avx2")
