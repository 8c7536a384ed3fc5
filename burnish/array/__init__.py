"""Declarative symbols and imperative arrays, on one registry of operators and one compiler (Chen, thesis §3.1)."""

from burnish.array import nd as nd
from burnish.array import sym as sym
