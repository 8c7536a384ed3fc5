"""`burnish device add | list | test | serve`: boards that kernels are measured on, and the server that shares them."""

import signal
import sys
import threading
from pathlib import Path
from typing import Annotated, Any

import typer

from burnish.boards.client import RemotePool
from burnish.boards.pool import DevicePool
from burnish.boards.secure import key_of
from burnish.boards.server import PoolServer
from burnish.boards.table import BoardEntry, default_path, read
from burnish.boards.table import add as add_to
from burnish.cli.compile_options import Json
from burnish.cli.output import print_answer, print_json
from burnish.errors import DeviceError, ParameterError
from burnish.machines.target import target as find_target

Table = Annotated[
    Path | None, typer.Option("--devices", metavar="FILE", help="The table of devices. Default: the user's own.")
]
Key = Annotated[Path | None, typer.Option(metavar="FILE", help="The pool's key. Default: next to the table.")]
Pool = Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Ask the pool that is served there.")]


def add(
    name: Annotated[str, typer.Argument(help="Its name.", show_default=False)],
    kind: Annotated[str, typer.Option(help="What tuners ask for, such as aarch64-cortex-a53.", show_default=False)],
    ssh: Annotated[str | None, typer.Option(metavar="USER@HOST", help="Where SSH finds it.")] = None,
    emulator: Annotated[bool, typer.Option("--emulator", help="An emulated ARM CPU in a process here.")] = False,
    target: Annotated[str | None, typer.Option(help="What its code is compiled for. Default: its kind.")] = None,
    python: Annotated[str | None, typer.Option(help="Its Python, 3.8 or later. Default: python3.")] = None,
    devices: Table = None,
    as_json: Json = False,
) -> None:
    """Add a board to the table: by SSH, emulated, or else a process of this machine."""
    if ssh and emulator:
        raise ParameterError("device add: found --ssh and --emulator; allowed: one of them")
    reach = "ssh" if ssh else "emulator" if emulator else "local"
    device = BoardEntry(name, kind, reach, ssh or "", target or "", python or "")
    find_target(device.target_name)
    path = _table(devices)
    add_to(path, device)
    report = {"devices": str(path), "name": name, "kind": kind, "reach": reach}
    print_answer(as_json, report, f"{path}: {name}, of kind {kind}, by {reach}; try `burnish device test {name}`")


def list_command(devices: Table = None, pool: Pool = None, key: Key = None, as_json: Json = False) -> None:
    """List the table's boards; of a pool that is served, who holds which, and what each tuner has used."""
    if pool is not None:
        _list_served(pool, key, devices, as_json)
        return
    rows = _devices(_table(devices))
    where = {device.name: f" at {device.address}" if device.address else "" for device in rows}
    lines = [f"{device.name}: {device.kind}, {device.reach}{where[device.name]}" for device in rows]
    print_answer(as_json, {"devices": [_plain(device) for device in rows]}, *lines)


def test(
    names: Annotated[list[str] | None, typer.Argument(help="Which (default: all).", show_default=False)] = None,
    devices: Table = None,
    as_json: Json = False,
) -> None:
    """Run a kernel on each board, check its answer, and time its link. Exit status 1 where one is not well."""
    from burnish.driver.board_test import test_device  # the compiler takes a second to import

    known = _devices(_table(devices))
    strange = set(names or ()) - {device.name for device in known}
    if strange:
        raise ParameterError(f"device test: no device {sorted(strange)[0]!r}; known: {_names(known)}")
    reports = [test_device(device) for device in known if not names or device.name in names]
    if as_json:
        print_json({"devices": [report.plain() for report in reports]})
    for report in reports if not as_json else ():
        if report.problem:
            print(f"{report.name}: {report.problem}")
            continue
        print(
            f"{report.name}: well; {report.machine}, cores: {report.cores}; a product of 32 × 32 takes "
            f"{1e6 * report.seconds:.1f} µs, a question {1e3 * report.round_trip:.2f} ms, uploads "
            f"{report.upload / 1e6:.0f} MB/s"
        )
    if any(report.problem for report in reports):
        raise typer.Exit(1)


def serve(
    devices: Table = None,
    host: Annotated[str, typer.Option(help="The address to listen on; others than the loopback reach a network.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: one that is free.")] = 0,
    key: Key = None,
    heartbeat: Annotated[float, typer.Option(min=1, help="Seconds after which a silent tuner loses its board.")] = 60.0,
    as_json: Json = False,
) -> None:
    """Share the table's boards among tuners, in fair shares, until Ctrl-C or SIGTERM. Tuners need the same key."""
    known = _devices(_table(devices))
    path = _key(key, devices)
    secret = key_of(path, make=True)
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: ended.set())
    with DevicePool(known, heartbeat=heartbeat) as pool:

        def refused(why: str) -> None:
            print(f"burnish: {why}", file=sys.stderr, flush=True)

        with PoolServer(pool, secret, host, port, refused) as server:
            report = {"address": server.address, "key": str(path), "devices": [_plain(d) for d in known]}
            print_answer(as_json, report, f"{server.address}: {len(known)} devices ({_names(known)}); key: {path}")
            sys.stdout.flush()
            while not ended.wait(0.5):
                pass


def _list_served(address: str, key: Path | None, devices: Path | None, as_json: bool) -> None:
    found = RemotePool(address, key_of(_key(key, devices))).status()
    lines, total = [], sum(found["used"].values()) or 1.0
    for row in found["devices"]:
        who = f" by {row['owner']}" if row["owner"] else ""
        why = f" ({row['reason']})" if row["state"] == "lost" else ""
        lines.append(f"{row['name']}: {row['kind']}, {row['state']}{who}, {row['served']} leases{why}")
    lines += [f"{owner}: {seconds:.1f} s of devices, {seconds / total:.0%}" for owner, seconds in found["used"].items()]
    print_answer(as_json, {"pool": address, **found}, *lines)


def _table(given: Path | None) -> Path:
    return given or default_path()


def _key(given: Path | None, devices: Path | None) -> Path:
    return given or _table(devices).with_suffix(".key")


def _devices(path: Path) -> list[Any]:
    """The devices of a table. Raises DeviceError where there is none."""
    if not path.exists():
        raise DeviceError(f"devices: no table '{path}'; make one by `burnish device add`")
    return read(path)


def _names(devices: list[Any]) -> str:
    return ", ".join(device.name for device in devices) or "none"


def _plain(device: Any) -> dict[str, str]:
    return {
        "name": device.name, "kind": device.kind, "reach": device.reach, "address": device.address,
        "target": device.target_name,
    }  # fmt: skip
