"""Kernel planning and compilation: a graph as kernels, the plan before any is made, and each as object code."""
