"""Tree boosting (thesis-chen ch. 2): regularised second-order boosting with exact, approximate and histogram search."""

from burnish.base import lazy as _lazy

__getattr__, __dir__, __all__ = _lazy.public_names(__name__, __file__)
