"""PyTorch: the backend of ``torch.compile(net, backend="burnish")``, and what became of its graphs."""

from __future__ import annotations

from burnish.driver.torch.backend import backend
from burnish.driver.torch.report import GraphReport, PartReport, Report, report

__all__ = ["GraphReport", "PartReport", "Report", "backend", "register", "report"]


def register() -> None:
    """Makes ``backend="burnish"`` known to torch where Burnish is not installed but only on the path."""
    from torch._dynamo import list_backends, register_backend

    if "burnish" not in list_backends(exclude_tags=()):
        register_backend(backend, name="burnish")
