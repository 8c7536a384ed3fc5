"""Machines as packages: what a kind of processor is, can do, and how code for it is written.

A package holds its cores as data (widths, declared rates, names of targets), the names of its instruction sets, its
tensor intrinsics (meaning and code together), its scopes, and its dialect of generated code. ``known.py`` lists those
that Burnish ships; one from outside is passed with its target (``target.using``), and no file changes.
"""
