"""Training and inference of graph networks: whole, in blocks, sampled, on workers."""
