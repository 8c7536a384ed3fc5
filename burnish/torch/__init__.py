"""PyTorch: the backend of ``torch.compile(net, backend="burnish")``, what became of its graphs, checkpointing plans."""

from __future__ import annotations

from burnish.torch.checkpointing import CheckpointPlan, checkpoint_plan
from burnish.torch.dynamo import backend
from burnish.torch.report import BackendReport, GraphReport, PartReport, report

__all__ = [
    "BackendReport",
    "CheckpointPlan",
    "GraphReport",
    "PartReport",
    "backend",
    "checkpoint_plan",
    "register",
    "report",
]  # fmt: skip


def __dir__() -> list[str]:
    return sorted(__all__)


def register() -> None:
    """Makes ``backend="burnish"`` known to torch where Burnish is not installed but only on the path."""
    from torch._dynamo import list_backends, register_backend

    if "burnish" not in list_backends(exclude_tags=()):
        register_backend(backend, name="burnish")
