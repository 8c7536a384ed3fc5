"""Language of substitutions and axioms: sizes, terms, their words and types."""
