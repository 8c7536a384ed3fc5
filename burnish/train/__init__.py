"""Training: losses, optimizers, the graph of one step, whose parameters are its states, and the loop over data."""
