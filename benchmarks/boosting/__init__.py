"""Sections of the tree-boosting benchmark: each module measures one thing beside its peers."""
