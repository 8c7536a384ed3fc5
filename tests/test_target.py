"""Machines by name, and features switched off."""

from dataclasses import replace

import pytest

from burnish.errors import TargetError
from burnish.machines.target import host, target


def test_features_are_left_out_by_prefix() -> None:
    """`-avx512` takes every AVX-512 feature away, and with them the wide registers."""
    wide = target("x86-64-v4")
    narrow = target("x86-64-v4,-avx512")
    assert (wide.vector_bytes, wide.vector_registers) == (64, 32)
    assert narrow.features == target("x86-64-v3").features
    assert (narrow.vector_bytes, narrow.vector_registers) == (32, 16)
    assert target("x86-64-v4,-avx512,-avx2").vector_bytes == 16


def test_zen_4_takes_wide_vectors_in_two_halves() -> None:
    wide = target("x86-64-v4")
    zen = replace(wide, cpu="znver4")
    assert (zen.lanes, zen.multiply_bytes, zen.flops) == (16, 32, wide.flops / 2)
    assert replace(target("x86-64-v3"), cpu="znver4").multiply_bytes == 32


def test_a_feature_the_machine_does_not_have_may_be_left_out() -> None:
    """So that a script may say `cpu,-amx` on any machine."""
    bare = target("cpu,-amx")
    assert not any(feature.startswith("amx") for feature in bare.features)
    assert bare.matrix_flops == 0.0
    assert bare.vector_bytes == host().vector_bytes


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("abacus", "target 'abacus' is unknown; known: cpu, "),
        ("abacus,-amx", "target 'abacus' is unknown"),
        ("cpu,amx", "'amx' is not a feature to leave out; allowed: -FEATURE"),
        ("cpu,-", "'-' is not a feature"),
        ("cpu,-foo", "no feature begins with 'foo'; cpu has .*"),
        ("x86-64-v3,-foo", "no feature begins with 'foo'; x86-64-v3 has avx, avx2, bmi, .*, fma, "),
        (None, "target: found None; allowed: a name: cpu, "),
    ],
)
def test_what_is_refused(name: str, message: str) -> None:
    with pytest.raises(TargetError, match=message):
        target(name)


def test_kernels_are_made_for_the_threads_asked_for() -> None:
    """The number of threads takes the place of the cores of a CPU; a GPU keeps its own."""
    assert target("x86-64-v4", threads=16).cores == 16
    assert target(target("cpu"), threads=3).key != target("cpu").key
    assert target("cuda:sm_90a", threads=16) == target("cuda:sm_90a")


@pytest.mark.parametrize(("name", "kilobytes"), [("cuda:sm_80", 163), ("cuda:sm_90a", 227)])
def test_shared_memory_of_a_block_is_the_targets(name: str, kilobytes: int) -> None:
    assert target(name).shared_bytes == kilobytes << 10
