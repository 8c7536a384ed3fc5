"""Tools for people who work on Burnish."""
