"""Preset machines: the clusters of the thesis and of later papers, and this machine's cores as devices.

Rates are those of data sheets (peak, as sustained links), not measurements; ``parallel.calibrate`` measures.
Sources: thesis-jia section 3.7.1 (4 nodes of 4 P100, NVLink, 100 Gb/s EDR; 16 nodes of 4 K80, one PCI-e switch for two
adjacent devices and a shared one, 56 Gb/s), and its DLRM experiments (Summit: 6 V100 a node, 100 Gb/s).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from burnish.errors import PlanError
from burnish.machines.target import target
from burnish.parallel.model.machine import DeviceCluster, MachineLink, Processor, spread
from burnish.parallel.model.machine_text import read_machine

GB = 10**9
SHARED_MEMORY = (11e-6, 6.7e9)  # seconds and bytes a second between two processes of a Zen server, one core each


@dataclass(frozen=True)
class Cluster:
    """Equal nodes of equal devices; ``links``: (name, seconds, bytes a second, each, reach, side)."""

    device: Processor
    per_node: int
    nodes: int
    links: tuple[tuple[str, float, float, str, str, str], ...]

    def machine(self, name: str, nodes: int, per_node: int) -> DeviceCluster:
        """Cluster of ``nodes`` nodes with ``per_node`` devices each."""
        groups = [list(range(n * per_node, (n + 1) * per_node)) for n in range(nodes)]
        d = self.device
        devices = [
            Processor(d.kind, n, d.flops, d.bandwidth, d.memory, d.launch, d.units)
            for n, node in enumerate(groups)
            for _ in node
        ]
        links: list[MachineLink] = []
        for label, latency, bandwidth, each, reach, side in self.links:
            links += spread(label, latency, bandwidth, groups, each, reach, side)
        return DeviceCluster(name, tuple(devices), tuple(links))


CLUSTERS = {
    "p100": Cluster(
        Processor("P100", 0, 9.5e12, 550e9, 16 * GB, 8e-6, 56), 4, 4,
        (("nvlink", 2e-6, 18e9, "device", "node", "send"), ("edr", 5e-6, 11e9, "node", "machine", "send")),
    ),
    "k80": Cluster(
        Processor("K80", 0, 2.8e12, 180e9, 12 * GB, 8e-6, 13), 4, 16,
        (
            ("pci", 5e-6, 9e9, "device", "pair", "send"), ("pci shared", 5e-6, 9e9, "node", "node", "send"),
            ("fdr", 7e-6, 6e9, "node", "machine", "send"),
        ),
    ),
    "summit": Cluster(
        Processor("V100", 0, 14e12, 800e9, 16 * GB, 7e-6, 80), 6, 16,
        (("nvlink", 2e-6, 45e9, "device", "node", "send"), ("edr", 5e-6, 11e9, "node", "machine", "send")),
    ),
    "h100": Cluster(
        Processor("H100", 0, 60e12, 3000e9, 80 * GB, 5e-6, 132), 8, 1,
        (
            ("nvlink", 2e-6, 400e9, "device", "node", "send"), ("nvlink in", 0.0, 400e9, "device", "node", "receive"),
            ("ndr", 5e-6, 45e9, "device", "machine", "send"), ("ndr in", 0.0, 45e9, "device", "machine", "receive"),
        ),
    ),
}  # fmt: skip


def host(cores: int | None = None) -> DeviceCluster:
    """This machine's cores, each a device of a process, which copy messages through shared memory."""
    here = target()
    count = here.cores if cores is None else cores
    if not 1 <= count <= 1024:
        raise PlanError(f"machine 'host': {count} cores; allowed: 1 to 1024")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // count
    rates = (here.flops / here.cores, here.memory_bandwidth / here.cores)
    devices = tuple(Processor(here.cpu, 0, *rates, memory, 2e-6) for _ in range(count))
    links = spread("shared memory", *SHARED_MEMORY, [list(range(count))], "device", "node", "send")
    return DeviceCluster(f"host:{count}", devices, tuple(links), copied=True)


def machine(name: str) -> DeviceCluster:
    """The machine called ``p100:NODESxDEVICES`` (likewise k80, summit, h100), ``host:CORES``, or of a ``.toml`` file.

    Without numbers those of the papers. Raises PlanError for another name.
    """
    if name.endswith(".toml") or Path(name).is_file():
        return read_machine(name)
    found = re.fullmatch(r"(\w+?)(?::(\d+)(?:x(\d+))?)?", name)
    makers: dict[str, Callable[[], DeviceCluster]] = {}
    if found:
        kind, first, second = found[1], found[2], found[3]
        if kind == "host" and second is None:
            makers["host"] = lambda: host(int(first) if first else None)
        if kind in CLUSTERS:
            cluster = CLUSTERS[kind]
            nodes, per_node = int(first or cluster.nodes), int(second or cluster.per_node)
            if nodes > 0 and per_node > 0:
                makers[kind] = lambda: cluster.machine(f"{kind}:{nodes}x{per_node}", nodes, per_node)
        if kind in makers:
            return makers[kind]()
    words = ", ".join(f"{kind}:{c.nodes}x{c.per_node}" for kind, c in CLUSTERS.items())
    raise PlanError(f"machine '{name}'; allowed: {words} (NODESxDEVICES), host:CORES, or a .toml file")
