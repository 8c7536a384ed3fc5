"""What a cost model sees of candidates: numbers computed for many of them at once, without making their programs."""

from burnish.tune.features.representation import REPRESENTATIONS, Representation, extract, names, plausible, sequence

__all__ = ["REPRESENTATIONS", "Representation", "extract", "names", "plausible", "sequence"]
