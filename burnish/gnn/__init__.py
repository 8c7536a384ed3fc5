"""Graph neural networks on whole graphs: graphs, their partitions, layers and training (ROC, Jia 2020, chapter 4)."""

from burnish.base import lazy as _lazy

__getattr__, __dir__, __all__ = _lazy.public_names(__name__, __file__)
