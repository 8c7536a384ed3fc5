"""The list of machines: what is kept apart so that artifacts load without LLVM says the same as the packages do."""

from dataclasses import replace

from burnish.codegen.llvm import emit
from burnish.loops.tensor import compute, create_program, placeholder
from burnish.machines.cpu import TRANSPOSE16_F32
from burnish.machines.flags import FLAGS, PERMISSIONS
from burnish.machines.known import FEATURES, INTRINSICS, MACHINES, MODELS, machine_for
from burnish.machines.target import Target, target
from burnish.workers.plain import decode, encode


def test_flags_and_permissions_are_those_of_the_machines() -> None:
    assert {m.architectures[0]: m.flags for m in MACHINES if m.flags} == FLAGS
    assert {unit.state: unit.permit for m in MACHINES for unit in m.units} == PERMISSIONS
    for machine in MACHINES:
        for unit in machine.units:
            assert unit.feature.startswith(unit.prefix) and unit.state.startswith(unit.prefix)
            assert {unit.feature, unit.state} <= machine.flags.keys()


def test_models_have_what_their_features_give_them() -> None:
    for name, (machine, model) in MODELS.items():
        there = target(name)
        assert (there.name, there.kind, there.cpu, there.machine) == (name, machine.kind, model.cpu, machine)
        assert machine_for(there.triple) is machine
        assert (there.vector_bytes, there.vector_registers) == machine.vectors(there.features)
        assert there.features <= FEATURES
        assert (there.unit is not None) == any(unit.feature in there.features for unit in machine.units)


def test_intrinsics_have_one_meaning_by_name_and_code_everywhere() -> None:
    for machine in MACHINES:
        for name, known in machine.named_intrinsics.items():
            assert INTRINSICS[name] is known and known.name == name and known.code is not None
            assert known.needs <= FEATURES


def sent(there: Target) -> Target:
    return decode(*encode(there, "target"))


def test_targets_travel_to_worker_processes() -> None:
    """A machine of the package arrives as the same object; one with more, or with something else, by its parts."""
    for name in MODELS:
        there = target(name)
        assert sent(there) == there
    plain = target("sapphirerapids")
    more = plain.using([replace(TRANSPOSE16_F32, name="mine")])
    assert more.machine is not plain.machine and not more.machine.import_path
    found = sent(more)
    assert found.machine.named_intrinsics.keys() == {*plain.machine.named_intrinsics, "mine"}
    program = create_program("kernel", [x := placeholder((16,), name="x")], [compute((16,), lambda i: x[i] * 2.0, "y")])
    assert emit(program, found).text == emit(program, plain).text
    renamed = replace(plain, machine=replace(plain.machine, kind="other"))
    assert sent(renamed).kind == "other"
