"""Ground floor: files, caches, numba's compilation, optional packages, checks of arguments, a pool of threads."""
