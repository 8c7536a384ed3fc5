"""Features of candidates for cost models: computed for many at once, without making their programs."""

from burnish.tune.features.invariant import EDITION, INVARIANT
from burnish.tune.features.representation import REPRESENTATIONS, Representation, extract, names, plausible, sequence

__all__ = ["EDITION", "INVARIANT", "REPRESENTATIONS", "Representation", "extract", "names", "plausible", "sequence"]
