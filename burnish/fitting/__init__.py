"""Training loop: data, checkpoints, reports; on one device, by a plan on several ranks."""
