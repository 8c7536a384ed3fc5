"""Machines: routes, files and their errors, presets."""

import pytest

from burnish.errors import PlanError
from burnish.parallel.model.machine import DeviceCluster, MachineLink, Processor, ring
from burnish.parallel.model.machine_text import KIND, parse_machine, read_machine
from burnish.parallel.model.presets import machine

FILE = """
name = "two"
[kinds.A]
flops = 1e12
bandwidth = 1e11
memory = 1_000_000
[[nodes]]
count = 2
devices = ["A", "A"]
[[links]]
name = "near"
each = "device"
reach = "node"
latency = 1e-6
bandwidth = 1e10
[[links]]
name = "far"
each = "node"
reach = "machine"
latency = 5e-6
bandwidth = 1e9
"""


def machine_text(machine: DeviceCluster) -> str:
    """The machine as a file of it."""
    kinds: dict[tuple[object, ...], str] = {}
    lines = [f'name = "{machine.name}"', f"all_reduce = {machine.all_reduce!r}"]
    lines += [f"copied = {str(machine.copied).lower()}", ""]
    for d in machine.devices:
        key = (d.kind, d.flops, d.bandwidth, d.memory, d.launch, d.units)
        if key not in kinds:
            kinds[key] = d.kind if d.kind not in kinds.values() else f"{d.kind}.{len(kinds)}"
            rates = [f"{name} = {getattr(d, name)!r}" for name in KIND]
            lines += [f'[kinds."{kinds[key]}"]', f'kind = "{d.kind}"', *rates, ""]
    for node in machine.nodes:
        names = [
            kinds[d.kind, d.flops, d.bandwidth, d.memory, d.launch, d.units] for d in (machine.devices[i] for i in node)
        ]
        words = ", ".join(f'"{name}"' for name in names)
        lines += ["[[nodes]]", f"devices = [{words}]", ""]
    for link in machine.links:
        lines += [
            "[[links]]",
            f'name = "{link.name}"',
            f"latency = {link.latency!r}",
            f"bandwidth = {link.bandwidth!r}",
        ]
        lines += [f"from = {list(link.sources)}", f"to = {list(link.targets)}", f'side = "{link.side}"', ""]
    return "\n".join(lines)


@pytest.mark.parametrize("name", ["p100", "k80:2x4", "summit:2", "h100:2x8", "host:2"])
def test_presets_survive_as_text(name):
    made = machine(name)
    assert parse_machine(machine_text(made)) == made


def test_sizes_of_presets():
    assert [machine(name).size for name in ("p100", "k80", "summit:4", "h100", "host:3")] == [16, 64, 24, 8, 3]
    assert len(machine("k80").nodes) == 16


def test_transfers_take_the_nearest_link():
    made = parse_machine(FILE)
    assert [made.links[made.routes[0][y][0]].name for y in (1, 2)] == ["near 0", "far 0"]
    assert made.routes[2][3] != made.routes[0][1]
    assert made.routes[0][2] == made.routes[1][3]  # a node's devices share its way out
    assert made.seconds(0, 1, 1e10) == pytest.approx(1 + 1e-6)
    assert made.seconds(1, 1, 1e10) == 0


def test_receiving_links_are_part_of_routes():
    made = machine("h100:1x2")
    assert len(made.routes[0][1]) == 2


def test_pairs_of_the_k80_share_a_switch():
    made = machine("k80:1x4")
    assert made.routes[0][1] != made.routes[2][3]
    assert made.routes[0][2] == made.routes[1][3] == made.routes[2][0]


def test_an_all_reduce_sends_twice_its_bytes_around_the_ring():
    made = parse_machine(FILE)
    busy = ring(made, [0, 1, 2, 3], 1e9)
    far = [link for link in busy if made.links[link].name.startswith("far")]
    assert len(far) == 2
    assert busy[far[0]] == pytest.approx(2 * 3 * (5e-6 + 0.25e9 / 1e9))
    assert ring(made, [2], 1e9) == {}


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('bandwidth = 1e10', 'bandwith = 1e10', "key 'bandwith'; allowed: name, latency, bandwidth"),
        ('flops = 1e12', '', "no 'flops'"),
        ('flops = 1e12', 'flops = "fast"', "flops 'fast'; allowed: a number"),
        ('flops = 1e12', 'flops = -1', "flops -1.0; allowed: a positive number"),
        ('devices = ["A", "A"]', 'devices = ["A", "B"]', "device 'B'; allowed: A"),
        ('\neach = "node"', '\neach = "rack"', "each 'rack'; allowed: device, pair, node"),
        ('reach = "machine"', 'reach = "node"', "no link from device 0 to device 2"),
        ('name = "two"', 'name = two', "no valid TOML"),
        ('latency = 5e-6', '', "no 'latency'"),
        ('name = "two"', 'copied = 1', "copied 1; allowed: true, false"),
    ],
)  # fmt: skip
def test_errors_name_the_key_and_what_is_allowed(old, new, words):
    with pytest.raises(PlanError, match=words.replace("(", r"\(")):
        parse_machine(FILE.replace(old, new), "file.toml")


def test_unknown_machines_and_files_are_refused(tmp_path):
    with pytest.raises(PlanError, match="machine 'p101'; allowed: p100"):
        machine("p101")
    with pytest.raises(PlanError, match="cannot be read"):
        read_machine(tmp_path / "none.toml")
    with pytest.raises(PlanError, match="device 7; allowed: 0 to 0"):
        DeviceCluster("one", (Processor("A", 0, 1, 1, 1),), (MachineLink("x", 0, 1, (7,), (0,)),))
