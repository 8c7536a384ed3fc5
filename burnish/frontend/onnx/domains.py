"""Operator domains: how an operator of another domain than the default one is called, ``domain.Operator``."""

from __future__ import annotations

DEFAULT = ("", "ai.onnx")
NEWEST = 1 << 20  # the version of a domain that a model uses without importing it: the newest there is


def key_of(domain: str, op_type: str) -> str:
    """The name of an operator in messages and tables."""
    return op_type if domain in DEFAULT else f"{domain}.{op_type}"


def split_key(key: str) -> tuple[str, str]:
    """The domain and the operator of a name that :func:`key_of` gave."""
    domain, _, op_type = key.rpartition(".")
    return domain, op_type
