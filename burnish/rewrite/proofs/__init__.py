"""Proofs of substitutions from axioms, and the checker that replays them."""
