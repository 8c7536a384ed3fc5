"""Generation of substitutions: terms enumerated, compared in a finite field, pruned, generalized, selected."""
