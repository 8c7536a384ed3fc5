"""Training: losses, optimizers, and the graph of one step, which updates parameters that are its states."""
