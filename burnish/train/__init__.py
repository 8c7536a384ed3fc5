"""Training: losses, optimizers, the graph of one step, whose parameters are its states, and the loop over data."""

from burnish.base import lazy as _lazy

__getattr__, __dir__, __all__ = _lazy.public_names(__name__, __file__)
