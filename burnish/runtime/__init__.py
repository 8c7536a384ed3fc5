"""Runtime: load, link and call compiled modules, their states, CUDA."""
