"""Blocks on disk (§2.3.3): how they are made, stored, read ahead and passed over."""
