"""Serving: compiled models behind the open inference protocol (KServe v2, REST)."""

from burnish.base import lazy as _lazy

__getattr__, __dir__, __all__ = _lazy.public_names(__name__, __file__)
