"""Communication between workers: one protocol on NumPy arrays, for threads, processes, torch.distributed and Ray."""

from burnish.comm.local import launch, thread_comms
from burnish.comm.protocol import Comm
from burnish.errors import WorkerError

__all__ = ["Comm", "WorkerError", "launch", "thread_comms"]
