"""Learning which schedules are fast: spaces of candidates, what cost models see of them, the search."""
