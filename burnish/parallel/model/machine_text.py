"""Machine files (TOML): kinds of devices, nodes and links, read with an error for every unknown key."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from burnish.errors import PlanError
from burnish.parallel.model.machine import DeviceCluster, MachineLink, Processor, spread

KIND = {"flops": float, "bandwidth": float, "memory": int, "launch": float, "units": int}
REQUIRED_OF_KIND = ("flops", "bandwidth", "memory")
LINK = ("name", "latency", "bandwidth", "from", "to", "each", "reach", "side")


def read_machine(path: str | Path) -> DeviceCluster:
    """The machine of a file. Raises PlanError naming the file, the key, what was found and what is allowed."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(f"machine file '{path}': cannot be read: {error}") from None
    return parse_machine(text, str(path))


def parse_machine(text: str, source: str = "machine") -> DeviceCluster:
    """The machine that a TOML text describes::

        name = "cluster"
        all_reduce = 1.0          # share of the links' bandwidth that sums of gradients reach
        copied = false            # whether devices copy messages themselves, and do nothing else meanwhile
        [kinds.P100]              # flops, bandwidth, memory; launch = 0 and units = 1 if not given
        flops = 9.5e12
        bandwidth = 550e9
        memory = 16_000_000_000
        [[nodes]]                 # count nodes of these devices each
        count = 4
        devices = ["P100", "P100"]
        [[links]]                 # one for each device, pair or node, to all within its pair, node or the machine;
        name = "nvlink"           # or from = [numbers], to = [numbers]; side = "receive" for links at the other end
        each = "device"
        reach = "node"
        latency = 5e-6
        bandwidth = 18e9

    A transfer takes the first link that lists its ends. Raises PlanError.
    """
    try:
        said = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise PlanError(f"{source}: no valid TOML: {error}") from None
    _only(said, ("name", "all_reduce", "copied", "kinds", "nodes", "links"), source)
    kinds = _kinds(said.get("kinds", {}), source)
    devices, nodes = _devices(_tables(said, "nodes", source), kinds, source)
    links: list[MachineLink] = []
    for number, table in enumerate(_tables(said, "links", source)):
        links += _links(table, nodes, f"{source}: [[links]] {number + 1}")
    share = float(_number(said, "all_reduce", source)) if "all_reduce" in said else 1.0
    copied = said.get("copied", False)
    if not isinstance(copied, bool):
        raise PlanError(f"{source}: copied {copied!r}; allowed: true, false")
    return DeviceCluster(str(said.get("name", source)), tuple(devices), tuple(links), share, copied)


def _kinds(tables: Any, source: str) -> dict[str, dict[str, Any]]:
    if not isinstance(tables, dict) or not tables:
        raise PlanError(f"{source}: no kinds of devices; allowed: [kinds.NAME] with {', '.join(REQUIRED_OF_KIND)}")
    found = {}
    for name, table in tables.items():
        where = f"{source}: [kinds.{name}]"
        _only(table, (*KIND, "kind"), where)
        for key in REQUIRED_OF_KIND:
            if key not in table:
                raise PlanError(f"{where}: no '{key}'; needed: {', '.join(REQUIRED_OF_KIND)}")
        rates = {key: kind(_number(table, key, where)) for key, kind in KIND.items() if key in table}
        found[name] = {"kind": str(table.get("kind", name)), **rates}
    return found


def _devices(
    tables: Sequence[Mapping[str, Any]], kinds: Mapping[str, dict[str, Any]], source: str
) -> tuple[list[Processor], list[list[int]]]:
    devices: list[Processor] = []
    nodes: list[list[int]] = []
    for number, table in enumerate(tables):
        where = f"{source}: [[nodes]] {number + 1}"
        _only(table, ("count", "devices"), where)
        names = table.get("devices", [])
        if not isinstance(names, list) or not names:
            raise PlanError(f"{where}: devices {names!r}; allowed: a list of kinds: {', '.join(kinds)}")
        for _ in range(int(_number(table, "count", where)) if "count" in table else 1):
            nodes.append([])
            for name in names:
                if name not in kinds:
                    raise PlanError(f"{where}: device '{name}'; allowed: {', '.join(kinds)}")
                nodes[-1].append(len(devices))
                devices.append(Processor(node=len(nodes) - 1, **kinds[name]))
    return devices, nodes


def _links(table: Mapping[str, Any], nodes: Sequence[Sequence[int]], where: str) -> list[MachineLink]:
    _only(table, LINK, where)
    for key in ("latency", "bandwidth"):
        if key not in table:
            raise PlanError(f"{where}: no '{key}'; needed: latency (seconds), bandwidth (bytes a second)")
    name, side = str(table.get("name", "link")), str(table.get("side", "send"))
    latency, bandwidth = float(_number(table, "latency", where)), float(_number(table, "bandwidth", where))
    if "from" in table and "to" in table and not {"each", "reach"} & table.keys():
        ends = [tuple(int(i) for i in table[key]) for key in ("from", "to")]
        return [MachineLink(name, latency, bandwidth, ends[0], ends[1], side)]
    if {"each", "reach"} <= table.keys() and not {"from", "to"} & table.keys():
        return spread(name, latency, bandwidth, nodes, str(table["each"]), str(table["reach"]), side)
    raise PlanError(f"{where}: ends {sorted(set(table) & set(LINK[3:7]))}; allowed: from and to, or each and reach")


def _tables(said: Mapping[str, Any], key: str, source: str) -> list[Mapping[str, Any]]:
    tables = said.get(key, [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise PlanError(f"{source}: '{key}' is {type(tables).__name__}; allowed: tables [[{key}]]")
    return tables


def _number(table: Mapping[str, Any], key: str, where: str) -> float:
    value = table[key]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise PlanError(f"{where}: {key} {value!r}; allowed: a number")
    return value


def _only(table: Any, allowed: Sequence[str], where: str) -> None:
    if not isinstance(table, dict):
        raise PlanError(f"{where}: {table!r}; allowed: a table of {', '.join(allowed)}")
    for key in table:
        if key not in allowed:
            raise PlanError(f"{where}: key '{key}'; allowed: {', '.join(allowed)}")
