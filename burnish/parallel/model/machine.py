"""Device topology: devices and the links between them, each link a communication device (thesis-jia section 3.2).

A transfer occupies every link of its route together, first come, first served: one at the sending side, and one at the
receiving side where such a link is declared. The published model has the first kind only. Where devices copy messages
themselves (cores that share memory), the two devices are what a transfer occupies, one after the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from burnish.errors import PlanError

SIDES = ("send", "receive")


@dataclass(frozen=True)
class Processor:
    """Processor: executes tasks one after the other.

    ``flops``: float32 operations a second; ``bandwidth``: bytes a second of its memory, of ``memory`` bytes;
    ``launch``: seconds to begin a kernel; ``units``: multiprocessors or cores that share a kernel.
    """

    kind: str
    node: int
    flops: float
    bandwidth: float
    memory: int
    launch: float = 0.0
    units: int = 1


@dataclass(frozen=True)
class MachineLink:
    """A connection: it carries transfers from ``sources`` to ``targets`` (numbers of devices), one after the other.

    ``latency`` in seconds, ``bandwidth`` in bytes a second. ``side``: whose end of a route it is.
    """

    name: str
    latency: float
    bandwidth: float
    sources: tuple[int, ...]
    targets: tuple[int, ...]
    side: str = "send"


@dataclass(frozen=True)
class DeviceCluster:
    """Devices and links. A transfer takes the first link that lists its ends, of either side.

    ``all_reduce``: the share of a link's bandwidth that sums of gradients reach. ``copied``: messages are copied by
    their two devices, which do nothing else meanwhile: the sender for the first half of a transfer's time, behind the
    task that made it, the receiver for the second.

    Raises PlanError where a device reaches another by no link, or a number or a rate makes no sense.
    """

    name: str
    devices: tuple[Processor, ...]
    links: tuple[MachineLink, ...] = ()
    all_reduce: float = 1.0
    copied: bool = False

    def __post_init__(self) -> None:
        if not self.devices:
            raise PlanError(f"machine '{self.name}': no devices; allowed: at least one")
        for number, device in enumerate(self.devices):
            self._require(f"device {number}", device, ("flops", "bandwidth", "memory", "units"), ("launch",))
        self._require("the whole", self, ("all_reduce",), ())
        for link in self.links:
            self._require(f"link '{link.name}'", link, ("bandwidth",), ("latency",))
            if link.side not in SIDES:
                raise PlanError(f"machine '{self.name}', link '{link.name}': side '{link.side}'; allowed: {SIDES}")
            wrong = [d for d in (*link.sources, *link.targets) if not 0 <= d < len(self.devices)]
            if wrong:
                raise PlanError(
                    f"machine '{self.name}', link '{link.name}': device {wrong[0]}; allowed: 0 to "
                    f"{len(self.devices) - 1}"
                )
        self.routes  # noqa: B018 - a machine without a route is refused where it is made

    def _require(self, what: str, thing: object, positive: Sequence[str], least_zero: Sequence[str]) -> None:
        for key in (*positive, *least_zero):
            value = getattr(thing, key)
            if not value >= 0 or value == float("inf") or (value == 0 and key in positive):
                allowed = "a positive number" if key in positive else "a number from 0"
                raise PlanError(f"machine '{self.name}', {what}: {key} {value}; allowed: {allowed}")

    @property
    def size(self) -> int:
        """Number of devices."""
        return len(self.devices)

    @cached_property
    def nodes(self) -> tuple[tuple[int, ...], ...]:
        """Numbers of the devices of every node, in order."""
        found: dict[int, list[int]] = {}
        for number, device in enumerate(self.devices):
            found.setdefault(device.node, []).append(number)
        return tuple(tuple(found[node]) for node in sorted(found))

    @cached_property
    def routes(self) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """``routes[x][y]``: numbers of the links that a transfer from device x to y occupies; () for x == y."""
        first: dict[tuple[int, int, str], int] = {}
        for number, link in enumerate(self.links):
            for x in link.sources:
                for y in link.targets:
                    first.setdefault((x, y, link.side), number)
        return tuple(tuple(self._route(first, x, y) for y in range(self.size)) for x in range(self.size))

    def _route(self, first: dict[tuple[int, int, str], int], x: int, y: int) -> tuple[int, ...]:
        if x == y:
            return ()
        found = tuple(first[x, y, side] for side in SIDES if (x, y, side) in first)
        if not found:
            raise PlanError(
                f"machine '{self.name}': no link from device {x} to device {y}; allowed: one between any two, if only "
                "through their nodes"
            )
        return found

    def latency(self, x: int, y: int) -> float:
        """Seconds before the first byte of a transfer."""
        return sum(self.links[link].latency for link in self.routes[x][y])

    def bandwidth(self, x: int, y: int) -> float:
        """Bytes a second of the slowest link between two devices."""
        return min((self.links[link].bandwidth for link in self.routes[x][y]), default=float("inf"))

    def seconds(self, x: int, y: int, nbytes: float) -> float:
        """Transfer time on idle links, in seconds; 0 within a device."""
        return 0.0 if x == y else self.latency(x, y) + nbytes / self.bandwidth(x, y)


def spread(
    name: str, latency: float, bandwidth: float, nodes: Sequence[Sequence[int]], each: str, reach: str, side: str
) -> list[MachineLink]:
    """One link for each device, adjacent pair or node to all within its pair, its node or the machine.

    Raises PlanError for another word.
    """
    if each not in ("device", "pair", "node"):
        raise PlanError(f"link '{name}': each '{each}'; allowed: device, pair, node")
    if reach not in ("pair", "node", "machine"):
        raise PlanError(f"link '{name}': reach '{reach}'; allowed: pair, node, machine")
    everything = tuple(d for node in nodes for d in node)
    links = []
    for number, node in enumerate(nodes):
        pairs: list[tuple[int, ...]] = [tuple(node[i : i + 2]) for i in range(0, len(node), 2)]
        groups: list[tuple[int, ...]] = [tuple(node)] if each == "node" else pairs
        if each == "device":
            groups = [(d,) for d in node]
        for group in groups:
            near = next(pair for pair in pairs if group[0] in pair)
            far = {"pair": near, "node": tuple(node), "machine": everything}[reach]
            label = f"{name} {number}" if each == "node" else f"{name} {'-'.join(map(str, group))}"
            sources, targets = (group, far) if side == "send" else (far, group)
            links.append(MachineLink(label, latency, bandwidth, sources, targets, side))
    return links


def ring(machine: DeviceCluster, devices: Iterable[int], nbytes: float) -> dict[int, float]:
    """Seconds on every link of an all-reduce in a ring over devices, neighbours by number: 2 (n - 1) steps of 1/n."""
    order = sorted(set(devices))
    n = len(order)
    busy: dict[int, float] = {}
    for x, y in zip(order, (*order[1:], *order[:1]), strict=True):
        for link in machine.routes[x][y]:
            rate = machine.links[link]
            step = rate.latency + nbytes / n / (rate.bandwidth * machine.all_reduce)
            busy[link] = busy.get(link, 0.0) + 2 * (n - 1) * step
    return busy
