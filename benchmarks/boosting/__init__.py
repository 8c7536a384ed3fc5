"""Sections of the tree-boosting benchmark: each module measures one thing against its peers."""
