import llvmlite.binding as llvm
import pytest

from burnish.errors import ArtifactError
from burnish.runtime import host


def test_a_fingerprint_keeps_what_can_be_checked() -> None:
    text = host.fingerprint("x86_64-unknown-linux-gnu", "znver5", {"avx512f", "avx2", "prefetchi", "64bit"})
    assert text == "x86_64-unknown-linux-gnu/znver5/avx2,avx512f"
    assert host.fingerprint("riscv64-unknown-linux-gnu", "generic", {"v", "x"}) == "riscv64-unknown-linux-gnu/generic/v"
    assert host.fingerprint("ppc64le-unknown-linux-gnu", "pwr9", {"vsx"}) == "ppc64le-unknown-linux-gnu/pwr9/"


def test_this_machine_has_the_features_that_llvm_reports() -> None:
    features = [name for name, on in llvm.get_host_cpu_features().items() if on]
    target = host.fingerprint(llvm.get_process_triple(), llvm.get_host_cpu_name(), features)
    assert len(target.split("/")[2].split(",")) > 3
    host.check_host(target)


@pytest.mark.parametrize(
    ("machine", "flags", "target", "message"),
    [
        ("x86_64", "sse2 avx2", "x86_64-unknown-linux-gnu/znver5/avx2,avx512vnni,sse4.1",
         "compiled for znver5, but this CPU lacks avx512vnni, sse4.1; compile it for this machine"),
        ("aarch64", "fp asimd", "aarch64-unknown-linux-gnu/neoverse-n1/dotprod,neon", "lacks dotprod;"),
        ("aarch64", "fp asimd", "x86_64-unknown-linux-gnu/znver5/avx2",
         "compiled for x86_64-unknown-linux-gnu, but this machine is aarch64 under linux"),
        ("x86_64", "avx2", "x86_64-apple-macosx/haswell/avx2", "compiled for x86_64-apple-macosx"),
        ("x86_64", "avx2", "x86_64-unknown-linux-gnu/new/avx99", "lacks avx99"),
    ],
)  # fmt: skip
def test_what_is_missing_is_named(monkeypatch, machine, flags, target, message) -> None:
    monkeypatch.setattr(host, "host_machine", lambda: machine)
    monkeypatch.setattr(host, "cpu_flags", lambda: frozenset(flags.split()))
    monkeypatch.setattr(host.sys, "platform", "linux")
    with pytest.raises(ArtifactError, match=message):
        host.check_host(target)


def test_enough_passes(monkeypatch) -> None:
    monkeypatch.setattr(host, "host_machine", lambda: "x86_64")
    monkeypatch.setattr(host.sys, "platform", "linux")
    monkeypatch.setattr(host, "cpu_flags", lambda: frozenset({"avx2", "avx512_vnni", "fma"}))
    host.check_host("x86_64-unknown-linux-gnu/znver5/avx2,avx512vnni")
    host.check_host("x86_64-unknown-linux-gnu/generic/")
    monkeypatch.setattr(host, "cpu_flags", lambda: frozenset())  # the system does not tell
    host.check_host("x86_64-unknown-linux-gnu/znver5/avx2,avx512vnni")
