"""Worker processes with limits: jobs are functions by name with plain arguments, never pickled; success, error, crash
and timeout of a job are values. Workers come from a warm fork server or are new interpreters.
"""

from burnish.workers.forkserver import ForkServer
from burnish.workers.limits import ResourceLimits
from burnish.workers.outcome import Failure, JobOutcome, JobProgress
from burnish.workers.pool import Job, WorkerPool
from burnish.workers.restarting import RestartingWorker
from burnish.workers.serving import serve, tell
from burnish.workers.worker import Worker, spawn, wait

__all__ = [
    "Failure",
    "ForkServer",
    "Job",
    "JobOutcome",
    "JobProgress",
    "ResourceLimits",
    "RestartingWorker",
    "Worker",
    "WorkerPool",
    "serve",
    "spawn",
    "tell",
    "wait",
]  # fmt: skip
