"""Gradients of objectives as kernels, pairs of documents, and sums that do not depend on how rows are shared out."""
