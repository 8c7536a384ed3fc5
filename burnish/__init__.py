"""Burnish: an optimizing compiler for machine-learning models. Importing it is cheap: names load on first use."""

from burnish.base import lazy as _lazy

__version__ = "0.2.0"
__getattr__, __dir__, __all__ = _lazy.public_names(__name__, __file__)
