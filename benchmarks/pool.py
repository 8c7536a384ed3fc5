"""Several tuners share several boards: shares of their time, and every trial recorded once, while a board is killed.

`python -m benchmarks.pool [--seconds 300] [--json FILE]`: three tuners, each a process with a session for this CPU and
one for an ARM CPU, lease four emulated boards from a pool's server: two processes of this machine, and two with an
emulator, whose instructions are their time. Kernels differ, and so does what a trial of each takes. At half time a
board is killed. `share` is a tuner's part of all device seconds, `fair` whether all are within 20 % of a third; `busy`
the part of the time in which boards were leased: where it is small, nobody has to wait, and shares say little.
`recorded` are trials in the records, of which none may be there twice, and none missing that a session has made. Needs
unicorn.
"""

import argparse
import json
import platform
import secrets
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks import layers
from benchmarks.emulated import smaller
from benchmarks.provenance import stored
from burnish.boards.client import RemotePool
from burnish.boards.leasing import Devices
from burnish.boards.pool import DevicePool
from burnish.boards.server import PoolServer
from burnish.boards.table import BoardEntry
from burnish.frontend.onnx import from_onnx
from burnish.graph.passes import optimize
from burnish.machines.target import target
from burnish.tune.evaluate import Evaluator, Fixed
from burnish.tune.evaluate.pooled import PoolRunner
from burnish.tune.records import RecordFile
from burnish.tune.session import Session, Tune
from burnish.tune.strategy import strategy_named
from burnish.tune.tasks import tuning_tasks
from burnish.workers import JobOutcome, ResourceLimits, spawn, wait

ARM = "aarch64-cortex-a53"
KINDS = ("cpu", ARM)
BOARDS = (
    BoardEntry("cpu-1", "cpu"),
    BoardEntry("cpu-2", "cpu"),
    BoardEntry("arm-1", ARM, "emulator"),
    BoardEntry("arm-2", ARM, "emulator"),
)
TUNERS = {"a": "C2", "b": "D2", "c": "C3"}  # and the layer that each tunes, on 9 pixels a side
RULES = {"cpu": Fixed(8, 30e-3), ARM: Fixed(4)}  # so that boards, not builds, are what tuners wait for
FAIR = 0.2  # the largest allowed distance from a fair share, relative to it
GRACE = 240.0  # seconds that tuners may take beyond their time, to begin and to end


@dataclass(frozen=True)
class Made:
    """Summary of one tuning session: trials, requeued trials, and the reasons why boards were lost during one."""

    kind: str
    trials: int
    outcomes: dict[str, int]
    recorded: int
    twice: int
    lost: list[str]


def tuned(address: str, key: bytes, owner: str, kind: str, seconds: float, records: str, seed: int) -> Made:
    """One session on boards of a kind."""
    machine = target(kind)
    graph = from_onnx(layers.model(smaller(layers.LAYERS[TUNERS[owner]], 9)))
    tasks = tuning_tasks(optimize(graph, False), machine, False)
    strategy = replace(strategy_named("random"), rule=RULES[kind])
    devices = Devices(RemotePool(address, key), kind, owner)
    store = RecordFile(records)
    with Evaluator(machine, workers=1, threads=1, run_limit=30.0, devices=devices) as evaluator:
        options = Tune(seconds=seconds, min_gain=0, strategy="random", seed=seed, cold=False)
        session = Session(tasks, store, evaluator, options, strategy=strategy)
        session.run()
        runner = evaluator._runner
        assert isinstance(runner, PoolRunner)
        lost = list(runner.lost)
    found = [record for record in RecordFile(records).all() if not record.won]
    names = {(r.key, r.template, json.dumps(r.choice, sort_keys=True)) for r in found}
    outcomes = {o: sum(r.outcome == o for r in found) for o in {r.outcome for r in found}}
    return Made(kind, session.trials, outcomes, len(found), len(found) - len(names), lost)


def tuner(address: str, key: bytes, owner: str, seconds: float, folder: str, seed: int) -> list[dict[str, object]]:
    """A tuner: a session for each kind, at the same time; see Made."""
    found: list[dict[str, object]] = []

    def run(kind: str) -> None:
        found.append(asdict(tuned(address, key, owner, kind, seconds, f"{folder}/{owner}-{kind}.jsonl", seed)))

    threads = [threading.Thread(target=run, args=(kind,)) for kind in KINDS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def measure(seconds: float, kill: bool) -> dict[str, object]:
    """Runs it; the report as JSON holds it."""
    key = secrets.token_bytes(32)
    with tempfile.TemporaryDirectory() as folder, DevicePool(BOARDS) as pool, PoolServer(pool, key) as server:
        workers = {spawn(): owner for owner in TUNERS}
        for seed, (worker, owner) in enumerate(workers.items()):
            limits = ResourceLimits(seconds + GRACE)
            worker.submit(tuner, (server.address, key, owner, seconds, folder, seed), limits)
        began = ended = time.monotonic()
        killed = not kill
        outcomes: dict[str, JobOutcome] = {}
        seen: list[dict[str, float]] = []  # seconds of boards by tuner, about each second, while all of them want some
        while len(outcomes) < len(workers):
            waiting = [worker for worker, owner in workers.items() if owner not in outcomes]
            for worker, event in wait(waiting, 1.0):
                if isinstance(event, JobOutcome):
                    outcomes[workers[worker]] = event
            used = pool.used()
            if len(used) < len(TUNERS) or not all(used.values()):
                began = time.monotonic()
            elif time.monotonic() - began <= 0.9 * seconds:
                seen.append(used)
                ended = time.monotonic()
            if not killed and time.monotonic() - began > seconds / 2:
                killed = _kill(pool)
        for worker in workers:
            worker.end()
        status = pool.status()
    made = {owner: outcome.value if outcome.kind == "ok" else outcome.detail for owner, outcome in outcomes.items()}
    during = {owner: seen[-1][owner] - seen[0][owner] if seen else 0.0 for owner in TUNERS}
    total = sum(during.values()) or 1.0
    parts = {owner: each / total for owner, each in during.items()}
    sessions = [Made(**each) for found in made.values() if isinstance(found, list) for each in found]
    return {
        "cpu": platform.processor() or platform.machine(), "seconds": seconds, "share": parts,
        "fair": all(abs(part * len(TUNERS) - 1) <= FAIR for part in parts.values()),
        "measured_seconds": ended - began, "busy": total / (len(BOARDS) * max(1.0, ended - began)), "killed": kill,
        "sessions": made,
        "once": len(sessions) == len(TUNERS) * len(KINDS)
        and all(each.recorded == each.trials and not each.twice for each in sessions),
        "requeued": sum(len(each.lost) for each in sessions),
        "boards": {str(row["name"]): {"leases": row["served"], "lost": row["reason"]} for row in status},
    }  # fmt: skip


def _kill(pool: DevicePool) -> bool:
    """Ends the worker of a board that is at work; whether there was one."""
    for slot in pool._slots:
        lease, board = slot.lease, slot.board
        if lease is not None and lease.asking and board is not None:
            board.close()
            return True
    return False


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.pool", description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0, help="that tuners tune")
    parser.add_argument("--no-kill", action="store_true", help="no board is killed at half time")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report to a file")
    arguments = parser.parse_args()
    np.seterr(all="ignore")
    report = measure(arguments.seconds, not arguments.no_kill)
    text = stored(report, indent=2)
    if arguments.json:
        arguments.json.write_text(text + "\n", encoding="utf-8")
    print(text)
    return int(not (report["fair"] and report["once"]))


if __name__ == "__main__":
    sys.exit(main())
